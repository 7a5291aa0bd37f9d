//! One eviction, and what its answer means.

use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use serde_json::json;
use talos_proto::permit::{NoPermit, Permits};

use super::super::api_servers::{ApiServers, Authority, WriteError};
use super::super::patch;
use super::PodRef;

/// A server's wish to wait is granted up to here.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);

/// What one call came to.
#[derive(Debug)]
pub enum Eviction {
    /// Accepted: the pod is terminating.
    Accepted,
    /// There is no such pod.
    Gone,
    /// A disruption budget does not allow it now.
    Budget {
        /// The budget's name, if the answer named one.
        name: Option<String>,
        /// The answer's words.
        message: String,
        /// When the server wants to be asked again.
        after: Option<Duration>,
    },
    /// Nothing is known or decided: to be tried again after another look.
    Again {
        /// Why.
        reason: String,
        /// When the server wants to be asked again.
        after: Option<Duration>,
    },
    /// Nothing may be changed now.
    NoPermit(NoPermit),
    /// Waiting does not help.
    Refused(WriteError),
}

/// Asks for the eviction of exactly this pod.
///
/// The UID goes along as a precondition although a wrong one spends the budget (the API server decrements it before it
/// compares): without it, a pod that was replaced under its name in between would itself be evicted, which spends the
/// budget as well. The caller has looked at the UID just before, so that this happens only in a race.
pub async fn evict(servers: &ApiServers, permits: &dyn Permits, pod: &PodRef) -> Eviction {
    let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", pod.namespace, pod.name);
    let object = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": { "preconditions": { "uid": pod.uid } },
    });
    let timeout = servers.write_timeout();
    let written = servers.write(Authority::Step(permits), timeout, |client| {
        let request = patch::create(&path, &object, timeout);
        async move { send(&client, request?).await }
    });
    judged(written.await)
}

/// Deletes exactly this pod, whatever a disruption budget says: `kubectl drain --disable-eviction`. A deletion with
/// another UID spends nothing.
pub async fn delete(servers: &ApiServers, permits: &dyn Permits, pod: &PodRef) -> Eviction {
    let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
    let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": pod.uid } });
    let timeout = servers.write_timeout();
    let written = servers.write(Authority::Step(permits), timeout, |client| {
        let request = patch::delete(&path, &options, timeout);
        async move { send(&client, request?).await }
    });
    judged(written.await)
}

fn judged(written: Result<(), WriteError>) -> Eviction {
    match written {
        Ok(()) => Eviction::Accepted,
        Err(WriteError::NoPermit(no)) => Eviction::NoPermit(no),
        Err(WriteError::Refused(status)) => refused(status),
        Err(WriteError::Ambiguous { answer: Some(status), .. }) if two_budgets(&status) => {
            Eviction::Refused(WriteError::Refused(status))
        }
        Err(error @ (WriteError::Ambiguous { .. } | WriteError::Unreachable { .. })) => {
            Eviction::Again { reason: error.to_string(), after: None }
        }
        Err(error @ WriteError::Other(_)) => Eviction::Refused(error),
    }
}

fn refused(status: Box<Status>) -> Eviction {
    let after = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
    let after = after.map(|seconds| Duration::from_secs(seconds.into()).min(LONGEST_RETRY_AFTER));
    let cause =
        |reason: &str| status.details.iter().flat_map(|details| &details.causes).find(|cause| cause.reason == reason);
    match status.code {
        404 => Eviction::Gone,
        429 => match cause("DisruptionBudget") {
            Some(cause) => {
                Eviction::Budget { name: budget_name(&cause.message), message: cause.message.clone(), after }
            }
            // Without that cause it is API priority and fairness: this server is busy, no budget is at fault.
            None => Eviction::Again { reason: format!("the API server is busy: {}", status.message), after },
        },
        409 => Eviction::Again { reason: status.message, after },
        403 if cause("NamespaceTerminating").is_some() => Eviction::Again { reason: status.message, after },
        _ => Eviction::Refused(WriteError::Refused(status)),
    }
}

/// "The disruption budget NAME needs 2 healthy pods and has 2 currently".
fn budget_name(message: &str) -> Option<String> {
    message.strip_prefix("The disruption budget ")?.split_whitespace().next().map(str::to_owned)
}

fn two_budgets(status: &Status) -> bool {
    status.message.contains("more than one PodDisruptionBudget")
}

/// As the client's own request, but the header `Retry-After` is kept where the body does not repeat it: the answer of
/// API priority and fairness is plain text.
async fn send(client: &kube::Client, request: Request<Vec<u8>>) -> Result<(), kube::Error> {
    let response = client.send(request.map(Body::from)).await?;
    let code = response.status();
    let header = response.headers().get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = response.into_body().collect().await?.to_bytes();
    if code.is_success() {
        return Ok(());
    }
    let mut status = serde_json::from_slice::<Status>(&body)
        .unwrap_or_else(|_| Status::failure(String::from_utf8_lossy(&body).trim(), ""));
    status.code = code.as_u16();
    if let Some(seconds) = header {
        let details = status.details.get_or_insert_with(|| kube::core::response::StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    }
    Err(kube::Error::Api(status.boxed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(json: serde_json::Value) -> Eviction {
        refused(Box::new(serde_json::from_value(json).unwrap()))
    }

    #[test]
    fn d03_a_budget_and_a_busy_server_are_told_apart() {
        // captures 124 and 122 of a real API server
        let exhausted = answer(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "reason": "TooManyRequests", "details": { "causes": [{ "reason": "DisruptionBudget",
            "message": "The disruption budget a needs 2 healthy pods and has 2 currently" }] }, "code": 429 }));
        assert!(matches!(exhausted, Eviction::Budget { name: Some(name), after: None, .. } if name == "a"));
        let unobserved = answer(json!({ "status": "Failure", "reason": "TooManyRequests", "details": { "causes": [{
            "reason": "DisruptionBudget",
            "message": "The disruption budget a is still being processed by the server." }],
            "retryAfterSeconds": 10 }, "code": 429 }));
        let ten = Some(Duration::from_secs(10));
        assert!(matches!(unobserved, Eviction::Budget { after, .. } if after == ten));
        let busy = answer(json!({ "code": 429, "message": "Too many requests", "details": { "retryAfterSeconds": 1 }}));
        assert!(matches!(busy, Eviction::Again { after: Some(_), .. }));
    }

    #[test]
    fn d05_a_terminating_namespace_is_waited_for() {
        let terminating = answer(json!({ "code": 403, "reason": "Forbidden", "message": "is being terminated",
            "details": { "causes": [{ "reason": "NamespaceTerminating" }] } }));
        assert!(matches!(terminating, Eviction::Again { .. }));
        assert!(matches!(answer(json!({ "code": 403, "reason": "Forbidden" })), Eviction::Refused(_)));
        assert!(matches!(answer(json!({ "code": 404, "reason": "NotFound" })), Eviction::Gone));
    }
}
