//! Performs what may be begun, and looks at each node again when its step is done, until nothing is left to begin.

use std::time::Duration;

use agent::claims::Blocked;
use agent::step::{Memory, Step};
use talos_proto::chain;
use talos_proto::clock::Moment;
use talos_proto::permit::NoPermit;
use tokio::task::{JoinError, JoinSet};

use super::disrupt::Gates;
use super::env::Env;
use super::outcome::{End, Failure, Learned};
use super::{Rollout, credential, disrupt, reboot};
use crate::decide::{Action, Task, decide, give_back};
use crate::exit::Exit;
use crate::fleet::{FleetNode, Snapshot};
use crate::gates;
use crate::inventory::Known;
use crate::kube::api_servers::ReadError;
use crate::kube::lease::LeaseState;
use crate::trace::Outcome;

/// Before a node is looked at again that is not known well enough.
const PAUSE: Duration = Duration::from_millis(500);

/// Calls in flight get that long when the run is asked to stop.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// What ended a wait of the drive loop.
enum Woken {
    Done(Option<Result<Box<Performed>, JoinError>>),
    Lost,
    Stopped,
    OutOfPatience,
}

/// A step that has come to its end, and the node as it is now.
struct Performed {
    before: FleetNode,
    task: Task,
    learned: Learned,
    end: End,
    fresh: Result<Option<FleetNode>, ReadError>,
}

impl Rollout {
    /// Until nothing is busy and nothing more may be begun.
    pub(super) async fn drive(&mut self, snapshot: &mut Snapshot) {
        let mut running: JoinSet<Box<Performed>> = JoinSet::new();
        let mut patience: Option<Moment> = None;
        let mut broken_off = false;
        loop {
            if self.lost().is_none() {
                self.begin_steps(snapshot, &mut running).await;
            }
            if running.is_empty() {
                return;
            }
            let woken = {
                let stop = self.env.stop.clone();
                let clock = self.env.clock().clone();
                tokio::select! {
                    done = running.join_next() => Woken::Done(done),
                    () = self.lease_lost() => Woken::Lost,
                    () = stop.cancelled(), if patience.is_none() => Woken::Stopped,
                    () = clock.sleep_until(patience.unwrap_or_else(|| clock.now())), if patience.is_some() => Woken::OutOfPatience,
                }
            };
            match woken {
                Woken::Done(Some(Ok(performed))) => self.take_in(snapshot, *performed),
                Woken::Done(Some(Err(panic))) => {
                    self.fail(Exit::Failed, "", format!("a step ended abnormally: {panic}"));
                    self.env.stop.cancel();
                }
                Woken::Done(None) => {}
                Woken::Lost => {
                    // Nothing mutates any more, for no permit is given; what waits is broken off.
                    running.shutdown().await;
                    let holder = self.lost().unwrap_or_default();
                    let words =
                        format!("the lease was taken by {holder}; fences are left to them{}", self.lease_facts());
                    self.fail(Exit::ControlLost, "", words);
                    return;
                }
                Woken::Stopped => patience = Some(self.env.clock().now() + LAST_CALLS),
                Woken::OutOfPatience => {
                    running.shutdown().await;
                    // Once: what cannot be undone now is left to the next run.
                    if std::mem::replace(&mut broken_off, true) {
                        return;
                    }
                    self.look_at_busy(snapshot).await;
                    patience = Some(self.env.clock().now() + LAST_CALLS);
                }
            }
        }
    }

    /// Ends when the lease is lost; never while there is none.
    async fn lease_lost(&self) {
        let Some(lease) = &self.lease else { return std::future::pending().await };
        let mut state = lease.state();
        // The writer outlives the wait: an error cannot come before the release.
        let _ = state.wait_for(|state| matches!(state, LeaseState::Lost { .. })).await;
    }

