//! The drawings and tables of docs/safety.md are about the code that there is.

use std::time::Duration;

use agent::claims::{Blocked, Verdict};
use agent::step::Step;
use coordinator::kube::lease::{LeaseState, Timing};

use super::markdown::{blocks, root};
use crate::harness::read;

fn text() -> String {
    read(&root().join("docs/safety.md"))
}

/// All steps that do or wait for something; the compiler asks for a place here when there is one more.
fn steps() -> Vec<Step> {
    let follows = |step: &Step| match step {
        Step::Stage => Some(Step::RecordStaged),
        Step::RecordStaged => Some(Step::AwaitRollback),
        Step::AwaitRollback => Some(Step::CheckPull),
        Step::CheckPull => Some(Step::AwaitAdopted),
        Step::AwaitAdopted => Some(Step::Claim),
        Step::Claim => Some(Step::Drain),
        Step::Drain => Some(Step::Reboot),
        Step::Reboot => Some(Step::AwaitBoot),
        Step::AwaitBoot => Some(Step::AwaitReady),
        Step::AwaitReady => Some(Step::Release),
        Step::Release => Some(Step::WriteProof),
        Step::WriteProof | Step::Nothing | Step::LookAgain(_) | Step::Blocked(_) => None,
    };
    std::iter::successors(Some(Step::Stage), follows).collect()
}

fn verdicts() -> Vec<Verdict> {
    let follows = |verdict: &Verdict| match verdict {
        Verdict::Drifted => Some(Verdict::Stale),
        Verdict::Stale => Some(Verdict::Unproved),
        Verdict::Unproved => Some(Verdict::Current),
        Verdict::Current => Some(Verdict::Unknown(String::new())),
        Verdict::Unknown(_) => Some(Verdict::Blocked(Blocked::Times)),
        Verdict::Blocked(_) => Some(Verdict::Leaving),
        Verdict::Leaving => Some(Verdict::Gone),
        Verdict::Gone => None,
    };
    std::iter::successors(Some(Verdict::Drifted), follows).collect()
}

#[test]
fn every_step_has_a_row_with_its_two_names_and_a_place_in_the_drawing() {
    let text = text();
    let drawing = &blocks(&text)[1].text;
    assert_eq!(steps().len(), 12);
    for step in steps() {
        let row = format!("| {step} | {}", step.short().map_or(String::new(), |short| format!("{short} |")));
        assert!(text.lines().any(|line| line.starts_with(row.trim_end())), "{row}");
        // These two are of another's doing, and no part of a node's ordinary way.
        if !matches!(step, Step::RecordStaged | Step::AwaitRollback) {
            assert!(drawing.contains(&step.to_string()), "{step}");
        }
    }
}

#[test]
fn every_verdict_has_a_row() {
    for verdict in verdicts() {
        let name = format!("`{}`", verdict.name());
        let rows = text().lines().filter(|line| line.starts_with("| `") && line.contains(&name)).count();
        assert_eq!(rows, 1, "{name}");
    }
}

#[test]
fn the_lease_is_drawn_with_its_states_and_times() {
    let text = text();
    let drawing = &blocks(&text)[2].text;
    let follows = |state: &LeaseState| match state {
        LeaseState::Held => Some(LeaseState::Lapsed),
        LeaseState::Lapsed => Some(LeaseState::Lost { holder: String::new() }),
        LeaseState::Lost { .. } => Some(LeaseState::Released),
        LeaseState::Released => None,
    };
    for state in std::iter::successors(Some(LeaseState::Held), follows) {
        let name = format!("{state:?}");
        assert!(drawing.contains(name.split(' ').next().unwrap()), "{name}");
    }
    let timing = Timing::default();
    let seconds = |time: Duration| format!("{} s", time.as_secs());
    assert!(text.contains(&format!("(D, {})", seconds(timing.duration))));
    assert!(drawing.contains(&format!("D/6 ({})", seconds(timing.renew))));
    assert!(drawing.contains(&format!("2D/3 ({})", seconds(timing.renew_deadline))));
    assert!(text.contains(&format!("no reboot came in {}", seconds(timing.settle))));
    assert_eq!(timing.watch(None), Duration::from_secs(5 * 60));
    assert!(text.contains("(5 minutes)"));
}
