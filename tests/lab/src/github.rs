//! GitHub's REST API, as far as the product asks it: an attempt of a workflow run and its jobs.
//!
//! Answers as documented, their fields cut down to what identifies and what tells of time:
//! <https://docs.github.com/en/rest/actions/workflow-runs>, <https://docs.github.com/en/rest/actions/workflow-jobs>;
//! limits: <https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api>; a repository that was
//! renamed: <https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api>.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use serde_json::{Value, json};
use talos_proto::clock::Clock;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::net::{self, Body};
use crate::pki::{Ca, TlsError, open_server_config};
use crate::registry::Registry;

/// The port of the API.
pub const PORT: u16 = 8443;
/// The repository that it has.
pub const REPOSITORY: &str = "acme/infra";
/// A name that the repository had before.
pub const FORMERLY: &str = "acme/platform";

/// Why it cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No TLS.
    #[error("the TLS configuration of GitHub's API")]
    Tls(#[from] TlsError),
    /// No listener.
    #[error("cannot listen on {0}:{PORT}")]
    Listen(Ipv4Addr, #[source] io::Error),
}

/// A job of an attempt.
#[derive(Clone, Debug)]
pub struct Job {
    /// As people see it: not the key in the workflow.
    pub name: String,
    /// Its runner.
    pub runner: String,
    /// `queued`, `in_progress`, `completed`, `waiting`.
    pub status: String,
    /// When it started.
    pub started: String,
    /// When it ended.
    pub completed: Option<String>,
}

/// What becomes of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status.
    Answer(u16),
    /// It is answered with this status, 403 or 429, and the headers of a limit.
    Limited(u16),
    /// It is answered as ever, that much later.
    Slow(Duration),
    /// It is answered with 200 and a page for people.
    Page,
    /// It is sent on to the same path at this `host:port`.
    Redirect(String),
}

/// A request that it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its path and query.
    pub target: String,
    /// Its header `Authorization`.
    pub authorization: Option<String>,
}

#[derive(Default)]
struct State {
    runs: BTreeMap<(u64, u32), Vec<Job>>,
    fault: Option<Fault>,
    seen: Vec<Seen>,
}

/// The API; gone when this is dropped.
pub struct Github {
    address: Ipv4Addr,
    token: String,
    state: Arc<Mutex<State>>,
    _stop: DropGuard,
}

impl Github {
    /// Starts it in the network of a lab, and another host that has one, with certificates of the registry's authority.
    ///
    /// # Errors
    /// [`StartError`], for instance when they are there already.
    pub fn beside(registry: &Registry, token: &str) -> Result<[Self; 2], StartError> {
        let [one, other] = net::github(registry.address);
        Ok([Self::start(one, registry.ca(), token)?, Self::start(other, registry.ca(), token)?])
    }

    fn start(address: Ipv4Addr, ca: &Ca, token: &str) -> Result<Self, StartError> {
        let tls = open_server_config(&ca.server(&[address.to_string()]), &[b"h2", b"http/1.1"])?;
        let listener = net::bind(address, PORT).map_err(|error| StartError::Listen(address, error))?;
        let (stop, state) = (CancellationToken::new(), Arc::<Mutex<State>>::default());
        let (shared, expected) = (Arc::clone(&state), format!("Bearer {token}"));
        let handler = move |_, request: Request<Incoming>| {
            let (state, expected) = (Arc::clone(&shared), expected.clone());
            async move { handle(&state, address, &expected, &request).await }
        };
        tokio::spawn(net::serve(listener, tls, stop.clone(), handler));
        Ok(Self { address, token: token.to_owned(), state, _stop: stop.drop_guard() })
    }

