//! What is said of a drain that did not end well.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::Request;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use talos_proto::permit::NoPermit;

use super::super::api_servers::{ApiServers, ReadError, WriteError};
use super::{PodRef, PodView, Present, Waiting};

/// A pod that refuses the drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The pod.
    pub pod: PodRef,
    /// Why, with the flag that would allow it.
    pub reason: String,
}

/// A pod that is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLeft {
    /// The pod.
    pub pod: PodRef,
    /// What is known of why.
    pub why: String,
}

/// A disruption budget that did not clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingBudget {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `status.disruptionsAllowed`, if it could be read.
    pub disruptions_allowed: Option<i32>,
    /// `spec.unhealthyPodEvictionPolicy`; `IfHealthyBudget` is the API's default.
    pub unhealthy_pod_eviction_policy: String,
    /// The server's words.
    pub message: String,
    /// The pods that it held.
    pub pods: Vec<PodRef>,
}

/// The node was not drained.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// Pods that must not be evicted by these options; nothing was evicted.
    #[error("the node {node} is not drained: {}", list(.refusals.iter().map(|r| (&r.pod, r.reason.as_str()))))]
    Refused {
        /// The node.
        node: String,
        /// Each such pod.
        refusals: Vec<Refusal>,
    },
    /// Disruption budgets did not clear in time.
    #[error("the node {node} was not drained in time: {}", say(.budgets))]
    Budget {
        /// The node.
        node: String,
        /// The budgets.
        budgets: Vec<BlockingBudget>,
        /// Every pod that is left.
        left: Vec<PodLeft>,
    },
    /// Pods did not go in time, and no budget is at fault.
    #[error("the node {node} was not drained in time: {}", list(.left.iter().map(|l| (&l.pod, l.why.as_str()))))]
    TimedOut {
        /// The node.
        node: String,
        /// Every pod that is left.
        left: Vec<PodLeft>,
    },
    /// Nothing may be changed any more.
    #[error("the drain of {node} was broken off")]
    NoPermit {
        /// The node.
        node: String,
        /// Why.
        #[source]
        source: NoPermit,
    },
    /// An eviction was refused for good.
    #[error("the pod {pod} cannot be evicted")]
    Eviction {
        /// The pod.
        pod: PodRef,
        /// Why.
        #[source]
        source: WriteError,
    },
    /// The pods of the node could not be read.
    #[error("the pods of {node} could not be read")]
    Read {
        /// The node.
        node: String,
        /// Why.
        #[source]
        source: ReadError,
    },
}

fn list<'a>(pods: impl Iterator<Item = (&'a PodRef, &'a str)>) -> String {
    pods.map(|(pod, why)| format!("{pod} {why}")).collect::<Vec<_>>().join("; ")
}

fn say(budgets: &[BlockingBudget]) -> String {
    let mut text = String::new();
    for budget in budgets {
        let separator = if text.is_empty() { "" } else { "; " };
        let allowed = budget.disruptions_allowed.map_or_else(|| "unknown".to_owned(), |number| number.to_string());
        let pods: Vec<String> = budget.pods.iter().map(ToString::to_string).collect();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{separator}the disruption budget {}/{} (disruptionsAllowed {allowed}, unhealthyPodEvictionPolicy {}) \
             holds {}",
            budget.namespace,
            budget.name,
            budget.unhealthy_pod_eviction_policy,
            pods.join(", "),
        );
    }
    text
}

/// What the time ran out on: budgets with their state now, else each pod with what is known.
pub(super) async fn out_of_time(
    servers: &ApiServers,
    node: &str,
    waiting: &BTreeMap<PodRef, Waiting>,
    present: &Present,
) -> DrainError {
    let node = node.to_owned();
    let left = waiting.iter().map(|(pod, waiting)| PodLeft { pod: pod.clone(), why: why(pod, waiting, present) });
    let left: Vec<PodLeft> = left.collect();
    let mut held: BTreeMap<(String, String), BlockingBudget> = BTreeMap::new();
    for (pod, waiting) in waiting {
        let Some((name, message)) = &waiting.budget else { continue };
        let name = name.clone().unwrap_or_else(|| "(unnamed)".to_owned());
        let key = (pod.namespace.clone(), name.clone());
        held.entry(key)
            .or_insert_with(|| BlockingBudget {
                namespace: pod.namespace.clone(),
                name,
                disruptions_allowed: None,
                unhealthy_pod_eviction_policy: "unknown".to_owned(),
                message: message.clone(),
                pods: Vec::new(),
            })
            .pods
            .push(pod.clone());
    }
    if held.is_empty() {
        return DrainError::TimedOut { node, left };
    }
    let mut budgets: Vec<BlockingBudget> = held.into_values().collect();
    for budget in &mut budgets {
        if let Ok(read) = get(servers, &budget.namespace, &budget.name).await {
            budget.disruptions_allowed = read.status.and_then(|status| status.disruptions_allowed);
            budget.unhealthy_pod_eviction_policy = read
                .spec
                .and_then(|spec| spec.unhealthy_pod_eviction_policy)
                .unwrap_or_else(|| "IfHealthyBudget".to_owned());
        }
    }
    DrainError::Budget { node, budgets, left }
}

async fn get(servers: &ApiServers, namespace: &str, name: &str) -> Result<PodDisruptionBudget, ReadError> {
    let path = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}");
    servers
        .read(|client| {
            let request = Request::get(&path).body(Vec::new()).map_err(kube::Error::HttpError);
            async move { client.request(request?).await }
        })
        .await
}

fn why(pod: &PodRef, waiting: &Waiting, present: &Present) -> String {
    if let Some((_, message)) = &waiting.budget {
        return format!("is held: {message}");
    }
    let terminating = present.get(&pod.uid).filter(|pod| pod.terminating.is_some());
    match (terminating, &waiting.reason) {
        (Some(pod), _) => stuck(pod),
        (None, Some(reason)) => format!("could not be evicted: {reason}"),
        (None, None) => "was not evicted yet".to_owned(),
    }
}

fn stuck(pod: &PodView) -> String {
    let finalizers = &pod.finalizers;
    let until = pod.terminating.map(|time| time.to_string()).unwrap_or_default();
    if finalizers.is_empty() {
        format!("is terminating (its grace ends or ended {until})")
    } else {
        format!("is kept by its finalizers {} (its grace ends or ended {until})", finalizers.join(", "))
    }
}
