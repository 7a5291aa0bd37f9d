//! The kubelets of the simulated nodes, as the Kubernetes side sees them: the implementation of what Talos does there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use talos_proto::clock::Moment;
use tokio::sync::watch;

use super::Kube;
use super::evict::{is_ready, set_condition};
use super::kind::Kind;
use super::objects::{self, Machine};
use super::store::{State, metadata_mut, micros, seconds, section_mut};
use crate::talos::outside::{Kubernetes, NodeSeen};

/// A kubelet.
#[derive(Clone, Debug)]
pub struct Kubelet {
    /// Its machine.
    pub machine: Machine,
    /// It runs and beats.
    pub running: bool,
    /// Since when it is silent without having said goodbye.
    pub silent_since: Option<Moment>,
}

/// The kubelets of a cluster, by node.
#[derive(Debug, Default)]
pub struct Kubelets(Mutex<BTreeMap<String, Kubelet>>);

impl Kubelets {
    /// Kubelets that do not run yet.
    #[must_use]
    pub fn new(machines: Vec<Machine>) -> Self {
        let stopped = |machine: Machine| {
            let name = machine.name.clone();
            (name, Kubelet { machine, running: false, silent_since: None })
        };
        Self(Mutex::new(machines.into_iter().map(stopped).collect()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kubelet>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of all.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Kubelet)> {
        self.lock().iter().map(|(name, kubelet)| (name.clone(), kubelet.clone())).collect()
    }

    /// Whether the kubelet of that node runs.
    #[must_use]
    pub fn is_running(&self, node: &str) -> bool {
        self.lock().get(node).is_some_and(|kubelet| kubelet.running)
    }

    fn set(&self, node: &str, running: bool, silent_since: Option<Moment>) -> Option<Machine> {
        let mut all = self.lock();
        let kubelet = all.get_mut(node)?;
        kubelet.running = running;
        kubelet.silent_since = silent_since;
        Some(kubelet.machine.clone())
    }
}

/// One heartbeat: the Lease in kube-node-lease and the times of the conditions.
pub fn heartbeat(state: &mut State, node: &str) {
    let now = state.clock().utc();
    let lease = json!({
        "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": node, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": micros(now)},
    });
    let renewed = state.edit(Kind::Lease, "kube-node-lease", node, |old| old["spec"] = lease["spec"].clone());
    if renewed.is_none() {
        state.create(Kind::Lease, lease);
    }
    state.edit(Kind::Node, "", node, |node| beat(node, &seconds(now)));
}

/// Fresh times, and Ready=True when it was not.
fn beat(node: &mut Value, now: &str) {
    set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status", now);
    for condition in node["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastHeartbeatTime"] = json!(now);
    }
}

impl Kube {
    /// The machine lost its power: the kubelet falls silent without a word, and the Node turns Unknown later.
    pub fn kubelet_died(&self, node: &str) {
        self.kubelets.set(node, false, Some(self.clock.now()));
    }
}

impl Kubernetes for Kube {
    fn kubelet_started(&self, node: &str, boot_id: &str) {
        let Some(machine) = self.kubelets.set(node, true, None) else { return };
        self.store.with(|state| {
            let now = state.clock().utc();
            if state.get(Kind::Node, "", node).is_none() {
                state.create(Kind::Node, objects::node(&machine, boot_id, now));
            }
            state.edit(Kind::Node, "", node, |node| {
                node["status"]["nodeInfo"] = objects::node_info(&machine, boot_id);
            });
            heartbeat(state, node);
        });
    }

    fn kubelet_stopped(&self, node: &str) {
        if self.kubelets.set(node, false, None).is_none() {
            return;
        }
        self.store.with(|state| {
            let now = seconds(state.clock().utc());
            state.edit(Kind::Node, "", node, |node| {
                set_condition(node, "Ready", "False", "KubeletNotReady", "node is shutting down", &now);
            });
        });
    }

    fn rebooted_by_force(&self, node: &str) {
        self.kubelet_died(node);
    }

    fn api_server_started(&self, node: &str) {
        if let Some(server) = self.server(node) {
            server.start();
        }
    }

    fn api_server_stopped(&self, node: &str) {
        if let Some(server) = self.server(node) {
            server.stop();
        }
    }

    fn node(&self, node: &str) -> Option<NodeSeen> {
        self.store.get(Kind::Node, "", node).map(|node| seen(&node))
    }

    fn watch_node(&self, node: &str) -> watch::Receiver<u64> {
        self.store.node_changes(node)
    }

    fn annotate_from_talos(&self, node: &str, set: BTreeMap<String, String>) {
        self.store.with(|state| state.edit(Kind::Node, "", node, |node| annotate(node, &set)));
    }
}

pub(crate) fn seen(node: &Arc<Value>) -> NodeSeen {
    let texts = |field: &str| {
        let entries = node["metadata"][field].as_object().into_iter().flatten();
        entries.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
    };
    NodeSeen {
        ready: is_ready(node),
        unschedulable: node["spec"]["unschedulable"] == true,
        labels: texts("labels"),
        annotations: texts("annotations"),
    }
}

const OWNED: &str = "talos.dev/owned-annotations";

/// Talos's rules (internal/app/machined/pkg/controllers/k8s/node_apply.go, `ApplyAnnotations`): what is absent or
/// already equal becomes its own, its own is set back, a foreign value stays, its own that left the config goes.
pub(crate) fn annotate(node: &mut Value, set: &BTreeMap<String, String>) {
    let owned = node["metadata"]["annotations"][OWNED].as_str().unwrap_or("[]");
    let mut owned: BTreeSet<String> = serde_json::from_str(owned).unwrap_or_default();
    let metadata = metadata_mut(node);
    let mut annotations = metadata.get("annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, value) in set {
        let foreign = match annotations.get(name) {
            None => false,
            Some(found) => found != value.as_str() && !owned.contains(name),
        };
        if !foreign {
            annotations.insert(name.clone(), json!(value));
            owned.insert(name.clone());
        }
    }
    owned.retain(|name| {
        let kept = set.contains_key(name);
        if !kept {
            annotations.shift_remove(name);
        }
        kept
    });
    if owned.is_empty() {
        annotations.shift_remove(OWNED);
    } else {
        annotations.insert(OWNED.into(), json!(json!(owned).to_string()));
    }
    store_annotations(node, annotations);
}

fn store_annotations(node: &mut Value, annotations: Map<String, Value>) {
    let metadata = section_mut(node, "metadata");
    if annotations.is_empty() {
        metadata.shift_remove("annotations");
    } else {
        metadata.insert("annotations".into(), Value::Object(annotations));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn talos_owns_what_it_set_and_leaves_the_rest_alone() {
        let mut node = json!({"metadata": {"annotations": {"theirs": "1", "same": "x"}}});
        annotate(&mut node, &set(&[("theirs", "2"), ("same", "x"), ("ours", "a")]));
        let owned = json!({"theirs": "1", "same": "x", "ours": "a", OWNED: r#"["ours","same"]"#});
        assert_eq!(node["metadata"]["annotations"], owned);
        node["metadata"]["annotations"]["ours"] = json!("foreign hand");
        annotate(&mut node, &set(&[("ours", "b")]));
        assert_eq!(node["metadata"]["annotations"], json!({"theirs": "1", "ours": "b", OWNED: r#"["ours"]"#}));
        annotate(&mut node, &set(&[]));
        assert_eq!(node["metadata"]["annotations"], json!({"theirs": "1"}));
    }
}
