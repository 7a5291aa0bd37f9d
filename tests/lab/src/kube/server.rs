//! One control plane's API server: a listener that comes and goes with its node, where requests are counted, held and
//! troubled; and behind it who answers.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{DATE, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use jiff::SignedDuration;
use rustls::ServerConfig;
use talos_proto::clock::Clock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::authz::User;
use super::route::{Asked, Route};
use super::simulated::{Simulated, respond_failure};
use super::status::Failure;
use crate::faults::{Fate, Faults, When};
use crate::net::{self, Body, KUBE_PORT, Peer};
use crate::real::forward::Forward;
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
    /// The requests of the lab.
    pub log: Arc<Log>,
    /// The crash points of the lab.
    pub faults: Arc<Faults>,
    /// The clock of the lab.
    pub clock: Clock,
}

/// Who answers behind a listener.
pub enum Behind {
    /// The lab itself.
    Simulated(Arc<Simulated>),
    /// A kube-apiserver.
    Real(Box<Forward>),
}

/// What became of a request.
pub enum Answered {
    /// It was answered.
    Known(Response<Body>),
    /// It was answered that the lab does not know it.
    Unexpected(Response<Body>),
    /// Whoever should have answered is gone: the connection is closed.
    Cut,
}

/// The API server of one control plane.
pub struct ApiServer {
    node: String,
    address: Ipv4Addr,
    tls: Arc<ServerConfig>,
    behind: Behind,
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
    /// A firewall before it lets only this address in.
    only_from: Option<Ipv4Addr>,
    trouble: Trouble,
    /// How far the clock of its node is off.
    clock_offset: SignedDuration,
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
        behind: Behind,
        shared: Arc<Shared>,
        runtime: Handle,
    ) -> Arc<Self> {
        let (running, listening) = (Mutex::default(), watch::Sender::new(false));
        Arc::new(Self { node: node.to_owned(), address, tls, behind, shared, runtime, running, listening })
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

    /// Lets nobody in but what connects from that address, or everybody again. Who is kept out finds its connection
    /// closed without an answer.
    pub fn only_from(&self, address: Option<Ipv4Addr>) {
        self.running().only_from = address;
    }

    /// Gives it trouble, from the next request on.
    pub fn trouble(&self, trouble: Trouble) {
        self.running().trouble = trouble;
    }

    /// The clock of its node is off by that much: the header `Date` of its answers tells.
    pub fn set_clock_offset(&self, offset: SignedDuration) {
        self.running().clock_offset = offset;
    }

    /// `Date`, where the clock of its node is off; else whoever serves sets it.
    fn date(&self) -> Option<HeaderValue> {
        let offset = self.running().clock_offset;
        if offset.is_zero() {
            return None;
        }
        let now = self.shared.clock.utc().checked_add(offset).ok()?;
        let text = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).ok()?;
        HeaderValue::from_str(&text).ok()
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
        let mut response = self.respond(peer, request).await;
        if let Some(date) = self.date() {
            response.headers_mut().insert(DATE, date);
        }
        response
    }

    async fn respond(&self, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let asked = Asked::new(&head.method, &head.uri);
        let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let (trouble, only_from) = {
            let running = self.running();
            (running.trouble, running.only_from)
        };
        if only_from.is_some_and(|only| peer.address != only) {
            return cut(&peer).await;
        }
        match trouble {
            Trouble::Hang => std::future::pending().await,
            Trouble::Slow(delay) => self.shared.clock.sleep(delay).await,
            Trouble::None | Trouble::Fail(_) => {}
        }
        // A client that went away in the middle of its body has sent no request.
        let Ok(body) = body.collect().await else { return cut(&peer).await };
        let body = body.to_bytes();

        let user = User::from_certificate(peer.certificate.as_ref());
        let failure = match (trouble, &self.behind) {
            (Trouble::Fail(code), _) if !matches!(asked.route, Route::Health { .. }) => Some(Failure::injected(code)),
            (_, Behind::Simulated(simulated)) => {
                simulated.refuse(&user, &asked, head.headers.contains_key(http::header::AUTHORIZATION))
            }
            // The real one decides itself.
            (_, Behind::Real(_)) => None,
        };
        if let Some(failure) = failure {
            self.shared.log.note_of(&user.name, &self.name(), &asked.label(), &target, asked.mutating());
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
        let method = head.method.clone();
        let answered = match &self.behind {
            Behind::Simulated(simulated) => simulated.answer(&user, &asked, &head, &body),
            Behind::Real(forward) => forward.answer(&user, head, body).await,
        };
        match &answered {
            Answered::Unexpected(_) => {
                let path = target.split('?').next().unwrap_or_default();
                self.shared.log.unexpected(&self.name(), &format!("{method} {path}"), &target);
            }
            other => {
                let (log, mutating) = (&self.shared.log, asked.mutating());
                let seq = log.note_of(&user.name, &self.name(), &asked.label(), &target, mutating);
                let done = matches!(other, Answered::Known(response) if response.status().is_success());
                if mutating && done && !asked.dry_run() {
                    log.landed(seq);
                }
            }
        }
        if let Some(mutation) = &mutation
            && self.shared.faults.gate(mutation, When::After).await == Fate::Cut
        {
            return cut(&peer).await;
        }
        match answered {
            Answered::Known(response) | Answered::Unexpected(response) => response,
            Answered::Cut => cut(&peer).await,
        }
    }
}

/// Closes the connection; nothing is ever answered on it.
async fn cut(peer: &Peer) -> Response<Body> {
    peer.connection.cancel();
    std::future::pending().await
}
