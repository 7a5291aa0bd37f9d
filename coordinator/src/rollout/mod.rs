//! The roll: observe, decide, perform, observe again, until two inventories in a row find nothing to do.
//!
//! There is no recovery code: a run that finds the fences of a dead one adopts them and decides from facts.

mod credential;
mod disrupt;
mod drive;
mod env;
mod hooks;
mod lease_words;
mod others;
mod outcome;
mod reboot;
mod saved;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent::image::ImageRef;
use agent::step::Step;
use schemars::JsonSchema;
use serde::Serialize;
use talos_proto::chain;
use talos_proto::clock::Moment;
use tokio_util::sync::CancellationToken;

use crate::commands::uncordon;
use crate::decide::{Action, Task, decide, left_over};
use crate::exit::Exit;
use crate::fleet::{Fencing, FleetNode, Talk};
use crate::holder::Holder;
use crate::inventory::{Context, Inventory, Known};
use crate::kube::access;
use crate::kube::lease::{AcquireError, HeldLease, LeaseOptions, LeaseState, Release, acquire};
use crate::left_out::LeftOut;
use crate::plan::{NodeRow, document};
use crate::registry::{explain, preflight};
use crate::report::progress::{Progress, short};
use crate::trace::Phase;
use env::Env;
use lease_words::LeaseWords;
use saved::Saved;

pub use credential::is_another;
pub use disrupt::still_ours;
pub use drive::{after_done, remember};
pub use outcome::Learned;
pub use reboot::{Boot, boot_seen, came_to_nothing};

/// After a write two clean inventories in a row are needed: a node may have appeared, a controller may have undone.
pub const CLEAN_AFTER_WRITE: u32 = 2;

/// Between two tries to reach an API that does not answer.
const AWAY: Duration = Duration::from_millis(500);

/// What came of a run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunDocument {
    /// [`crate::plan::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `Run`.
    pub kind: &'static str,
    /// `done`, `nothing-to-do`, or why not.
    pub result: String,
    /// Whether anything was written.
    pub changed: bool,
    /// The exit code.
    pub exit_code: u8,
    /// The desired set's revision.
    pub revision: Option<String>,
    /// Nodes that were rebooted, in order.
    pub rebooted: Vec<String>,
    /// Nodes that adopted by a restart of CRI, in order.
    pub adopted_live: Vec<String>,
    /// What a human must see, by node; an empty name is the run itself.
    pub left: BTreeMap<String, String>,
    /// What flags left out, as it was seen last.
    pub left_out: LeftOut,
    /// Requests sent.
    pub requests: Requests,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// A run that has come to its end.
pub struct Ended {
    /// How.
    pub exit: Exit,
    /// What came of it.
    pub document: RunDocument,
    /// The nodes as they were seen last, in the order of their turns; empty when none was seen.
    pub nodes: Vec<NodeRow>,
}

/// Requests that this process sent.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// To Talos.
    pub talos: u64,
    /// To Kubernetes.
    pub kubernetes: u64,
}

/// Asked before the first write; `false` ends the run.
pub type Confirm = Box<dyn Fn(&Inventory) -> bool + Send + Sync>;

/// A run and what it knows.
pub struct Rollout {
    env: Env,
    known: Known,
    lease: Option<Arc<HeldLease>>,
    confirm: Confirm,
    start: Moment,
    exit: Exit,
    left: BTreeMap<String, String>,
    left_out: LeftOut,
    rebooted: Vec<String>,
    adopted_live: Vec<String>,
    /// Live nodes, by UID, that this run has staged and that were not seen loaded yet.
    staged_live: BTreeSet<String>,
    /// Nodes, by UID, that the old script left cordoned without saying whether they were so before.
    cordon_unknown: BTreeSet<String>,
    revision: Option<String>,
    /// Since when a node is only looked at again, by UID.
    trouble: BTreeMap<String, Moment>,
    /// Warnings that were said.
    warned: BTreeSet<String>,
    /// The registry was asked with the credential and took it.
    registry_accepts: bool,
    /// A step that changes a node was begun.
    wrote: bool,
    /// `--before-command` was started, so that `--after-command` is owed.
    after_is_due: bool,
    /// Rounds that may still be made.
    rounds_left: u32,
    /// The nodes as they were seen last.
    seen: Vec<NodeRow>,
}

