//! An autoscaler is weather: nodes that go, that are about to go, and that come back as others.

use lab::Held;
use lab::kube::kind::Kind;
use serde_json::{Value, json};

use crate::harness::{Bed, ended, eventually};
use crate::scene::{only_stale, only_stale_of};

/// Two of four workers are stale, so that evicted pods find a place when one of them is gone.
async fn stale_of_four() -> Bed {
    only_stale_of(&["worker-1", "worker-2"], |options| options.workers = 4).await
}

/// The step of the fence on a node, as the lab sees it.
fn step(bed: &Bed, node: &str) -> Option<String> {
    Some(bed.truth_of(node).fence?["step"].as_str()?.to_owned())
}

fn assert_rolled(bed: &Bed, node: &str) {
    let truth = bed.truth_of(node);
    assert_eq!((truth.configured, truth.cri_loaded), (Held::New, Held::New), "{node}");
    assert!(truth.fence.is_none() && !truth.cordoned, "{node} is given back: {truth:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a01_a_node_that_is_deleted_while_it_reboots_is_no_failure_and_the_others_roll() {
    let bed = stale_of_four().await;
    let run = bed.start(&["--reboot-timeout", "60s"]);
    eventually("worker-1 is asked to reboot", || step(&bed, "worker-1").as_deref() == Some("rebooting")).await;
    eventually("it is dark", || !bed.is_up("worker-1")).await;
    bed.lab.node("worker-1").stop();
    bed.lab.objects().remove(Kind::Node, "", "worker-1").expect("it was there");
    ended(run).await.expect(0);
    assert_rolled(&bed, "worker-2");
    assert!(!bed.lab.truth().lease.is_some_and(|lease| lease.is_held()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a03_a04_a_node_that_the_autoscaler_takes_is_left_alone_and_a_candidate_is_rolled() {
    let bed = stale_of_four().await;
    let taint = |node: &str, key: &str, effect: &str| {
        bed.lab.objects().edit_node(node, |node| {
            let taint = json!({"key": key, "value": "1767000000", "effect": effect});
            match node["spec"]["taints"].as_array_mut() {
                Some(taints) => taints.push(taint),
                None => node["spec"]["taints"] = json!([taint]),
            }
        });
    };
    taint("worker-1", "ToBeDeletedByClusterAutoscaler", "NoSchedule");
    // Advisory, and its value changes every ten seconds.
    taint("worker-2", "DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule");
    let before = bed.config("worker-1");
    bed.run(&[]).await.expect(0);
    assert_rolled(&bed, "worker-2");
    let left = bed.truth_of("worker-1");
    assert_eq!((left.boots, left.fence, left.cordoned), (0, None, false));
    assert_eq!(bed.config("worker-1"), before, "nothing is written to it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a05_scale_down_disabled_is_kept_where_an_operator_set_it() {
    const KEY: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
    let bed = only_stale(&["worker-1"]).await;
    bed.lab.objects().edit_node("worker-1", |node| {
        node["metadata"]["annotations"][KEY] = Value::from("true");
    });
    bed.run(&[]).await.expect(0);
    assert_rolled(&bed, "worker-1");
    let node = bed.lab.objects().get(Kind::Node, "", "worker-1").expect("it is there");
    assert_eq!(node["metadata"]["annotations"][KEY], "true");
}
