//! A node's own next step, from what is concluded about it. Pure and total.
//!
//! It says what the node needs; which nodes may be worked on now, and in which order, is the fleet's decision.

use std::fmt;

use crate::claims::{Adoption, Blocked, Judgement, Pull, Verdict};
use crate::record::RecordState;

/// What stands on the Node of this run's fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceSeen {
    /// None.
    None,
    /// Ours: fenced and cordoned, no reboot asked for.
    Claimed {
        /// This run claimed it, in the node's turn. One that was adopted from a dead run is released instead and takes
        /// its ordinary turn: the order of the fleet holds for it too.
        in_turn: bool,
    },
    /// Ours: a reboot was or is about to be asked for in that boot.
    Rebooting {
        /// The boot in which it was asked for.
        boot: Option<String>,
        /// Boot unchanged and stage RUNNING for the settle time: a request that was sent has landed by now or never.
        settled: bool,
    },
}

/// A credential that another tool puts back is written that often, and then it is left to a human.
const STAGED_AT_MOST: u32 = 3;

/// What this run knows beyond what the cluster shows; losing it only makes the next run look again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// The pull with the desired credential.
    pub pull: Pull,
    /// Nothing that must go is left on the node, by this run's drain.
    pub drained: bool,
    /// It has rebooted in this run: `--reboot-again` is used up, and no second reboot follows by itself.
    pub rebooted: bool,
    /// How often this run has written the credential to it.
    pub staged: u32,
    /// This run has written its proof.
    pub proof_written: bool,
    /// CRI did not restart by itself in time.
    pub not_adopted: bool,
    /// Back from its reboot: machine, CRI, Node and, on a control plane, API server and etcd; or, on a node that adopts
    /// live, its CRI restarted and healthy.
    pub ready: bool,
    /// The boot stayed the same and the stage RUNNING for the settle time: a reboot that was asked for will not come.
    pub settled: bool,
    /// It did not come back from its reboot, or its fence could not be changed: fence and cordon are kept, for a human
    /// must look.
    pub stuck: bool,
    /// A step failed for good; not tried again in this run.
    pub failed: Option<Blocked>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            pull: Pull::NotTried,
            drained: false,
            rebooted: false,
            staged: 0,
            proof_written: false,
            not_adopted: false,
            ready: false,
            settled: false,
            stuck: false,
            failed: None,
        }
    }
}

/// One step of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is needed.
    Nothing,
    /// Write credential and record.
    Stage,
    /// Our own TRY of a dead run: Talos rolls it back by itself.
    AwaitRollback,
    /// Somebody else configured it: write a `staged` record that names the CRI process.
    RecordStaged,
    /// Pull a private image with the configured credential.
    CheckPull,
    /// Talos restarts CRI by itself: wait for it.
    AwaitAdopted,
    /// Fence and cordon.
    Claim,
    /// Evict what must go.
    Drain,
    /// Ask for the reboot, once.
    Reboot,
    /// Wait for another boot id.
    AwaitBoot,
    /// Wait until the machine, its CRI and its Node are back.
    AwaitReady,
    /// Remove the fence and undo the cordon.
    Release,
    /// Write a `proved` record.
    WriteProof,
    /// Not known enough yet: look again.
    LookAgain(String),
    /// Nothing without a human.
    Blocked(Blocked),
}

impl Step {
    /// Whether pods, CRI or the machine are disturbed by it, so that the budget and the gates count.
    #[must_use]
    pub fn disrupts(&self, adoption: Adoption) -> bool {
        match self {
            Step::Claim | Step::Drain | Step::Reboot => true,
            Step::Stage => adoption == Adoption::Live,
            _ => false,
        }
    }
}

