//! How long each rebooted node's turn took, and what of it was the product's own: read from the servers' log and from
//! the cluster itself, never from what the product says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prost::Message as _;
use talos_proto::clock::Clock;
use talos_proto::proto::talos::resource::definitions::{enums::RuntimeMachineStage as Stage, runtime};
use tokio::task::JoinHandle;

use crate::cluster::Lab;
use crate::kube::kind::Kind;
use crate::talos::cosi::kind;
use crate::talos::log::Entry;
use crate::talos::{Node, Role};

/// How often the cluster is looked at: the precision of a turn's times.
const LOOK: Duration = Duration::from_millis(10);

/// The turn of one node that was rebooted.
pub(super) struct Turn {
    pub node: String,
    /// From the release of the node before, or what else was done last, until its own release: the turns of a serial
    /// roll follow one another without a gap.
    pub all: Duration,
    /// From the first eviction until the last evictable pod is gone.
    pub drain: Duration,
    /// From the call of Reboot until the machine, its Node and, on a control plane, its API server are ready.
    pub reboot: Duration,
    /// PATCH requests on its Node.
    pub patches: usize,
}

impl Turn {
    /// What the node cost beyond what no tool can avoid.
    pub fn beyond(&self) -> Duration {
        self.all.saturating_sub(self.drain + self.reboot)
    }
}

/// Notes when a node was emptied and when it was ready again.
pub(super) struct Watcher {
    lab: Arc<Lab>,
    notes: Arc<Mutex<BTreeMap<String, Notes>>>,
    after: u64,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Default)]
struct Notes {
    had_pods: bool,
    was_ready: bool,
    emptied: Option<Timestamp>,
    ready: Option<Timestamp>,
}

impl Watcher {
    /// Watches from now on, until it is dropped.
    pub fn start(lab: Arc<Lab>, clock: Clock) -> Self {
        let notes: Arc<Mutex<BTreeMap<String, Notes>>> = Arc::default();
        let after = *lab.log().watch().borrow();
        let (cluster, written) = (Arc::clone(&lab), Arc::clone(&notes));
        let task = tokio::spawn(async move {
            loop {
                look(&cluster, clock.utc(), &mut written.lock().unwrap_or_else(PoisonError::into_inner));
                clock.sleep(LOOK).await;
            }
        });
        Self { lab, notes, after, task }
    }

