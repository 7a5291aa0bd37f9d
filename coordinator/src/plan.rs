//! The plan: what each node is, why, and what `run` would do with it. Pure: a fold of the very decision that `run`
//! performs, assuming that each step succeeds.

use agent::claims::{Answer, Claims, Judgement, Pull, Verdict};
use agent::record::{Entry, PullRecord, Record, RecordState};
use agent::step::{FenceSeen, Memory, Step, next_step};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use talos_proto::node::RebootMode;

use crate::decide::FleetPolicy;
use crate::fleet::{Fencing, FleetNode, Snapshot};
use crate::inventory::Inventory;
use crate::left_out::LeftOut;
use crate::order::{rank, turns};
use crate::settings::Settings;

pub mod drains;
pub mod needs;

/// Version of the JSON shapes of this tool's documents.
pub const SCHEMA_VERSION: u32 = 1;

/// The document that `plan` and `verify` show.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanDocument {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `Plan` or `Verification`.
    pub kind: &'static str,
    /// The desired set's revision, when it could be computed.
    pub revision: Option<String>,
    /// Which node serves the kubeconfig's address, and how that was found.
    pub endpoint: EndpointRow,
    /// The Lease as it stands.
    pub lease: LeaseRow,
    /// How many nodes of which verdict.
    pub summary: Summary,
    /// Times in seconds.
    pub budgets: BudgetRow,
    /// What flags left out.
    pub left_out: LeftOut,
    /// The nodes in the order of their turns.
    pub nodes: Vec<NodeRow>,
    /// What is not about one node.
    pub warnings: Vec<String>,
    /// What a run would need and not get; only in a plan, and looked at when there is something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<Vec<String>>,
    /// Whether the gates are open now, for the first worker and the first control plane of those that are disrupted; only in
    /// a plan, and looked at when there is something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gates: Option<Vec<GateRow>>,
    /// Whether `--check-command` finds something to do; absent when none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_finds_work: Option<bool>,
}

/// The endpoint node.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointRow {
    /// The kubeconfig's host and port; `none` without a kubeconfig.
    pub server: String,
    /// The node, when it is one.
    pub node: Option<String>,
    /// The rule that matched.
    pub rule: String,
}

/// The Lease.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRow {
    /// `namespace/name`.
    pub name: String,
    /// Who holds it; `null` when it is free or not there, and without a kubeconfig, where nobody looks.
    pub holder: Option<String>,
    /// The holder's workflow run, when it is one.
    pub run: Option<String>,
}

/// Counts of verdicts and of what would be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Configured, loaded, proved.
    pub current: usize,
    /// No record says so.
    pub unproved: usize,
    /// Configured, not loaded.
    pub stale: usize,
    /// Not configured.
    pub drifted: usize,
    /// Not known.
    pub unknown: usize,
    /// Not without a human.
    pub blocked: usize,
    /// Left out by flags, leaving, or not Talos.
    pub left_alone: usize,
    /// Would be rebooted.
    pub to_reboot: usize,
    /// Would adopt by a restart of CRI.
    pub to_adopt_live: usize,
}

/// Budgets and the lease's times, in seconds.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetRow {
    /// Workers at once.
    pub max_unavailable: String,
    /// `--drain-timeout`.
    pub drain_seconds: f64,
    /// `--reboot-timeout`.
    pub reboot_seconds: f64,
    /// `--gate-timeout`.
    pub gate_seconds: f64,
    /// `--adopt-timeout`.
    pub adopt_seconds: f64,
    /// `--timeout`.
    pub run_seconds: Option<f64>,
    /// `--lease-duration`.
    pub lease_seconds: f64,
}

/// Whether a gate is open now, for the node of a class whose turn comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateRow {
    /// The Node's name.
    pub node: String,
    /// Nothing stands in its way now. A run looks again in the moment before it disrupts the node.
    pub open: bool,
    /// What does; `null` when it is open.
    pub closed: Option<String>,
}

