//! Draining against an API server in memory that counts budgets.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::super::testing::{Allow, FakeApi, Fault, Seen};
use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/d/pods/{name}")
}

fn pod(kind: Option<&str>, app: &str) -> Value {
    let owners: Vec<Value> = kind
        .into_iter()
        .map(|kind| json!({ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true }))
        .collect();
    json!({ "metadata": { "namespace": "d", "labels": { "app": app }, "ownerReferences": owners },
        "spec": { "nodeName": "w1", "containers": [] }, "status": { "phase": "Running" } })
}

fn put_budget(api: &FakeApi, name: &str, app: &str, allowed: i32) {
    let object = json!({ "metadata": { "namespace": "d" }, "spec": { "selector": { "matchLabels": { "app": app } } },
        "status": { "disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2 } });
    api.put(&budget_path(name), object);
}

fn budget_path(name: &str) -> String {
    format!("/apis/policy/v1/namespaces/d/poddisruptionbudgets/{name}")
}

fn allow(api: &FakeApi, name: &str, allowed: i32) {
    api.edit(&budget_path(name), |budget| budget["status"]["disruptionsAllowed"] = json!(allowed));
}

fn is_eviction(seen: &Seen) -> bool {
    seen.path.ends_with("/eviction")
}

fn evictions(api: &FakeApi) -> Vec<Seen> {
    api.log().into_iter().filter(is_eviction).collect()
}

async fn run(api: &FakeApi, permits: &Allow, budget: Duration) -> Result<Drained, DrainError> {
    drain(&api.servers(), permits, "w1", DrainOptions::default(), budget, &|_| {}).await
}

fn cluster(apps: &[&str]) -> (FakeApi, Allow) {
    let api = FakeApi::new();
    for (index, app) in apps.iter().enumerate() {
        api.put(&pod_path(&format!("p{index}")), pod(Some("ReplicaSet"), app));
    }
    let mut elsewhere = pod(None, "x");
    elsewhere["spec"]["nodeName"] = json!("w2");
    api.put(&pod_path("elsewhere"), elsewhere);
    let permits = Allow::all(&api);
    (api, permits)
}

#[tokio::test(start_paused = true)]
async fn d01_pods_are_evicted_and_awaited_and_daemons_stay() {
    let (api, permits) = cluster(&["a", "b"]);
    api.put("/apis/apps/v1/namespaces/d/daemonsets/o", json!({ "metadata": { "namespace": "d" } }));
    api.put(&pod_path("daemon"), pod(Some("DaemonSet"), "x"));
    api.put(&pod_path("daemon2"), pod(Some("DaemonSet"), "x"));
    let began = api.clock.now();
    assert_eq!(run(&api, &permits, s(60)).await.unwrap(), Drained { evicted: 2, kept: 2 });
    assert!(api.clock.now().since(began) < s(2), "as long as the pods take to end");
    assert!(api.get(&pod_path("p0")).is_none() && api.get(&pod_path("p1")).is_none());
    assert!(api.get(&pod_path("daemon")).is_some() && api.get(&pod_path("elsewhere")).is_some());
    let asked = |part: &str| api.log().iter().filter(|seen| seen.path.contains(part)).count();
    assert_eq!(asked("/daemonsets/"), 1);
    assert_eq!(evictions(&api).len(), 2);
    let reads = api.log().iter().filter(|seen| seen.path.ends_with("/pods")).count();
    assert_eq!(reads, 2, "one list and one watch");
}

#[tokio::test(start_paused = true)]
async fn d10_an_unmanaged_pod_is_refused_before_anything_is_evicted() {
    let (api, permits) = cluster(&["a"]);
    api.put(&pod_path("bare"), pod(None, "x"));
    let planned = plan(&api.servers(), "w1", DrainOptions::default()).await.unwrap_err();
    assert!(planned.to_string().contains("d/bare has no controller"), "{planned}");
    assert!(matches!(run(&api, &permits, s(60)).await, Err(DrainError::Refused { .. })));
    assert!(evictions(&api).is_empty());
    let forced = plan(&api.servers(), "w1", DrainOptions { force: true, ..Default::default() }).await.unwrap();
    assert_eq!(forced.evict.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn d02_a_budget_that_clears_is_waited_for() {
    let (api, permits) = cluster(&["a", "a"]);
    put_budget(&api, "pdb", "a", 1);
    let clearing = async {
        api.clock.sleep(s(60)).await;
        allow(&api, "pdb", 1);
    };
    let told = Arc::new(Mutex::new(Vec::new()));
    let progress = |event: DrainProgress| told.lock().unwrap().push(event);
    let servers = api.servers();
    let draining = drain(&servers, &permits, "w1", DrainOptions::default(), s(600), &progress);
    let (drained, ()) = tokio::join!(draining, clearing);
    assert_eq!(drained.unwrap().evicted, 2);
    let tries = evictions(&api).len();
    assert!((13..=20).contains(&tries), "0.5 s growing to 5 s: {tries} tries");
    let told = told.lock().unwrap();
    let blocked = told.iter().filter(|event| matches!(event, DrainProgress::Blocked { .. })).count();
    assert_eq!(blocked, 1, "said once");
    assert!(matches!(told.last(), Some(DrainProgress::Gone { left: 0, .. })));
}

#[tokio::test(start_paused = true)]
async fn d02_a_budget_that_never_clears_is_named() {
    let (api, permits) = cluster(&["a", "b"]);
    put_budget(&api, "pdb", "a", 0);
    let began = api.clock.now();
    let error = run(&api, &permits, s(120)).await.unwrap_err();
    assert_eq!(api.clock.now().since(began), s(120));
    let text = error.to_string();
    assert!(
        text.contains(
            "the disruption budget d/pdb (disruptionsAllowed 0, unhealthyPodEvictionPolicy IfHealthyBudget) holds d/p0"
        ),
        "{text}"
    );
    let DrainError::Budget { budgets, left, .. } = error else { panic!("{error}") };
    assert_eq!((budgets.len(), left.len()), (1, 1));
    assert!(api.get(&pod_path("p1")).is_none(), "the other pod is gone all the same");
}

#[tokio::test(start_paused = true)]
async fn d03_a_busy_server_is_no_budget_and_its_retry_after_is_honoured() {
    let (api, permits) = cluster(&["a"]);
    let mut busy = json!({ "status": "Failure", "code": 429, "reason": "TooManyRequests", "message": "busy" });
    busy["details"] = json!({ "retryAfterSeconds": 7 });
    api.fault(1, Fault::Answer(429, busy), is_eviction);
    let began = api.clock.now();
    run(&api, &permits, s(60)).await.unwrap();
    let took = api.clock.now().since(began);
    assert!(took >= s(7) && took < s(9), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn d04_two_budgets_on_one_pod_are_named() {
    let (api, permits) = cluster(&["a"]);
    put_budget(&api, "one", "a", 1);
    put_budget(&api, "two", "a", 1);
    let error = run(&api, &permits, s(60)).await.unwrap_err();
    let DrainError::Eviction { pod, source } = error else { panic!("{error}") };
    assert_eq!(pod.name, "p0");
    assert!(source.to_string().contains("more than one PodDisruptionBudget"));
}

#[tokio::test(start_paused = true)]
async fn d06_a_pod_that_was_replaced_under_its_name_is_left() {
    let (api, permits) = cluster(&["a"]);
    put_budget(&api, "pdb", "a", 0);
    let replacing = async {
        api.clock.sleep(s(20)).await;
        api.delete(&pod_path("p0"));
        let mut next = pod(Some("ReplicaSet"), "a");
        next["spec"]["nodeName"] = json!("w2");
        api.put(&pod_path("p0"), next);
        allow(&api, "pdb", 1);
    };
    let (drained, ()) = tokio::join!(run(&api, &permits, s(600)), replacing);
    assert_eq!(drained.unwrap().evicted, 1);
    let next = api.get(&pod_path("p0")).unwrap();
    assert!(next["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test(start_paused = true)]
async fn d07_blips_of_the_api_are_tolerated() {
    let (api, permits) = cluster(&["a"]);
    api.edit(&pod_path("p0"), |pod| pod["metadata"]["annotations"]["test/grace"] = json!("40"));
    let blips = async {
        api.clock.sleep(s(10)).await;
        api.unreachable();
        api.clock.sleep(s(20)).await;
        api.heal();
        api.compact();
    };
    let (drained, ()) = tokio::join!(run(&api, &permits, s(600)), blips);
    assert_eq!(drained.unwrap().evicted, 1);
    assert!(api.clock.utc() < "2026-11-30T08:00:50Z".parse().unwrap(), "{}", api.clock.utc());
}

#[tokio::test(start_paused = true)]
async fn d07_a_lost_reply_of_an_eviction_is_resolved_by_looking() {
    let (api, permits) = cluster(&["a"]);
    put_budget(&api, "pdb", "a", 1);
    api.fault(1, Fault::ReplyLost, is_eviction);
    run(&api, &permits, s(60)).await.unwrap();
    assert_eq!(evictions(&api).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn d08_a_finalizer_is_reported() {
    let (api, permits) = cluster(&["a"]);
    api.edit(&pod_path("p0"), |pod| pod["metadata"]["finalizers"] = json!(["example.com/stuck"]));
    let error = run(&api, &permits, s(60)).await.unwrap_err();
    let DrainError::TimedOut { left, .. } = error else { panic!("{error}") };
    assert!(left[0].why.contains("example.com/stuck"), "{}", left[0].why);
}

/// Pods of some controllers, that many of each, in one namespace and on one node.
fn crowd(api: &FakeApi, node: &str, controllers: usize, pods: usize) {
    for controller in 0..controllers {
        for number in 0..pods {
            let mut pod = pod(Some("ReplicaSet"), "a");
            pod["metadata"]["ownerReferences"][0]["uid"] = json!(format!("u{controller}"));
            pod["spec"]["nodeName"] = json!(node);
            api.put(&pod_path(&format!("{node}-{controller}-{number}")), pod);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn d09_a_thousand_pods_at_most_eight_at_once() {
    let (api, permits) = cluster(&[]);
    crowd(&api, "w1", 20, 50);
    api.fault(usize::MAX, Fault::ReplyLate(s(1)), is_eviction);
    let began = api.clock.now();
    assert_eq!(run(&api, &permits, s(600)).await.unwrap().evicted, 1000);
    let took = api.clock.now().since(began);
    assert!(took >= s(125) && took < s(140), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn d09_pods_of_one_controller_go_one_after_the_other_off_two_nodes_too() {
    let (api, permits) = cluster(&[]);
    crowd(&api, "w1", 1, 20);
    crowd(&api, "w2", 1, 20);
    api.fault(usize::MAX, Fault::ReplyLate(s(1)), is_eviction);
    let (began, servers) = (api.clock.now(), api.servers());
    let drain =
        |node| drain(&servers, &permits, node, DrainOptions { force: true, ..Default::default() }, s(600), &|_| {});
    let (one, other) = tokio::join!(drain("w1"), drain("w2"));
    // The one that is elsewhere in every cluster of these tests belongs to nobody.
    assert_eq!((one.unwrap().evicted, other.unwrap().evicted), (20, 21));
    let took = api.clock.now().since(began);
    assert!(took >= s(40) && took < s(44), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn l12_a_lost_permit_stops_the_drain_at_once() {
    let (api, permits) = cluster(&["a"]);
    put_budget(&api, "pdb", "a", 0);
    let losing = async {
        api.clock.sleep(s(30)).await;
        *permits.refused.lock().unwrap() = Some(NoPermit::Lost { holder: "x".to_owned() });
    };
    let (drained, ()) = tokio::join!(run(&api, &permits, s(600)), losing);
    assert!(matches!(drained, Err(DrainError::NoPermit { source: NoPermit::Lost { .. }, .. })));
    assert!(api.clock.utc() <= "2026-11-30T08:00:31Z".parse().unwrap());
}
