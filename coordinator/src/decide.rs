//! Which nodes may be worked on now, and with which step. Pure and total; the same function in `plan`, `run` and
//! recovery.
//!
//! A node says what it needs ([`FleetNode::next_step`]); this says whether it is its turn.

use std::fmt;

use agent::claims::{Adoption, Verdict};
use agent::record::RecordState;
use agent::step::{Step, StepPolicy};

use crate::fleet::{Fencing, FleetNode, Snapshot};
use crate::kube::fence;
use crate::order::{Rank, rank, turns};

/// Configs staged at once in the first wave.
const STAGE_AT_ONCE: usize = 8;
/// Pulls at once: a registry that refuses counts logins.
const PULL_AT_ONCE: usize = 4;

/// How many nodes of a class may be disrupted at once: a number, or per cent of the class, rounded down, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// That many.
    Number(usize),
    /// That share of the workers.
    Percent(u8),
}

impl MaxUnavailable {
    /// The number for a class of that size.
    #[must_use]
    pub fn of(self, class: usize) -> usize {
        match self {
            MaxUnavailable::Number(number) => number,
            MaxUnavailable::Percent(percent) => (class * usize::from(percent) / 100).max(1),
        }
    }
}

impl std::str::FromStr for MaxUnavailable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a number of nodes nor a percentage such as 25%");
        if let Some(percent) = text.strip_suffix('%') {
            return match percent.parse() {
                Ok(percent @ 1..=100) => Ok(MaxUnavailable::Percent(percent)),
                _ => Err(wrong()),
            };
        }
        match text.parse() {
            Ok(0) => Err("0 would let nothing be done; use `plan` to only look".into()),
            Ok(number) => Ok(MaxUnavailable::Number(number)),
            Err(_) => Err(wrong()),
        }
    }
}

impl std::fmt::Display for MaxUnavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MaxUnavailable::Number(number) => write!(f, "{number}"),
            MaxUnavailable::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// What the flags say about the fleet.
#[derive(Clone, Copy, Debug)]
pub struct FleetPolicy {
    /// Workers at once; control planes are always one at a time.
    pub max_unavailable: MaxUnavailable,
    /// About a node's own steps.
    pub step: StepPolicy,
}

/// One thing to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The Node's name.
    pub node: String,
    /// What to do.
    pub task: Task,
}

/// What is done to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Take over the fence of a dead run, or drop one that speaks of another node.
    Adopt,
    /// Stage with a TRY, pull, make it permanent: the one node that tries the credential first.
    Canary,
    /// A step of the node.
    Step(Step),
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Adopt => f.write_str("adopt the fence"),
            Task::Canary => f.write_str("try the credential"),
            Task::Step(step) => step.fmt(f),
        }
    }
}

impl Task {
    /// Its name, for machines: a step's own ([`Step::name`]), `Adopt` or `Canary`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Task::Adopt => "Adopt",
            Task::Canary => "Canary",
            Task::Step(step) => step.name(),
        }
    }

    /// Whether it depends on the registry's word: what a dead run left is put in order without.
    #[must_use]
    pub fn needs_registry(&self) -> bool {
        match self {
            Task::Adopt => false,
            Task::Canary => true,
            Task::Step(step) => matches!(
                step,
                Step::Stage
                    | Step::RecordStaged
                    | Step::CheckPull
                    | Step::Claim
                    | Step::Drain
                    | Step::Reboot
                    | Step::WriteProof
            ),
        }
    }

    /// Whether it changes stored state, so that the lease is needed.
    #[must_use]
    pub fn writes(&self) -> bool {
        !matches!(
            self,
            Task::Step(
                Step::LookAgain(_) | Step::AwaitAdopted | Step::AwaitRollback | Step::Nothing | Step::Blocked(_)
            )
        )
    }
}

