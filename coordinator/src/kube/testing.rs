//! An API server in memory: objects with real compare-and-set, JSON patches as the real server applies them, watches,
//! evictions that count disruption budgets, and faults. The answers are those that were recorded from a real one.

mod evict;
mod patch;
mod serve;
mod store;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use talos_proto::clock::{Clock, Moment};

use super::api_servers::ApiServers;
use serve::{Reply, fail};
use store::Store;

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub query: String,
    pub body: Value,
    /// When it came in.
    pub at: Moment,
}

/// What goes wrong with a request.
#[derive(Clone)]
pub enum Fault {
    /// No connection: nothing was sent.
    Refused,
    /// The connection breaks before the request is carried out.
    Reset,
    /// Carried out, then the connection breaks.
    ReplyLost,
    /// Carried out only after this time, whether or not the client still waits.
    Late(Duration),
    /// Carried out at once, answered after this time.
    ReplyLate(Duration),
    /// Answered with this code and body, not carried out.
    Answer(u16, Value),
    /// Somebody else does something first.
    Meanwhile(Arc<dyn Fn(&FakeApi) + Send + Sync>),
}

type Matches = Arc<dyn Fn(&Seen) -> bool + Send + Sync>;

struct Rule {
    matches: Matches,
    fault: Fault,
    times: usize,
}

#[derive(Default)]
struct State {
    store: Store,
    rules: Vec<Rule>,
    log: Vec<Seen>,
}

/// The server; clones share it.
#[derive(Clone)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    pub clock: Clock,
}

impl FakeApi {
    pub fn new() -> Self {
        let utc = "2026-11-30T08:00:00Z".parse().unwrap();
        Self { state: Arc::default(), clock: Clock::paused(utc) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client of this server.
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            // What the server does goes on when the client has stopped waiting.
            let served = tokio::spawn(async move { api.serve(request).await });
            async move { served.await.unwrap() }
        });
        Client::new(service, "default")
    }

    pub fn servers(&self) -> ApiServers {
        ApiServers::single(self.client(), self.clock.clone())
    }

    /// Puts an object there, as somebody else would.
    pub fn put(&self, path: &str, object: Value) {
        self.state().store.insert(path, object);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.state().store.get(path).cloned()
    }

    /// Changes an object, as somebody else would.
    pub fn edit(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        let mut object = state.store.get(path).unwrap().clone();
        change(&mut object);
        state.store.update(path, object);
    }

    pub fn delete(&self, path: &str) {
        self.state().store.remove(path);
    }

    /// The next `times` requests that match go wrong.
    pub fn fault(&self, times: usize, fault: Fault, matches: impl Fn(&Seen) -> bool + Send + Sync + 'static) {
        self.state().rules.push(Rule { matches: Arc::new(matches), fault, times });
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.state().rules.clear();
    }

    /// No connection is made until [`FakeApi::heal`].
    pub fn unreachable(&self) {
        self.fault(usize::MAX, Fault::Refused, |_| true);
        self.state().store.break_watches();
    }

    /// Versions up to now can no longer be watched from; watches that are open end.
    pub fn compact(&self) {
        let mut state = self.state();
        state.store.compact();
        state.store.break_watches();
    }

    pub fn log(&self) -> Vec<Seen> {
        self.state().log.clone()
    }

    /// Requests that change something, that were seen.
    pub fn writes(&self) -> Vec<Seen> {
        self.log().into_iter().filter(|seen| seen.method != Method::GET).collect()
    }

    async fn serve(self, request: Request<Body>) -> Result<Response<Reply>, io::Error> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let seen = Seen {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            at: self.clock.now(),
        };
        let fault = {
            let mut state = self.state();
            let found = state.rules.iter_mut().find(|rule| rule.times > 0 && (rule.matches)(&seen));
            let fault = found.map(|rule| {
                rule.times -= 1;
                rule.fault.clone()
            });
            if !matches!(fault, Some(Fault::Refused)) {
                state.log.push(seen.clone());
            }
            fault
        };
        match fault {
            None => Ok(serve::answer(&self, &seen)),
            Some(Fault::Refused) => Err(io::ErrorKind::ConnectionRefused.into()),
            Some(Fault::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
            Some(Fault::ReplyLost) => {
                serve::answer(&self, &seen);
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Some(Fault::Late(time)) => {
                self.clock.sleep(time).await;
                Ok(serve::answer(&self, &seen))
            }
            Some(Fault::ReplyLate(time)) => {
                let answer = serve::answer(&self, &seen);
                self.clock.sleep(time).await;
                Ok(answer)
            }
            Some(Fault::Answer(code, body)) => Ok(fail(code, &body)),
            Some(Fault::Meanwhile(act)) => {
                act(&self);
                Ok(serve::answer(&self, &seen))
            }
        }
    }
}

/// Permits without a lease: always granted, or always refused.
pub struct Allow {
    pub clock: Clock,
    pub refused: std::sync::Mutex<Option<talos_proto::permit::NoPermit>>,
}

impl Allow {
    pub fn all(api: &FakeApi) -> Self {
        Self { clock: api.clock.clone(), refused: Mutex::default() }
    }
}

impl talos_proto::permit::Permits for Allow {
    fn permit(&self, timeout: Duration) -> Result<talos_proto::permit::Permit, talos_proto::permit::NoPermit> {
        match self.refused.lock().unwrap().clone() {
            Some(no) => Err(no),
            None => Ok(talos_proto::permit::Permit::until(self.clock.clone(), self.clock.now() + timeout)),
        }
    }

    fn undo_permit(&self, timeout: Duration) -> Result<talos_proto::permit::Permit, talos_proto::permit::NoPermit> {
        self.permit(timeout)
    }
}
