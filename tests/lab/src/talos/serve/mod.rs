//! The machine API of a node: who may ask, which node is meant, and the answer.

mod access;
mod fan_out;
mod image;
mod machine;
mod pull;
mod route;
mod state;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use prost::Message as _;
use talos_proto::clock::Moment;
use talos_proto::proto::cosi::resource::state_server::StateServer;
use talos_proto::proto::cosi::resource::{GetRequest, ListRequest, WatchRequest};
use talos_proto::proto::machine::image_service_server::ImageServiceServer;
use talos_proto::proto::machine::machine_service_server::MachineServiceServer;
use tonic::Status;
use tonic::codegen::Service as _;

use crate::faults::{Fate, When};
use crate::net::{Body, Peer};
use access::{Caller, Method};
use route::Target;

use super::node::Node;

/// 32 MiB both ways (talos.md 2.1).
const MAX_MESSAGE: usize = 32 << 20;

/// When the caller's patience ends, by its `grpc-timeout`.
#[derive(Clone, Copy)]
struct Deadline(Moment);

/// Answers one request that entered at `node`.
pub(crate) async fn answer(node: Arc<Node>, peer: Peer, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    // A client that went away in the middle of its body has sent no request.
    let Ok(body) = body.collect().await else { return cut(&peer).await };
    let Some(caller) = peer.certificate.as_ref().and_then(Caller::from_certificate) else { return cut(&peer).await };
    let call = Call { path: head.uri.path().to_owned(), headers: head.headers, body: body.to_bytes(), caller };
    let log = &node.fleet.log;

    let target = route::route(&node, &call);
    let about = call.about(target.as_ref().ok());
    let method = match Method::find(&call.path, node.version()) {
        Ok(method) => method,
        Err(unknown) => {
            log.unexpected(&node.server_name(), &call.path, &about);
            return respond(unknown.into_http());
        }
    };
    let noted = log.note_of(&call.caller.name, &node.server_name(), &call.path, &about, method.write);
    let target = match target {
        Ok(target) => target,
        Err(refused) => return respond(refused.into_http()),
    };

    let mutation = (method.write && call.caller.may(method))
        .then(|| node.fleet.faults.number(format!("{} {} {about}", node.server_name(), method.name)));
    if let Some(mutation) = &mutation
        && node.fleet.faults.gate(mutation, When::Before).await == Fate::Cut
    {
        return cut(&peer).await;
    }
    if let Target::One(target) = &target
        && let Some(refused) = backs_off(&node, target)
    {
        return respond(refused.into_http());
    }
    let loses_reply = |target: &Arc<Node>| target.loses_reply(method.name);
    let (response, lost) = match target {
        Target::One(target) => (perform(&target, method, &call).await, loses_reply(&target)),
        Target::Many(targets) => (fan_out::perform(&node, &targets, method, &call).await, false),
    };
    let refused = Status::from_header_map(response.headers()).is_some_and(|status| status.code() != tonic::Code::Ok);
    if method.write && !refused {
        log.landed(noted);
    }
    if let Some(mutation) = &mutation
        && node.fleet.faults.gate(mutation, When::After).await == Fate::Cut
    {
        return cut(&peer).await;
    }
    if lost {
        return cut(&peer).await;
    }
    respond(response)
}

/// The refusal of a proxy that could not reach its target lately and does not try again yet, or cannot now.
fn backs_off(node: &Arc<Node>, target: &Arc<Node>) -> Option<Status> {
    let (from, to) = (node.address(), target.address());
    if from == to {
        return None;
    }
    let (back_off, now) = (&node.fleet.back_off, node.fleet.clock.now());
    if !target.is_up() {
        back_off.failed(from, to, now);
    }
    back_off.lasts(from, to, now).then(|| route::unreachable(to, "connect: connection refused"))
}

/// A request, read whole: all of Talos's requests here are single messages.
struct Call {
    path: String,
    headers: HeaderMap,
    body: Bytes,
    caller: Caller,
}

