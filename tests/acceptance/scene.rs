//! How a cluster stands before a run, where a run is held or killed in it, and what it went through.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lab::faults::{CrashPoint, When};
use lab::kube::kind::Kind;
use lab::kube::store::Event;
use lab::talos::log::Entry;
use lab::{Held, Lab, Options};
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::harness::{Bed, LIMIT, eventually};

/// The annotation of the fence.
pub const FENCE: &str = "talos-ghcr/fence";
/// A password beside the old and the new one.
const NEWER: &str = "a-newer-password";
/// More requests than any roll of a test makes.
const MANY: u64 = 400;
/// Labs that run side by side: they wait most of the time.
const AT_ONCE: usize = 4;

/// Both of [`two_workers`], and not the control plane.
pub const BOTH: [&str; 2] = ["-n", "worker-1,worker-2"];

/// One control plane, which is left out, and two workers with the old credential: what is drained off the one finds a
/// place on the other.
pub async fn two_workers() -> Bed {
    Bed::new(|options| (options.control_planes, options.workers) = (1, 2)).await
}

/// Three control planes and two workers, of which only `stale` still hold the old credential. The others hold the new
/// one, configured and loaded by a restart of their CRI, and no record says so: a run only proves them.
pub async fn only_stale(stale: &[&str]) -> Bed {
    only_stale_of(stale, |_| {}).await
}

/// The same with other options.
pub async fn only_stale_of(stale: &[&str], change: impl FnOnce(&mut Options)) -> Bed {
    let bed = Bed::new(|options| {
        options.workers = 2;
        options.cri_health = Duration::from_millis(100);
        change(options);
    })
    .await;
    let others = || bed.lab.talos().nodes().iter().filter(|node| !stale.contains(&node.name()));
    for node in others() {
        bed.apply(node.name(), &bed.config_with_new(node.name()));
        if !node.version().adopts_live() {
            node.kill_cri();
        }
    }
    eventually("the other nodes have loaded the new credential", || {
        bed.lab.truth().nodes.iter().all(|node| {
            let wanted = if stale.contains(&node.name.as_str()) { Held::Old } else { Held::New };
            node.cri_loaded == wanted
        })
    })
    .await;
    bed.lab.reset_counters();
    bed
}

/// A machine config with one more line at its end, as another tool may have left it.
pub fn with_comment(config: &str, comment: &str) -> String {
    format!("{config}# {comment}\n")
}

/// Writes a docker config with a third credential that the registry accepts; gives its path.
pub fn newer_credential(bed: &Bed) -> String {
    bed.lab.registry().accept("puller", NEWER);
    let auths = json!({"auths": {bed.lab.registry().host(): {"username": "puller", "password": NEWER}}});
    bed.write("credential-newer.json", &auths.to_string())
}

/// Whether somebody holds the Lease.
pub fn lease_is_held(bed: &Bed) -> bool {
    bed.lab.truth().lease.is_some_and(|lease| lease.is_held())
}

/// No disruption budget lets anything go from now on, or one pod again.
pub fn block_evictions(bed: &Bed, block: bool) {
    let allowed = i32::from(!block);
    bed.lab.objects().edit_pdb("default", "web", |pdb| pdb["spec"]["maxUnavailable"] = json!(allowed));
    // An eviction between this and the controller's next pass would still be allowed.
    if block {
        bed.lab.objects().edit_pdb("default", "web", |pdb| pdb["status"]["disruptionsAllowed"] = json!(0));
    }
}

/// The requests of one method about one node: `Reboot`, `ApplyConfiguration`, `PATCH nodes`, …
pub fn requests(bed: &Bed, method: &str, node: &str) -> Vec<Entry> {
    let about = |entry: &Entry| {
        entry.target == node
            || entry.target.split('?').next().is_some_and(|path| path.ends_with(&format!("/nodes/{node}")))
    };
    let is = |entry: &Entry| entry.method == method || entry.method.ends_with(&format!("/{method}"));
    bed.lab.log().all().into_iter().filter(|entry| is(entry) && about(entry)).collect()
}

/// Evictions that were asked for so far, refused ones too.
pub fn evictions(bed: &Bed) -> usize {
    bed.lab.log().all().iter().filter(|entry| entry.method == "POST pods/eviction").count()
}

/// Nothing was written anywhere, and no lease was taken.
#[track_caller]
pub fn assert_untouched(bed: &Bed) {
    let truth = bed.lab.truth();
    assert_eq!((bed.writes(), truth.lease, truth.unexpected), (0, None, vec![]));
    assert!(truth.nodes.iter().all(|node| node.configured == Held::Old && node.record.is_none() && !node.cordoned));
}

/// SIGKILL, and waited for.
pub async fn kill(mut child: Child) {
    child.kill().await.expect("it can be killed");
}

/// Sends a signal to a process that was started here.
pub fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
    rustix::process::kill_process(pid.expect("it runs"), signal).expect("it can be told");
}

/// Lets the mutating requests of a run through one by one, until one of them is held.
pub struct Gate {
    lab: Arc<Lab>,
    points: VecDeque<CrashPoint>,
}

impl Gate {
    /// Before the run is started.
    pub fn new(bed: &Bed) -> Self {
        let faults = bed.lab.faults();
        let first = faults.mutations();
        let points = (1..=MANY).map(|k| faults.crash_point(first + k, When::Before)).collect();
        Self { lab: Arc::clone(&bed.lab), points }
    }

