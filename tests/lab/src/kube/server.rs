//! One control plane's API server: a listener that comes and goes with its node, over the store that all share.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Incoming};
use rustls::ServerConfig;
use serde_json::{Value, json};
use talos_proto::clock::Clock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::api::{Answer, Refusal, answer};
use super::authz::{Rbac, User};
use super::kind::Kind;
use super::route::{Asked, Route};
use super::status::Failure;
use super::store::Store;
use crate::faults::{Fate, Faults, When};
use crate::net::{self, Body, KUBE_PORT, Peer};
use crate::talos::log::Log;

/// What is wrong with an API server that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Trouble {
    /// Nothing.
    #[default]
    None,
    /// Every request is answered this much later.
    Slow(Duration),
    /// Connections are accepted and no request is ever answered.
    Hang,
    /// Every request but the health endpoints is answered with this code.
    Fail(u16),
}

/// What all API servers of a lab have in common.
pub struct Shared {
    /// The objects.
    pub store: Arc<Store>,
    /// The requests of the lab.
    pub log: Arc<Log>,
    /// The crash points of the lab.
    pub faults: Arc<Faults>,
    /// What clients may do that are no masters.
    pub rbac: Rbac,
    /// The clock of the lab.
    pub clock: Clock,
}

/// The API server of one control plane.
pub struct ApiServer {
    node: String,
    address: Ipv4Addr,
    tls: Arc<ServerConfig>,
    shared: Arc<Shared>,
    runtime: Handle,
    running: Mutex<Running>,
    listening: watch::Sender<bool>,
}

#[derive(Default)]
struct Running {
    /// The node wants it to run.
    wanted: bool,
    /// A test has cut it off although its node runs.
    cut_off: bool,
    trouble: Trouble,
    stop: Option<CancellationToken>,
    /// The task of the latest listener; the next one binds when it has ended.
    task: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// A server that does not run yet.
    #[must_use]
    pub fn new(
        node: &str,
        address: Ipv4Addr,
        tls: Arc<ServerConfig>,
        shared: Arc<Shared>,
        runtime: Handle,
    ) -> Arc<Self> {
        let (running, listening) = (Mutex::default(), watch::Sender::new(false));
        Arc::new(Self { node: node.to_owned(), address, tls, shared, runtime, running, listening })
    }