impl Rollout {
    /// A run that has not begun.
    #[must_use]
    pub fn new(context: Arc<Context>, progress: Progress, stop: CancellationToken, confirm: Confirm) -> Self {
        let start = context.talos.clock().now();
        let rounds_left = context.settings.max_rounds;
        let env = Env {
            context,
            lease: None,
            progress,
            stop,
            gate: Arc::default(),
            restarting: Arc::default(),
            said: Arc::default(),
            saved: Saved::default(),
            avoided: Arc::default(),
        };
        Self {
            env,
            known: Known::default(),
            lease: None,
            confirm,
            start,
            exit: Exit::Done,
            left: BTreeMap::new(),
            left_out: LeftOut::default(),
            rebooted: Vec::new(),
            adopted_live: Vec::new(),
            staged_live: BTreeSet::new(),
            cordon_unknown: BTreeSet::new(),
            revision: None,
            trouble: BTreeMap::new(),
            warned: BTreeSet::new(),
            registry_accepts: false,
            wrote: false,
            after_is_due: false,
            rounds_left,
            seen: Vec::new(),
        }
    }

    /// Runs to the end; never leaves the lease held when it returns, unless it was lost.
    pub async fn run(mut self) -> Ended {
        self.rounds().await;
        while self.after_command().await {
            self.rounds().await;
        }
        let changed = self.lease.is_some();
        self.release().await;
        let result = match self.exit {
            _ if self.stopping() => {
                "stopped: no new step was begun, what this run had cordoned is given back".to_owned()
            }
            Exit::Done if changed => "done".to_owned(),
            Exit::Done => "nothing-to-do".to_owned(),
            other => other.meaning().to_owned(),
        };
        let document = RunDocument {
            schema_version: crate::plan::SCHEMA_VERSION,
            kind: "Run",
            result,
            changed,
            exit_code: self.exit.code(),
            revision: self.revision,
            rebooted: self.rebooted,
            adopted_live: self.adopted_live,
            left: self.left,
            left_out: self.left_out,
            requests: Requests {
                talos: self.env.context.talos.calls(),
                kubernetes: self.env.context.servers.requests(),
            },
            seconds: self.env.clock().now().since(self.start).as_secs_f64(),
        };
        Ended { exit: self.exit, document, nodes: self.seen }
    }

    async fn rounds(&mut self) {
        // Said before anything is asked: with less, "configured" is not known and nothing can be written.
        if !self.env.context.is_admin() {
            let roles = self.env.context.identity.role_words();
            let reason = format!(
                "run needs the Talos role os:admin to read and write machine configs; this identity has {roles} (plan and verify say what they can)"
            );
            self.fail(Exit::Failed, "", reason);
            return;
        }
        for warning in self.env.context.warnings.clone() {
            if self.warned.insert(warning.clone()) {
                self.env.progress.event("", &format!("warning: {warning}"));
            }
        }
        let mut clean = 0;
        while self.rounds_left > 0 {
            self.rounds_left -= 1;
            let Some(inventory) = self.observe().await else { return };
            self.keep(&inventory);
            let Some(more) = self.check_command().await else { return };
            let policy = self.env.context.settings.fleet;
            let mut actions = decide(&inventory.snapshot, &policy);
            if self.lease.is_some() && !self.registry_accepts {
                actions.retain(|action| !action.task.needs_registry());
            }
            let begins = more && self.lease.is_none() && !self.stopping();
            if (actions.is_empty() && !begins) || self.stopping() {
                clean += 1;
                if self.lease.is_none() || clean >= CLEAN_AFTER_WRITE || self.stopping() {
                    self.conclude(&inventory);
                    return;
                }
                continue;
            }
            clean = 0;
            if begins || self.lease.is_none() && actions.iter().any(|action| action.task.writes()) {
                if !self.begin(&inventory, &actions).await {
                    return;
                }
                // Observed again before acting: the lease may have taken its time, and a fence of its last holder is
                // residue only now.
                continue;
            }
            let mut inventory = inventory;
            self.drive(&mut inventory.snapshot).await;
            self.keep(&inventory);
            if self.exit == Exit::ControlLost {
                return;
            }
            if self.stopping() {
                // A job that is cancelled has seconds left: what was seen last must do.
                self.conclude(&inventory);
                return;
            }
        }
        let rounds = self.env.context.settings.max_rounds;
        let words = format!(
            "not done after {rounds} rounds (--max-rounds): is another tool changing the nodes, or adding some all the time?"
        );
        self.fail(Exit::Failed, "", words);
    }