/// Everything that may be begun now, given what is going on ([`FleetNode::busy`]). Empty with nothing busy means: done,
/// or nothing can be done.
#[must_use]
pub fn decide(snapshot: &Snapshot, policy: &FleetPolicy) -> Vec<Action> {
    let idle: Vec<(&FleetNode, Step)> = turns(snapshot)
        .into_iter()
        .filter(|node| node.busy.is_none())
        .map(|node| (node, node.next_step(policy.step)))
        .collect();
    let mut actions = Vec::new();
    let mut act = |node: &FleetNode, task: Task| actions.push(Action { node: node.name().to_owned(), task });

    // One node tries the credential first; until then it stays on that node alone.
    let mut may_try = !snapshot.halted && !snapshot.nodes.iter().any(|node| node.busy == Some(Step::Stage));
    // Residue first; a node that carries our fence goes on whatever else is going on: it is cordoned.
    for (node, step) in &idle {
        match (&node.fencing, step) {
            // One that could not be taken over is a human's.
            (Fencing::Residue { .. } | Fencing::Misplaced { .. }, _) if node.memory.failed.is_some() => {}
            (Fencing::Residue { .. } | Fencing::Misplaced { .. }, _) => act(node, Task::Adopt),
            // It came back from a dead run's reboot and waits for its own credential.
            (Fencing::Ours { .. }, Step::Stage) if !snapshot.canary_passed && may_try => {
                may_try = false;
                act(node, Task::Canary);
            }
            // Nothing tries the credential any more: the node is up, and it is given back as it is.
            (Fencing::Ours { .. }, Step::Stage) if !snapshot.canary_passed && snapshot.halted => {
                act(node, Task::Step(give_back(node)));
            }
            (Fencing::Ours { .. }, Step::Stage) if !snapshot.canary_passed => {}
            (Fencing::Ours { .. }, Step::Blocked(_) | Step::Nothing) => {}
            (Fencing::Ours { .. }, step) => act(node, Task::Step(step.clone())),
            _ => {}
        }
    }
    let free: Vec<_> = idle.iter().filter(|(node, _)| matches!(node.fencing, Fencing::Free)).collect();
    // What only looks or waits.
    for (node, step) in &free {
        if matches!(step, Step::LookAgain(_) | Step::AwaitRollback | Step::AwaitAdopted) {
            act(node, Task::Step(step.clone()));
        }
    }
    let drifted = free.iter().any(|(_, step)| *step == Step::Stage);
    if drifted && !snapshot.canary_passed {
        if may_try && let Some(canary) = canary(snapshot, policy, &free) {
            act(canary, Task::Canary);
        }
        return actions;
    }
    let busy = |step: &Step| snapshot.nodes.iter().filter(|node| node.busy.as_ref() == Some(step)).count();
    let mut wave = |step: Step, at_once: usize, only_reboot: bool| {
        let room = at_once.saturating_sub(busy(&step));
        let wanting = free.iter().filter(|(node, wants)| *wants == step && (!only_reboot || !is_live(node)));
        wanting.take(room).for_each(|(node, _)| act(node, Task::Step(step.clone())));
    };
    // Staging a Reboot-mode node disrupts nothing: any unplanned reboot adopts it already.
    wave(Step::Stage, STAGE_AT_ONCE, true);
    wave(Step::RecordStaged, STAGE_AT_ONCE, false);
    wave(Step::CheckPull, PULL_AT_ONCE, false);
    wave(Step::WriteProof, STAGE_AT_ONCE, false);

    let staging = free.iter().any(|(node, step)| *step == Step::Stage && !is_live(node))
        || snapshot.nodes.iter().any(|node| matches!(node.busy, Some(Step::Stage | Step::RecordStaged)));
    // What a dead run left is given back, or awaited, before anything else is disturbed.
    let residue =
        |node: &FleetNode| matches!(node.fencing, Fencing::Residue { .. } | Fencing::Ours { in_turn: false, .. });
    if !staging && !snapshot.halted && !snapshot.nodes.iter().any(residue) {
        for node in disruptable(snapshot, policy, &free) {
            let step = if is_live(node) { Step::Stage } else { Step::Claim };
            act(node, Task::Step(step));
        }
    }
    // What is kept back by something that may pass is looked at again, within the gate's budget, and says why.
    if actions.is_empty()
        && !snapshot.halted
        && snapshot.nodes.iter().all(|node| node.busy.is_none())
        && let Some((node, reason, true)) = kept_back(snapshot, policy)
    {
        actions.push(Action { node: node.name().to_owned(), task: Task::Step(Step::LookAgain(reason)) });
    }
    actions
}

