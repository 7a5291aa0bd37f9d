//! The phases of a run: what it does itself, and what it does to the nodes.

use std::fmt;
use std::time::Duration;

use agent::step::Step;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Span, StepSpan};
use crate::decide::Task;

/// A phase of a run. Those of the nodes may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// All nodes are looked at.
    Inventory,
    /// `--check-command`.
    CheckCommand,
    /// A person is asked.
    Confirmation,
    /// The registry is asked with the credential.
    Registry,
    /// Further API servers prove themselves.
    ApiServers,
    /// Kubernetes is asked what we may do.
    Rights,
    /// The lease is waited for and taken.
    Lease,
    /// `--before-command`.
    BeforeCommand,
    /// The fences of dead runs are taken over.
    Residue,
    /// One node tries the credential.
    Canary,
    /// The credential is written to nodes that reboot for it later.
    Staging,
    /// Pulls are proved.
    Pull,
    /// Workers are disturbed: cordon, drain, reboot, back; or their CRI restarts.
    Workers,
    /// The same of control planes.
    ControlPlanes,
    /// Records are written.
    Proof,
    /// Nodes are looked at again that are not known well enough.
    Waiting,
    /// `--after-command`.
    AfterCommand,
    /// The lease is given back.
    Release,
}

impl Phase {
    /// Whether nodes are worked on in it, rather than the run looks around, asks or waits itself.
    #[must_use]
    pub fn is_of_nodes(self) -> bool {
        match self {
            Phase::Residue
            | Phase::Canary
            | Phase::Staging
            | Phase::Pull
            | Phase::Workers
            | Phase::ControlPlanes
            | Phase::Proof
            | Phase::Waiting => true,
            Phase::Inventory
            | Phase::CheckCommand
            | Phase::Confirmation
            | Phase::Registry
            | Phase::ApiServers
            | Phase::Rights
            | Phase::Lease
            | Phase::BeforeCommand
            | Phase::AfterCommand
            | Phase::Release => false,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Inventory => "inventory",
            Phase::CheckCommand => "check command",
            Phase::Confirmation => "confirmation",
            Phase::Registry => "registry",
            Phase::ApiServers => "API servers",
            Phase::Rights => "rights",
            Phase::Lease => "lease",
            Phase::BeforeCommand => "before command",
            Phase::Residue => "residue",
            Phase::Canary => "canary",
            Phase::Staging => "staging",
            Phase::Pull => "pull proofs",
            Phase::Workers => "workers",
            Phase::ControlPlanes => "control planes",
            Phase::Proof => "records",
            Phase::Waiting => "waiting",
            Phase::AfterCommand => "after command",
            Phase::Release => "release",
        })
    }
}

/// When a run was in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseSpans {
    /// The phase.
    pub phase: Phase,
    /// In order, none touching another.
    pub spans: Vec<Span>,
}

impl PhaseSpans {
    /// How long the run was in it by `now`, all spans together.
    #[must_use]
    pub fn length(&self, now: Duration) -> Duration {
        self.spans.iter().map(|span| span.length(now)).sum()
    }
}

/// The phase that a step of a node belongs to.
fn of_step(step: &StepSpan) -> Phase {
    let turn = if step.control_plane { Phase::ControlPlanes } else { Phase::Workers };
    match &step.task {
        Task::Adopt => Phase::Residue,
        Task::Canary => Phase::Canary,
        Task::Step(task) => match task {
            Step::AwaitRollback => Phase::Canary,
            Step::Stage if !step.live => Phase::Staging,
            Step::RecordStaged => Phase::Staging,
            Step::CheckPull => Phase::Pull,
            Step::WriteProof => Phase::Proof,
            Step::LookAgain(_) | Step::Nothing | Step::Blocked(_) => Phase::Waiting,
            Step::Stage
            | Step::AwaitAdopted
            | Step::Claim
            | Step::Drain
            | Step::Reboot
            | Step::AwaitBoot
            | Step::AwaitReady
            | Step::Release => turn,
        },
    }
}

/// All phases by `now`, in the order of their begins: `own` is what the run did itself. A run is in a phase of the nodes
/// while at least one step of it goes on, the look after the step counted. Pure.
pub(super) fn of(own: &[(Phase, Span)], steps: &[StepSpan], now: Duration) -> Vec<PhaseSpans> {
    let of_nodes = steps.iter().map(|step| (of_step(step), Span { from: step.span.from, to: step.looked }));
    let mut all: Vec<(Phase, Span)> = own.iter().copied().chain(of_nodes).collect();
    all.sort_by_key(|(_, span)| span.from);
    let mut phases: Vec<PhaseSpans> = Vec::new();
    for (phase, span) in all {
        let Some(known) = phases.iter_mut().find(|known| known.phase == phase) else {
            phases.push(PhaseSpans { phase, spans: vec![span] });
            continue;
        };
        match known.spans.last_mut() {
            Some(last) if last.to.unwrap_or(now) >= span.from => {
                last.to = last.to.zip(span.to).map(|(last, next)| last.max(next));
            }
            _ => known.spans.push(span),
        }
    }
    phases
}
