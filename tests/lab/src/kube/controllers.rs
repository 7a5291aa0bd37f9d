//! What moves in a cluster without the product: heartbeats, the node lifecycle controller, schedulers, the kubelets'
//! pods and the status of disruption budgets. One pass is a pure turn at the store; a task runs it every few
//! milliseconds.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};
use talos_proto::clock::Moment;

use super::evict::{is_ready, is_terminating, set_condition, set_disruption_allowed, set_pod_condition};
use super::kind::Kind;
use super::kubelet::{Kubelets, heartbeat};
use super::objects::{self, ReplicaSet};
use super::select::match_labels;
use super::store::{State, seconds};

/// An annotation on a pod: its readiness is the test's business.
pub const HANDS_OFF: &str = "lab/hands-off";

/// How long things take; scaled like everything in a lab.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From eviction until the pod is gone.
    pub pod_grace: Duration,
    /// From scheduling until the pod is Ready.
    pub pod_start: Duration,
    /// Between two heartbeats of a kubelet.
    pub heartbeat: Duration,
    /// From the last sign of a kubelet until its Node is Unknown.
    pub node_grace: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            pod_grace: Duration::from_millis(150),
            pod_start: Duration::from_millis(150),
            heartbeat: Duration::from_secs(1),
            node_grace: Duration::from_secs(3),
        }
    }
}

/// The controllers of a cluster and what they remember.
pub struct Controllers {
    pace: Pace,
    replica_sets: Vec<ReplicaSet>,
    /// Since when a pod (by UID) is ending or starting.
    since: HashMap<String, Moment>,
    heard: HashMap<String, Moment>,
    /// Nodes that must have been Ready before the first pod is placed: else all would land on the first that is.
    awaited: usize,
}

pub(crate) const CONTROL_PLANE_PODS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

impl Controllers {
    /// Controllers that have seen nothing yet.
    #[must_use]
    pub fn new(pace: Pace, replica_sets: Vec<ReplicaSet>, machines: usize) -> Self {
        Self { pace, replica_sets, since: HashMap::new(), heard: HashMap::new(), awaited: machines }
    }

    /// One pass over everything.
    pub fn pass(&mut self, state: &mut State, kubelets: &Kubelets) {
        let now = state.clock().now();
        self.heartbeats(state, kubelets, now);
        taints(state);
        mirror_pods(state, kubelets);
        daemon_pods(state);
        self.replicas(state);
        if state.list(Kind::Node).filter(|node| is_ready(node)).count() >= self.awaited {
            self.awaited = 0;
            schedule(state);
        }
        self.pods(state, kubelets, now);
        budgets(state);
    }

    fn heartbeats(&mut self, state: &mut State, kubelets: &Kubelets, now: Moment) {
        for (name, kubelet) in kubelets.all() {
            if kubelet.running {
                let due = self.heard.get(&name).is_none_or(|last| now.since(*last) >= self.pace.heartbeat);
                if due && state.get(Kind::Node, "", &name).is_some() {
                    heartbeat(state, &name);
                    self.heard.insert(name, now);
                }
            } else if let Some(silent) = kubelet.silent_since
                && now.since(silent) >= self.pace.node_grace
            {
                let at = seconds(state.clock().utc());
                state.edit(Kind::Node, "", &name, |node| {
                    if condition_status(node, "Ready") != Some("Unknown") {
                        let why = "Kubelet stopped posting node status.";
                        set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", why, &at);
                    }
                });
            }
        }
    }

    /// Each ReplicaSet has as many living pods as it wants; terminating ones do not count.
    fn replicas(&self, state: &mut State) {
        for set in &self.replica_sets {
            let living = state.list(Kind::Pod).filter(|pod| is_owned_by(pod, &set.uid) && !is_terminating(pod)).count();
            for _ in living..set.replicas {
                state.create(Kind::Pod, objects::replica(set));
            }
        }
    }