impl Step {
    /// Its name, for machines.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Step::Nothing => "Nothing",
            Step::Stage => "Stage",
            Step::AwaitRollback => "AwaitRollback",
            Step::RecordStaged => "RecordStaged",
            Step::CheckPull => "CheckPull",
            Step::AwaitAdopted => "AwaitAdopted",
            Step::Claim => "Claim",
            Step::Drain => "Drain",
            Step::Reboot => "Reboot",
            Step::AwaitBoot => "AwaitBoot",
            Step::AwaitReady => "AwaitReady",
            Step::Release => "Release",
            Step::WriteProof => "WriteProof",
            Step::LookAgain(_) => "LookAgain",
            Step::Blocked(_) => "Blocked",
        }
    }

    /// One or two words, for a table; `None` for a step that only waits for the one before it.
    #[must_use]
    pub fn short(&self) -> Option<&'static str> {
        Some(match self {
            Step::Stage => "stage",
            Step::AwaitRollback => "rollback",
            Step::RecordStaged => "record",
            Step::CheckPull => "pull",
            Step::AwaitAdopted => "CRI restart",
            Step::Claim => "cordon",
            Step::Drain => "drain",
            Step::Reboot => "reboot",
            Step::Release => "uncordon",
            Step::WriteProof => "proof",
            Step::Nothing | Step::AwaitBoot | Step::AwaitReady | Step::LookAgain(_) | Step::Blocked(_) => return None,
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Nothing => "nothing",
            Step::Stage => "write credential",
            Step::AwaitRollback => "wait for Talos to roll back an unfinished TRY",
            Step::RecordStaged => "record the staged credential",
            Step::CheckPull => "prove the pull",
            Step::AwaitAdopted => "wait for CRI to restart",
            Step::Claim => "fence and cordon",
            Step::Drain => "drain",
            Step::Reboot => "reboot",
            Step::AwaitBoot => "wait for the boot",
            Step::AwaitReady => "wait until it is ready",
            Step::Release => "uncordon and release",
            Step::WriteProof => "write proof",
            Step::LookAgain(_) => "look again",
            Step::Blocked(_) => "blocked",
        })
    }
}

/// What the flags say about one node's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPolicy {
    /// Write a record where only it is missing (`--missing-proof`).
    pub write_missing_proof: bool,
    /// Go back to a revision that was on the node before (`--allow-older`).
    pub allow_older: bool,
    /// Reboot a node that should have adopted by itself and did not (`--escalate-reboot`).
    pub escalate_reboot: bool,
    /// Reboot this node although its reboot for this revision has happened (`--reboot-again`).
    pub reboot_again: bool,
}

impl Default for StepPolicy {
    fn default() -> Self {
        Self { write_missing_proof: true, allow_older: false, escalate_reboot: false, reboot_again: false }
    }
}

/// The node's next step.
#[must_use]
pub fn next_step(
    judgement: &Judgement,
    boot: Option<&str>,
    fence: &FenceSeen,
    memory: &Memory,
    policy: StepPolicy,
) -> Step {
    if let Some(step) = fenced(judgement, boot, fence, memory, policy) {
        return step;
    }
    if let Some(failed) = &memory.failed {
        return Step::Blocked(failed.clone());
    }
    match &judgement.verdict {
        Verdict::Current | Verdict::Leaving | Verdict::Gone => Step::Nothing,
        // CRI is away because Talos restarts it, as it should: not something to look at again, but to wait for.
        Verdict::Unknown(_) if is_adopting(judgement, memory) => live(memory, policy),
        Verdict::Unknown(reason) => Step::LookAgain(reason.clone()),
        Verdict::Drifted if judgement.own_try => Step::AwaitRollback,
        Verdict::Drifted if memory.staged >= STAGED_AT_MOST => Step::Blocked(Blocked::Undone("the credential")),
        Verdict::Drifted => stage(judgement, policy),
        Verdict::Blocked(Blocked::Times) if policy.reboot_again && !memory.rebooted => {
            pulled(memory).unwrap_or(Step::Claim)
        }
        Verdict::Blocked(blocked) => Step::Blocked(blocked.clone()),
        Verdict::Stale => stale(judgement, memory, policy),
        // A new process is not yet a healthy one.
        Verdict::Unproved if is_adopting(judgement, memory) && !memory.not_adopted => Step::AwaitAdopted,
        Verdict::Unproved if !policy.write_missing_proof => Step::Nothing,
        Verdict::Unproved if memory.proof_written => Step::Blocked(Blocked::Undone("the record")),
        Verdict::Unproved => pulled(memory).unwrap_or(Step::WriteProof),
    }
}

