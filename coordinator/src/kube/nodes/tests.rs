//! Nodes as they are read and waited for.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::testing::FakeApi;
use super::*;

const W1: &str = "/api/v1/nodes/w1";

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn node(boot: &str) -> Value {
    json!({
        "metadata": {
            "labels": { "node-role.kubernetes.io/control-plane": "" },
            "annotations": { "k": "v" },
        },
        "spec": { "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] },
        "status": {
            "addresses": [
                { "type": "Hostname", "address": "w1" },
                { "type": "InternalIP", "address": "10.0.0.1" },
                { "type": "InternalIP", "address": "fd00::1" },
            ],
            "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-30T08:00:00Z" }],
            "nodeInfo": { "osImage": "Talos (v1.13.9)", "bootID": boot },
        },
    })
}

#[tokio::test(start_paused = true)]
async fn what_is_looked_at_is_read() {
    let api = FakeApi::new();
    api.put(W1, node("b1"));
    let all = list(&api.servers()).await.unwrap();
    let view = &all[0];
    assert_eq!((view.name.as_str(), view.internal_ip), ("w1", Some("10.0.0.1".parse().unwrap())));
    assert!(view.control_plane && view.talos && view.ready && view.leaving && view.has_annotations);
    assert!(!view.unschedulable && !view.deleting);
    assert_eq!(view.ready_heartbeat, Some("2026-11-30T08:00:00Z".parse().unwrap()));
    assert_eq!(view.boot_id, "b1");
    assert_eq!(get(&api.servers(), "w1").await.unwrap().as_ref(), Some(view));
    assert_eq!(get(&api.servers(), "w9").await.unwrap(), None);
}

#[test]
fn a_bare_node_is_no_error() {
    let view = NodeView::from(Node::default());
    assert_eq!(view, NodeView::default());
}

#[tokio::test(start_paused = true)]
async fn a_change_is_seen_by_one_watch_without_polling() {
    let api = FakeApi::new();
    api.put(W1, node("b1"));
    let servers = api.servers();
    let rebooting = async {
        api.clock.sleep(s(30)).await;
        api.edit(W1, |node| node["metadata"]["labels"]["noise"] = json!("1"));
        api.put("/api/v1/nodes/w2", node("b2"));
        api.clock.sleep(s(10)).await;
        api.edit(W1, |node| node["status"]["nodeInfo"]["bootID"] = json!("b2"));
    };
    let waiting = wait_until(&servers, "w1", |node| node.boot_id == "b2", api.clock.now() + s(600));
    let (seen, ()) = tokio::join!(waiting, rebooting);
    assert_eq!(seen.unwrap().boot_id, "b2");
    assert_eq!(api.log().len(), 2, "a list and a watch");
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_resumed_and_an_expired_one_listed_again() {
    let api = FakeApi::new();
    api.put(W1, node("b1"));
    let servers = api.servers();
    let outage = async {
        // Beyond the server's own timeout of a watch.
        api.clock.sleep(s(100)).await;
        api.unreachable();
        api.clock.sleep(s(60)).await;
        api.edit(W1, |node| node["status"]["nodeInfo"]["bootID"] = json!("b2"));
        api.heal();
        api.compact();
    };
    let waiting = wait_until(&servers, "w1", |node| node.boot_id == "b2", api.clock.now() + s(600));
    let (seen, ()) = tokio::join!(waiting, outage);
    assert_eq!(seen.unwrap().boot_id, "b2");
    let lists = api.log().iter().filter(|seen| !seen.query.contains("watch=true")).count();
    assert_eq!(lists, 2);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_and_a_deleted_node_are_told() {
    let api = FakeApi::new();
    api.put(W1, node("b1"));
    let servers = api.servers();
    let late = wait_until(&servers, "w1", |_| false, api.clock.now() + s(100)).await;
    assert!(matches!(late, Err(WaitError::Deadline(Some(last))) if last.boot_id == "b1"));
    let deleting = async {
        api.clock.sleep(s(5)).await;
        api.delete(W1);
    };
    let (gone, ()) = tokio::join!(wait_until(&servers, "w1", |_| false, api.clock.now() + s(100)), deleting);
    assert!(matches!(gone, Err(WaitError::Gone(_))));
}
