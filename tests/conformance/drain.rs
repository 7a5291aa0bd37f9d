//! A drain at a real API server: what collides there, and what then is spent in vain.

use std::time::Duration;

use http::Method;
use lab::faults::When::Before;
use lab::kube::kind::Kind;
use serde_json::{Value, json};

use crate::harness::{Bed, ended, eventually};
use crate::kubectl::{Kubectl, two_workers};
use crate::scene::{Gate, evictions};

/// Many pods of one budget, on each worker a half of them.
const PODS: usize = 24;

async fn crowded() -> Bed {
    let bed = two_workers().await;
    let kubectl = Kubectl::of(&bed);
    kubectl.ok(&["scale", "replicaset", "web", &format!("--replicas={PODS}")]).await;
    let patch = json!({"spec": {"maxUnavailable": PODS}}).to_string();
    kubectl.ok(&["patch", "pdb", "web", "--type=merge", "-p", &patch]).await;
    let settled = || budget(&bed)["status"]["currentHealthy"] == PODS;
    eventually("all pods run and the budget has seen them", settled).await;
    bed
}

fn budget(bed: &Bed) -> Value {
    let budget = bed.lab.objects().get(Kind::PodDisruptionBudget, "default", "web").expect("it is there");
    Value::clone(&budget)
}

fn pods_of(bed: &Bed, node: &str) -> Vec<String> {
    let pods = bed.lab.objects().list(Kind::Pod);
    let of = pods.iter().filter(|pod| pod["spec"]["nodeName"] == node && pod["metadata"]["labels"]["app"] == "web");
    of.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

/// What the drain's own lanes are for: evictions that come together collide in the budget's status, and the server sleeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d09_evictions_under_one_budget_that_come_together_take_half_a_second_more() {
    let bed = crowded().await;
    let api = bed.lab.real().expect("it is real").api().clone();
    let begun = tokio::time::Instant::now();
    let together = pods_of(&bed, "worker-1").into_iter().map(|pod| {
        let api = api.clone();
        async move {
            let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
            let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
            let begun = tokio::time::Instant::now();
            let reply = api.ask(Method::POST, &path, "application/json", body.to_string()).await.expect("it answers");
            (reply.code, begun.elapsed())
        }
    });
    let answers = futures::future::join_all(together).await;
    assert!(answers.len() >= PODS / 3, "{answers:?}");
    let slow = answers.iter().filter(|(_, took)| took.as_millis() >= 500).count();
    assert!(slow >= answers.len() / 3, "collisions sleep, all in {:?}: {answers:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d09_a_crowd_under_one_budget_is_drained_with_one_eviction_each_and_nothing_spent_in_vain() {
    let bed = crowded().await;
    let crowd = pods_of(&bed, "worker-1");
    let before = evictions(&bed);
    let mut gate = Gate::new(&bed);
    let run = bed.start(&["-n", "worker-1"]);
    let first = gate.hold(Before, "POST pods/eviction", 1).await;
    let arrived = bed.lab.faults().mutations();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let behind = bed.lab.faults().mutations() - arrived;
    assert!(behind <= 1, "{behind} requests do not wait for the first eviction; a renewal of the lease need not");
    first.release();
    drop(gate);
    ended(run).await.expect(0);
    let asked = evictions(&bed) - before;
    assert_eq!(asked, crowd.len(), "one each");
    let left: Vec<String> = pods_of(&bed, "worker-1").into_iter().filter(|pod| crowd.contains(pod)).collect();
    assert!(left.is_empty(), "{left:?}");
    let status = || budget(&bed)["status"].clone();
    eventually("the budget is as before", || status()["currentHealthy"] == PODS && status()["disruptedPods"].is_null())
        .await;
}
