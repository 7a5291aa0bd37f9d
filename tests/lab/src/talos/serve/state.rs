//! cosi.resource.State, read side.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt as _};
use talos_proto::clock::Clock;
use talos_proto::proto::cosi::resource::state_server::State as StateService;
use talos_proto::proto::cosi::resource::{
    Event, EventType, GetRequest, GetResponse, ListRequest, ListResponse, WatchRequest, WatchResponse,
};
use tokio::sync::mpsc;
use tonic::{Extensions, Request, Response, Status};

use super::access::{Caller, NOT_AUTHORIZED};
use super::{DEADLINE, Deadline, GOING_DOWN};
use crate::talos::cosi::Kind;
use crate::talos::node::Node;

pub(super) struct State(pub Arc<Node>);

impl State {
    /// The access policy, in the order of real Talos: type, role, namespace (talos.md 1.6; read.jsonl).
    fn kind(&self, extensions: &Extensions, namespace: &str, name: &str) -> Result<&'static Kind, Status> {
        let Some(kind) = Kind::find(name, self.0.version()) else {
            return Err(Status::permission_denied(format!("resource type {name:?} is not supported")));
        };
        let is_admin = extensions.get::<Caller>().is_some_and(Caller::is_admin);
        if kind.is_sensitive(self.0.version()) && !is_admin {
            return Err(Status::permission_denied(NOT_AUTHORIZED));
        }
        if !Kind::is_namespace(namespace) {
            return Err(Status::permission_denied(format!("namespace {namespace:?} is not supported")));
        }
        Ok(kind)
    }
}

fn not_simulated(option: &str) -> Status {
    Status::unimplemented(format!("the lab does not know {option}"))
}

#[tonic::async_trait]
impl StateService for State {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let kind = self.kind(&extensions, &request.namespace, &request.r#type)?;
        let state = self.0.state();
        let resource = state.boot.store.get(kind, &request.id).filter(|_| kind.namespace == request.namespace);
        match resource {
            Some(resource) => Ok(Response::new(GetResponse { resource: Some(resource.clone()) })),
            None => Err(Status::not_found(format!(
                "resource {}({}/{}@undefined) doesn't exist",
                request.r#type, request.namespace, request.id
            ))),
        }
    }

    type ListStream = BoxStream<'static, Result<ListResponse, Status>>;

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let (_, extensions, request) = request.into_parts();
        let kind = self.kind(&extensions, &request.namespace, &request.r#type)?;
        if request.options.is_some_and(|options| options.id_query.is_some() || !options.label_query.is_empty()) {
            return Err(not_simulated("queries"));
        }
        let resources = match request.namespace == kind.namespace {
            true => self.0.state().boot.store.list(kind),
            false => Vec::new(),
        };
        let replies = resources.into_iter().map(|resource| Ok(ListResponse { resource: Some(resource) }));
        Ok(Response::new(stream::iter(replies.collect::<Vec<_>>()).boxed()))
    }

    type WatchStream = BoxStream<'static, Result<WatchResponse, Status>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (_, extensions, request) = request.into_parts();
        let kind = self.kind(&extensions, &request.namespace, &request.r#type)?;
        let options = request.options.unwrap_or_default();
        if options.tail_events != 0 || options.start_from_bookmark.is_some() || options.id_query.is_some() {
            return Err(not_simulated("this watch option"));
        }
        if request.id.is_some() && options.bootstrap_contents {
            return Err(Status::unimplemented("bootstrap contents are not supported for a watch of one resource"));
        }
        let mut watching = {
            let mut state = self.0.state();
            let now = self.0.now(&state);
            match &request.id {
                Some(id) => state.boot.store.watch_id(now, kind, id),
                None => state.boot.store.watch_kind(now, kind, options.bootstrap_contents),
            }
        };
        if request.api_version < 1 {
            watching.first.retain(|event| event.event_type() != EventType::Bootstrapped);
        }
        // An empty message says that the watch is on.
        let ready = stream::iter([WatchResponse::default()]);
        let first = stream::iter(watching.first).map(response);
        let deadline = extensions.get::<Deadline>().copied();
        let then = changes(watching.then, self.0.fleet.clock.clone(), deadline);
        Ok(Response::new(ready.chain(first).map(Ok).chain(then).boxed()))
    }
}

fn response(event: Event) -> WatchResponse {
    WatchResponse { event: vec![event] }
}

/// Changes until the boot ends or the caller's deadline does, with the status of either.
fn changes(
    events: mpsc::UnboundedReceiver<Event>,
    clock: Clock,
    deadline: Option<Deadline>,
) -> impl futures::Stream<Item = Result<WatchResponse, Status>> + Send + 'static {
    stream::unfold(Some(events), move |events| {
        let clock = clock.clone();
        async move {
            let mut events = events?;
            let end = async {
                match deadline {
                    Some(Deadline(moment)) => clock.sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = events.recv() => Some(match event {
                    Some(event) => (Ok(response(event)), Some(events)),
                    None => (Err(Status::unavailable(GOING_DOWN)), None),
                }),
                () = end => Some((Err(Status::deadline_exceeded(DEADLINE)), None)),
            }
        }
    })
}