    /// Steps were broken off half way: what they left behind must be seen before it can be undone.
    async fn look_at_busy(&mut self, snapshot: &mut Snapshot) {
        let busy: Vec<_> =
            snapshot.nodes.iter().filter(|node| node.busy.is_some()).map(|n| n.name().to_owned()).collect();
        for name in busy {
            let Some(before) = snapshot.node(&name).cloned() else { continue };
            let fresh = self.env.context.look_at_fence(&before, &self.known).await;
            if let (Ok(Some(fresh)), Some(place)) = (fresh, snapshot.node_mut(&name)) {
                *place = fresh;
            }
        }
    }

    async fn begin_steps(&mut self, snapshot: &mut Snapshot, running: &mut JoinSet<Box<Performed>>) {
        let policy = self.env.context.settings.fleet;
        let mut actions = decide(snapshot, &policy);
        if actions.iter().any(|action| disrupts_control_plane(snapshot, action)) {
            // Looked at anew before each control plane: a VIP and the leadership may have moved.
            self.look_at_control_planes(snapshot).await;
            actions = decide(snapshot, &policy);
        }
        if self.stopping() {
            // No new step; what undoes goes on.
            actions.retain(|action| action.task == Task::Step(Step::Release));
            let undo = undo_claims(snapshot, &actions);
            actions.extend(undo);
        }
        if !self.registry_accepts {
            // What a dead run left is put in order all the same, without the credential.
            for action in &mut actions {
                let fenced = snapshot.node(&action.node).filter(|node| node.is_fenced_by_us());
                if let Some(node) = fenced.filter(|_| action.task.needs_registry()) {
                    action.task = Task::Step(give_back(node));
                }
            }
            actions.retain(|action| !action.task.needs_registry());
        }
        for Action { node, task } in actions {
            self.wrote |= task.writes();
            let Some(found) = snapshot.node_mut(&node) else { continue };
            found.busy = Some(match &task {
                Task::Adopt => Step::LookAgain("adopting".into()),
                Task::Canary => Step::Stage,
                Task::Step(step) => step.clone(),
            });
            let (env, known, before) = (self.env.clone(), self.known.clone(), found.clone());
            running.spawn(perform(env, known, before, task));
        }
    }

    /// Who leads etcd, and which control plane holds the endpoint's address now.
    async fn look_at_control_planes(&mut self, snapshot: &mut Snapshot) {
        let planes: Vec<_> = snapshot
            .nodes
            .iter()
            .filter(|node| node.kube.control_plane)
            .filter_map(|node| Some((node.name().to_owned(), node.address()?)))
            .collect();
        let talos = &self.env.context.talos;
        let addresses = planes.iter().map(|(name, address)| async move {
            let current = talos.node(*address).get::<talos_proto::resources::NodeAddresses>("current").await;
            (name.clone(), agent::facts::addresses(current))
        });
        let (leader, addresses) = futures::join!(gates::leader(talos, &planes), futures::future::join_all(addresses));
        snapshot.leader = leader;
        for (name, seen) in addresses {
            // A read that failed says nothing: what was seen before stands.
            if let Some(crate::fleet::Talk::Facts(facts)) = snapshot.node_mut(&name).map(|node| &mut node.talk)
                && seen.seen().is_some()
            {
                facts.addresses = seen;
            }
        }
        let found = self.env.context.find_endpoint(&snapshot.nodes).await;
        if !found.known {
            self.env.progress.event("", &format!("{}: the endpoint node is taken to be as before", found.rule));
            return;
        }
        if found.node != snapshot.endpoint.node {
            let node = found.node.as_deref().unwrap_or("no single node");
            self.env.progress.event("", &format!("the endpoint is served by {node} now ({})", found.rule));
        }
        snapshot.endpoint = found;
    }