/// Another credential than the desired one: written, unless that would go back.
fn stage(judgement: &Judgement, policy: StepPolicy) -> Step {
    let older = judgement
        .record
        .as_ref()
        .zip(judgement.revision)
        .is_some_and(|(record, revision)| record.was_before(&revision));
    if older && !policy.allow_older { Step::Blocked(Blocked::Older) } else { Step::Stage }
}

/// A staged credential that the running CRI does not hold.
fn stale(judgement: &Judgement, memory: &Memory, policy: StepPolicy) -> Step {
    if !is_staged(judgement) {
        return Step::RecordStaged;
    }
    if judgement.adoption == Adoption::Live {
        return live(memory, policy);
    }
    // Configured, rebooted for it, and stale once more: somebody changed it back and forth. Never a second reboot.
    if memory.rebooted {
        return Step::Blocked(Blocked::Undone("the credential"));
    }
    // Nothing is disrupted for a credential that was not seen to work, in this run and on this node.
    pulled(memory).unwrap_or(Step::Claim)
}

/// A Live node was disrupted by its staging; it is pulled from when its containerd is back, through which a pull goes.
fn live(memory: &Memory, policy: StepPolicy) -> Step {
    if !memory.not_adopted {
        Step::AwaitAdopted
    } else if policy.escalate_reboot {
        pulled(memory).unwrap_or(Step::Claim)
    } else {
        Step::Blocked(Blocked::NotAdopted)
    }
}

/// Whether our record says that the desired credential was staged.
fn is_staged(judgement: &Judgement) -> bool {
    judgement
        .record
        .as_ref()
        .is_some_and(|record| record.state == RecordState::Staged && Some(record.revision) == judgement.revision)
}

/// Whether Talos restarts CRI on this node now, or should: staged, in effect, and not seen loaded and healthy in this run.
/// The node is disturbed meanwhile, whatever else is done with it.
#[must_use]
pub fn is_adopting(judgement: &Judgement, memory: &Memory) -> bool {
    judgement.adoption == Adoption::Live
        && is_staged(judgement)
        && judgement.claims.configured.holds()
        && !(memory.ready && judgement.claims.loaded.holds())
}

/// Whether a claimed node goes on to its drain and reboot.
fn wants_reboot(judgement: &Judgement, memory: &Memory, policy: StepPolicy) -> bool {
    match &judgement.verdict {
        Verdict::Stale => stale(judgement, memory, policy) == Step::Claim,
        Verdict::Blocked(Blocked::Times) => policy.reboot_again && !memory.rebooted && pulled(memory).is_none(),
        _ => false,
    }
}

/// What stands between a node and the step that needs its pull; `None` when nothing does.
fn pulled(memory: &Memory) -> Option<Step> {
    match &memory.pull {
        Pull::NotTried => Some(Step::CheckPull),
        Pull::Failed(why) => Some(Step::Blocked(Blocked::Pull(why.clone()))),
        Pull::Proved(_) | Pull::Unprovable(_) => None,
    }
}

/// A node that carries our fence goes to its end, whatever its verdict: it is cordoned.
fn fenced(
    judgement: &Judgement,
    boot: Option<&str>,
    fence: &FenceSeen,
    memory: &Memory,
    policy: StepPolicy,
) -> Option<Step> {
    match fence {
        FenceSeen::None => None,
        _ if memory.stuck => memory.failed.clone().map(Step::Blocked),
        FenceSeen::Claimed { in_turn: false } => Some(Step::Release),
        FenceSeen::Claimed { in_turn: true } => {
            Some(match &judgement.verdict {
                // A step that failed, or a verdict that no longer asks for a reboot, gives the node back.
                _ if memory.failed.is_some() => Step::Release,
                _ if wants_reboot(judgement, memory, policy) => {
                    if memory.drained {
                        Step::Reboot
                    } else {
                        Step::Drain
                    }
                }
                Verdict::Stale if matches!(memory.pull, Pull::NotTried) => Step::CheckPull,
                Verdict::Unknown(reason) => Step::LookAgain(reason.clone()),
                _ => Step::Release,
            })
        }
        FenceSeen::Rebooting { boot: before, settled } => Some(match (before.as_deref(), boot) {
            (Some(before), Some(now)) if before != now => after_boot(judgement, memory, policy),
            // The boot did not happen and will not: the node takes its ordinary turn.
            _ if *settled => Step::Release,
            _ => Step::AwaitBoot,
        }),
    }
}