/// One node.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// The Node's name.
    pub name: String,
    /// `control-plane` or `worker`.
    #[schemars(extend("enum" = ["control-plane", "worker"]))]
    pub role: &'static str,
    /// Where Talos is asked.
    pub address: Option<String>,
    /// Its Talos version.
    pub talos: Option<String>,
    /// The verdict's name.
    #[schemars(extend("enum" = Verdict::NAMES))]
    pub verdict: &'static str,
    /// Why: the verdict's reason, or the evidence that decided.
    pub reason: String,
    /// `live` or `reboot`.
    #[schemars(extend("enum" = ["live", "reboot", null]))]
    pub adoption: Option<String>,
    /// The four claims.
    pub claims: Option<Claims>,
    /// What `run` would do, in order.
    pub steps: Vec<String>,
    /// The same in a word each, for the table.
    #[serde(skip)]
    pub short_steps: Vec<String>,
    /// How it would be rebooted; absent when it is not, or in the ordinary way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboot_mode: Option<String>,
    /// Its place among the nodes that are disrupted, from 1; `null` for a node that is not.
    pub order: Option<usize>,
    /// Why it has that place.
    pub order_reason: Option<&'static str>,
    /// What a drain would do, where one is to come and was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<drains::DrainRow>,
    /// The fence on it, in words.
    pub fence: Option<String>,
    /// Cordoned now.
    pub cordoned: bool,
}

/// The plan of an inventory.
#[must_use]
pub fn document(kind: &'static str, inventory: &Inventory, settings: &Settings) -> PlanDocument {
    let snapshot = &inventory.snapshot;
    let mut summary = Summary::default();
    let mut order = 0;
    let nodes: Vec<NodeRow> = turns(snapshot)
        .into_iter()
        .map(|node| {
            let steps = forecast(node, settings.fleet);
            let blocked = match node.next_step(settings.fleet.step) {
                Step::Blocked(blocked) if !node.is_ignored() => Some(blocked),
                _ => None,
            };
            count(&mut summary, node, &steps, blocked.is_some());
            let adoption = node.judgement.as_ref().map(|judgement| judgement.adoption);
            let disrupts = adoption.is_some_and(|adoption| steps.iter().any(|step| step.disrupts(adoption)));
            if disrupts {
                order += 1;
            }
            let mut row = row(snapshot, node, &steps, disrupts.then_some(order));
            if let Some(blocked) = blocked.filter(|_| !matches!(node.verdict(), Verdict::Blocked(_))) {
                row.reason = format!("{}; {blocked}", row.reason);
            }
            row
        })
        .collect();
    let revision = snapshot.nodes.iter().find_map(|node| node.judgement.as_ref()?.revision);
    PlanDocument {
        schema_version: SCHEMA_VERSION,
        kind,
        revision: revision.map(|revision| revision.to_string()),
        endpoint: EndpointRow {
            server: snapshot.endpoint.server.clone(),
            node: snapshot.endpoint.node.clone(),
            rule: snapshot.endpoint.rule.clone(),
        },
        lease: LeaseRow {
            name: settings.lease.to_string(),
            holder: inventory.lease.as_ref().and_then(|lease| lease.holder.clone()),
            run: inventory.lease.as_ref().and_then(crate::kube::lease::LeaseRecord::run_link),
        },
        summary,
        budgets: budgets(settings),
        left_out: LeftOut::of(snapshot),
        nodes,
        warnings: snapshot.warnings.iter().cloned().collect(),
        needs: None,
        gates: None,
        check_finds_work: None,
    }
}

fn budgets(settings: &Settings) -> BudgetRow {
    let budgets = settings.budgets;
    BudgetRow {
        max_unavailable: settings.fleet.max_unavailable.to_string(),
        drain_seconds: budgets.drain.as_secs_f64(),
        reboot_seconds: budgets.reboot.as_secs_f64(),
        gate_seconds: budgets.gate.as_secs_f64(),
        adopt_seconds: budgets.adopt.as_secs_f64(),
        run_seconds: budgets.run.map(|run| run.as_secs_f64()),
        lease_seconds: settings.timing.duration.as_secs_f64(),
    }
}

