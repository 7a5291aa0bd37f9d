//! How a node is rebooted, drained and given back: R, D, P07.

use std::net::IpAddr;
use std::time::Duration;

use futures::FutureExt as _;
use lab::Held;
use lab::faults::When::{After, Before};
use rustix::process::Signal;
use talos_proto::Talos;
use talos_proto::channel::Routing;
use talos_proto::clock::Clock;
use talos_proto::config::Context;
use talos_proto::identity::Identity;
use talos_proto::node::RebootMode;
use talos_proto::permit::Permit;

use crate::harness::{Bed, ended, eventually};
use crate::scene::{
    Gate, Story, block_evictions, evictions, fence_of, lease_is_held, only_stale, requests, side_by_side, signal,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_a_lost_reply_to_the_reboot_is_observed_and_not_sent_again() {
    let bed = only_stale(&["worker-1"]).await;
    bed.lab.node("worker-1").set_reply_lost_once("Reboot");
    let story = Story::begin(&bed);
    let ended = bed.run(&[]).await.expect(0);
    bed.assert_done();
    assert!(ended.stderr.contains("reply is lost"), "{}", ended.stderr);
    assert_eq!(requests(&bed, "Reboot", "worker-1").len(), 1);
    assert_eq!(bed.truth_of("worker-1").boots, 1);
    // R03, R04: it was given back by what was seen of the new boot, not of the old one.
    let fenced = story.fenced("worker-1");
    let (_, claimed) = &fenced[0];
    let (before, released) = &fenced[1];
    assert_eq!(fence_of(before).unwrap()["boot"], claimed["status"]["nodeInfo"]["bootID"]);
    assert_ne!(fence_of(before).unwrap()["boot"], released["status"]["nodeInfo"]["bootID"]);
    assert_eq!(released["status"]["nodeInfo"]["bootID"], bed.lab.node("worker-1").boot_id().as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r03_r04_what_is_left_of_the_old_boot_is_not_taken_for_the_new_one() {
    // A reboot that takes long to begin: until then the machine is RUNNING and ready, and its Node is Ready.
    let bed = only_stale(&["worker-1"]).await;
    let mut gate = Gate::new(&bed);
    let child = bed.start(&[]);
    let held = gate.hold(Before, "Reboot worker-1", 1).await;
    drop(gate);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let waiting = bed.truth_of("worker-1");
    assert!(waiting.cordoned && waiting.fence.is_some_and(|fence| fence["step"] == "rebooting"));
    held.release();
    ended(child).await.expect(0);
    bed.assert_done();
    assert_eq!(bed.truth_of("worker-1").boots, 1);
}

/// The product's own channel in the hands of another.
async fn ask_for_reboot(bed: &Bed, node: &str) {
    let clock = Clock::system();
    let context = Context::load(&bed.lab.dir().join("talosconfig"), None, &[]).unwrap();
    let identity = Identity::from_context(&context, clock.utc()).unwrap();
    let talos = Talos::new(&identity, &context.endpoints, Routing::default(), clock.clone()).unwrap();
    let limit = Duration::from_secs(5);
    let permit = Permit::until(clock.clone(), clock.now() + 2 * limit);
    talos
        .node(IpAddr::V4(bed.lab.node(node).address()))
        .directly()
        .reboot(permit, RebootMode::Default, limit)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r12_two_reboots_answered_ok_are_one_boot_and_r07_two_boots_are_fine() {
    let twice_asked = async {
        let bed = only_stale(&["worker-1"]).await;
        let mut gate = Gate::new(&bed);
        let child = bed.start(&[]);
        let held = gate.hold(After, "Reboot worker-1", 1).await;
        drop(gate);
        ask_for_reboot(&bed, "worker-1").await;
        held.release();
        let ended = ended(child).await.expect(0);
        bed.assert_done();
        assert_eq!(requests(&bed, "Reboot", "worker-1").len(), 2, "ours and the other one");
        assert_eq!(bed.truth_of("worker-1").boots, 1);
        assert_eq!(ended.stderr.matches("booted again").count(), 1, "{}", ended.stderr);
    };
    let boots_twice = async {
        let bed = only_stale(&["worker-1"]).await;
        let child = bed.start(&[]);
        eventually("it boots", || bed.truth_of("worker-1").boots == 1).await;
        bed.lab.power_cycle("worker-1");
        ended(child).await.expect(0);
        bed.assert_done();
        assert_eq!(bed.truth_of("worker-1").boots, 2);
        assert_eq!(requests(&bed, "Reboot", "worker-1").len(), 1);
    };
    side_by_side(vec![("R12".to_owned(), twice_asked.boxed()), ("R07".to_owned(), boots_twice.boxed())]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r02_a_locked_node_is_released_and_the_next_run_reboots_it() {
    let bed = only_stale(&["worker-1"]).await;
    bed.lab.node("worker-1").set_reboot_locked(true);
    let stopped = bed.run(&[]).await.expect(4);
    assert!(stopped.stderr.contains("did not reboot") && stopped.stderr.contains("worker-1"), "{}", stopped.stderr);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None));
    assert_eq!((node.configured, node.cri_loaded), (Held::New, Held::Old), "what was staged stays");
    assert!(!lease_is_held(&bed));
    let asked = requests(&bed, "Reboot", "worker-1").len();
    assert!((1..=2).contains(&asked), "asked for {asked} times");
    bed.lab.node("worker-1").set_reboot_locked(false);
    bed.run(&[]).await.expect(0);
    bed.assert_done();
    assert_eq!(bed.truth_of("worker-1").boots, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_a_node_that_never_returns_stops_the_roll_and_keeps_its_fence() {
    let bed = only_stale(&["worker-1", "worker-2", "cp-2"]).await;
    let child = bed.start(&["--reboot-timeout", "5s"]);
    eventually("it goes dark", || !bed.lab.node("worker-1").is_up()).await;
    bed.lab.node("worker-1").stop();
    let failed = ended(child).await.expect(1);
    for words in ["worker-1", "did not come back within", "run the same command again"] {
        assert!(failed.stderr.contains(words), "{words}: {}", failed.stderr);
    }
    let node = bed.truth_of("worker-1");
    assert!(node.cordoned && node.fence.is_some_and(|fence| fence["step"] == "rebooting"));
    assert!(!lease_is_held(&bed));
    for other in ["worker-2", "cp-2"] {
        let other = bed.truth_of(other);
        assert_eq!((other.boots, other.cri_loaded, other.cordoned, other.fence), (0, Held::Old, false, None));
    }
    bed.lab.node("worker-1").start_again();
    eventually("it is back", || bed.is_up("worker-1")).await;
    bed.run(&[]).await.expect(0);
    bed.assert_done();
    for name in ["worker-1", "worker-2", "cp-2"] {
        assert_eq!(bed.truth_of(name).boots, 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d02_a_budget_that_never_clears_is_named_and_one_that_clears_lets_the_drain_go_on() {
    let bed = only_stale(&["worker-1", "cp-2"]).await;
    block_evictions(&bed, true);
    let stopped = bed.run(&["--nodes", "worker-1", "--drain-timeout", "2s"]).await.expect(4);
    for words in ["worker-1", "default/web", "disruptionsAllowed 0", "unhealthyPodEvictionPolicy IfHealthyBudget"] {
        assert!(stopped.stderr.contains(words), "{words}: {}", stopped.stderr);
    }
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None));
    assert!(!lease_is_held(&bed));
    assert!(requests(&bed, "Reboot", "worker-1").is_empty());

    let refused = evictions(&bed);
    let child = bed.start(&[]);
    eventually("an eviction is refused", || evictions(&bed) > refused).await;
    assert!(bed.truth_of("worker-1").cordoned);
    block_evictions(&bed, false);
    let done = ended(child).await.expect(0);
    assert!(done.stderr.contains("held back"), "{}", done.stderr);
    bed.assert_done();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p07_int_and_then_term_are_one_cancellation_and_everything_is_given_back() {
    let bed = only_stale(&["worker-1"]).await;
    block_evictions(&bed, true);
    let mut gate = Gate::new(&bed);
    let child = bed.start(&[]);
    // The first of the two evictions: both are refused, and tried again.
    gate.hold(Before, "POST pods/eviction", 1).await.release();
    let mut release = Gate::new(&bed);
    drop(gate);
    eventually("the drain is held", || evictions(&bed) > 0).await;
    signal(&child, Signal::INT);
    // The second signal comes while the node is being given back.
    let held = release.hold_fence(Before, "worker-1", Some("claimed")).await;
    drop(release);
    tokio::time::sleep(Duration::from_millis(600)).await;
    signal(&child, Signal::TERM);
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.release();
    let cancelled = ended(child).await.expect(130);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None), "{}", cancelled.stderr);
    assert!(!lease_is_held(&bed), "{}", cancelled.stderr);
    assert!(cancelled.stderr.contains("stopping"), "{}", cancelled.stderr);
}