    fn take_in(&mut self, snapshot: &mut Snapshot, performed: Performed) {
        let Performed { before, task, learned, end, fresh } = performed;
        let (name, uid) = (before.name().to_owned(), before.kube.uid.clone());
        remember(self.known.memory.entry(uid.clone()).or_default(), &learned);
        if learned.claimed {
            self.known.claimed.insert(uid.clone());
        }
        if learned.released {
            self.known.claimed.remove(&uid);
        }
        if learned.cordon_unknown {
            self.cordon_unknown.insert(uid.clone());
        }
        if matches!(&task, Task::Step(Step::Stage) | Task::Canary) && !matches!(end, End::Done) {
            self.env.restarts(&before, false);
        }
        if matches!(end, End::Done) {
            let memory = self.known.memory.entry(uid.clone()).or_default();
            after_done(memory, &task, &learned);
            match &task {
                Task::Step(Step::AwaitBoot) if !learned.settled => self.rebooted.push(name.clone()),
                Task::Step(Step::Stage) | Task::Canary if credential::is_live(&before) => {
                    self.staged_live.insert(uid.clone());
                }
                _ => {}
            }
        }
        // A step that failed because its node went away is no failure: an autoscaler is weather.
        let gone = went_away(&uid, &fresh);
        if let Some(how) = gone
            && !before.kube.deleting
            && !before.kube.leaving
        {
            self.env.say(&before, how);
        }
        if !(gone.is_some() && matches!(end, End::Failed(_) | End::Again(_))) {
            self.judge_end(&name, &uid, &task, end);
        }
        snapshot.halted |= self.known.halted;
        snapshot.canary_passed |= learned.canary_passed;
        match fresh {
            Ok(Some(mut node)) => {
                node.memory = self.known.memory.get(&node.kube.uid).cloned().unwrap_or_default();
                node.outage = before.outage;
                let loaded = node.judgement.as_ref().is_some_and(|judgement| judgement.claims.loaded.holds());
                if loaded && node.memory.ready {
                    self.env.restarts(&node, false);
                }
                if loaded && self.staged_live.remove(&node.kube.uid) {
                    self.adopted_live.push(name.clone());
                }
                if let Some(place) = snapshot.node_mut(&name) {
                    *place = node;
                }
            }
            // Gone is no error: an autoscaler is weather.
            Ok(None) => snapshot.nodes.retain(|node| node.kube.name != name),
            Err(error) => {
                tracing::debug!(node = %name, error = %chain(&error), "could not be looked at again");
                if let Some(place) = snapshot.node_mut(&name) {
                    place.busy = None;
                    place.memory = self.known.memory.get(&uid).cloned().unwrap_or_default();
                }
            }
        }
    }

    /// What the end of a step means for the node's future in this run.
    fn judge_end(&mut self, name: &str, uid: &str, task: &Task, end: End) {
        let budgets = self.env.context.settings.budgets;
        match end {
            End::Done => {
                if !matches!(task, Task::Step(Step::LookAgain(_))) {
                    self.trouble.remove(uid);
                }
            }
            End::Again(reason) => {
                if self.troubled_for(name, uid, &format!("{reason}; trying again")) >= budgets.gate {
                    // A fence that cannot be changed is kept, and said: there is no other way to give the node back.
                    let kept = matches!(task, Task::Adopt | Task::Step(Step::Release));
                    let failure = Failure::at_gate(reason);
                    let exit = if kept { Exit::Failed } else { failure.exit };
                    self.failed(name, uid, Failure { stuck: kept, exit, ..failure });
                }
            }
            End::Failed(failure) => self.failed(name, uid, failure),
            // Ridden out: the writer goes on trying, and nothing mutates until it has renewed.
            End::NoPermit(no @ (NoPermit::Lapsed | NoPermit::TooLate { .. })) => {
                if self.troubled_for(name, uid, &format!("waiting: {no}")) >= budgets.reboot {
                    let words = format!("{no}, for longer than a reboot may take{}", self.lease_facts());
                    self.fail(Exit::ControlLost, name, words);
                    self.env.stop.cancel();
                }
            }
            // The drive loop sees the state itself.
            End::NoPermit(NoPermit::Lost { .. } | NoPermit::Stopping | NoPermit::Released) => {}
        }
    }

    /// How long the node has been in trouble now; said once, when it begins.
    fn troubled_for(&mut self, name: &str, uid: &str, words: &str) -> Duration {
        let now = self.env.clock().now();
        let since = *self.trouble.entry(uid.to_owned()).or_insert(now);
        if since == now {
            self.env.progress.event(name, words);
        }
        now.since(since)
    }