    /// What `GITHUB_API_URL` is for it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.host())
    }

    /// `address:port`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}:{PORT}", self.address)
    }

    /// The token that it takes.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Has these jobs in that attempt of that run.
    pub fn put(&self, run: u64, attempt: u32, jobs: Vec<Job>) {
        self.state().runs.insert((run, attempt), jobs);
    }

    /// What becomes of every request from now on.
    pub fn fault(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    /// What it was sent since this was asked last.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state().seen)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn handle(
    state: &Mutex<State>,
    address: Ipv4Addr,
    expected: &str,
    request: &Request<Incoming>,
) -> Response<Body> {
    let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let header = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let authorization = header(AUTHORIZATION).map(str::to_owned);
    let fault = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.seen.push(Seen { target: target.clone(), authorization: authorization.clone() });
        state.fault.clone()
    };
    match fault {
        Some(Fault::Answer(code)) => return message(code, "the lab was asked to answer this"),
        Some(Fault::Limited(code)) => return limited(code),
        Some(Fault::Slow(time)) => Clock::system().sleep(time).await,
        Some(Fault::Page) => return respond(200, "text/html", "<html>Unicorn!</html>"),
        Some(Fault::Redirect(host)) => return moved(307, &format!("https://{host}{target}")),
        None => {}
    }
    if header(USER_AGENT).is_none() {
        return message(
            403,
            "Request forbidden by administrative rules. Please make sure your request has a User-Agent header",
        );
    }
    if authorization.as_deref() != Some(expected) {
        return message(401, "Bad credentials");
    }
    let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    let rest = match path.as_slice() {
        ["repos", owner, name, ..] if format!("{owner}/{name}") == FORMERLY => {
            let rest = target.splitn(4, '/').nth(3).and_then(|rest| rest.split_once('/')).map_or("", |(_, rest)| rest);
            return moved(301, &format!("https://{address}:{PORT}/repositories/1/{rest}"));
        }
        ["repos", owner, name, rest @ ..] if format!("{owner}/{name}") == REPOSITORY => rest,
        ["repositories", "1", rest @ ..] => rest,
        _ => return message(404, "Not Found"),
    };
    let ["actions", "runs", run, "attempts", attempt, rest @ ..] = rest else { return message(404, "Not Found") };
    let (Ok(run), Ok(attempt)) = (run.parse::<u64>(), attempt.parse::<u32>()) else { return message(404, "Not Found") };
    let jobs = state.lock().unwrap_or_else(PoisonError::into_inner).runs.get(&(run, attempt)).cloned();
    match (jobs, rest) {
        (Some(jobs), []) => json_response(&run_object(run, attempt, &jobs)),
        (Some(jobs), ["jobs"]) => {
            let all: Vec<Value> = jobs.iter().map(|job| job_object(run, attempt, job)).collect();
            json_response(&json!({"total_count": all.len(), "jobs": all}))
        }
        _ => message(404, "Not Found"),
    }
}

fn run_object(run: u64, attempt: u32, jobs: &[Job]) -> Value {
    let done = jobs.iter().all(|job| job.status == "completed");
    json!({
        "id": run, "name": "registry-credential", "event": "schedule", "run_number": 562, "run_attempt": attempt,
        "status": if done { "completed" } else { "in_progress" },
        "conclusion": done.then_some("failure"),
        "html_url": format!("https://github.example/{REPOSITORY}/actions/runs/{run}"),
        "run_started_at": jobs.first().map(|job| job.started.clone()),
    })
}

fn job_object(run: u64, attempt: u32, job: &Job) -> Value {
    json!({
        "id": 399_444_496, "run_id": run, "run_attempt": attempt, "status": job.status,
        "conclusion": job.completed.as_ref().map(|_| "failure"), "started_at": job.started,
        "completed_at": job.completed, "name": job.name, "labels": ["self-hosted"], "runner_id": 1,
        "runner_name": job.runner, "runner_group_id": 2, "runner_group_name": "Default",
        "workflow_name": "registry-credential", "steps": [],
    })
}

fn respond(code: u16, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json_response(value: &Value) -> Response<Body> {
    respond(200, "application/json; charset=utf-8", value.to_string())
}

fn message(code: u16, text: &str) -> Response<Body> {
    let body =
        json!({"message": text, "documentation_url": "https://docs.github.com/rest", "status": code.to_string()});
    respond(code, "application/json; charset=utf-8", body.to_string())
}

fn limited(code: u16) -> Response<Body> {
    let mut response = message(code, "API rate limit exceeded for installation ID 1.");
    let headers = response.headers_mut();
    headers.insert("x-ratelimit-remaining", HeaderValue::from_static("0"));
    if code == 429 {
        headers.insert("retry-after", HeaderValue::from_static("60"));
    }
    response
}

fn moved(code: u16, to: &str) -> Response<Body> {
    let mut response = message(code, "Moved Permanently");
    if let Ok(value) = HeaderValue::from_str(to) {
        response.headers_mut().insert(LOCATION, value);
    }
    response
}