    /// A fresh inventory. An API that does not answer is ridden out: its node may be the one that we, or a dead run
    /// before us, have just rebooted.
    async fn observe(&mut self) -> Option<Inventory> {
        let _phase = self.env.progress.trace().phase(Phase::Inventory);
        let budgets = self.env.context.settings.budgets;
        let patience = if self.lease.is_some() { budgets.reboot } else { budgets.gate };
        let deadline = self.env.clock().now() + patience;
        let mut waiting = None;
        loop {
            let error = match self.env.context.inventory(&self.known).await {
                Ok(inventory) => {
                    let judged = inventory.snapshot.nodes.iter().find_map(|node| node.judgement.as_ref()?.revision);
                    for warning in inventory.snapshot.warnings.iter().filter(|it| self.warned.insert((*it).clone())) {
                        self.env.progress.event("", &format!("warning: {warning}"));
                    }
                    self.revision = judged.map(|revision| revision.to_string()).or(self.revision.take());
                    return Some(inventory);
                }
                Err(error) => error,
            };
            if let Some(holder) = self.lost() {
                self.fail(Exit::ControlLost, "", format!("the lease was lost to {holder}{}", self.lease_facts()));
                return None;
            }
            let passing = error.may_pass() || self.lease.is_some();
            if !passing || self.env.clock().now() >= deadline || self.stopping() {
                self.fail(Exit::Failed, "", chain(&error));
                return None;
            }
            if waiting.is_none() {
                self.env.progress.event("", &format!("{}; trying for up to {}", chain(&error), short(patience)));
                waiting = Some(self.env.progress.waiting("", "trying to look at the cluster", Some(deadline)));
            }
            tokio::select! {
                () = self.env.clock().sleep(AWAY) => {}
                () = self.env.stop.cancelled() => {}
            }
        }
    }

    /// Keeps the nodes as they are now for the report.
    fn keep(&mut self, inventory: &Inventory) {
        self.seen = document("Run", inventory, &self.env.context.settings).nodes;
    }

    /// Everything before the first write: the question, the registry, the API servers, the lease.
    async fn begin(&mut self, inventory: &Inventory, actions: &[Action]) -> bool {
        let trace = self.env.progress.trace().clone();
        let phase = trace.phase(Phase::Lease);
        if !self.others_are_dead(inventory).await {
            return false;
        }
        drop(phase);
        let phase = trace.phase(Phase::Confirmation);
        let confirmed = (self.confirm)(inventory);
        drop(phase);
        if !confirmed {
            self.fail(Exit::Stopped, "", "not confirmed; nothing was changed".into());
            return false;
        }
        self.registry_accepts = self.ask_registry().await;
        // A refused credential changes nothing; but a node that a dead run left cordoned is given back all the same.
        if !self.registry_accepts && !actions.iter().any(|action| action.task == Task::Adopt) {
            return false;
        }
        let planes = inventory.snapshot.nodes.iter().filter(|node| node.kube.control_plane);
        let addresses = planes.filter_map(FleetNode::address).collect();
        let further = &self.env.context.settings.kube_servers;
        let phase = trace.phase(Phase::ApiServers);
        let dropped = self.env.context.servers.extend(addresses, further).await;
        drop(phase);
        for dropped in dropped {
            self.env.progress.event("", &format!("API server at {} is not used: {}", dropped.address, dropped.reason));
        }
        self.may_do_all().await && self.take_lease(inventory).await && self.before_command().await
    }

