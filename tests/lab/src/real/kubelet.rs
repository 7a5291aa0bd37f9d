//! A stand-in for a node's kubelet and for Talos's node controllers, at a real API server: it registers the Node, beats,
//! runs the pods that are bound to it and ends those that are deleted.
//!
//! Without it nothing would ever leave a node: an eviction only marks a pod, and its kubelet deletes it in the end, at
//! once (grace 0) and only if it is still the same pod (kubernetes pkg/kubelet/status, `syncPod`).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use talos_proto::clock::{Clock, Moment};
use tokio::sync::Notify;

use super::api::{Api, MERGE_PATCH, STRATEGIC_MERGE_PATCH, collection, object};
use super::mirror::Mirror;
use crate::kube::controllers::{CONTROL_PLANE_PODS, HANDS_OFF, Pace};
use crate::kube::is_ready;
use crate::kube::kind::Kind;
use crate::kube::kubelet::annotate;
use crate::kube::objects::{self, Machine};
use crate::kube::store::{micros, seconds};

/// Between two looks at its pods.
const LOOK: Duration = Duration::from_millis(40);
/// The namespace of the kubelets' Leases.
const NODE_LEASES: &str = "kube-node-lease";
/// How often an update that another writer made obsolete is tried again before the next look.
const TRIES: usize = 5;

/// What a kubelet is to do; set by the simulated machine, done by its task.
#[derive(Default)]
struct Orders {
    /// The boot in which it runs.
    boot: Option<String>,
    /// The Node does not say so yet.
    announce: bool,
    /// Ready=False is not written yet.
    goodbye: bool,
    /// The annotations of the machine config, not applied yet.
    annotations: Option<BTreeMap<String, String>>,
}

/// The kubelet of one machine.
pub(super) struct Kubelet {
    machine: Machine,
    orders: Mutex<Orders>,
    wake: Notify,
}

impl Kubelet {
    pub fn new(machine: Machine) -> Arc<Self> {
        Arc::new(Self { machine, orders: Mutex::default(), wake: Notify::new() })
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders());
        self.wake.notify_one();
    }

    /// It runs, in that boot.
    pub fn started(&self, boot: &str) {
        self.order(|orders| {
            (orders.boot, orders.announce, orders.goodbye) = (Some(boot.to_owned()), true, false);
        });
    }

    /// It ends in order, and says so.
    pub fn stopped(&self) {
        self.order(|orders| (orders.boot, orders.announce, orders.goodbye) = (None, false, true));
    }

    /// It is silent from now on.
    pub fn died(&self) {
        self.order(|orders| (orders.boot, orders.announce, orders.goodbye) = (None, false, false));
    }

    /// The annotations that the machine config wants.
    pub fn annotate(&self, set: BTreeMap<String, String>) {
        self.order(|orders| orders.annotations = Some(set));
    }

    /// Does what it is told until the lab ends.
    pub async fn run(self: Arc<Self>, api: Api, pods: Arc<Mirror>, pace: Pace, clock: Clock) {
        let mut work =
            Work { kubelet: &self, api, pods, pace, clock: clock.clone(), since: HashMap::new(), beat: None };
        loop {
            // What failed is still ordered, and tried at the next look.
            let _ = work.pass().await;
            tokio::select! {
                () = self.wake.notified() => {}
                () = clock.sleep(LOOK) => {}
            }
        }
    }
}

struct Work<'a> {
    kubelet: &'a Kubelet,
    api: Api,
    pods: Arc<Mirror>,
    pace: Pace,
    clock: Clock,
    /// Since when a pod (by UID) is ending or starting.
    since: HashMap<String, Moment>,
    /// The last heartbeat.
    beat: Option<Moment>,
}

