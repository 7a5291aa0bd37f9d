//! One question to each API server by itself: which Kubernetes it is, what its clock says, and how long it takes.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::DATE;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use serde::Deserialize;

use super::{Address, ApiServers, connection};

/// How long one server has.
const TIMEOUT: Duration = Duration::from_secs(8);

/// What a server answered to `GET /version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// `HOST:PORT`.
    pub address: String,
    /// Where it was named by its address.
    pub ip: Option<IpAddr>,
    /// `gitVersion`; `None` where we may not read it.
    pub version: Option<String>,
    /// The header `Date`: the server's clock, cut off to a whole second.
    pub date: Option<Timestamp>,
    /// Our clock when the question was sent.
    pub asked: Timestamp,
    /// From the question to the answer, connecting included.
    pub took: Duration,
}

/// A server that did not answer so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoGreeting {
    /// `HOST:PORT`.
    pub address: String,
    /// Why not.
    pub reason: String,
    /// It answered that it does not know us (401): it is there, and our credential is no good.
    pub unknown_to_it: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

impl ApiServers {
    /// Asks each address of the set by itself, all at once; in the order of the set, the kubeconfig's first.
    pub async fn greet(&self) -> Vec<Result<Greeting, NoGreeting>> {
        self.greet_from(0).await
    }

    /// The same of those that joined behind the first `known` ones.
    pub async fn greet_from(&self, known: usize) -> Vec<Result<Greeting, NoGreeting>> {
        let fresh = self.snapshot().into_iter().skip(known);
        futures::future::join_all(fresh.map(|address| self.greet_at(address))).await
    }

    async fn greet_at(&self, Address { name, ip, client }: Address) -> Result<Greeting, NoGreeting> {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let no = |reason: String| NoGreeting { address: name.clone(), reason, unknown_to_it: false };
        let request = Request::get("/version").body(Body::empty()).map_err(|error| no(error.to_string()))?;
        let clock = &self.0.clock;
        let (asked, begun) = (clock.utc(), clock.now());
        let answered = async {
            let response = client.send(request).await?;
            let took = clock.now().since(begun);
            let (head, body) = response.into_parts();
            Ok::<_, kube::Error>((head, body.collect().await.ok().map(http_body_util::Collected::to_bytes), took))
        };
        let (head, body, took) = match clock.timeout(TIMEOUT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(no(words(error))),
            Err(late) => return Err(no(late.to_string())),
        };
        let version = match head.status {
            StatusCode::OK => body.and_then(|body| serde_json::from_slice::<Version>(&body).ok()),
            // Whoever may not read this may read other things.
            StatusCode::FORBIDDEN => None,
            StatusCode::UNAUTHORIZED => {
                let reason = "it does not know us (401 Unauthorized)".to_owned();
                return Err(NoGreeting { unknown_to_it: true, ..no(reason) });
            }
            other => return Err(no(format!("it answered {other}"))),
        };
        let date = head.headers.get(DATE).and_then(|value| jiff::fmt::rfc2822::parse(value.to_str().ok()?).ok());
        Ok(Greeting {
            address: name,
            ip,
            version: version.map(|version| version.git_version),
            date: date.map(|date| date.timestamp()),
            asked,
            took,
        })
    }
}

fn words(error: kube::Error) -> String {
    match connection::classify(error) {
        connection::Failure::Answer(status) => format!("it answered {}: {}", status.code, status.message),
        connection::Failure::NotSent(reason)
        | connection::Failure::Broken(reason)
        | connection::Failure::Untrusted(reason) => reason,
        connection::Failure::Local(error) => talos_proto::chain(&error),
    }
}