impl Call {
    /// For the log: the node that is meant, and the resource.
    fn about(&self, target: Option<&Target>) -> String {
        let node = match target {
            Some(Target::One(node)) => node.name().to_owned(),
            Some(Target::Many(names)) => names.join(","),
            None => "?".to_owned(),
        };
        // Behind the five bytes of the frame's head.
        let message = self.body.get(5..).unwrap_or_default();
        let resource = match self.path.as_str() {
            "/cosi.resource.State/Get" => GetRequest::decode(message).map(|get| format!(" {}/{}", get.r#type, get.id)),
            "/cosi.resource.State/List" => ListRequest::decode(message).map(|list| format!(" {}", list.r#type)),
            "/cosi.resource.State/Watch" => WatchRequest::decode(message)
                .map(|watch| format!(" {}/{}", watch.r#type, watch.id.as_deref().unwrap_or("*"))),
            _ => return node,
        };
        node + &resource.unwrap_or_default()
    }

    /// How long the caller waits: digits and a unit.
    fn timeout(&self) -> Option<Duration> {
        let text = self.headers.get("grpc-timeout")?.to_str().ok()?;
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let number: u64 = digits.parse().ok()?;
        Some(match unit {
            "H" => Duration::from_secs(number.saturating_mul(3600)),
            "M" => Duration::from_secs(number.saturating_mul(60)),
            "S" => Duration::from_secs(number),
            "m" => Duration::from_millis(number),
            "u" => Duration::from_micros(number),
            "n" => Duration::from_nanos(number),
            _ => return None,
        })
    }
}

/// Lets one node answer, directly or behind the proxy.
async fn perform(node: &Arc<Node>, method: &Method, call: &Call) -> Response<tonic::body::Body> {
    let life = {
        let state = node.state();
        if !state.boot.serving || state.faults.apid_cut_off {
            // Of a host that is gone nothing comes back (talos-captures point 24; etcd.jsonl).
            let why = if state.faults.off || state.faults.apid_cut_off {
                "i/o timeout"
            } else {
                "connect: connection refused"
            };
            drop(state);
            return route::unreachable(node.address(), why).into_http();
        }
        state.boot.apid.clone()
    };
    if !call.caller.may(method) {
        return Status::permission_denied(access::NOT_AUTHORIZED).into_http();
    }
    let mut request = Request::new(tonic::body::Body::new(Full::new(call.body.clone())));
    *request.method_mut() = http::Method::POST;
    if let Ok(uri) = call.path.parse() {
        *request.uri_mut() = uri;
    }
    *request.headers_mut() = call.headers.clone();
    request.extensions_mut().insert(call.caller.clone());
    let clock = &node.fleet.clock;
    let timeout = call.timeout();
    if let Some(timeout) = timeout {
        request.extensions_mut().insert(Deadline(clock.now() + timeout));
    }
    let answering = async {
        tokio::select! {
            response = dispatch(node, method, request) => response,
            // Only a caller behind another node's proxy ever reads this.
            () = life.cancelled() => Status::unavailable(GOING_DOWN).into_http(),
        }
    };
    match timeout {
        Some(timeout) => {
            clock.timeout(timeout, answering).await.unwrap_or_else(|_| Status::deadline_exceeded(DEADLINE).into_http())
        }
        None => answering.await,
    }
}

async fn dispatch(
    node: &Arc<Node>,
    method: &Method,
    request: Request<tonic::body::Body>,
) -> Response<tonic::body::Body> {
    let node = Arc::clone(node);
    let answer = match method.service {
        access::MACHINE => {
            let server = MachineServiceServer::new(machine::Machine(node));
            server.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE).call(request).await
        }
        access::IMAGE => ImageServiceServer::new(image::Image(node)).call(request).await,
        _ => {
            let server = StateServer::new(state::State(node));
            server.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE).call(request).await
        }
    };
    match answer {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

const DEADLINE: &str = "context deadline exceeded";
/// What a stream ends with when its node goes down (reboot-full.jsonl).
const GOING_DOWN: &str = "closing transport due to: connection error: desc = \"error reading from server: EOF\", received \
                          prior goaway: code: NO_ERROR, debug data: \"graceful_stop\"";

/// Closes the connection; the caller gets no answer.
async fn cut(peer: &Peer) -> Response<Body> {
    peer.connection.cancel();
    std::future::pending().await
}

fn respond(response: Response<tonic::body::Body>) -> Response<Body> {
    response.map(|body| body.map_err(io::Error::other).boxed_unsync())
}