/// The first node whose turn does not come, why not, and whether that may pass by itself.
fn kept_back<'a>(snapshot: &'a Snapshot, policy: &FleetPolicy) -> Option<(&'a FleetNode, String, bool)> {
    let node = turns(snapshot).into_iter().find(|node| {
        matches!(node.fencing, Fencing::Free)
            && match node.next_step(policy.step) {
                Step::Claim => true,
                Step::Stage => is_live(node),
                _ => false,
            }
    })?;
    let away: Vec<&FleetNode> = others_away(snapshot, node).collect();
    if away.len() >= allowed(snapshot, policy, node) {
        let names: Vec<_> = away.iter().map(|other| other.name()).collect();
        // A node that Talos answers for and that is only not Ready may come back; a dead one or a fence does not.
        let passing = away.iter().any(|other| other.facts().is_some() && matches!(other.fencing, Fencing::Free));
        let reason = format!("its place in the budget is taken by {}", names.join(", "));
        return Some((node, reason, passing));
    }
    if node.kube.control_plane && !snapshot.endpoint.known {
        let reason = format!("which node serves the kubeconfig's address is not known ({})", snapshot.endpoint.rule);
        return Some((node, reason, true));
    }
    Some((node, "it is not its turn yet".into(), false))
}

fn is_live(node: &FleetNode) -> bool {
    node.judgement.as_ref().is_some_and(|judgement| judgement.adoption == Adoption::Live)
}

/// The node that tries the credential: a Reboot-mode worker if there is one, for it is not disturbed by it; never the
/// endpoint node unless it is alone.
fn canary<'a>(snapshot: &Snapshot, policy: &FleetPolicy, free: &[&'a (&'a FleetNode, Step)]) -> Option<&'a FleetNode> {
    let wanting = free.iter().filter(|(_, step)| *step == Step::Stage).map(|(node, _)| *node);
    // `turns` has sorted them, so the first of the best is a worker, and the endpoint node is the last of all. Below 1.13
    // nothing removes the image of an earlier proof, so that the pull of this one may prove nothing.
    let best = wanting.min_by_key(|node| {
        let endpoint = snapshot.is_endpoint(node);
        let old = node.facts().is_some_and(|facts| !facts.version.at_least(1, 13));
        (endpoint, is_live(node) || !node.kube.ready, old, node.kube.control_plane)
    })?;
    // A Live node's CRI restarts twice for a TRY: that is a disruption, and it waits for a place in the budget.
    let free_place = disrupted(snapshot, best) < allowed(snapshot, policy, best);
    (!is_live(best) || free_place).then_some(best)
}

/// What is done with a node that came back from a dead run's reboot and is not staged in this run.
#[must_use]
pub fn give_back(node: &FleetNode) -> Step {
    if node.memory.ready { Step::Release } else { Step::AwaitReady }
}

/// How many others of the node's class are disrupted. It does not count itself: its own ill health must not keep it from
/// recovering.
fn disrupted(snapshot: &Snapshot, node: &FleetNode) -> usize {
    others_away(snapshot, node).count()
}

fn others_away<'a>(snapshot: &'a Snapshot, node: &'a FleetNode) -> impl Iterator<Item = &'a FleetNode> {
    let of_class = move |other: &&FleetNode| {
        other.kube.control_plane == node.kube.control_plane && counts(other) && other.name() != node.name()
    };
    snapshot.nodes.iter().filter(of_class).filter(|other| other.is_disrupted())
}

/// How many of the node's class may be disrupted at once.
fn allowed(snapshot: &Snapshot, policy: &FleetPolicy, node: &FleetNode) -> usize {
    if node.kube.control_plane {
        return 1;
    }
    let workers = snapshot.nodes.iter().filter(|other| !other.kube.control_plane && counts(other)).count();
    policy.max_unavailable.of(workers)
}

/// The nodes whose disruption may begin now, in order.
fn disruptable<'a>(
    snapshot: &Snapshot,
    policy: &FleetPolicy,
    free: &[&'a (&'a FleetNode, Step)],
) -> Vec<&'a FleetNode> {
    let wants = |node: &FleetNode, step: &Step| match step {
        Step::Claim => true,
        Step::Stage => is_live(node),
        _ => false,
    };
    let mut begun: Vec<&FleetNode> = Vec::new();
    // Counted once for all: asked of each node anew it would cost the square of a large fleet at every step.
    let workers = || snapshot.nodes.iter().filter(|node| !node.kube.control_plane && counts(node));
    let away = workers().filter(|node| node.is_disrupted()).count();
    let allowed = policy.max_unavailable.of(workers().count());
    for (node, _) in free.iter().filter(|(node, step)| !node.kube.control_plane && wants(node, step)) {
        // It does not count itself, as in `disrupted`.
        let others = away - usize::from(counts(node) && node.is_disrupted());
        if others + begun.len() < allowed {
            begun.push(*node);
        }
    }
    // No control plane while a known worker still needs its turn.
    let workers_left = snapshot.nodes.iter().any(|node| !node.kube.control_plane && needs_turn(node, policy));
    if !begun.is_empty() || workers_left {
        return begun;
    }
    let control_plane = free.iter().find(|(node, step)| node.kube.control_plane && wants(node, step));
    if let Some((node, _)) = control_plane {
        // The endpoint node only when no other control plane needs its turn, not even one that is looked at again.
        let others_left = snapshot
            .nodes
            .iter()
            .any(|other| other.name() != node.name() && other.kube.control_plane && needs_turn(other, policy));
        let last = rank(snapshot, node) == Rank::Endpoint;
        // Where it is not known which node the endpoint is, none is taken: it could be this one.
        if disrupted(snapshot, node) == 0 && !(last && others_left) && snapshot.endpoint.known {
            begun.push(node);
        }
    }
    begun
}

