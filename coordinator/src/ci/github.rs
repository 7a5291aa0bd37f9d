//! The two questions that GitHub is asked (<https://docs.github.com/en/rest/actions/workflow-runs>).

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, LOCATION, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::TokioExecutor;
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;
use talos_proto::chain;
use talos_proto::clock::Clock;

use super::judge::{Attempt, Finding, Jobs, of_attempt, of_jobs};
use super::place::{Environment, Place};
use crate::holder::Life;

/// For all that is asked about one holder.
const LIMIT: Duration = Duration::from_secs(5);
/// A hundred jobs with all their steps.
const MAX_BODY: usize = 8 << 20;
/// GitHub sends the requests for a repository that was renamed on once.
const MAX_HOPS: usize = 2;
const VERSION: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-github-api-version"), HeaderValue::from_static("2022-11-28"));
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");

type BoxError = Box<dyn Error + Send + Sync>;

/// Sends one request and reads the whole answer; a test stands in for it.
pub(super) type Transport =
    Arc<dyn Fn(Request<Full<Bytes>>) -> BoxFuture<'static, Result<Response<Bytes>, BoxError>> + Send + Sync>;

/// Over https, trusting what this machine trusts or `SSL_CERT_FILE` names. Made anew for each request: there are few.
pub(super) fn https() -> Transport {
    Arc::new(|request| {
        async move {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let connector = HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(provider)?
                .https_only()
                .enable_http1()
                .build();
            let pool = Pool::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
            let (head, body) = pool.request(request).await?.into_parts();
            let body = Limited::new(body, MAX_BODY).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        }
        .boxed()
    })
}

/// Why GitHub did not tell. No text repeats a header, a body or the token.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("GitHub could not be asked")]
    Unreachable(#[source] BoxError),
    #[error("the token cannot be sent: it holds what no header may")]
    Token,
    #[error("GitHub refuses the token (HTTP 401)")]
    Unauthorized,
    #[error("GitHub refuses to tell of the run (HTTP 403): the token needs the permission actions: read")]
    Forbidden,
    #[error("GitHub knows no such run, or the token may not see it (HTTP 404)")]
    NotFound,
    #[error("GitHub limits our requests (HTTP {status}){}", wait(retry_after.as_ref()))]
    Limited { status: u16, retry_after: Option<Duration> },
    #[error("GitHub sends the request on (HTTP {status}) to where the token is not shown")]
    Elsewhere { status: u16 },
    #[error("GitHub answered HTTP {status}")]
    Status { status: u16 },
    #[error("GitHub's answer is not understood")]
    Shape(#[source] serde_json::Error),
}

/// What asks.
pub(super) struct Client<'c> {
    pub(super) transport: &'c Transport,
    pub(super) clock: &'c Clock,
    pub(super) environment: &'c Environment,
}

impl Client<'_> {
    /// What GitHub says of the holder, and for how long it wants to be left alone.
    pub(super) async fn life(&self, place: &Place, ours: bool) -> (Life, Option<Duration>) {
        match self.clock.timeout(LIMIT, self.find(place, ours)).await {
            Ok(Ok(Finding::Ended(why))) => (Life::Dead(why), None),
            Ok(Ok(Finding::Runs(why))) => (Life::Alive(why), None),
            Ok(Ok(Finding::Open(why))) => (Life::Unknown(why), None),
            Ok(Err(error)) => {
                let pause = if let AskError::Limited { retry_after, .. } = &error { *retry_after } else { None };
                (Life::Unknown(chain(&error)), pause)
            }
            Err(_) => (Life::Unknown(format!("GitHub did not answer within {LIMIT:?}")), None),
        }
    }

    /// The jobs of the attempt, and only where they do not tell the attempt itself.
    async fn find(&self, place: &Place, ours: bool) -> Result<Finding, AskError> {
        let Place { api, repository, run, attempt, .. } = place;
        let target = format!("{api}/repos/{repository}/actions/runs/{run}/attempts/{attempt}");
        let jobs: Jobs = self.get(&format!("{target}/jobs?per_page=100")).await?;
        match of_jobs(place, &jobs, ours, self.clock.utc()) {
            // The attempt that we run in has not ended.
            Finding::Open(why) if !ours => match of_attempt(place, &self.get::<Attempt>(&target).await?) {
                Finding::Open(whole) => Ok(Finding::Open(format!("{why}; {whole}"))),
                told => Ok(told),
            },
            told => Ok(told),
        }
    }

    async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, AskError> {
        let mut target = target.to_owned();
        for _ in 0..=MAX_HOPS {
            let answer = self.send(&target).await?;
            let status = answer.status().as_u16();
            match status {
                200 => return serde_json::from_slice(answer.body()).map_err(AskError::Shape),
                301 | 302 | 307 | 308 => {
                    target = same_host(&target, answer.headers()).ok_or(AskError::Elsewhere { status })?;
                }
                401 => return Err(AskError::Unauthorized),
                403 | 429 if status == 429 || is_limited(answer.headers()) => {
                    return Err(AskError::Limited { status, retry_after: retry_after(answer.headers()) });
                }
                403 => return Err(AskError::Forbidden),
                404 => return Err(AskError::NotFound),
                status => return Err(AskError::Status { status }),
            }
        }
        Err(AskError::Elsewhere { status: 301 })
    }

    async fn send(&self, target: &str) -> Result<Response<Bytes>, AskError> {
        let token = self.environment.token.as_ref().ok_or(AskError::Token)?;
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).map_err(|_| AskError::Token)?;
        bearer.set_sensitive(true);
        let request = Request::get(target)
            .header(USER_AGENT, concat!("talos-ghcr/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/vnd.github+json")
            .header(VERSION.0, VERSION.1)
            .header(AUTHORIZATION, bearer)
            .body(Full::new(Bytes::new()))
            .map_err(|error| AskError::Unreachable(error.into()))?;
        (self.transport)(request).await.map_err(AskError::Unreachable)
    }
}

/// Where an answer sends us on to, if that is the very same host and port over https.
fn same_host(from: &str, headers: &HeaderMap) -> Option<String> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let from: Uri = from.parse().ok()?;
    let next = if location.starts_with('/') && !location.starts_with("//") {
        format!("https://{}{location}", from.authority()?)
    } else {
        location.to_owned()
    };
    let to: Uri = next.parse().ok()?;
    // Compared as a whole, so that user information makes another authority.
    let same = to.authority()?.as_str().eq_ignore_ascii_case(from.authority()?.as_str());
    (to.scheme_str() == Some("https") && same).then_some(next)
}

/// A 403 that is a limit says so in its headers
/// (<https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api>).
fn is_limited(headers: &HeaderMap) -> bool {
    headers.contains_key(RETRY_AFTER) || headers.get(REMAINING).is_some_and(|left| left.as_bytes() == b"0")
}

/// Seconds only: a date would be compared with our own clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

fn wait(after: Option<&Duration>) -> String {
    after.map_or_else(String::new, |after| format!("; it wants to be asked again after {} s", after.as_secs()))
}
