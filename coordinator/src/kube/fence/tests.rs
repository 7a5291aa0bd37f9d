//! Claim, change and release against an API server with real compare-and-set.

use std::sync::Arc;

use serde_json::{Value, json};
use talos_proto::permit::NoPermit;

use super::super::nodes::{self, NodeView};
use super::super::testing::{Allow, FakeApi, Fault, Seen};
use super::*;

const W1: &str = "/api/v1/nodes/w1";

fn node(spec: &Value, annotations: &Value) -> Value {
    json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "annotations": annotations, "uid": "uid-w1" },
        "spec": spec, "status": { "nodeInfo": { "osImage": "Talos (v1.13.9)", "bootID": "b1" } } })
}

#[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
fn cluster(spec: Value, annotations: Value) -> (FakeApi, Allow) {
    let api = FakeApi::new();
    api.put(W1, node(&spec, &annotations));
    let allow = Allow::all(&api);
    (api, allow)
}

fn claimant(holder: &str) -> Claimant {
    Claimant {
        holder: holder.to_owned(),
        lease: "kube-system/talos-ghcr".to_owned(),
        lease_uid: "l-1".to_owned(),
        epoch: 7,
    }
}

async fn view(api: &FakeApi) -> NodeView {
    nodes::get(&api.servers(), "w1").await.unwrap().unwrap()
}

fn fence_for(api: &FakeApi, node: &NodeView) -> Fence {
    Fence::claimed(claimant("me"), node, "b1", "00112233445566778899aabbccddeeff", api.clock.utc())
}

async fn claimed(api: &FakeApi, allow: &Allow) -> (NodeView, String) {
    let before = view(api).await;
    let fence = fence_for(api, &before);
    let value = fence.render();
    (claim(&api.servers(), allow, &before, fence).await.unwrap(), value)
}

fn patches(api: &FakeApi) -> Vec<Seen> {
    api.log().into_iter().filter(|seen| seen.method == http::Method::PATCH).collect()
}

fn is_patch(seen: &Seen) -> bool {
    seen.method == http::Method::PATCH
}