    /// Its name in the log and in the counters.
    #[must_use]
    pub fn name(&self) -> String {
        format!("kubernetes/{}", self.node)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on.
    pub fn start(self: &Arc<Self>) {
        let mut running = self.running();
        running.wanted = true;
        self.apply(&mut running);
    }

    /// Closes the listener and cuts every connection: the next client is refused.
    pub fn stop(self: &Arc<Self>) {
        let mut running = self.running();
        running.wanted = false;
        self.apply(&mut running);
    }

    /// Whether its listener is open; changes with it.
    #[must_use]
    pub fn listening(&self) -> watch::Receiver<bool> {
        self.listening.subscribe()
    }

    /// Makes it unreachable although its node runs, or reachable again.
    pub fn cut_off(self: &Arc<Self>, cut_off: bool) {
        let mut running = self.running();
        running.cut_off = cut_off;
        self.apply(&mut running);
    }

    /// Gives it trouble, from the next request on.
    pub fn trouble(&self, trouble: Trouble) {
        self.running().trouble = trouble;
    }

    fn apply(self: &Arc<Self>, running: &mut Running) {
        if !running.wanted || running.cut_off {
            if let Some(stop) = running.stop.take() {
                stop.cancel();
            }
        } else if running.stop.is_none() {
            let stop = CancellationToken::new();
            // The address is free only when the listener before is gone.
            let previous = running.task.take();
            running.task = Some(self.runtime.spawn(Arc::clone(self).run(stop.clone(), previous)));
            running.stop = Some(stop);
        }
    }

    async fn run(self: Arc<Self>, stop: CancellationToken, previous: Option<JoinHandle<()>>) {
        if let Some(previous) = previous {
            // It was told to end; how it ended does not matter.
            let _ = previous.await;
        }
        let listener = loop {
            match net::bind(self.address, KUBE_PORT) {
                Ok(listener) => break listener,
                Err(_) if !stop.is_cancelled() => self.shared.clock.sleep(Duration::from_millis(20)).await,
                Err(_) => return,
            }
        };
        let server = Arc::clone(&self);
        let handler = move |peer, request| {
            let server = Arc::clone(&server);
            async move { server.handle(peer, request).await }
        };
        self.listening.send_replace(true);
        net::serve(listener, Arc::clone(&self.tls), stop, handler).await;
        self.listening.send_replace(false);
    }

    async fn handle(&self, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let asked = Asked::new(&head.method, &head.uri);
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content_type = content_type.split(';').next().unwrap_or_default().trim().to_owned();
        let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let trouble = self.running().trouble;
        match trouble {
            Trouble::Hang => std::future::pending().await,
            Trouble::Slow(delay) => self.shared.clock.sleep(delay).await,
            Trouble::None | Trouble::Fail(_) => {}
        }
        // A client that went away in the middle of its body has sent no request.
        let Ok(body) = body.collect().await else { return cut(&peer).await };
        let body = body.to_bytes();

        let user = User::from_certificate(peer.certificate.as_ref());
        let failure = match trouble {
            Trouble::Fail(code) if !matches!(asked.route, Route::Health { .. }) => Some(Failure::injected(code)),
            _ => self.refuse(&user, &asked, head.headers.contains_key(http::header::AUTHORIZATION)),
        };
        if let Some(failure) = failure {
            self.shared.log.note(&self.name(), &asked.label(), &target, asked.mutating());
            return respond_failure(&failure);
        }
        let mutation = asked.mutating().then(|| {
            let path = head.uri.path();
            self.shared.faults.number(format!("{} {} {path}", self.name(), asked.label()))
        });
        if let Some(mutation) = &mutation
            && self.shared.faults.gate(mutation, When::Before).await == Fate::Cut
        {
            return cut(&peer).await;
        }
        let outcome = answer(&self.shared.store, &asked, &content_type, &body);
        match &outcome {
            Err(Refusal::Unexpected) => {
                self.shared.log.unexpected(&self.name(), &format!("{} {}", head.method, head.uri.path()), &target)
            }
            _ => self.shared.log.note(&self.name(), &asked.label(), &target, asked.mutating()),
        };
        if let Some(mutation) = &mutation
            && self.shared.faults.gate(mutation, When::After).await == Fate::Cut
        {
            return cut(&peer).await;
        }
        match outcome {
            Ok(Answer::Json { code, body, warnings }) if asked.route == Route::AccessReview => {
                respond_json(code, &self.review(&user, body), &warnings)
            }
            Ok(Answer::Json { code, body, warnings }) => respond_json(code, &body, &warnings),
            Ok(Answer::Text(text)) => respond(200, "text/plain; charset=utf-8", text.into()),
            Ok(Answer::Watch(watch)) => {
                let events = watch.stream(Arc::clone(&self.shared.store), self.shared.clock.clone());
                let body = StreamBody::new(events.boxed()).boxed_unsync();
                let mut response = Response::new(body);
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Err(Refusal::Failure(failure)) => respond_failure(&failure),
            Err(Refusal::Unexpected) => {
                respond_failure(&Failure::unexpected(&format!("{} {target} ({content_type})", head.method)))
            }
        }
    }

    /// 401 or 403, when the request is not for this user.
    fn refuse(&self, user: &User, asked: &Asked, token: bool) -> Option<Failure> {
        // Tokens are no credential here: whoever sends one instead of a certificate is nobody.
        if token && user.name == "system:anonymous" {
            return Some(Failure::unauthorized());
        }
        let (kind, subresource, namespace, name) = match &asked.route {
            Route::Health { .. } | Route::Version | Route::Unknown => return None,
            Route::AccessReview if user.name != "system:anonymous" => return None,
            Route::AccessReview => return Some(Failure::unauthorized()),
            Route::Collection(kind, namespace) => (*kind, "", namespace.as_str(), ""),
            Route::Object(kind, namespace, name) => (*kind, "", namespace.as_str(), name.as_str()),
            Route::Eviction(namespace, name) => (Kind::Pod, "eviction", namespace.as_str(), name.as_str()),
        };
        let resource =
            if subresource.is_empty() { kind.plural().into() } else { format!("{}/{subresource}", kind.plural()) };
        let allowed = self.shared.rbac.allows(user, asked.verb(), kind.group(), &resource);
        (!allowed).then(|| Failure::forbidden(&user.name, asked.verb(), kind, subresource, namespace, name))
    }

    /// A SelfSubjectAccessReview with its status filled in.
    fn review(&self, user: &User, mut review: Value) -> Value {
        let asked = &review["spec"]["resourceAttributes"];
        let text = |field: &str| asked[field].as_str().unwrap_or_default();
        let subresource = text("subresource");
        let resource = if subresource.is_empty() {
            text("resource").into()
        } else {
            format!("{}/{subresource}", text("resource"))
        };
        let allowed = self.shared.rbac.allows(user, text("verb"), text("group"), &resource);
        review["kind"] = json!("SelfSubjectAccessReview");
        review["apiVersion"] = json!("authorization.k8s.io/v1");
        review["metadata"] = json!({});
        review["status"] = json!({"allowed": allowed});
        review
    }
}

/// Closes the connection; nothing is ever answered on it.
async fn cut(peer: &Peer) -> Response<Body> {
    peer.connection.cancel();
    std::future::pending().await
}

fn respond(code: u16, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn respond_json(code: u16, body: &Value, warnings: &[String]) -> Response<Body> {
    // The real server ends a body with a newline.
    let mut response = respond(code, "application/json", format!("{body}\n").into());
    for warning in warnings {
        if let Ok(value) = HeaderValue::from_str(warning) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

fn respond_failure(failure: &Failure) -> Response<Body> {
    let mut response = respond_json(failure.code, &failure.body(), &[]);
    if let Some(seconds) = failure.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