    fn failed(&mut self, name: &str, uid: &str, failure: Failure) {
        let Failure { blocked, exit, halts, stuck } = failure;
        self.fail(exit, name, blocked.to_string());
        self.known.halted |= halts;
        let memory = self.known.memory.entry(uid.to_owned()).or_default();
        memory.failed = Some(blocked);
        memory.stuck |= stuck;
    }
}

/// How a node left the run while a step of it was under way; none while it is there as the same.
fn went_away(uid: &str, fresh: &Result<Option<FleetNode>, ReadError>) -> Option<&'static str> {
    match fresh {
        Ok(None) => Some("it was deleted; nothing more is done to it"),
        Ok(Some(node)) if node.kube.uid != uid => Some("it was deleted and made anew; it is looked at as a new node"),
        Ok(Some(node)) if node.kube.deleting => Some("it is being deleted; nothing more is done to it"),
        Ok(Some(node)) if node.kube.leaving => {
            Some("an autoscaler is taking it away (taint ToBeDeletedByClusterAutoscaler); nothing more is done to it")
        }
        Ok(Some(_)) | Err(_) => None,
    }
}

/// What a step that came to its end teaches of its node, beyond what the step itself learned. Pure.
pub fn after_done(memory: &mut Memory, task: &Task, learned: &Learned) {
    match task {
        Task::Step(Step::WriteProof) => memory.proof_written = true,
        Task::Step(Step::AwaitBoot) if !learned.settled => memory.rebooted = true,
        Task::Step(Step::Stage) | Task::Canary => memory.staged += 1,
        _ => {}
    }
}

/// Takes in what a step learned. Pure.
pub fn remember(memory: &mut Memory, learned: &Learned) {
    if let Some(pull) = &learned.pull {
        memory.pull = pull.clone();
    }
    memory.drained |= learned.drained;
    memory.not_adopted |= learned.not_adopted;
    memory.ready |= learned.ready;
    memory.settled |= learned.settled;
    if learned.released {
        // The node takes a turn anew, if it takes one: what belonged to this fence is over.
        memory.drained = false;
        memory.ready = false;
        memory.settled = false;
    }
}

fn disrupts_control_plane(snapshot: &Snapshot, action: &Action) -> bool {
    let Some(node) = snapshot.node(&action.node) else { return false };
    let disrupts = match (&action.task, &node.judgement) {
        (Task::Step(step), Some(judgement)) => step.disrupts(judgement.adoption) && *step != Step::Drain,
        // A Live canary restarts its CRI.
        (Task::Canary, Some(judgement)) => Step::Stage.disrupts(judgement.adoption),
        _ => false,
    };
    node.kube.control_plane && disrupts
}

/// While stopping: a node that was claimed and not yet asked to reboot is given back.
fn undo_claims(snapshot: &Snapshot, already: &[Action]) -> Vec<Action> {
    let claimed = |node: &&FleetNode| {
        node.busy.is_none()
            && !node.memory.stuck
            && matches!(&node.fencing, crate::fleet::Fencing::Ours { fence, .. }
                if fence.step == crate::kube::fence::Step::Claimed)
            && !already.iter().any(|action| action.node == node.name())
    };
    let undo = |node: &FleetNode| Action { node: node.name().to_owned(), task: Task::Step(Step::Release) };
    snapshot.nodes.iter().filter(claimed).map(undo).collect()
}