    /// The kubelets start and end their pods; a pod on a silent node stays as it is, not ready.
    fn pods(&mut self, state: &mut State, kubelets: &Kubelets, now: Moment) {
        let at = seconds(state.clock().utc());
        let pods: Vec<_> = state.list(Kind::Pod).cloned().collect();
        let known: HashSet<_> = pods.iter().filter_map(|pod| pod["metadata"]["uid"].as_str()).collect();
        self.since.retain(|uid, _| known.contains(uid.as_str()));
        for pod in pods {
            let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            if node.is_empty() || !pod["metadata"]["annotations"][HANDS_OFF].is_null() && !is_terminating(&pod) {
                continue;
            }
            let node_ready = state.get(Kind::Node, "", node).is_some_and(|node| is_ready(node));
            let running = kubelets.is_running(node);
            if state.get(Kind::Node, "", node).is_none() {
                state.remove(Kind::Pod, text("namespace"), text("name"));
            } else if is_terminating(&pod) {
                let since = *self.since.entry(text("uid").to_owned()).or_insert(now);
                let held = pod["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
                if running && !held && now.since(since) >= self.pace.pod_grace {
                    state.remove(Kind::Pod, text("namespace"), text("name"));
                }
            } else if !running || !node_ready {
                self.since.remove(text("uid"));
                if is_ready(&pod) {
                    state.edit(Kind::Pod, text("namespace"), text("name"), |pod| set_ready(pod, "False", &at));
                }
            } else if !is_ready(&pod) {
                let since = *self.since.entry(text("uid").to_owned()).or_insert(now);
                if now.since(since) >= self.pace.pod_start {
                    // What ends later is counted from its own eviction.
                    self.since.remove(text("uid"));
                    state.edit(Kind::Pod, text("namespace"), text("name"), |pod| {
                        pod["status"]["phase"] = json!("Running");
                        set_ready(pod, "True", &at);
                    });
                }
            }
        }
    }
}

fn set_ready(pod: &mut Value, value: &str, at: &str) {
    for of in ["Ready", "ContainersReady"] {
        set_pod_condition(pod, of, value, ("", ""), at);
    }
}

fn condition_status<'a>(object: &'a Value, of: &str) -> Option<&'a str> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == of)?["status"].as_str()
}

fn is_owned_by(pod: &Value, uid: &str) -> bool {
    pod["metadata"]["ownerReferences"].as_array().into_iter().flatten().any(|owner| owner["uid"] == uid)
}

/// The node lifecycle controller: taints follow the cordon and the condition Ready, a moment later.
fn taints(state: &mut State) {
    let nodes: Vec<_> = state.list(Kind::Node).cloned().collect();
    for node in nodes {
        let unschedulable = node["spec"]["unschedulable"] == true;
        let ready = condition_status(&node, "Ready");
        let wanted = [
            ("node.kubernetes.io/unschedulable", "NoSchedule", unschedulable),
            ("node.kubernetes.io/not-ready", "NoSchedule", ready == Some("False")),
            ("node.kubernetes.io/not-ready", "NoExecute", ready == Some("False")),
            ("node.kubernetes.io/unreachable", "NoSchedule", ready == Some("Unknown")),
            ("node.kubernetes.io/unreachable", "NoExecute", ready == Some("Unknown")),
        ];
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let now = seconds(state.clock().utc());
        for (key, effect, present) in wanted {
            let found = taints.iter().position(|taint| taint["key"] == key && taint["effect"] == effect);
            match (found, present) {
                (None, true) => taints.push(json!({"key": key, "effect": effect, "timeAdded": now})),
                (Some(at), false) => drop(taints.remove(at)),
                _ => {}
            }
        }
        // An edit copies the whole Node: with hundreds of them most passes would do nothing else.
        if node["spec"]["taints"].as_array().map_or(&[][..], Vec::as_slice) == taints {
            continue;
        }
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        state.edit(Kind::Node, "", name, |node| {
            if taints.is_empty() {
                if let Some(spec) = node["spec"].as_object_mut() {
                    spec.shift_remove("taints");
                }
            } else {
                node["spec"]["taints"] = json!(taints);
            }
        });
    }
}

fn mirror_pods(state: &mut State, kubelets: &Kubelets) {
    for (name, kubelet) in kubelets.all() {
        let node = state.get(Kind::Node, "", &name).cloned();
        let Some(node) = node.filter(|_| kubelet.running && kubelet.machine.control_plane) else { continue };
        for component in CONTROL_PLANE_PODS {
            if state.get(Kind::Pod, "kube-system", &format!("{component}-{name}")).is_none() {
                let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
                state.create(Kind::Pod, objects::mirror_pod(component, &name, uid));
            }
        }
    }
}

fn daemon_pods(state: &mut State) {
    let sets: Vec<_> = state.list(Kind::DaemonSet).cloned().collect();
    let nodes: Vec<_> = state.list(Kind::Node).cloned().collect();
    for set in sets {
        let uid = set["metadata"]["uid"].as_str().unwrap_or_default();
        let owned = state.list(Kind::Pod).filter(|pod| is_owned_by(pod, uid));
        let served: HashSet<String> =
            owned.filter_map(|pod| Some(pod["spec"]["nodeName"].as_str()?.to_owned())).collect();
        for node in &nodes {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            if !served.contains(name) {
                state.create(Kind::Pod, objects::daemon_pod(&set, name));
            }
        }
        let pods = state.list(Kind::Pod).filter(|pod| is_owned_by(pod, uid));
        let ready = pods.filter(|pod| is_ready(pod)).count();
        let text = |field: &str| set["metadata"][field].as_str().unwrap_or_default();
        state.edit(Kind::DaemonSet, text("namespace"), text("name"), |set| {
            for field in ["currentNumberScheduled", "desiredNumberScheduled"] {
                set["status"][field] = json!(nodes.len());
            }
            set["status"]["numberReady"] = json!(ready);
        });
    }
}

