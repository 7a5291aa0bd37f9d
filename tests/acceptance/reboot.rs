//! From the call of a reboot until its node is back: R05, R07, R11, R13, R14, R17, R18.

mod clusters;
mod modes;
mod roles;

use std::time::Duration;

use futures::FutureExt as _;
use lab::Held;
use lab::faults::When::After;
use lab::talos::{Asked, RebootMode};
use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Bed, ended, eventually};
use crate::scene::{Gate, Story, fence_of, lease_is_held, only_stale, only_stale_of, requests, side_by_side, signal};

/// The step of the fence on a node.
fn step(bed: &Bed, node: &str) -> Option<String> {
    Some(bed.truth_of(node).fence?["step"].as_str()?.to_owned())
}

/// Sets a taint, or takes it away; one that no controller of the lab minds.
fn taint(bed: &Bed, node: &str, key: &str, set: bool) {
    bed.lab.objects().edit_node(node, |node| {
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.retain(|taint| taint["key"] != key);
        if set {
            taints.push(json!({"key": key, "effect": "PreferNoSchedule"}));
        }
        node["spec"]["taints"] = json!(taints);
    });
}

/// Nothing that a run may do at any moment from now on shows that it went on.
async fn stays_so(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..8 {
        assert!(holds(), "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r18_a_boot_between_two_looks_is_proved_by_its_id() {
    let never_seen_dark = async {
        let bed = only_stale(&["worker-1"]).await;
        let mut gate = Gate::new(&bed);
        let child = bed.start(&[]);
        let held = gate.hold(After, "Reboot worker-1", 1).await;
        drop(gate);
        let before = bed.lab.node("worker-1").boot_id();
        // The run sees nothing between its call and the end of the boot.
        signal(&child, Signal::STOP);
        held.release();
        eventually("it is back", || bed.lab.node("worker-1").boot_id() != before && bed.is_up("worker-1")).await;
        signal(&child, Signal::CONT);
        ended(child).await.expect(0);
        bed.assert_done();
        assert_eq!((bed.truth_of("worker-1").boots, requests(&bed, "Reboot", "worker-1").len()), (1, 1));
    };
    let dark_for_a_moment = async {
        let quick = |options: &mut lab::Options| options.reboot_time = Duration::from_millis(20);
        let bed = only_stale_of(&["worker-1", "worker-2", "cp-2"], quick).await;
        let ended = bed.run(&["-o", "json"]).await.expect(0);
        bed.assert_done();
        assert_eq!(ended.json()["rebooted"], json!(["worker-1", "worker-2", "cp-2"]), "{}", ended.stderr);
        for node in ["worker-1", "worker-2", "cp-2"] {
            assert_eq!((bed.truth_of(node).boots, requests(&bed, "Reboot", node).len()), (1, 1), "{node}");
        }
    };
    let cases = [("never seen dark", never_seen_dark.boxed()), ("dark for a moment", dark_for_a_moment.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

/// The power goes once more when the node is nearly back: its machine was up, and its Node says Ready all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r07_a_node_that_boots_again_while_it_is_awaited_is_given_back_in_its_last_boot() {
    let key = "node.cilium.io/agent-not-ready";
    let bed = only_stale_of(&["worker-1"], |options| options.reboot_time = Duration::from_secs(2)).await;
    let story = Story::begin(&bed);
    let child = bed.start(&[]);
    eventually("it is asked to reboot", || step(&bed, "worker-1").as_deref() == Some("rebooting")).await;
    taint(&bed, "worker-1", key, true);
    eventually("it is up", || bed.truth_of("worker-1").boots == 1 && bed.is_up("worker-1")).await;
    // Time to be seen up; too little only makes this an easier case.
    tokio::time::sleep(Duration::from_millis(500)).await;
    bed.lab.power_cycle("worker-1");
    eventually("it is dark", || !bed.lab.node("worker-1").is_up()).await;
    taint(&bed, "worker-1", key, false);
    let ended = ended(child).await.expect(0);
    bed.assert_done();
    assert_eq!((bed.truth_of("worker-1").boots, requests(&bed, "Reboot", "worker-1").len()), (2, 1));
    let (_, released) = &story.fenced("worker-1")[1];
    let last = bed.lab.node("worker-1").boot_id();
    assert_eq!(released["status"]["nodeInfo"]["bootID"], last.as_str(), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_taints_of_a_node_that_comes_back_are_waited_for_and_for_ever_they_are_a_failure() {
    let clears = async {
        let keys = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.cilium.io/agent-not-ready"];
        let bed = only_stale(&["worker-1"]).await;
        let child = bed.start(&[]);
        eventually("it is asked to reboot", || step(&bed, "worker-1").as_deref() == Some("rebooting")).await;
        keys.iter().for_each(|key| taint(&bed, "worker-1", key, true));
        // Not of a node that comes back: somebody's will, which nobody waits for.
        taint(&bed, "worker-1", "dedicated", true);
        eventually("it is up", || bed.truth_of("worker-1").boots == 1 && bed.is_up("worker-1")).await;
        for key in keys {
            stays_so(key, || step(&bed, "worker-1").as_deref() == Some("rebooting")).await;
            taint(&bed, "worker-1", key, false);
        }
        ended(child).await.expect(0);
        bed.assert_done();
    };
    let for_ever = async {
        let key = "node.cilium.io/agent-not-ready";
        let bed = only_stale(&["worker-1", "worker-2"]).await;
        let child = bed.start(&["--reboot-timeout", "3s"]);
        eventually("it is asked to reboot", || step(&bed, "worker-1").as_deref() == Some("rebooting")).await;
        taint(&bed, "worker-1", key, true);
        let failed = ended(child).await.expect(1);
        for words in ["worker-1", key, "its fence is kept", "run the same command again"] {
            assert!(failed.stderr.contains(words), "{words}: {}", failed.stderr);
        }
        let node = bed.truth_of("worker-1");
        assert!(node.cordoned && node.fence.is_some_and(|fence| fence["step"] == "rebooting"));
        let other = bed.truth_of("worker-2");
        assert_eq!((other.boots, other.cri_loaded, other.cordoned, other.fence), (0, Held::Old, false, None));
        assert!(!lease_is_held(&bed));
        taint(&bed, "worker-1", key, false);
        bed.run(&[]).await.expect(0);
        bed.assert_done();
        assert_eq!(bed.truth_of("worker-1").boots, 1, "it has rebooted for this credential");
    };
    side_by_side(vec![("clears".to_owned(), clears.boxed()), ("for ever".to_owned(), for_ever.boxed())]).await;
}

/// A control plane comes back twice: RUNNING, ready and Node Ready while its API server is not back, and not ready once
/// more after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_the_next_control_plane_waits_for_the_api_server_and_for_a_machine_that_flaps() {
    let in_the_wait = async {
        let bed = only_stale(&["cp-2", "cp-3"]).await;
        let (story, server) = (Story::begin(&bed), bed.lab.server("cp-2").expect("it has one"));
        let child = bed.start(&[]);
        eventually("it is dark", || !bed.lab.node("cp-2").is_up()).await;
        server.cut_off(true);
        eventually("its machine and its Node are up", || bed.truth_of("cp-2").boots == 1 && bed.is_up("cp-2")).await;
        // Longer than the machine's own second half of the way takes.
        stays_so("cp-2 is awaited", || step(&bed, "cp-2").is_some() && step(&bed, "cp-3").is_none()).await;
        bed.lab.node("cp-2").unready_static_pods(true);
        server.cut_off(false);
        stays_so("it flaps", || step(&bed, "cp-2").is_some() && step(&bed, "cp-3").is_none()).await;
        bed.lab.node("cp-2").unready_static_pods(false);
        ended(child).await.expect(0);
        bed.assert_done();
        story.assert_budget(1);
    };
    let given_back = async {
        let bed = only_stale(&["cp-2", "cp-3"]).await;
        let story = Story::begin(&bed);
        let mut gate = Gate::new(&bed);
        let child = bed.start(&[]);
        let held = gate.hold_fence(After, "cp-2", Some("rebooting")).await;
        drop(gate);
        bed.lab.node("cp-2").unready_static_pods(true);
        held.release();
        stays_so("cp-2 flaps", || step(&bed, "cp-3").is_none()).await;
        bed.lab.node("cp-2").unready_static_pods(false);
        let ended = ended(child).await.expect(0);
        assert!(ended.stderr.contains("gate closed: the machine of cp-2: RUNNING, not ready"), "{}", ended.stderr);
        bed.assert_done();
        story.assert_budget(1);
    };
    let cases = [("in the wait", in_the_wait.boxed()), ("given back already", given_back.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

/// An open watch holds up the shutdown of its node by 10 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_no_watch_of_ours_is_open_on_a_node_when_its_reboot_is_asked_for() {
    let bed = only_stale(&["worker-1", "worker-2", "cp-2", "cp-1"]).await;
    let staged = bed.last_request();
    bed.run(&[]).await.expect(0);
    bed.assert_done();
    for node in ["worker-1", "worker-2", "cp-2", "cp-1"] {
        let asked = Asked { mode: RebootMode::Default, watches: 0 };
        assert_eq!(bed.lab.node(node).reboots_asked(), [asked], "{node}");
    }
    let watches = |entry: &lab::talos::log::Entry| entry.seq > staged && entry.method.ends_with("/Watch");
    assert!(bed.lab.log().all().iter().any(watches), "there were watches to be closed");
}

/// An apid that saw a node down refuses to look for it for up to 15 s, although it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_a_node_that_is_back_and_hidden_behind_another_apid_is_reached_directly_or_waited_for() {
    let cases = [("auto", true), ("proxy", false)].map(|(route, directly)| {
        let case = async move {
            let bed = only_stale(&["worker-1", "cp-2"]).await;
            bed.lab.talos().set_proxy_back_off(Duration::from_secs(2));
            let ended = bed.run(&["-o", "json", "--route", route]).await.expect(0);
            bed.assert_done();
            // Each is told to have booted once.
            assert_eq!(ended.json()["rebooted"], json!(["worker-1", "cp-2"]), "{}", ended.stderr);
            assert_eq!(ended.stderr.matches("booted again").count(), 2, "{}", ended.stderr);
            // A worker's own apid is entered by nobody else.
            let entered = bed.lab.node("worker-1").counters().reads > 0;
            assert_eq!(entered, directly, "{}", ended.stderr);
        };
        (route.to_owned(), case.boxed())
    });
    side_by_side(cases.into()).await;
}

/// The certificate of a worker's apid comes from trustd on a control plane: without one it stays silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_a_worker_that_boots_while_no_control_plane_answers_is_waited_for() {
    let planes = ["cp-1", "cp-2", "cp-3"];
    let bed = only_stale(&["worker-1"]).await;
    let story = Story::begin(&bed);
    let child = bed.start(&[]);
    eventually("it is dark", || !bed.lab.node("worker-1").is_up()).await;
    planes.iter().for_each(|name| bed.lab.node(name).stop());
    eventually("it boots", || bed.truth_of("worker-1").boots == 1).await;
    stays_so("it has no apid", || !bed.lab.node("worker-1").is_up()).await;
    planes.iter().for_each(|name| bed.lab.node(name).start_again());
    ended(child).await.expect(0);
    bed.assert_done();
    assert_eq!((bed.truth_of("worker-1").boots, requests(&bed, "Reboot", "worker-1").len()), (1, 1));
    let (fence, released) = &story.fenced("worker-1")[1];
    assert_eq!(fence_of(fence).expect("it is fenced")["step"], "rebooting");
    assert_eq!(released["status"]["nodeInfo"]["bootID"], bed.lab.node("worker-1").boot_id().as_str());
}