/// The reboot happened. The node may be waiting for its own credential: then it is written first.
fn after_boot(judgement: &Judgement, memory: &Memory, policy: StepPolicy) -> Step {
    match &judgement.verdict {
        Verdict::Drifted if memory.failed.is_none() && !judgement.own_try => match stage(judgement, policy) {
            Step::Stage => Step::Stage,
            _ => Step::AwaitReady,
        },
        _ if memory.failed.is_some() || memory.ready => Step::Release,
        _ => Step::AwaitReady,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::testing::judgement;

    const CLAIMED: FenceSeen = FenceSeen::Claimed { in_turn: true };
    const POLICY: StepPolicy =
        StepPolicy { write_missing_proof: true, allow_older: false, escalate_reboot: false, reboot_again: false };

    fn step(verdict: Verdict, adoption: Adoption, fence: &FenceSeen, memory: &Memory) -> Step {
        next_step(&judgement(verdict, adoption), Some("boot-2"), fence, memory, POLICY)
    }

    fn pulled() -> Memory {
        Memory { pull: Pull::Proved("x@sha256:0".into()), ..Memory::default() }
    }

    #[test]
    fn the_way_of_a_reboot_node() {
        let (stale, reboot) = (Verdict::Stale, Adoption::Reboot);
        let none = FenceSeen::None;
        assert_eq!(step(Verdict::Drifted, reboot, &none, &Memory::default()), Step::Stage);
        assert_eq!(step(stale.clone(), reboot, &none, &Memory::default()), Step::CheckPull);
        assert_eq!(step(stale.clone(), reboot, &none, &pulled()), Step::Claim);
        assert_eq!(step(stale.clone(), reboot, &CLAIMED, &pulled()), Step::Drain);
        let drained = Memory { drained: true, ..pulled() };
        assert_eq!(step(stale.clone(), reboot, &CLAIMED, &drained), Step::Reboot);
        let asked = |boot: &str| FenceSeen::Rebooting { boot: Some(boot.into()), settled: false };
        assert_eq!(step(stale, reboot, &asked("boot-2"), &drained), Step::AwaitBoot);
        assert_eq!(step(Verdict::Unproved, reboot, &asked("boot-1"), &drained), Step::AwaitReady);
        let ready = Memory { ready: true, ..drained };
        assert_eq!(step(Verdict::Unproved, reboot, &asked("boot-1"), &ready), Step::Release);
        assert_eq!(step(Verdict::Unproved, reboot, &none, &ready), Step::WriteProof);
        assert_eq!(step(Verdict::Current, reboot, &none, &ready), Step::Nothing);
    }

    #[test]
    fn n07_a_live_node_is_neither_fenced_nor_rebooted() {
        assert_eq!(step(Verdict::Stale, Adoption::Live, &FenceSeen::None, &pulled()), Step::AwaitAdopted);
    }

    #[test]
    fn a_pull_that_failed_blocks_before_anything_is_disrupted() {
        let failed = Memory { pull: Pull::Failed("no answer".into()), ..Memory::default() };
        let blocked = Step::Blocked(Blocked::Pull("no answer".into()));
        assert_eq!(step(Verdict::Stale, Adoption::Reboot, &FenceSeen::None, &failed), blocked);
        assert_eq!(step(Verdict::Stale, Adoption::Reboot, &CLAIMED, &failed), Step::Release);
    }

    #[test]
    fn n23_a_node_that_is_not_loaded_after_its_reboot_is_released_and_not_rebooted_again() {
        let ready = Memory { ready: true, ..pulled() };
        let after = FenceSeen::Rebooting { boot: Some("boot-1".into()), settled: false };
        let times = Verdict::Blocked(Blocked::Times);
        assert_eq!(step(times.clone(), Adoption::Reboot, &after, &ready), Step::Release);
        assert_eq!(step(times, Adoption::Reboot, &FenceSeen::None, &ready), Step::Blocked(Blocked::Times));
    }

    #[test]
    fn n23_reboot_again_is_a_humans_word_and_used_up_by_one_boot() {
        let again = StepPolicy { reboot_again: true, ..POLICY };
        let judged = judgement(Verdict::Blocked(Blocked::Times), Adoption::Reboot);
        let next = |memory: &Memory| next_step(&judged, Some("b"), &FenceSeen::None, memory, again);
        assert_eq!(next(&pulled()), Step::Claim);
        assert_eq!(next(&Memory { rebooted: true, ..pulled() }), Step::Blocked(Blocked::Times));
    }

    #[test]
    fn n08_a_live_node_that_did_not_adopt_is_blocked_or_rebooted_on_request() {
        let judged = judgement(Verdict::Stale, Adoption::Live);
        let memory = Memory { not_adopted: true, ..pulled() };
        let next = |policy| next_step(&judged, Some("b"), &FenceSeen::None, &memory, policy);
        assert_eq!(next(POLICY), Step::Blocked(Blocked::NotAdopted));
        assert_eq!(next(StepPolicy { escalate_reboot: true, ..POLICY }), Step::Claim);
    }

    #[test]
    fn k09_an_older_revision_is_refused_unless_it_is_allowed() {
        let mut judged = judgement(Verdict::Drifted, Adoption::Reboot);
        let newer: crate::revision::Revision = "ffeeddccbbaa99887766554433221100".parse().unwrap();
        let entry = crate::record::Entry {
            revision: newer,
            ..crate::claims::testing::entry("b", 1, jiff::Timestamp::UNIX_EPOCH)
        };
        judged.record = Some(crate::record::Record::proved(entry, judged.record.as_ref()));
        let next = |policy| next_step(&judged, Some("b"), &FenceSeen::None, &Memory::default(), policy);
        assert_eq!(next(POLICY), Step::Blocked(Blocked::Older));
        assert_eq!(next(StepPolicy { allow_older: true, ..POLICY }), Step::Stage);
    }

    #[test]
    fn r06_a_node_that_never_returns_keeps_its_fence() {
        let failed = Blocked::Step("did not come back".into());
        let memory = Memory { stuck: true, failed: Some(failed.clone()), ..pulled() };
        let asked = FenceSeen::Rebooting { boot: Some("boot-2".into()), settled: false };
        assert_eq!(step(Verdict::Stale, Adoption::Reboot, &asked, &memory), Step::Blocked(failed));
    }

    #[test]
    fn f13_a_reboot_that_did_not_happen_is_released_after_the_settle_time() {
        let stuck = FenceSeen::Rebooting { boot: Some("boot-2".into()), settled: true };
        assert_eq!(step(Verdict::Stale, Adoption::Reboot, &stuck, &Memory::default()), Step::Release);
    }

    #[test]
    fn o09_a_claim_of_a_dead_run_is_released_and_takes_its_ordinary_turn() {
        let adopted = FenceSeen::Claimed { in_turn: false };
        assert_eq!(step(Verdict::Stale, Adoption::Reboot, &adopted, &pulled()), Step::Release);
    }

    #[test]
    fn n04_a_missing_proof_is_only_reported_when_asked_so() {
        let judged = judgement(Verdict::Unproved, Adoption::Reboot);
        let report = StepPolicy { write_missing_proof: false, ..POLICY };
        assert_eq!(next_step(&judged, Some("b"), &FenceSeen::None, &Memory::default(), report), Step::Nothing);
        assert_eq!(step(Verdict::Unproved, Adoption::Reboot, &FenceSeen::None, &Memory::default()), Step::CheckPull);
    }
}