    /// Ends it, and gives the turns of the nodes that were rebooted meanwhile, in their order. Once it has ended nothing
    /// looks at the cluster any more: a look at a real one takes a while, and must not outlive the runtime.
    pub async fn end(mut self) -> Vec<Turn> {
        self.task.abort();
        // It was told to end; that it was cancelled is no news.
        let _ = (&mut self.task).await;
        let writes: Vec<Entry> = self.lab.log().writes().into_iter().filter(|entry| entry.seq > self.after).collect();
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let rebooted = self.lab.talos().boot_order();
        rebooted.iter().filter_map(|name| turn(name, &rebooted, &writes, notes.get(name)?)).collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn look(lab: &Lab, now: Timestamp, notes: &mut BTreeMap<String, Notes>) {
    let pods = lab.objects().list(Kind::Pod);
    for node in lab.talos().nodes() {
        let notes = notes.entry(node.name().to_owned()).or_default();
        // Pods of a DaemonSet and mirror pods stay on a node that is drained.
        let has_pods = pods.iter().any(|pod| {
            pod["spec"]["nodeName"] == node.name() && pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
        });
        if notes.had_pods && !has_pods {
            notes.emptied = Some(now);
        }
        let ready = is_ready(lab, node);
        if ready && !notes.was_ready {
            notes.ready = Some(now);
        }
        (notes.had_pods, notes.was_ready) = (has_pods, ready);
    }
}

/// Machine, Node and API server, each asked at its source.
fn is_ready(lab: &Lab, node: &Node) -> bool {
    let machine = {
        let state = node.state();
        let status = state.boot.store.get(&kind::MACHINE_STATUS, "machine").and_then(|status| status.spec.as_ref());
        status.and_then(|spec| runtime::MachineStatusSpec::decode(spec.proto_spec.as_slice()).ok())
    };
    let machine = machine.is_some_and(|spec| {
        spec.stage() == Stage::MachineStageRunning && spec.status.is_some_and(|status| status.ready)
    });
    let server = node.role() == Role::Worker || lab.server_is_ready(node.name());
    machine && server && lab.node_seen(node.name()).is_some_and(|node| node.ready)
}

/// A turn, from the writes of one run; `None` when there is no claim, reboot and release of that node among them.
fn turn(node: &str, rebooted: &[String], writes: &[Entry], notes: &Notes) -> Option<Turn> {
    let patches = || writes.iter().filter(|entry| is_patch_of(entry, node));
    let (claim, end) = (patches().next()?, patches().next_back()?);
    let reboot = writes.iter().find(|entry| entry.method.ends_with("/Reboot") && entry.target == node)?;
    let before = || writes.iter().rev().filter(|entry| entry.seq < claim.seq && !entry.method.ends_with(" leases"));
    // The record of a node that has had its turn is written while the next one begins.
    let late = |entry: &Entry| rebooted.contains(&entry.target);
    let start = before().find(|entry| !late(entry)).or_else(|| before().next()).unwrap_or(claim);
    let evictions = writes.iter().filter(|entry| entry.method == "POST pods/eviction");
    let mut evictions = evictions.filter(|entry| claim.seq < entry.seq && entry.seq < reboot.seq);
    let drain = evictions.next().and_then(|first| Some(between(first.at, notes.emptied?)));
    let ready = notes.ready.filter(|ready| *ready > reboot.at)?;
    Some(Turn {
        node: node.to_owned(),
        all: between(start.at, end.at),
        drain: drain.unwrap_or_default(),
        reboot: between(reboot.at, ready),
        patches: patches().count(),
    })
}

fn is_patch_of(entry: &Entry, node: &str) -> bool {
    let path = entry.target.split('?').next().unwrap_or_default();
    entry.method == "PATCH nodes" && path.strip_prefix("/api/v1/nodes/") == Some(node)
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(seq: u64, millis: i64, method: &str, target: &str) -> Entry {
        let (method, target) = (method.to_owned(), target.to_owned());
        let at = Timestamp::from_millisecond(millis).unwrap();
        Entry { seq, at, server: "s".to_owned(), method, target, write: true, ..Entry::default() }
    }

    #[test]
    fn a_turn_is_what_passes_between_two_nodes() {
        let writes = [
            write(1, 1000, "PATCH nodes", "/api/v1/nodes/before"),
            write(2, 1300, "/machine.MachineService/ApplyConfiguration", "before"),
            write(3, 1400, "PATCH leases", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/talos-ghcr"),
            write(4, 1500, "PATCH nodes", "/api/v1/nodes/w?timeout=2s"),
            write(5, 1600, "POST pods/eviction", "/api/v1/namespaces/default/pods/a/eviction"),
            write(6, 2100, "PATCH nodes", "/api/v1/nodes/w"),
            write(7, 2200, "/machine.MachineService/Reboot", "w"),
            write(8, 4300, "PATCH nodes", "/api/v1/nodes/w"),
            write(9, 4400, "/machine.MachineService/ApplyConfiguration", "w"),
            write(10, 4500, "PATCH nodes", "/api/v1/nodes/w-2"),
        ];
        let at = |millis| Some(Timestamp::from_millisecond(millis).unwrap());
        let notes = Notes { emptied: at(2000), ready: at(4200), ..Notes::default() };
        let rebooted = ["before".to_owned(), "w".to_owned()];
        let seen = turn("w", &rebooted, &writes, &notes).unwrap();
        let millis = [seen.all, seen.drain, seen.reboot, seen.beyond()].map(|length| length.as_millis());
        assert_eq!((millis, seen.patches), ([3300, 400, 2000, 900], 3));
        assert!(turn("w-2", &rebooted, &writes, &notes).is_none(), "it was not rebooted");
    }
}