impl Work<'_> {
    async fn pass(&mut self) -> io::Result<()> {
        let (boot, announce, goodbye, annotations) = {
            let orders = self.kubelet.orders();
            (orders.boot.clone(), orders.announce, orders.goodbye, orders.annotations.clone())
        };
        if goodbye {
            let condition = condition("False", "KubeletNotReady", "node is shutting down", &self.now());
            if self.status(&json!({"conditions": [condition]})).await? {
                self.kubelet.orders().goodbye = false;
            }
        }
        if let Some(boot) = &boot {
            if announce && self.announce(boot).await? {
                let mut orders = self.kubelet.orders();
                // Unless it was told something else meanwhile.
                if orders.boot.as_ref() == Some(boot) {
                    orders.announce = false;
                }
            }
            if self.beat.is_none_or(|beat| self.clock.now().since(beat) >= self.pace.heartbeat) {
                self.beat = Some(self.clock.now());
                self.heartbeat().await?;
            }
        }
        if let Some(set) = annotations
            && self.apply(&set).await?
        {
            let mut orders = self.kubelet.orders();
            if orders.annotations.as_ref() == Some(&set) {
                orders.annotations = None;
            }
        }
        if boot.is_some() && !announce {
            self.run_pods().await?;
        }
        Ok(())
    }

    fn now(&self) -> String {
        seconds(self.clock.utc())
    }

    fn name(&self) -> &str {
        &self.kubelet.machine.name
    }

    /// Changes the Node's status; whether it took it.
    async fn status(&self, status: &Value) -> io::Result<bool> {
        let path = format!("{}/status", object(Kind::Node, "", self.name()));
        Ok(self.api.patch(&path, STRATEGIC_MERGE_PATCH, &json!({"status": status})).await?.is_ok())
    }

    /// Registers the Node, or tells what a new boot changed in it.
    async fn announce(&self, boot: &str) -> io::Result<bool> {
        let now = self.clock.utc();
        let machine = &self.kubelet.machine;
        let status = json!({"nodeInfo": objects::node_info(machine, boot), "conditions": objects::conditions(now)});
        if self.status(&status).await? {
            self.heartbeat().await?;
            return Ok(true);
        }
        self.api.post(&collection(Kind::Node, ""), &objects::node(machine, boot, now)).await?;
        Ok(false)
    }

    /// The Lease in kube-node-lease, and the times in the Node's conditions. A real kubelet does the second only every
    /// five minutes; each of them makes a resourceVersion obsolete that a client has read, so more is stricter.
    async fn heartbeat(&self) -> io::Result<()> {
        let name = self.name();
        let lease = json!({
            "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micros(self.clock.utc())},
        });
        let renewed = self.api.patch(&object(Kind::Lease, NODE_LEASES, name), MERGE_PATCH, &lease).await?;
        if renewed.code == 404 {
            self.api.post(&collection(Kind::Lease, NODE_LEASES), &lease).await?;
        }
        let all = objects::conditions(self.clock.utc());
        let beat = |condition: &Value| {
            json!({
                "type": condition["type"], "status": condition["status"], "reason": condition["reason"],
                "message": condition["message"], "lastHeartbeatTime": condition["lastHeartbeatTime"],
            })
        };
        let beats: Vec<Value> = all.as_array().into_iter().flatten().map(beat).collect();
        self.status(&json!({"conditions": beats})).await?;
        Ok(())
    }

    /// Talos's own annotations, by its rules.
    async fn apply(&self, set: &BTreeMap<String, String>) -> io::Result<bool> {
        let path = object(Kind::Node, "", self.name());
        for _ in 0..TRIES {
            let reply = self.api.get(&path).await?;
            if !reply.is_ok() {
                return Ok(false);
            }
            let before = reply.json();
            let mut node = before.clone();
            annotate(&mut node, set);
            if node == before || self.api.put(&path, &node).await?.is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn run_pods(&mut self) -> io::Result<()> {
        let name = self.name().to_owned();
        let mine: Vec<_> =
            self.pods.list().into_iter().filter(|pod| pod["spec"]["nodeName"] == name.as_str()).collect();
        let now = self.clock.now();
        let mut since = HashMap::new();
        for pod in &mine {
            let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
            let path = object(Kind::Pod, text("namespace"), text("name"));
            let ending = !pod["metadata"]["deletionTimestamp"].is_null();
            let finished = ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default());
            let hands_off = !pod["metadata"]["annotations"][HANDS_OFF].is_null();
            if !ending && (is_ready(pod) || finished || hands_off) {
                continue;
            }
            let key = format!("{} {ending}", text("uid"));
            let begun = self.since.get(&key).copied().unwrap_or(now);
            since.insert(key, begun);
            let (due, takes) = (now.since(begun), if ending { self.pace.pod_grace } else { self.pace.pod_start });
            match ending {
                _ if due < takes => {}
                true => drop(self.api.delete(&path, Some(text("uid"))).await?),
                false => {
                    let patch = json!({"metadata": {"uid": text("uid")}, "status": running(&self.now())});
                    self.api.patch(&format!("{path}/status"), STRATEGIC_MERGE_PATCH, &patch).await?;
                }
            }
        }
        self.since = since;
        if self.kubelet.machine.control_plane {
            self.mirror_pods(&mine).await?;
        }
        Ok(())
    }

    /// The static pods of a control plane are shown by mirror pods, which come back when they are deleted.
    async fn mirror_pods(&self, mine: &[Arc<Value>]) -> io::Result<()> {
        for component in CONTROL_PLANE_PODS {
            let name = format!("{component}-{}", self.name());
            if mine.iter().any(|pod| pod["metadata"]["name"] == name.as_str()) {
                continue;
            }
            let node = self.api.get(&object(Kind::Node, "", self.name())).await?.json();
            let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
            let mut pod = objects::mirror_pod(component, self.name(), uid);
            if let Some(pod) = pod.as_object_mut() {
                pod.shift_remove("status");
            }
            self.api.post(&collection(Kind::Pod, "kube-system"), &pod).await?;
        }
        Ok(())
    }
}

fn condition(status: &str, reason: &str, message: &str, now: &str) -> Value {
    json!({
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    })
}

/// The status of a pod that runs.
fn running(now: &str) -> Value {
    let conditions: Vec<Value> = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .iter()
        .map(|of| json!({"type": of, "status": "True", "lastTransitionTime": now}))
        .collect();
    let container = json!({
        "name": "main", "ready": true, "started": true, "restartCount": 0, "image": "registry.k8s.io/pause:3.10",
        "imageID": "", "state": {"running": {"startedAt": now}},
    });
    json!({"phase": "Running", "conditions": conditions, "startTime": now, "containerStatuses": [container]})
}