/// Another system in the cluster is no part of the fleet; a left-out node is, for the budget.
fn counts(node: &FleetNode) -> bool {
    !matches!(node.talk, crate::fleet::Talk::NotTalos(_))
}

/// Whether a node has its disruption still before it, or is in the middle of it.
fn needs_turn(node: &FleetNode, policy: &FleetPolicy) -> bool {
    if node.busy.is_some() {
        return !matches!(node.busy, Some(Step::WriteProof));
    }
    match node.next_step(policy.step) {
        Step::Nothing | Step::Blocked(_) | Step::WriteProof => false,
        Step::CheckPull => node.verdict() == Verdict::Stale,
        _ => true,
    }
}

/// Whether the revision was seen to work: some node holds it persisted, with a record of ours.
#[must_use]
pub fn canary_has_passed(nodes: &[FleetNode]) -> bool {
    nodes.iter().any(|node| {
        let Some(judgement) = &node.judgement else { return false };
        let of_revision = judgement.record.as_ref().is_some_and(|record| {
            Some(record.revision) == judgement.revision
                && matches!(record.state, RecordState::Staged | RecordState::Proved)
        });
        of_revision && judgement.claims.configured.holds() && !judgement.own_try
    })
}

/// The nodes that are left as a human must see them, with the reason: what keeps a run from exit 0.
#[must_use]
pub fn left_over(snapshot: &Snapshot, policy: &FleetPolicy) -> Vec<(String, String)> {
    let mut left = Vec::new();
    for node in turns(snapshot).into_iter().filter(|node| !node.is_ignored()) {
        let reboots = match &node.fencing {
            Fencing::Ours { fence, .. } | Fencing::Residue { fence, .. } => fence.step == fence::Step::Rebooting,
            _ => false,
        };
        let reason = match (node.next_step(policy.step), node.verdict()) {
            (_, Verdict::Leaving | Verdict::Gone) => continue,
            // Where it is now says nothing: it may be in the middle of its boot.
            (Step::AwaitBoot | Step::AwaitReady, _) if reboots => {
                "its reboot was asked for; it stays fenced and cordoned: the next run waits for it and gives it back"
                    .into()
            }
            (Step::Blocked(blocked), _) => blocked.to_string(),
            (Step::Nothing, Verdict::Current | Verdict::Unproved) => continue,
            (Step::Claim, _) if !snapshot.halted && matches!(node.fencing, Fencing::Free) => {
                let kept = kept_back(snapshot, policy).filter(|(first, ..)| first.name() == node.name());
                kept.map_or_else(|| "its turn did not come".to_owned(), |(_, reason, _)| reason)
            }
            _ if snapshot.halted && matches!(node.fencing, Fencing::Free) => {
                "not begun: the roll was stopped by what happened before".to_owned()
            }
            (step, verdict) => match verdict.reason() {
                Some(reason) => reason,
                None => format!("{}: next would be: {step}", verdict.name()),
            },
        };
        left.push((node.name().to_owned(), reason));
    }
    left
}

#[cfg(test)]
mod tests;