    /// A verb that is missing in the middle of a roll would leave a fence behind: asked before the first mutation.
    async fn may_do_all(&mut self) -> bool {
        let _phase = self.env.progress.trace().phase(Phase::Rights);
        let settings = &self.env.context.settings;
        let (lease, deletes) = (&settings.lease, settings.drain.disable_eviction);
        let needed = access::needed(&lease.namespace, &lease.name, deletes);
        match access::missing(&self.env.context.servers, needed).await {
            Ok(missing) if missing.is_empty() => true,
            Ok(missing) => {
                let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
                let reason = format!(
                    "the kubeconfig's user may not: {}; nothing was changed ({})",
                    list.join(", "),
                    access::granted_by(deletes)
                );
                self.fail(Exit::Failed, "", reason);
                false
            }
            // A cluster that does not answer this question is asked by the requests themselves.
            Err(error) => {
                tracing::debug!(error = %chain(&error), "access reviews are not answered");
                true
            }
        }
    }

    /// The registry is asked with the new credential before anything is written.
    async fn ask_registry(&mut self) -> bool {
        let _phase = self.env.progress.trace().phase(Phase::Registry);
        let settings = &self.env.context.settings;
        let images: Result<Vec<ImageRef>, _> = settings.images.iter().map(|image| image.parse::<ImageRef>()).collect();
        let images = match images {
            Ok(images) => images,
            Err(error) => {
                self.fail(Exit::Usage, "", format!("--image: {}", chain(&error)));
                return false;
            }
        };
        match preflight(&self.env.context.desired, &images, self.env.clock()).await {
            Ok(passed) => {
                self.env.progress.event("", "the registry accepts the credential");
                for warning in passed.warnings() {
                    self.env.progress.event("", &format!("warning: {warning}"));
                }
                true
            }
            Err(error) => {
                self.fail(Exit::Failed, "", format!("{}; the credential was written nowhere", explain(&error).await));
                false
            }
        }
    }

    async fn take_lease(&mut self, inventory: &Inventory) -> bool {
        let trace = self.env.progress.trace().clone();
        let _phase = trace.phase(Phase::Lease);
        let settings = &self.env.context.settings;
        let revision = inventory.snapshot.nodes.iter().find_map(|node| node.judgement.as_ref()?.revision);
        let rev16 = revision.map(|revision| revision.rev16()).unwrap_or_default();
        let holder = Holder::this_process(&rev16, self.env.clock());
        let renewals = trace.clone();
        let (progress, words) = (self.env.progress.clone(), LeaseWords::new(self.env.clock().clone()));
        let options = LeaseOptions {
            namespace: settings.lease.namespace.clone(),
            name: settings.lease.name.clone(),
            timing: settings.timing,
            takeover: settings.takeover,
            wait: settings.lease_wait,
            expected: inventory.was_here_before(),
            ci: Some(Arc::clone(&self.env.context.ci)),
            progress: Arc::new(move |event| words.tell(&progress, event)),
            renewals: Arc::new(move |sent, why| renewals.renewed(sent, why)),
            ..LeaseOptions::new(holder)
        };
        let acquiring = Box::pin(acquire(&self.env.context.servers, options));
        let Ok(acquired) = self.env.unless_stopped(acquiring).await else { return false };
        match acquired {
            Ok(lease) => {
                self.env.progress.event("", &format!("lease {} taken as {}", lease.lease(), lease.holder()));
                let lease = Arc::new(lease);
                self.known.holder = Some(lease.holder().to_owned());
                self.env.lease = Some(Arc::clone(&lease));
                let (stop, stopping) = (self.env.stop.clone(), Arc::clone(&lease));
                tokio::spawn(async move {
                    stop.cancelled().await;
                    stopping.request_stop();
                });
                self.lease = Some(lease);
                true
            }
            Err(error @ AcquireError::HeldByAnother(_)) => {
                self.fail(Exit::Refused, "", chain(&error));
                false
            }
            Err(error) => {
                self.fail(Exit::Failed, "", chain(&error));
                false
            }
        }
    }