/// One step and the look after it.
async fn perform(env: Env, known: Known, before: FleetNode, task: Task) -> Box<Performed> {
    let mut learned = Learned::default();
    env.saved.note(&before, env.clock().now());
    let kind = (before.kube.control_plane, credential::is_live(&before));
    let working = env.progress.trace().step(before.name(), kind, &task);
    let end = effect(&env, &before, &task, &mut learned).await.unwrap_or_else(|end| end);
    let (outcome, why) = told(&end);
    working.ended(outcome, why);
    if matches!(end, End::Again(_) | End::NoPermit(NoPermit::Lapsed | NoPermit::TooLate { .. })) {
        env.clock().sleep(PAUSE).await;
    }
    let known = with_claim(known, &before, &learned);
    let mut fresh = look_after(&env, &before, &task, &known).await;
    // An API that is away is waited for here: nothing is decided again from what was known before the step.
    let deadline = env.clock().now() + env.context.settings.budgets.reboot;
    while fresh.as_ref().is_err_and(ReadError::may_pass) && env.can_go_on() && env.clock().now() < deadline {
        env.clock().sleep(PAUSE).await;
        fresh = look_after(&env, &before, &task, &known).await;
    }
    if let Ok(Some(fresh)) = &fresh {
        env.saved.note(fresh, env.clock().now());
    }
    if let Some(how) = went_away(&before.kube.uid, &fresh) {
        working.gone(how);
    }
    Box::new(Performed { before, task, learned, end, fresh })
}

/// The end of a step for the report.
fn told(end: &End) -> (Outcome, Option<String>) {
    match end {
        End::Done => (Outcome::Done, None),
        End::Again(why) => (Outcome::Again, Some(why.clone())),
        End::Failed(failure) => (Outcome::Failed, Some(failure.blocked.to_string())),
        End::NoPermit(no) => (Outcome::NoPermit, Some(no.to_string())),
    }
}

/// What a step has changed is read again, and nothing else: fence, cordon and pods are not Talos's, and what Talos says is
/// looked at once more before the one step that counts, the reboot.
async fn look_after(env: &Env, before: &FleetNode, task: &Task, known: &Known) -> Result<Option<FleetNode>, ReadError> {
    match task {
        Task::Adopt | Task::Step(Step::Claim | Step::Drain | Step::Release) if before.facts().is_some() => {
            env.context.look_at_fence(before, known).await
        }
        _ => env.context.look_again(before.name(), known).await,
    }
}

fn with_claim(mut known: Known, node: &FleetNode, learned: &Learned) -> Known {
    if learned.claimed {
        known.claimed.insert(node.kube.uid.clone());
    }
    remember(known.memory.entry(node.kube.uid.clone()).or_default(), learned);
    known
}

async fn effect(env: &Env, node: &FleetNode, task: &Task, learned: &mut Learned) -> Result<End, End> {
    let step = match task {
        Task::Adopt => return disrupt::adopt(env, node).await,
        Task::Canary => {
            // A TRY restarts the CRI of a Live node twice: a disruption like any other.
            if credential::is_live(node) {
                match disrupt::pass_gates(env, node).await? {
                    Gates::End(end) => return Ok(end),
                    Gates::Open { .. } => env.restarts(node, true),
                }
            }
            let (seen, end) = Box::pin(credential::canary(env, node)).await;
            *learned = seen;
            return Ok(end);
        }
        Task::Step(step) => step,
    };
    match step {
        Step::Stage if credential::is_live(node) => match disrupt::pass_gates(env, node).await? {
            Gates::End(end) => Ok(end),
            Gates::Open { guard, .. } => {
                env.restarts(node, true);
                drop(guard);
                credential::stage(env, node).await
            }
        },
        Step::Stage => credential::stage(env, node).await,
        Step::AwaitRollback => credential::await_rollback(env, node).await,
        Step::RecordStaged => credential::record_staged(env, node).await,
        Step::CheckPull => credential::check_pull(env, node, learned).await,
        Step::AwaitAdopted => credential::await_adopted(env, node, learned).await,
        Step::Claim => disrupt::claim(env, node, learned).await,
        Step::Drain => disrupt::drain(env, node, learned).await,
        Step::Reboot => reboot::reboot(env, node).await,
        Step::AwaitBoot => reboot::await_boot(env, node, learned).await,
        Step::AwaitReady => reboot::await_ready(env, node, learned).await,
        Step::Release => disrupt::release(env, node, learned).await,
        Step::WriteProof => credential::write_proof(env, node).await,
        Step::LookAgain(reason) => Ok(End::Again(reason.clone())),
        Step::Nothing => Ok(End::Done),
        Step::Blocked(blocked) => Ok(End::Failed(Failure::of_node(Blocked::clone(blocked)))),
    }
}
