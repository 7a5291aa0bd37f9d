//! A scheduler for the lab's pods: kube-scheduler brings much that no test looks at.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use talos_proto::clock::Clock;

use super::api::{Api, object};
use super::mirror::Mirror;
use crate::kube::is_ready;
use crate::kube::kind::Kind;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(40);

/// Binds pods to nodes until the lab ends. The first pod is placed when all `nodes` have been Ready: else all would land
/// on the first that is.
pub(super) async fn run(api: Api, nodes: Arc<Mirror>, pods: Arc<Mirror>, expected: usize, clock: Clock) {
    while nodes.list().iter().filter(|node| is_ready(node)).count() < expected {
        clock.sleep(LOOK).await;
    }
    loop {
        let all = pods.list();
        let mut load: Vec<(String, usize)> = nodes
            .list()
            .iter()
            .filter(|node| takes_pods(node))
            .filter_map(|node| node["metadata"]["name"].as_str())
            .map(|name| (name.to_owned(), all.iter().filter(|pod| pod["spec"]["nodeName"] == name).count()))
            .collect();
        for pod in all.iter().filter(|pod| pod["spec"]["nodeName"].is_null() && !is_ending(pod)) {
            let node = match pinned(pod) {
                Some(node) => node.to_owned(),
                None => {
                    let Some(least) = load.iter_mut().min_by_key(|(_, count)| *count) else { continue };
                    least.1 += 1;
                    least.0.clone()
                }
            };
            let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
            let binding = json!({
                "kind": "Binding", "apiVersion": "v1", "metadata": {"name": text("name")},
                "target": {"kind": "Node", "apiVersion": "v1", "name": node},
            });
            let path = format!("{}/binding", object(Kind::Pod, text("namespace"), text("name")));
            // A pod that has been bound or deleted meanwhile refuses it.
            let _ = api.post(&path, &binding).await;
        }
        clock.sleep(LOOK).await;
    }
}

/// Ready, schedulable, and with no taint that keeps pods away: the lab's workloads tolerate none.
fn takes_pods(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let repels = taints.filter(|taint| taint["effect"] != "PreferNoSchedule").count() > 0;
    is_ready(node) && node["spec"]["unschedulable"] != true && !repels
}

fn is_ending(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// The node that a pod of a DaemonSet is for (pkg/controller/daemon/util, `ReplaceDaemonSetPodNodeNameNodeAffinity`).
fn pinned(pod: &Value) -> Option<&str> {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let field = &affinity["nodeSelectorTerms"][0]["matchFields"][0];
    (field["key"] == "metadata.name").then(|| field["values"][0].as_str())?
}