fn row(snapshot: &Snapshot, node: &FleetNode, steps: &[Step], order: Option<usize>) -> NodeRow {
    let verdict = node.verdict();
    let mode = Some(node.reboot_mode).filter(|mode| *mode != RebootMode::Default && steps.contains(&Step::Reboot));
    NodeRow {
        name: node.name().to_owned(),
        role: if node.kube.control_plane { "control-plane" } else { "worker" },
        address: node.address().map(|address| address.to_string()),
        talos: node.facts().map(|facts| facts.version.to_string()),
        verdict: verdict.name(),
        reason: reason(node, &verdict),
        adoption: node.judgement.as_ref().map(|judgement| judgement.adoption.to_string()),
        claims: node.judgement.as_ref().map(|judgement| judgement.claims.clone()),
        steps: steps.iter().map(ToString::to_string).collect(),
        short_steps: steps.iter().filter_map(|step| short(step, mode)).collect(),
        reboot_mode: mode.map(|mode| mode.to_string()),
        order,
        order_reason: order.map(|_| rank(snapshot, node).reason()),
        drain: None,
        fence: fence_words(&node.fencing),
        cordoned: node.kube.unschedulable,
    }
}

/// A word for the table.
fn short(step: &Step, mode: Option<RebootMode>) -> Option<String> {
    match (step, mode) {
        (Step::Reboot, Some(mode)) => Some(format!("reboot ({mode})")),
        _ => step.short().map(str::to_owned),
    }
}

/// The evidence that decided the verdict.
fn reason(node: &FleetNode, verdict: &Verdict) -> String {
    if node.left_out {
        return "left out by --nodes or --exclude".into();
    }
    if let Some(reason) = verdict.reason() {
        return reason;
    }
    let Some(judgement) = &node.judgement else { return String::new() };
    let claims = &judgement.claims;
    match verdict {
        Verdict::Drifted if judgement.own_try => "a TRY of a dead run is in flight, Talos rolls it back".into(),
        Verdict::Drifted => {
            let proof = judgement
                .record
                .as_ref()
                .filter(|record| record.state == RecordState::Proved && Some(record.revision) == judgement.revision);
            // Another source of machine configs has undone what was proved: it will do so again.
            let undone = proof.map(|record| format!("; changed back since the proof of {}", record.at));
            claims.configured.evidence.clone() + &undone.unwrap_or_default()
        }
        Verdict::Stale => claims.loaded.evidence.clone(),
        Verdict::Unproved | Verdict::Current => claims.proof.evidence.clone(),
        _ => String::new(),
    }
}

fn fence_words(fencing: &Fencing) -> Option<String> {
    match fencing {
        Fencing::Free => None,
        Fencing::Ours { fence, .. } => Some(format!("ours, {} since {}", fence.step, fence.step_since)),
        Fencing::Residue { fence, .. } if fence.is_the_scripts() => {
            Some(format!("{} by the old script's run {}", fence.step, fence.holder))
        }
        Fencing::Residue { fence, .. } => Some(format!("{} by {} since {}", fence.step, fence.holder, fence.since)),
        Fencing::Misplaced { .. } => Some("of another node, to be dropped".into()),
        Fencing::Foreign { fence, .. } => Some(format!("by {} under {}", fence.holder, fence.lease)),
        Fencing::Unreadable(why) => Some(why.clone()),
    }
}