#[test]
fn golden_a_fence_as_it_stands_in_the_cluster() {
    let node = NodeView { name: "w1".to_owned(), uid: "0d9c".to_owned(), ..NodeView::default() };
    let now = "2026-11-30T08:00:00.987Z".parse().unwrap();
    let by = claimant("0011223344556677-gh17123.1-5f0c");
    let fence = Fence::claimed(by, &node, "6f3a", "00112233445566778899aabbccddeeff", now);
    let golden = concat!(
        r#"{"v":1,"holder":"0011223344556677-gh17123.1-5f0c","lease":"kube-system/talos-ghcr","leaseUid":"l-1","#,
        r#""epoch":7,"node":"w1","uid":"0d9c","step":"claimed","stepSince":"2026-11-30T08:00:00Z","boot":"6f3a","#,
        r#""rebootCalls":0,"cordonedBefore":false,"revision":"00112233445566778899aabbccddeeff","#,
        r#""since":"2026-11-30T08:00:00Z"}"#
    );
    assert_eq!(fence.render(), golden);
    assert_eq!(Fence::parse(golden).unwrap(), fence);
    let absent = Fence { scale_down_before: Some(ScaleDown::Absent), ..fence.clone() };
    assert!(absent.render().contains(r#""scaleDownBefore":"absent""#));
    let value = Fence { scale_down_before: Some(ScaleDown::Value("false".to_owned())), ..fence };
    assert_eq!(Fence::parse(&value.render()).unwrap(), value);
}

#[test]
fn f12_a_fence_that_cannot_be_read_is_a_typed_error() {
    assert!(matches!(Fence::parse("{"), Err(ParseError::Malformed(_))));
    assert!(matches!(Fence::parse(r#"{"v":1}"#), Err(ParseError::Malformed(_))));
    assert!(matches!(Fence::parse(r#"{"v":2,"holder":"x"}"#), Err(ParseError::Version(2))));
    assert!(matches!(Fence::parse(r#""v""#), Err(ParseError::Malformed(_))));
}

#[tokio::test(start_paused = true)]
async fn f01_claim_is_one_patch_of_fence_and_cordon() {
    let (api, allow) = cluster(json!({}), json!({ "a": "b" }));
    let (after, value) = claimed(&api, &allow).await;
    assert_eq!(patches(&api).len(), 1);
    assert!(patches(&api)[0].query.contains("timeout=8000ms"), "{}", patches(&api)[0].query);
    let stored = api.get(W1).unwrap();
    assert_eq!(stored["spec"]["unschedulable"], true);
    assert_eq!(stored["metadata"]["annotations"], json!({ "a": "b", "talos-ghcr/fence": value }));
    assert!(after.unschedulable);
    assert_eq!(Fence::on(&after).unwrap().0, value);
}

#[tokio::test(start_paused = true)]
async fn f01_neither_when_there_is_no_permit() {
    let (api, allow) = cluster(json!({}), json!({ "a": "b" }));
    *allow.refused.lock().unwrap() = Some(NoPermit::Lapsed);
    let before = view(&api).await;
    let refused = claim(&api.servers(), &allow, &before, fence_for(&api, &before)).await;
    assert!(matches!(refused, Err(FenceError::NoPermit(NoPermit::Lapsed))));
    assert!(patches(&api).is_empty());
    assert_eq!(view(&api).await, before);
}

#[tokio::test(start_paused = true)]
async fn f02_an_unrelated_write_in_between_is_retried() {
    let (api, allow) = cluster(json!({}), json!({ "a": "b" }));
    let before = view(&api).await;
    api.edit(W1, |node| node["metadata"]["labels"]["x"] = json!("1"));
    let after = claim(&api.servers(), &allow, &before, fence_for(&api, &before)).await.unwrap();
    assert!(after.unschedulable);
    assert_eq!(patches(&api).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn f03_a_newer_intent_in_between_refuses() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 4] = [
        (|node| node["spec"]["unschedulable"] = json!(true), "was cordoned by somebody else"),
        (
            |node| node["spec"]["taints"] = json!([{ "key": "maintenance", "effect": "NoExecute" }]),
            "got the taint maintenance:NoExecute",
        ),
        (|node| node["metadata"]["annotations"]["talos-ghcr/fence"] = json!("{}"), "carries another fence: {}"),
        (|node| node["metadata"]["uid"] = json!("other"), "was replaced by another"),
    ];
    for (change, reason) in changes {
        let (api, allow) = cluster(json!({}), json!({ "a": "b" }));
        let before = view(&api).await;
        api.edit(W1, change);
        let now = view(&api).await;
        let refused = claim(&api.servers(), &allow, &before, fence_for(&api, &before)).await.unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
        assert_eq!(view(&api).await, now, "{reason}: nothing was changed");
    }
}

#[tokio::test(start_paused = true)]
async fn f03_advisory_taints_do_not_refuse() {
    let (api, allow) = cluster(json!({}), json!({ "a": "b" }));
    let before = view(&api).await;
    api.edit(W1, |node| {
        node["spec"]["taints"] =
            json!([{ "key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule", "value": "1" }]);
    });
    assert!(claim(&api.servers(), &allow, &before, fence_for(&api, &before)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn f04_a_node_cordoned_before_stays_cordoned_and_loses_only_our_keys() {
    let keys = json!({ "a": "b", "cluster-autoscaler.kubernetes.io/safe": "x" });
    let (api, allow) = cluster(json!({ "unschedulable": true }), keys.clone());
    let (after, value) = claimed(&api, &allow).await;
    assert_eq!(api.get(W1).unwrap()["metadata"]["annotations"][SCALE_DOWN_DISABLED], "true");
    let released = release(&api.servers(), &allow, &after, &value).await.unwrap();
    assert!(matches!(released, Released::Free { schedulable: false, .. }));
    let stored = api.get(W1).unwrap();
    assert_eq!(stored["spec"]["unschedulable"], true);
    assert_eq!(stored["metadata"]["annotations"], keys);
}

#[tokio::test(start_paused = true)]
async fn f05_f08_a_schedulable_node_is_schedulable_after_and_nothing_of_ours_is_left() {
    let (api, allow) = cluster(json!({}), json!({ SCALE_DOWN_DISABLED: "false" }));
    let before = api.get(W1).unwrap();
    let (after, value) = claimed(&api, &allow).await;
    assert_eq!(api.get(W1).unwrap()["metadata"]["annotations"][SCALE_DOWN_DISABLED], "true");
    let released = release(&api.servers(), &allow, &after, &value).await.unwrap();
    assert!(matches!(released, Released::Free { schedulable: true, .. }));
    let mut stored = api.get(W1).unwrap();
    stored["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    assert_eq!(stored, before);
    assert_eq!(patches(&api).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn f06_an_uncordon_by_an_operator_is_not_undone_by_the_release() {
    let (api, allow) = cluster(json!({}), json!({}));
    let (after, value) = claimed(&api, &allow).await;
    api.edit(W1, |node| node["spec"]["unschedulable"] = json!(false));
    let released = release(&api.servers(), &allow, &after, &value).await.unwrap();
    assert!(matches!(released, Released::Free { schedulable: true, .. }));
    assert!(api.get(W1).unwrap()["metadata"]["annotations"].is_null());
}

#[tokio::test(start_paused = true)]
async fn f07_a_fence_of_another_is_neither_changed_nor_released() {
    let (api, allow) = cluster(json!({}), json!({}));
    let (after, value) = claimed(&api, &allow).await;
    api.edit(W1, |node| node["metadata"]["annotations"][ANNOTATION] = json!("theirs"));
    let servers = api.servers();
    let next = Fence::parse(&value).unwrap().at(Step::Rebooting, api.clock.utc());
    let changed = update(&servers, &allow, &after, &value, &next).await;
    assert!(matches!(changed, Err(FenceError::Changed { now: Some(now), .. }) if now == "theirs"));
    let released = release(&servers, &allow, &after, &value).await;
    assert!(matches!(released, Err(FenceError::Changed { .. })));
    assert_eq!(api.get(W1).unwrap()["spec"]["unschedulable"], true);
}

#[tokio::test(start_paused = true)]
async fn f09_a_release_is_not_hindered_by_unrelated_writes() {
    let (api, allow) = cluster(json!({}), json!({}));
    let (after, value) = claimed(&api, &allow).await;
    api.edit(W1, |node| node["metadata"]["labels"]["x"] = json!("1"));
    let answer = json!({ "status": "Failure", "reason": "Conflict", "code": 409, "message": "modified" });
    api.fault(2, Fault::Answer(409, answer), is_patch);
    let released = release(&api.servers(), &allow, &after, &value).await.unwrap();
    assert!(matches!(released, Released::Free { schedulable: true, .. }));
}

#[tokio::test(start_paused = true)]
async fn f10_lost_replies_are_resolved_by_reading() {
    let (api, allow) = cluster(json!({}), json!({}));
    api.fault(1, Fault::ReplyLost, is_patch);
    let (after, value) = claimed(&api, &allow).await;
    assert_eq!(patches(&api).len(), 1, "the claim was applied: it is not sent again");
    api.fault(1, Fault::ReplyLost, is_patch);
    let next = Fence::parse(&value).unwrap().at(Step::Rebooting, api.clock.utc());
    let after = update(&api.servers(), &allow, &after, &value, &next).await.unwrap();
    assert_eq!(patches(&api).len(), 2);
    api.fault(1, Fault::ReplyLost, is_patch);
    let released = release(&api.servers(), &allow, &after, &next.render()).await.unwrap();
    assert!(matches!(released, Released::Free { schedulable: true, .. }));
    assert_eq!(patches(&api).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn f10_a_server_that_cannot_read_now_is_asked_again() {
    for code in [429, 500, 503, 504] {
        let (api, allow) = cluster(json!({}), json!({}));
        let before = view(&api).await;
        api.fault(1, Fault::ReplyLost, is_patch);
        let away = json!({ "status": "Failure", "code": code, "message": "etcdserver: leader changed" });
        api.fault(3, Fault::Answer(code, away), |seen| seen.method == http::Method::GET);
        let made = fence_for(&api, &before);
        let value = made.render();
        let after = claim(&api.servers(), &allow, &before, made).await.unwrap();
        assert_eq!(Fence::on(&after).unwrap().0, value, "{code}");
        assert_eq!(patches(&api).len(), 1, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn f10_a_claim_that_lands_late_is_adopted() {
    let (api, allow) = cluster(json!({}), json!({}));
    api.fault(1, Fault::Late(std::time::Duration::from_secs(9)), is_patch);
    let (after, value) = claimed(&api, &allow).await;
    assert_eq!(Fence::on(&after).unwrap().0, value);
    assert!(after.unschedulable);
}

#[tokio::test(start_paused = true)]
async fn f11_a_node_without_annotations_works() {
    let (api, allow) = cluster(json!({}), Value::Null);
    let (after, value) = claimed(&api, &allow).await;
    assert!(release(&api.servers(), &allow, &after, &value).await.is_ok());
    assert!(api.get(W1).unwrap()["metadata"]["annotations"].is_null());
}

#[tokio::test(start_paused = true)]
async fn f11_annotations_that_appear_in_between_are_kept() {
    let (api, allow) = cluster(json!({}), Value::Null);
    let before = view(&api).await;
    let meanwhile = |api: &FakeApi| api.edit(W1, |node| node["metadata"]["annotations"] = json!({ "new": "1" }));
    api.fault(1, Fault::Meanwhile(Arc::new(meanwhile)), is_patch);
    claim(&api.servers(), &allow, &before, fence_for(&api, &before)).await.unwrap();
    assert_eq!(api.get(W1).unwrap()["metadata"]["annotations"]["new"], "1");
}

#[tokio::test(start_paused = true)]
async fn f16_a_dead_holders_fence_is_adopted_with_its_facts() {
    let (api, allow) = cluster(json!({}), json!({}));
    let (after, value) = claimed(&api, &allow).await;
    let dead = Fence::parse(&value).unwrap().at(Step::Rebooting, api.clock.utc());
    let after = update(&api.servers(), &allow, &after, &value, &dead).await.unwrap();
    api.clock.sleep(std::time::Duration::from_secs(500)).await;
    let ours = dead.adopted(Claimant { epoch: 8, ..claimant("next") }, api.clock.utc());
    let adopted = update(&api.servers(), &allow, &after, &dead.render(), &ours).await.unwrap();
    let (_, fence) = Fence::on(&adopted).unwrap();
    let fence = fence.unwrap();
    assert_eq!((fence.holder.as_str(), fence.epoch, fence.step), ("next", 8, Step::Rebooting));
    assert_eq!((fence.since, fence.boot.as_str()), (dead.since, "b1"));
    assert!(fence.step_since > dead.step_since);
}

#[tokio::test(start_paused = true)]
async fn a01_a_node_that_is_gone_has_been_released() {
    let (api, allow) = cluster(json!({}), json!({}));
    let (after, value) = claimed(&api, &allow).await;
    api.delete(W1);
    assert_eq!(release(&api.servers(), &allow, &after, &value).await.unwrap(), Released::NodeGone);
}
