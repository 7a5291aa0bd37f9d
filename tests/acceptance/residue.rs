//! Fences and leases without one another, or of others who live: F15, F20, L30, L31.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use lab::faults::When;
use lab::kube::kind::Kind;
use lab::kube::store::{micros, seconds};
use lab::{Held, Lab};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{Bed, eventually, lease_duration, row};
use crate::scene::{FENCE, Gate, kill, lease_is_held, requests, side_by_side, two_workers};

const OURS: (&str, &str) = ("kube-system", "talos-ghcr");
const OTHERS: (&str, &str) = ("platform", "another-rollout");
const HOLDER: &str = "fedcba9876543210-gh17123456789.1-0a6e2a51-8a0f-4c7a-9a53-54f0a9f4ce10";

/// A fence as a run of `HOLDER` under that Lease wrote it in its 535th epoch, with the cordon that belongs to it.
fn put_fence(bed: &Bed, name: &str, lease: (&str, &str), step: &str) -> Value {
    let now = seconds(Timestamp::now());
    let boot = bed.lab.node(name).boot_id();
    let store = bed.lab.objects();
    let uid = store.get(Kind::Node, "", name).expect("the Node")["metadata"]["uid"].clone();
    let fence = json!({
        "v": 1, "holder": HOLDER, "lease": format!("{}/{}", lease.0, lease.1),
        "leaseUid": "5e0d4f1e-6a5c-4a53-8c6c-0b1f4a3f2d10", "epoch": 535, "node": name, "uid": uid, "step": step,
        "stepSince": now, "boot": boot, "rebootCalls": u32::from(step == "rebooting"), "cordonedBefore": false,
        "revision": "00112233445566778899aabbccddeeff", "since": now,
    });
    store.edit_node(name, |node| {
        node["metadata"]["annotations"][FENCE] = json!(fence.to_string());
        node["spec"]["unschedulable"] = json!(true);
    });
    fence
}

/// Who holds a Lease, since now.
fn put_lease(lab: &Lab, (namespace, name): (&str, &str), holder: &str) {
    let now = micros(Timestamp::now());
    let spec = json!({
        "holderIdentity": holder, "leaseDurationSeconds": 30, "leaseTransitions": 535, "acquireTime": now,
        "renewTime": now,
    });
    lab.objects().put_lease(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}));
}

/// Renews a Lease until it is aborted.
fn keep_alive(bed: &Bed, lease: (&'static str, &'static str)) -> JoinHandle<()> {
    let lab = Arc::clone(&bed.lab);
    if lab.objects().get(Kind::Namespace, "", lease.0).is_none() {
        lab.objects().create(Kind::Namespace, json!({"metadata": {"name": lease.0}}));
    }
    put_lease(&lab, lease, HOLDER);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            put_lease(&lab, lease, HOLDER);
        }
    })
}

