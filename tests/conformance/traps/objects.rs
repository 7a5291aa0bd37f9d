//! What it makes of objects and patches.

use coordinator::kube::fence::{self, Fence, FenceError, Released};
use coordinator::kube::lease::{LeaseState, Release};
use coordinator::kube::nodes;
use lab::real::api::JSON_PATCH;
use serde_json::{Value, json};

use super::{LEASES, LIMIT, NODES, Real, fence_for, lease, s};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

#[tokio::test(flavor = "multi_thread")]
async fn l09_a_put_of_a_lease_that_is_gone_creates_it() {
    let real = Real::start(&[]).await;
    let path = format!("{LEASES}/theirs");
    let mut read = real.create(LEASES, lease("theirs", json!({"holderIdentity": "somebody"}))).await;
    assert_eq!(real.api.delete(&path, None).await.unwrap().code, 200);
    let with_uid = real.api.put(&path, &read).await.unwrap();
    assert_eq!(with_uid.code, 409, "only a UID keeps a renewal by PUT from it: {}", with_uid.text);
    read["metadata"].as_object_mut().unwrap().shift_remove("uid");
    let put = real.api.put(&path, &read).await.unwrap();
    assert_eq!(put.code, 201, "although the version that was read goes along: {}", put.text);

    // The product's renewals do not.
    let servers = real.servers().await;
    let held = real.acquire(&servers, "ours", s(3)).await;
    let path = format!("{LEASES}/ours");
    assert_eq!(real.api.delete(&path, None).await.unwrap().code, 200);
    let mut state = held.state();
    let lost = state.wait_for(|state| matches!(state, LeaseState::Lost { .. }));
    let lost = real.clock.timeout(LIMIT, lost).await.expect("it is lost").unwrap().clone();
    assert_eq!(lost, LeaseState::Lost { holder: "nobody".to_owned() });
    real.clock.sleep(held.timing().renew * 3).await;
    assert_eq!(real.api.get(&path).await.unwrap().code, 404);
    assert_eq!(held.release().await.unwrap(), Release::Gone);
    assert_eq!(real.api.get(&path).await.unwrap().code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn f02_f03_a_test_of_a_json_patch_that_fails_is_422_and_does_not_say_which() {
    let real = Real::start(&[]).await;
    let made = real.create(NODES, json!({"metadata": {"name": "w1"}})).await;
    let path = format!("{NODES}/w1");
    let uid = json!({"op": "test", "path": "/metadata/uid", "value": made["metadata"]["uid"]});
    let mut answers = Vec::new();
    for failing in [
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": "1"}),
        json!({"op": "test", "path": "/spec/unschedulable", "value": true}),
        json!({"op": "test", "path": "/metadata/annotations/x", "value": "y"}),
        // Not even whether it was a test.
        json!({"op": "remove", "path": "/metadata/annotations/x"}),
    ] {
        let patch = json!([uid, failing, {"op": "add", "path": "/spec/unschedulable", "value": true}]);
        let reply = real.api.patch(&path, JSON_PATCH, &patch).await.unwrap();
        assert_eq!(reply.code, 422, "{failing}: {}", reply.text);
        answers.push(reply.json());
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(real.get(&path).await["spec"]["unschedulable"], Value::Null);

    // So the product looks: a label of somebody else does not keep it from its claim, a cordon does.
    let servers = real.servers().await;
    let held = real.acquire(&servers, "ours", s(12)).await;
    let view = nodes::get(&servers, "w1").await.unwrap().unwrap();
    assert!(real.merge(&path, json!({"metadata": {"labels": {"x": "y"}}})).await.is_ok());
    let made = fence_for(&held, &view, &real.clock);
    let value = made.render();
    let claimed = fence::claim(&servers, &held, &view, made).await.unwrap();
    assert_eq!(Fence::on(&claimed).unwrap().0, value);
    let released = fence::release(&servers, &held, &claimed, &value).await.unwrap();
    assert!(matches!(released, Released::Free { schedulable: true, .. }), "{released:?}");

    let view = nodes::get(&servers, "w1").await.unwrap().unwrap();
    assert!(real.merge(&path, json!({"spec": {"unschedulable": true}})).await.is_ok());
    let refused = fence::claim(&servers, &held, &view, fence_for(&held, &view, &real.clock)).await;
    assert!(matches!(refused, Err(FenceError::CordonChanged { cordoned: true, .. })), "{refused:?}");
    assert!(Fence::on(&nodes::get(&servers, "w1").await.unwrap().unwrap()).is_none());
    assert_eq!(held.release().await.unwrap(), Release::Freed);
}

#[tokio::test(flavor = "multi_thread")]
async fn l02_a_micro_time_needs_exactly_six_digits() {
    let real = Real::start(&[]).await;
    for (digits, code) in [("", 400), (".123", 400), (".123456", 201), (".1234567", 400), (".123456789", 400)] {
        let time = format!("2026-11-30T08:00:00{digits}Z");
        let named = lease(&format!("digits-{}", digits.len()), json!({"renewTime": time}));
        let reply = real.api.post(LEASES, &named).await.unwrap();
        assert_eq!(reply.code, code, "{time}: {}", reply.text);
    }

    // The product takes every Lease that is free, and its times are taken.
    let servers = real.servers().await;
    let free = [
        ("absent", None, 0),
        ("without-spec", Some(Value::Null), 1),
        ("null", Some(json!({"holderIdentity": null, "leaseTransitions": 4})), 5),
        ("empty", Some(json!({"holderIdentity": "", "leaseTransitions": 4})), 5),
    ];
    for (name, spec, transitions) in free {
        if let Some(spec) = spec {
            real.create(LEASES, lease(name, spec)).await;
        }
        let held = real.acquire(&servers, name, s(12)).await;
        assert_eq!(held.epoch(), transitions, "{name}");
        let path = format!("{LEASES}/{name}");
        let taken = real.get(&path).await;
        for field in ["acquireTime", "renewTime"] {
            let time = taken["spec"][field].as_str().unwrap();
            assert_eq!(time.len(), "2026-11-30T08:00:00.123456Z".len(), "{name}: {time}");
        }
        assert_eq!(held.release().await.unwrap(), Release::Freed);
        assert_eq!(real.get(&path).await["spec"]["holderIdentity"], "", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d06_an_eviction_with_a_wrong_uid_spends_the_budget() {
    let real = Real::start(&[]).await;
    let container = json!([{"name": "main", "image": "registry.k8s.io/pause:3.10"}]);
    let pod = json!({
        "metadata": {"name": "a", "labels": {"app": "a"}}, "spec": {"nodeName": "w1", "containers": container},
    });
    let pod = real.create(PODS, pod).await;
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    assert!(real.merge(&format!("{PODS}/a/status"), running).await.is_ok());
    let selector = json!({"matchLabels": {"app": "a"}});
    let budget = json!({"metadata": {"name": "a"}, "spec": {"maxUnavailable": 1, "selector": selector}});
    real.create(BUDGETS, budget).await;
    let path = format!("{BUDGETS}/a");
    let allows = json!({"status": {
        "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 0, "expectedPods": 1,
    }});
    assert!(real.merge(&format!("{path}/status"), allows.clone()).await.is_ok());

    let evict = async |uid: &Value| {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        real.api.post(&format!("{PODS}/a/eviction"), &eviction).await.unwrap().code
    };
    assert_eq!(evict(&json!("00000000-0000-0000-0000-000000000000")).await, 409);
    assert_eq!(real.get(&path).await["status"]["disruptionsAllowed"], 0, "spent, and nothing was evicted");
    assert_eq!(real.get(&format!("{PODS}/a")).await["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(evict(&pod["metadata"]["uid"]).await, 429, "the right pod is refused now");
    assert!(real.merge(&format!("{path}/status"), allows).await.is_ok());
    assert_eq!(evict(&pod["metadata"]["uid"]).await, 201);
}