/// `blocked` is what the flags forbid, too: such a node is not what its verdict says that it will be.
fn count(summary: &mut Summary, node: &FleetNode, steps: &[Step], blocked: bool) {
    if node.is_ignored() {
        summary.left_alone += 1;
        return;
    }
    if blocked {
        summary.blocked += 1;
        return;
    }
    match node.verdict() {
        Verdict::Current => summary.current += 1,
        Verdict::Unproved => summary.unproved += 1,
        Verdict::Stale => summary.stale += 1,
        Verdict::Drifted => summary.drifted += 1,
        Verdict::Unknown(_) => summary.unknown += 1,
        Verdict::Blocked(_) => summary.blocked += 1,
        Verdict::Leaving | Verdict::Gone => summary.left_alone += 1,
    }
    summary.to_reboot += usize::from(steps.contains(&Step::Reboot));
    summary.to_adopt_live += usize::from(steps.contains(&Step::AwaitAdopted));
}

/// The steps that a node has before it, each assumed to succeed.
#[must_use]
pub fn forecast(node: &FleetNode, policy: FleetPolicy) -> Vec<Step> {
    let first = node.next_step(policy.step);
    let Some(judgement) = &node.judgement else {
        return if matches!(first, Step::Nothing | Step::Blocked(_)) { Vec::new() } else { vec![first] };
    };
    let mut judgement = Judgement { verdict: node.verdict(), ..judgement.clone() };
    let mut memory = node.memory.clone();
    let mut boot = node.boot().map(str::to_owned);
    let mut fence = match &node.fencing {
        Fencing::Ours { .. } | Fencing::Residue { .. } => None,
        _ => Some(FenceSeen::None),
    };
    let mut steps = Vec::new();
    let mut step = first;
    // The longest way has a dozen steps; the bound only keeps a mistake from running for ever.
    while steps.len() < 16 && !matches!(step, Step::Nothing | Step::Blocked(_) | Step::LookAgain(_)) {
        assume(&step, &mut judgement, &mut memory, &mut boot, &mut fence);
        steps.push(step);
        let seen = fence.clone().unwrap_or(FenceSeen::None);
        let policy = agent::step::StepPolicy { reboot_again: node.reboot_again, ..policy.step };
        step = next_step(&judgement, boot.as_deref(), &seen, &memory, policy);
    }
    steps
}

/// What the world looks like after a step that succeeded.
fn assume(
    step: &Step,
    judgement: &mut Judgement,
    memory: &mut Memory,
    boot: &mut Option<String>,
    fence: &mut Option<FenceSeen>,
) {
    match step {
        Step::Stage | Step::RecordStaged => {
            judgement.verdict = Verdict::Stale;
            judgement.record = judgement.revision.map(|revision| {
                let entry = Entry {
                    revision,
                    boot: None,
                    cri: None,
                    images: Vec::new(),
                    pull: PullRecord::None,
                    at: Timestamp::UNIX_EPOCH,
                    holder: String::new(),
                };
                Record::staged(entry, None)
            });
        }
        Step::AwaitRollback => judgement.own_try = false,
        Step::CheckPull => memory.pull = Pull::Proved(String::new()),
        Step::Claim => *fence = Some(FenceSeen::Claimed { in_turn: true }),
        Step::Drain => memory.drained = true,
        Step::Reboot => *fence = Some(FenceSeen::Rebooting { boot: Some("before".into()), settled: false }),
        Step::AwaitBoot => {
            *fence = Some(FenceSeen::Rebooting { boot: Some("before".into()), settled: false });
            *boot = Some("after".into());
        }
        Step::AwaitReady => {
            memory.ready = true;
            judgement.verdict = Verdict::Unproved;
        }
        Step::AwaitAdopted => {
            memory.ready = true;
            judgement.verdict = Verdict::Unproved;
            judgement.claims.loaded.answer = Answer::True;
        }
        Step::Release => *fence = Some(FenceSeen::None),
        Step::WriteProof => judgement.verdict = Verdict::Current,
        Step::Nothing | Step::Blocked(_) | Step::LookAgain(_) => {}
    }
    // The boot that the fence remembers is the one before the reboot.
    if *step == Step::Reboot {
        *boot = Some("before".into());
    }
}
