//! What a node is and needs, from Talos and Kubernetes together.

use agent::claims::{Blocked, Verdict};
use agent::facts::Look;
use agent::step::{Step, StepPolicy};
use jiff::Timestamp;
use talos_proto::node::RebootMode;

use super::testing::{facts, node};
use super::{Fencing, FleetNode, Talk};
use crate::kube::fence::Step as FenceStep;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A node that a dead run has set out to reboot in `boot-1` at second 100, as one sees it that may not read boot ids:
/// with the beginning of its boot, and the boot that Kubernetes reports.
fn asked_to_reboot(began: i64, reported: &str) -> FleetNode {
    let mut node = node("worker-1", Verdict::Unknown("configured: not permitted".into()));
    node.kube.boot_id = reported.into();
    let mut node = node.residue(FenceStep::Rebooting, "boot-1");
    if let Fencing::Residue { fence, .. } = &mut node.fencing {
        fence.step_since = at(100);
    }
    let mut seen = facts("v1.13.9");
    seen.boot = Look::Seen(format!("created {}", at(began)));
    node.talk = Talk::Facts(Box::new(seen));
    node
}

#[test]
fn r16_without_the_boot_id_a_boot_is_told_by_its_beginning_or_by_kubernetes() {
    let next = |node: FleetNode| node.next_step(StepPolicy::default());
    assert_eq!(next(asked_to_reboot(10, "boot-1")), Step::AwaitBoot);
    assert_eq!(next(asked_to_reboot(10, "")), Step::AwaitBoot);
    // A kubelet lags: it confirms another boot and denies none.
    assert_eq!(next(asked_to_reboot(110, "boot-1")), Step::AwaitReady);
    assert_eq!(next(asked_to_reboot(10, "boot-2")), Step::AwaitReady);
}

#[test]
fn r10_a_mode_that_a_node_takes_for_another_blocks_it_before_anything_is_written() {
    let of = |version: &str, verdict: Verdict, mode| {
        let mut node = node("worker-1", verdict);
        node.talk = Talk::Facts(Box::new(facts(version)));
        node.reboot_mode = mode;
        node.next_step(StepPolicy::default())
    };
    for verdict in [Verdict::Drifted, Verdict::Stale] {
        let Step::Blocked(Blocked::Step(why)) = of("v1.11.6", verdict.clone(), RebootMode::Force) else {
            panic!("{verdict:?} is blocked")
        };
        assert!(why.contains("force") && why.contains("--reboot-mode worker-1=default"), "{why}");
        for (version, mode) in [("v1.12.0", RebootMode::Force), ("v1.11.6", RebootMode::Powercycle)] {
            assert!(!matches!(of(version, verdict.clone(), mode), Step::Blocked(_)), "{version} {mode}");
        }
    }
    // Where nothing is rebooted, the mode does not matter.
    assert_eq!(of("v1.11.6", Verdict::Current, RebootMode::Force), Step::Nothing);
}
