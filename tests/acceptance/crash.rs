//! A run that dies is finished by the next one, whatever it was at: L18, F13.

use futures::FutureExt as _;
use lab::faults::When::{self, After, Before};

use crate::harness::Bed;
use crate::scene::{Gate, kill, lease_is_held, only_stale, side_by_side};

/// What may still be old in these labs: a worker, and the node behind the kubeconfig's address.
const STALE: [&str; 2] = ["worker-1", "cp-1"];

/// Where a run is killed, on one side of a request's effect.
enum Death {
    /// The first of that name.
    At(When, &'static str),
    /// The change of a node's fence that finds it at that step.
    AtFence(When, &'static str, Option<&'static str>),
}

/// Kills a run there, starts the next one at once with default flags, and expects law S7.
async fn finishes_after(death: Death) {
    let bed = only_stale(&STALE).await;
    let mut gate = Gate::new(&bed);
    let child = bed.start(&[]);
    let held = match death {
        Death::At(when, what) => gate.hold(when, what, 1).await,
        Death::AtFence(when, node, step) => gate.hold_fence(when, node, step).await,
    };
    kill(child).await;
    held.cut();
    drop(gate);
    assert!(lease_is_held(&bed), "nobody released the lease of a dead run");
    bed.run(&[]).await.expect(0);
    assert_done_with_one_boot_each(&bed);
}

/// Law S7, and S3: no node was rebooted twice for one revision, and none that needed nothing.
fn assert_done_with_one_boot_each(bed: &Bed) {
    bed.assert_done();
    for node in bed.lab.truth().nodes {
        let expected = u32::from(STALE.contains(&node.name.as_str()));
        assert_eq!(node.boots, expected, "boots of {}", node.name);
    }
}

async fn all_finish(deaths: Vec<(&str, Death)>) {
    side_by_side(deaths.into_iter().map(|(name, death)| (name.to_owned(), finishes_after(death).boxed())).collect())
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l18_f13_killed_between_the_claim_and_the_reboot() {
    all_finish(vec![
        ("claimed", Death::AtFence(After, "worker-1", None)),
        ("draining", Death::At(After, "POST pods/eviction")),
        ("intent written", Death::AtFence(After, "worker-1", Some("claimed"))),
        ("reboot asked for, never arrived", Death::At(Before, "Reboot worker-1")),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l18_f13_killed_between_the_reboot_and_the_proof() {
    all_finish(vec![
        ("rebooting now", Death::At(After, "Reboot worker-1")),
        ("rebooted, not released", Death::AtFence(Before, "worker-1", Some("rebooting"))),
        ("released, not proved", Death::AtFence(After, "worker-1", Some("rebooting"))),
        ("staged, not pulled", Death::At(Before, "Pull cp-1")),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l18_f13_killed_at_the_endpoint_node() {
    all_finish(vec![
        ("claimed", Death::AtFence(After, "cp-1", None)),
        ("reboot asked for, never arrived", Death::At(Before, "Reboot cp-1")),
        ("rebooting now", Death::At(After, "Reboot cp-1")),
        ("rebooted, not released", Death::AtFence(Before, "cp-1", Some("rebooting"))),
    ])
    .await;
}

/// As O01 has it: the API that the kubeconfig names is away with its node. The next run is started when it answers
/// again, and finds a node that has booted, fenced by a dead run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l18_f13_killed_while_the_endpoint_node_is_away() {
    let bed = only_stale(&STALE).await;
    let child = bed.start(&[]);
    let mut listening = bed.lab.server("cp-1").expect("it has an API server").listening();
    listening.wait_for(|listening| !listening).await.expect("the lab runs");
    kill(child).await;
    listening.wait_for(|listening| *listening).await.expect("the lab runs");
    assert!(bed.truth_of("cp-1").fence.is_some() && bed.truth_of("cp-1").cordoned);
    bed.run(&[]).await.expect(0);
    assert_done_with_one_boot_each(&bed);
}
