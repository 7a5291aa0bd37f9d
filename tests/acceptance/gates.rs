//! Gates that have no answer, and a control plane that is not well although its Node is Ready: N20, R08, R17.

use futures::FutureExt as _;
use lab::Held;
use lab::faults::When::{After, Before};

use crate::harness::{Bed, ended};
use crate::scene::{Gate, Story, lease_is_held, only_stale, requests, side_by_side};

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

/// Its etcd and kubelet come back long before its API server (talos-captures point 25).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r08_r17_a_control_plane_whose_cri_was_killed_keeps_the_others_up_until_its_api_server_is_back() {
    let bed = only_stale(&["cp-2"]).await;
    let mut gate = Gate::new(&bed);
    let server = bed.lab.server("cp-3").cloned().expect("it serves");
    bed.lab.node("cp-3").kill_cri_under_pods();
    let child = bed.start(&[]);
    let held = gate.hold(Before, "Reboot cp-2", 1).await;
    assert!(*server.listening().borrow(), "two API servers would be away");
    drop(gate);
    held.release();
    let done = ended(child).await.expect(0);
    assert!(done.stderr.contains("gate closed: ") && done.stderr.contains("cp-3"), "{}", done.stderr);
    assert_eq!(bed.truth_of("cp-2").boots, 1);
}