    /// Holds the `nth` request from here on whose name contains `what`, on that side of its effect. The ones behind it
    /// wait too, until the gate is dropped or asked again.
    pub async fn hold(&mut self, when: When, what: &str, nth: usize) -> CrashPoint {
        let mut seen = 0;
        loop {
            let mut point = self.points.pop_front().expect("a roll has fewer requests");
            let reached = tokio::time::timeout(LIMIT, point.reached()).await;
            let mutation = reached.unwrap_or_else(|_| panic!("never asked for: {what}")).expect("the lab runs");
            seen += usize::from(mutation.what.contains(what));
            if seen < nth || !mutation.what.contains(what) {
                point.release();
                continue;
            }
            if when == When::Before {
                return point;
            }
            return self.after(point).await;
        }
    }

    /// Holds a change of a node's fence that finds it at that step: none is the claim, `claimed` the intent to reboot
    /// (or the release of a node that is given back), `rebooting` the release. A patch that a heartbeat of the kubelet
    /// made obsolete changes nothing and is not meant.
    pub async fn hold_fence(&mut self, when: When, node: &str, step: Option<&str>) -> CrashPoint {
        loop {
            let point = self.hold(When::Before, &format!("PATCH nodes /api/v1/nodes/{node}"), 1).await;
            if self.step(node).as_deref() != step {
                point.release();
                continue;
            }
            if when == When::Before {
                return point;
            }
            let after = self.after(point).await;
            if self.step(node).as_deref() != step {
                return after;
            }
            after.release();
        }
    }

    /// Lets a held request take effect and holds its answer.
    async fn after(&self, mut point: CrashPoint) -> CrashPoint {
        let mutation = point.reached().await.expect("it is held");
        let mut after = self.lab.faults().crash_point(mutation.number, When::After);
        point.release();
        after.reached().await.expect("the lab runs");
        after
    }

    fn step(&self, node: &str) -> Option<String> {
        let node = self.lab.objects().get(Kind::Node, "", node)?;
        fence_of(&node)?["step"].as_str().map(str::to_owned)
    }
}

/// Everything that was written to Nodes since it was begun.
pub struct Story<'a> {
    bed: &'a Bed,
    from: u64,
}

impl<'a> Story<'a> {
    /// From now on.
    pub fn begin(bed: &'a Bed) -> Self {
        Self { bed, from: bed.lab.objects().version() }
    }

    /// What happened to all Nodes, one after the other.
    pub fn events(&self) -> Vec<Event> {
        self.bed.lab.objects().node_events(self.from)
    }

    /// The changes of one Node that were no heartbeat, before and after.
    pub fn of(&self, name: &str) -> Vec<(Value, Value)> {
        let events = self.events().into_iter().filter(|event| event.object["metadata"]["name"] == name);
        let pairs = events.filter_map(|event| Some((Value::clone(&*event.before?), Value::clone(&event.object))));
        pairs.collect()
    }

    /// The changes that set, changed or removed the fence on a Node.
    pub fn fence_changes(&self, name: &str) -> usize {
        self.of(name).iter().filter(|(before, after)| fence_of(before) != fence_of(after)).count()
    }

    /// The change that set the fence on a Node, and the one that removed it.
    pub fn fenced(&self, name: &str) -> Vec<(Value, Value)> {
        let changes = self.of(name).into_iter();
        changes.filter(|(before, after)| fence_of(before).is_some() != fence_of(after).is_some()).collect()
    }

    /// Law S1: never two control planes away or fenced, and never more workers than that.
    pub fn assert_budget(&self, workers_at_once: usize) {
        let mut away: BTreeMap<String, bool> = BTreeMap::new();
        for event in self.events() {
            let node = &event.object;
            let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            away.insert(name, fence_of(node).is_some() || !lab::kube::is_ready(node));
            let class = |prefix: &str| away.iter().filter(|(name, away)| name.starts_with(prefix) && **away).count();
            assert!(class("cp-") <= 1, "two control planes at once: {away:?}");
            assert!(class("worker-") <= workers_at_once, "too many workers at once: {away:?}");
            assert!(class("cp-") == 0 || class("worker-") == 0, "a control plane while a worker is away: {away:?}");
        }
    }
}

/// The fence on a Node.
pub fn fence_of(node: &Value) -> Option<Value> {
    node["metadata"]["annotations"][FENCE].as_str().map(lab::truth::parsed)
}

/// Runs cases side by side, a few at a time, and tells all that fail by their names.
pub async fn side_by_side(cases: Vec<(String, BoxFuture<'static, ()>)>) {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let started: Vec<_> = cases
        .into_iter()
        .map(|(name, case)| {
            let slots = Arc::clone(&slots);
            let task = tokio::spawn(async move {
                let _slot = slots.acquire().await;
                case.await;
            });
            (name, task)
        })
        .collect();
    let mut failed = Vec::new();
    for (name, task) in started {
        if let Err(error) = task.await {
            failed.push(format!("{name}: {}", panic_text(error)));
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
}

/// What a case said when it failed.
pub fn panic_text(error: JoinError) -> String {
    let panic = error.into_panic();
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("failed").to_owned()
}

/// Compares with `snapshots/NAME.snap`.
pub fn assert_snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}