    /// The last look: what keeps this from exit 0.
    fn conclude(&mut self, inventory: &Inventory) {
        let snapshot = &inventory.snapshot;
        self.left_out = LeftOut::of(snapshot);
        let policy = self.env.context.settings.fleet;
        for (node, reason) in left_over(snapshot, &policy) {
            // A failure of this run has named its exit code already.
            if self.left.contains_key(&node) {
                continue;
            }
            let open = |node: &FleetNode| {
                node.fencing == Fencing::Free && matches!(node.next_step(policy.step), Step::Claim | Step::Stage)
            };
            if self.stopping() && snapshot.node(&node).is_some_and(open) {
                self.leave(&node, "not done: the run was stopped before it".to_owned());
            } else {
                self.leave(&node, reason);
            }
        }
        for node in snapshot.nodes.iter().filter(|node| lost_sight(node)) {
            if !self.left.contains_key(node.name()) {
                self.leave(node.name(), "its fence is kept: the next run goes on from it".to_owned());
            }
        }
        let cordoned = |node: &&FleetNode| node.kube.unschedulable && self.cordon_unknown.contains(&node.kube.uid);
        let cordoned: Vec<_> = snapshot.nodes.iter().filter(cordoned).map(|node| node.kube.clone()).collect();
        for node in &cordoned {
            if self.left.contains_key(&node.name) {
                continue;
            }
            let command = uncordon(node).text(&self.env.context.settings.kubectl);
            let reason = format!(
                "still cordoned: the old script did not record whether it was cordoned before. If nobody wants it so: {command}"
            );
            self.leave(&node.name, reason);
        }
        let held = inventory.lease.as_ref().and_then(|lease| lease.holder.as_ref());
        if self.lease.is_none()
            && self.exit == Exit::Done
            && let Some(holder) = held
        {
            self.env.progress.event("", &format!("warning: nothing to do, but the lease is held by {holder}"));
        }
    }

    /// Gives the lease back. A run whose work succeeded does not fail because of it: it frees itself by its duration.
    async fn release(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let _phase = self.env.progress.trace().phase(Phase::Release);
        if let LeaseState::Lost { holder } = &*lease.state().borrow() {
            self.exit = self.exit.worse(Exit::ControlLost);
            let facts = lease.facts();
            let words = format!("the lease was lost to {holder} ({facts}); run the same command again");
            self.left.insert(String::new(), words);
            return;
        }
        match lease.release().await {
            Ok(Release::TakenBy { holder }) => {
                let words = format!("the lease was taken by {holder} in the meantime ({})", lease.facts());
                self.env.progress.event("", &words);
            }
            Ok(_) => self.env.progress.event("", "lease released"),
            Err(error) => {
                let left = short(lease.timing().watch(None));
                let words = format!("warning: {}; the next run takes it over within {left}", chain(&error));
                self.env.progress.event("", &words);
            }
        }
    }

    fn lost(&self) -> Option<String> {
        let state = self.lease.as_ref()?.state().borrow().clone();
        if let LeaseState::Lost { holder } = state { Some(holder) } else { None }
    }

    /// What the Lease said when it was seen last, in parentheses.
    fn lease_facts(&self) -> String {
        self.lease.as_ref().map(|lease| format!(" ({})", lease.facts())).unwrap_or_default()
    }

    fn stopping(&self) -> bool {
        self.env.stop.is_cancelled()
    }

    /// Something is not done. A run that was asked to stop says so, and its exit code tells of the stop.
    fn leave(&mut self, node: &str, reason: String) {
        if self.stopping() {
            self.left.insert(node.to_owned(), reason);
        } else {
            self.fail(Exit::Failed, node, reason);
        }
    }

    fn fail(&mut self, exit: Exit, node: &str, reason: String) {
        self.exit = self.exit.worse(exit);
        self.env.progress.event(node, &format!("error: {reason}"));
        self.left.insert(node.to_owned(), reason);
    }
}

/// A node whose fence we hold and that we leave so: a human must see it.
#[must_use]
pub fn lost_sight(node: &FleetNode) -> bool {
    matches!(node.fencing, Fencing::Ours { .. } | Fencing::Residue { .. }) && !matches!(node.talk, Talk::NotTalos(_))
}
