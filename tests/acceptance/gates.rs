//! Gates that have no answer: N20.

use futures::FutureExt as _;
use lab::Held;
use lab::faults::When::After;

use crate::harness::{Bed, ended};
use crate::scene::{Gate, Story, lease_is_held, requests, side_by_side};

/// Three control planes alone; `cp-2` is the one that is rolled.
async fn control_planes() -> Bed {
    Bed::new(|options| (options.control_planes, options.workers) = (3, 0)).await
}

#[track_caller]
fn assert_not_rebooted(bed: &Bed, stderr: &str) {
    assert!(stderr.contains("etcd: cp-3: EtcdStatus") && stderr.contains("no answer within 5s"), "{stderr}");
    let node = bed.truth_of("cp-2");
    assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None));
    assert_eq!((node.configured, node.cri_loaded), (Held::New, Held::Old), "the staged config stays");
    assert!(requests(bed, "Reboot", "cp-2").is_empty());
    assert!(!lease_is_held(bed));
}

/// Calls about an etcd that does not run have no answer at all, until the caller's own deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n20_an_etcd_that_does_not_answer_closes_the_gate_and_the_node_is_given_back() {
    let before_the_claim = async {
        let bed = control_planes().await;
        bed.lab.talos().set_etcd_running("cp-3", false);
        let story = Story::begin(&bed);
        let stopped = bed.run(&["-n", "cp-2", "--gate-timeout", "1s"]).await.expect(4);
        assert_not_rebooted(&bed, &stopped.stderr);
        assert!(story.fenced("cp-2").is_empty(), "nothing is quieted for nothing");
        bed.lab.talos().set_etcd_running("cp-3", true);
        bed.run(&["-n", "cp-2"]).await.expect(0);
        assert_eq!((bed.truth_of("cp-2").cri_loaded, bed.truth_of("cp-2").boots), (Held::New, 1));
    };
    let after_the_drain = async {
        let bed = control_planes().await;
        let story = Story::begin(&bed);
        let mut gate = Gate::new(&bed);
        let child = bed.start(&["-n", "cp-2", "--gate-timeout", "1s"]);
        let held = gate.hold_fence(After, "cp-2", None).await;
        bed.lab.talos().set_etcd_running("cp-3", false);
        held.release();
        drop(gate);
        let stopped = ended(child).await.expect(4);
        assert_not_rebooted(&bed, &stopped.stderr);
        assert_eq!(story.fenced("cp-2").len(), 2, "claimed, and given back");
    };
    let cases = [("before the claim", before_the_claim.boxed()), ("after the drain", after_the_drain.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}
