//! COSI state: Get, List and Watch of typed resources.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use tonic::{Code, Status, Streaming};

use crate::error::{CallError, Why};
use crate::node::{Kind, MAX_MESSAGE, Node, READ_TIMEOUT, Service, timed};
use crate::proto::cosi::resource::state_client::StateClient;
use crate::proto::cosi::resource::{
    self as cosi, EventType, GetRequest, ListRequest, WatchOptions, WatchRequest, WatchResponse,
};
use crate::resources::{Resource, Typed};

/// One change that a [`Watch`] saw.
#[derive(Clone, Debug)]
pub enum Change<S> {
    /// There is such a resource, as the watch began or after a change.
    Present(Typed<S>),
    /// There is none with that id, as the watch began or after a change.
    Absent {
        /// Its id.
        id: String,
    },
    /// A watch of a type has said all that was there when it began; what follows are changes.
    Bootstrapped,
}

/// A watch of one resource of one node. State is in memory on the node: a reboot ends every watch.
pub struct Watch<R: Resource> {
    node: Node,
    call: String,
    stream: Streaming<WatchResponse>,
    ready: VecDeque<cosi::Event>,
    resource: PhantomData<R>,
}

impl Node {
    /// One resource, `None` when there is none with that id.
    ///
    /// # Errors
    /// Any [`CallError`]; [`Why::NotSupported`] when this Talos does not know the type, [`Why::NotAuthorized`] when the
    /// roles do not allow to read it.
    pub async fn get<R: Resource>(&self, id: &str) -> Result<Option<Typed<R::Spec>>, CallError> {
        let call = format!("{}/{id}", R::TYPE);
        let answer = self
            .call(Kind::read(&call), |service, limit| async move {
                let request =
                    GetRequest { namespace: R::NAMESPACE.into(), r#type: R::TYPE.into(), id: id.into(), options: None };
                match state(service).get(timed(request, limit)).await {
                    Ok(reply) => Ok(reply.into_inner().resource),
                    Err(status) if status.code() == Code::NotFound => Ok(None),
                    Err(status) => Err(status),
                }
            })
            .await?;
        answer.map(|resource| R::decode(resource).map_err(|problem| self.nonsense(&call, problem))).transpose()
    }

    /// All resources of a type.
    ///
    /// # Errors
    /// As [`Node::get`].
    pub async fn list<R: Resource>(&self) -> Result<Vec<Typed<R::Spec>>, CallError> {
        let answer = self
            .call(Kind::read(R::TYPE), |service, limit| async move {
                let request = ListRequest { namespace: R::NAMESPACE.into(), r#type: R::TYPE.into(), options: None };
                let mut stream = state(service).list(timed(request, limit)).await?.into_inner();
                let mut resources = Vec::new();
                while let Some(reply) = stream.message().await? {
                    resources.extend(reply.resource);
                }
                Ok(resources)
            })
            .await?;
        answer
            .into_iter()
            .map(|resource| R::decode(resource).map_err(|problem| self.nonsense(R::TYPE, problem)))
            .collect()
    }

    /// Watches one resource, or all of a type when `id` is `None`. The first changes say what is there now.
    ///
    /// # Errors
    /// As [`Node::get`]; a watch that breaks later ends with an error from [`Watch::next`].
    pub async fn watch<R: Resource>(&self, id: Option<&str>) -> Result<Watch<R>, CallError> {
        let call = format!("watch of {}{}", R::TYPE, id.map(|id| format!("/{id}")).unwrap_or_default());
        let stream = self
            .call(Kind::read(&call), |service, _| async move {
                let request = WatchRequest {
                    namespace: R::NAMESPACE.into(),
                    r#type: R::TYPE.into(),
                    id: id.map(Into::into),
                    // A single-id watch says what is there by itself and refuses the option (talos.md, COSI State).
                    options: Some(WatchOptions { bootstrap_contents: id.is_none(), ..Default::default() }),
                    api_version: 1,
                };
                // No grpc-timeout: a watch may be silent for long.
                let mut stream = state(service).watch(request).await?.into_inner();
                // A single-id watch begins with an empty response: from here on nothing is missed.
                let first = if id.is_some() { stream.message().await? } else { None };
                Ok((stream, first))
            })
            .await?;
        let (stream, first) = stream;
        let ready = first.into_iter().flat_map(|reply| reply.event).collect();
        Ok(Watch { node: self.clone(), call, stream, ready, resource: PhantomData })
    }
}

impl<R: Resource> Watch<R> {
    /// The next change, waiting for it at most `limit`; `None` when nothing changed in that time.
    ///
    /// # Errors
    /// Any [`CallError`] when the watch ended: by the node's shutdown, a broken connection, or an ERRORED event.
    pub async fn next(&mut self, limit: Duration) -> Result<Option<Change<R::Spec>>, CallError> {
        let clock = self.node.talos().clock().clone();
        let answer = clock.timeout(limit, self.pull()).await;
        answer.map_or(Ok(None), |change| change.map(Some))
    }

    async fn pull(&mut self) -> Result<Change<R::Spec>, CallError> {
        loop {
            while let Some(event) = self.ready.pop_front() {
                match event.event_type() {
                    EventType::Created | EventType::Updated => {
                        let resource = event.resource.unwrap_or_default();
                        let typed = R::decode(resource).map_err(|problem| self.node.nonsense(&self.call, problem))?;
                        return Ok(Change::Present(typed));
                    }
                    EventType::Destroyed => {
                        let id = event.resource.and_then(|resource| resource.metadata).unwrap_or_default().id;
                        return Ok(Change::Absent { id });
                    }
                    EventType::Bootstrapped => return Ok(Change::Bootstrapped),
                    EventType::Errored => return Err(self.ended(&Status::aborted("the watch ended with an error"))),
                    EventType::Noop => {}
                }
            }
            match self.stream.message().await {
                Ok(Some(reply)) => self.ready.extend(reply.event),
                Ok(None) => return Err(self.ended(&Status::unavailable("the watch ended"))),
                Err(status) => return Err(self.ended(&status)),
            }
        }
    }

    fn ended(&self, status: &Status) -> CallError {
        self.node.error(&self.call, Why::of(status, READ_TIMEOUT, false))
    }
}

fn state(service: Service) -> StateClient<Service> {
    StateClient::new(service).max_decoding_message_size(MAX_MESSAGE)
}