/// Binds pods to the emptiest node that takes any: Ready, not cordoned, without a taint that repels.
fn schedule(state: &mut State) {
    let unbound = |pod: &Value| pod["spec"]["nodeName"].is_null() && !is_terminating(pod);
    let waiting: Vec<_> = state.list(Kind::Pod).filter(|pod| unbound(pod)).cloned().collect();
    let mut load: HashMap<String, usize> = HashMap::new();
    for node in state.list(Kind::Pod).filter_map(|pod| pod["spec"]["nodeName"].as_str()) {
        *load.entry(node.to_owned()).or_default() += 1;
    }
    for pod in waiting {
        let takes = |node: &Value| {
            let tainted = node["spec"]["taints"].as_array().is_some_and(|all| !all.is_empty());
            is_ready(node) && node["spec"]["unschedulable"] != true && !tainted
        };
        let names =
            state.list(Kind::Node).filter(|node| takes(node)).filter_map(|node| node["metadata"]["name"].as_str());
        let pods = |node: &str| load.get(node).copied().unwrap_or_default();
        let Some(node) = names.min_by_key(|name| pods(name)).map(str::to_owned) else { return };
        *load.entry(node.clone()).or_default() += 1;
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
        state.edit(Kind::Pod, text("namespace"), text("name"), |pod| pod["spec"]["nodeName"] = json!(node));
    }
}

/// The disruption controller: the status of every budget from the pods that it selects.
fn budgets(state: &mut State) {
    let budgets: Vec<_> = state.list(Kind::PodDisruptionBudget).cloned().collect();
    let now = seconds(state.clock().utc());
    for pdb in budgets {
        let text = |field: &str| pdb["metadata"][field].as_str().unwrap_or_default();
        let selected: Vec<_> = state
            .list(Kind::Pod)
            .filter(|pod| pod["metadata"]["namespace"] == text("namespace"))
            .filter(|pod| match_labels(&pdb["spec"]["selector"], pod))
            .cloned()
            .collect();
        // Only what the eviction has claimed and not yet marked is still disrupted by the budget's own book.
        let mut disrupted = pdb["status"]["disruptedPods"].as_object().cloned().unwrap_or_default();
        disrupted.retain(|name, _| {
            selected.iter().any(|pod| pod["metadata"]["name"] == name.as_str() && !is_terminating(pod))
        });
        let alive = || selected.iter().filter(|pod| !is_terminating(pod));
        let healthy = alive()
            .filter(|pod| is_ready(pod))
            .filter(|pod| pod["metadata"]["name"].as_str().is_none_or(|name| !disrupted.contains_key(name)))
            .count();
        let expected = alive().count();
        let desired = desired_healthy(&pdb["spec"], expected);
        let allowed = if expected == 0 { 0 } else { healthy.saturating_sub(desired) };
        state.edit(Kind::PodDisruptionBudget, text("namespace"), text("name"), |pdb| {
            pdb["status"]["observedGeneration"] = pdb["metadata"]["generation"].clone();
            pdb["status"]["disruptionsAllowed"] = json!(allowed);
            pdb["status"]["currentHealthy"] = json!(healthy);
            pdb["status"]["desiredHealthy"] = json!(desired);
            pdb["status"]["expectedPods"] = json!(expected);
            if let Some(status) = pdb["status"].as_object_mut() {
                status.shift_remove("disruptedPods");
                if !disrupted.is_empty() {
                    status.insert("disruptedPods".into(), json!(disrupted));
                }
            }
            set_disruption_allowed(pdb, allowed > 0, &now);
        });
    }
}

fn desired_healthy(spec: &Value, expected: usize) -> usize {
    let count = |value: &Value| match value {
        Value::String(text) => {
            let percent: usize = text.trim_end_matches('%').parse().unwrap_or(0);
            (expected * percent).div_ceil(100)
        }
        value => value.as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(0),
    };
    if spec["minAvailable"].is_null() {
        expected.saturating_sub(count(&spec["maxUnavailable"]))
    } else {
        count(&spec["minAvailable"])
    }
}