#[track_caller]
fn assert_finished(bed: &Bed, names: &[&str]) {
    for name in names {
        let node = bed.truth_of(name);
        assert_eq!((node.configured, node.cri_loaded), (Held::New, Held::New), "{name}");
        assert_eq!((node.boots, node.cordoned, node.fence), (1, false, None), "{name}");
    }
    assert!(!lease_is_held(bed));
    assert_eq!(bed.lab.unexpected(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l30_a_fence_whose_lease_was_deleted_is_adopted_and_finished() {
    // With or without a new Lease of the same name, whose counting began anew.
    let cases = [("claimed", false), ("claimed", true), ("rebooting", false)].into_iter().map(|(step, anew)| {
        let case = async move {
            let bed = two_workers().await;
            put_fence(&bed, "worker-1", OURS, step);
            if anew {
                let free = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0});
                let metadata = json!({"namespace": OURS.0, "name": OURS.1});
                bed.lab.objects().put_lease(json!({"metadata": metadata, "spec": free}));
            }
            let done = bed.run(&["-n", "worker-1"]).await.expect(0);
            let said = done.stderr.to_lowercase();
            assert!(said.contains("adopted the fence of") && said.contains(HOLDER), "{}", done.stderr);
            assert_finished(&bed, &["worker-1"]);
            assert_eq!(bed.lab.truth().lease.expect("a Lease").transitions, i64::from(anew), "its own counting");
        };
        (format!("{step}, anew {anew}"), case.boxed())
    });
    side_by_side(cases.collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l31_a_fence_under_another_lease_is_left_alone_while_that_one_is_alive() {
    // The third is left out, and has room for what is drained off the second.
    let bed = Bed::new(|options| (options.control_planes, options.workers) = (1, 3)).await;
    let fence = put_fence(&bed, "worker-1", OTHERS, "claimed");
    let alive = keep_alive(&bed, OTHERS);
    let more = ["-n", "worker-1,worker-2", "-o", "json"];
    let ended = bed.run(&more).await.expect(1);
    let document = ended.json();
    let left = document["left"]["worker-1"].as_str().unwrap_or_default();
    for words in [HOLDER, "platform/another-rollout"] {
        assert!(left.contains(words), "{words}: {document:#}");
    }
    let node = bed.truth_of("worker-1");
    assert_eq!((node.fence, node.cordoned), (Some(fence.clone()), true), "untouched");
    assert_eq!((node.configured, node.boots, node.record), (Held::Old, 0, None));
    for method in ["ApplyConfiguration", "Pull", "Reboot", "PATCH nodes"] {
        assert!(requests(&bed, method, "worker-1").is_empty(), "{method}");
    }
    // It takes the one place of the budget.
    assert!(document["left"]["worker-2"].is_string(), "{document:#}");
    let waiting = bed.truth_of("worker-2");
    assert_eq!((waiting.boots, waiting.cordoned, waiting.fence), (0, false, None));
    assert!(requests(&bed, "PATCH nodes", "worker-2").is_empty());
    // Where there are two, the other goes.
    bed.run(&["-n", "worker-1,worker-2", "--max-unavailable", "2"]).await.expect(1);
    assert_eq!((bed.truth_of("worker-2").cri_loaded, bed.truth_of("worker-2").boots), (Held::New, 1));
    assert_eq!(bed.truth_of("worker-1").fence, Some(fence), "still untouched");
    assert!(!lease_is_held(&bed));

    // Free, it is residue; gone, as well.
    alive.abort();
    let _ = alive.await;
    put_lease(&bed.lab, OTHERS, "");
    bed.run(&more).await.expect(0);
    assert_finished(&bed, &["worker-1", "worker-2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l31_a_fence_under_another_lease_that_is_gone_is_adopted() {
    let bed = two_workers().await;
    put_fence(&bed, "worker-1", OTHERS, "claimed");
    bed.run(&["-n", "worker-1"]).await.expect(0);
    assert_finished(&bed, &["worker-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_a_fence_of_a_live_holder_of_our_lease_is_untouched() {
    let bed = two_workers().await;
    let fence = put_fence(&bed, "worker-1", OURS, "rebooting");
    let alive = keep_alive(&bed, OURS);
    let refused = bed.run(&["-n", "worker-1,worker-2"]).await.expect(3);
    assert!(refused.stderr.contains(HOLDER), "{}", refused.stderr);
    assert_eq!(bed.writes(), 0);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.fence, node.cordoned, node.boots), (Some(fence), true, 0));
    alive.abort();
    let _ = alive.await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_a_lease_without_a_fence_and_a_fence_without_a_lease_are_both_seen_and_finished() {
    let lease_alone = async {
        let bed = two_workers().await;
        let mut point = bed.lab.faults().crash_point_from_now(2, When::Before);
        let child = bed.start(&["-n", "worker-1"]);
        point.reached().await.expect("it writes");
        kill(child).await;
        point.cut();
        let left = bed.lab.truth().lease.expect("a Lease");
        let holder = left.holder.clone().expect("it is held");
        assert_eq!((bed.truth_of("worker-1").fence, left.is_held()), (None, true));
        let plan = bed.product("plan", &["-o", "json"]).await.expect(0).json();
        assert_eq!(plan["lease"]["holder"], json!(holder));
        assert_eq!(row(&plan, "worker-1")["fence"], Value::Null);
        let table = bed.product("plan", &[]).await.expect(0).stdout;
        assert!(table.contains(&format!("held by {holder}")), "{table}");
        let doctor = bed.product("doctor", &[]).await.expect(0).stdout;
        assert!(doctor.contains(&holder), "{doctor}");
        bed.run(&["-n", "worker-1"]).await.expect(0);
        assert_finished(&bed, &["worker-1"]);
    };
    let fence_alone = async {
        let bed = two_workers().await;
        let mut gate = Gate::new(&bed);
        let child = bed.start(&["-n", "worker-1"]);
        let held = gate.hold_fence(When::After, "worker-1", None).await;
        kill(child).await;
        held.cut();
        drop(gate);
        let holder = bed.lab.truth().lease.and_then(|lease| lease.holder).expect("it is held");
        put_lease(&bed.lab, OURS, "");
        let plan = bed.product("plan", &["-o", "json"]).await.expect(0).json();
        assert_eq!(plan["lease"]["holder"], Value::Null);
        let row = row(&plan, "worker-1");
        assert!(row["fence"].as_str().unwrap_or_default().contains(&holder) && row["cordoned"] == true, "{row:#}");
        let table = bed.product("plan", &[]).await.expect(0).stdout;
        assert!(table.contains("fenced: ") && table.contains(&holder), "{table}");
        bed.run(&["-n", "worker-1"]).await.expect(0);
        assert_finished(&bed, &["worker-1"]);
    };
    // The same where nothing but the residue is left to do: it is not nothing.
    let only_residue = async {
        let bed = two_workers().await;
        bed.prove_old().await;
        put_fence(&bed, "worker-1", OURS, "claimed");
        let plan = bed.product_with_old("plan", &["--detailed-exitcode", "-o", "json"]).await.expect(2).json();
        assert!(row(&plan, "worker-1")["fence"].as_str().unwrap_or_default().contains(HOLDER), "{plan:#}");
        let run =
            bed.product_with_old("run", &["--lease-duration", lease_duration(), "-o", "json"]).await.expect(0).json();
        assert_eq!(run["changed"], true);
        let node = bed.truth_of("worker-1");
        assert_eq!((node.boots, node.cordoned, node.fence, node.configured), (0, false, None, Held::Old));
        eventually("the lease is free", || !lease_is_held(&bed)).await;
    };
    let cases = [
        ("a lease alone", lease_alone.boxed()),
        ("a fence alone", fence_alone.boxed()),
        ("nothing but residue", only_residue.boxed()),
    ];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}
