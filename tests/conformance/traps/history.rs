//! What it still knows of the past.

use std::net::IpAddr;

use coordinator::kube::nodes;
use futures::StreamExt as _;
use lab::real::api::MERGE_PATCH;
use serde_json::json;

use super::{NODES, Real, s};

#[tokio::test(flavor = "multi_thread")]
async fn d07_a_watch_from_a_compacted_version_ends_in_an_error_event() {
    let real = Real::start(&["--etcd-compaction-interval=1s"]).await;
    for name in ["w1", "w2"] {
        real.create(NODES, json!({"metadata": {"name": name}})).await;
    }
    real.plane.start_api_server(1).await.unwrap();
    let servers = real.servers().await;
    assert!(servers.extend(vec![IpAddr::V4(real.plane.address(1))], &[]).await.is_empty());
    let old = real.get(NODES).await["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    // The product watches a node where the version that it knows will be too old.
    let deadline = real.clock.now() + s(60);
    let uncordoned = nodes::wait_until(&servers, "w1", |node| node.unschedulable, deadline);
    let meanwhile = async {
        real.plane.kill_api_server(1);
        let exact = format!("{NODES}?resourceVersion={old}&resourceVersionMatch=Exact");
        let mut turn = 0;
        real.until("the version is compacted", async || {
            turn += 1;
            let label = json!({"metadata": {"labels": {"x": turn.to_string()}}});
            assert!(real.merge(&format!("{NODES}/w2"), label).await.is_ok());
            real.api.get(&exact).await.unwrap().code == 410
        })
        .await;
        // One that was started later does not have the history in its memory.
        real.plane.start_api_server(1).await.unwrap();
        let fresh = real.plane.api(1).unwrap();
        let mut events = std::pin::pin!(
            fresh.watch(&format!("{NODES}?watch=1&timeoutSeconds=5&resourceVersion={old}")).await.unwrap()
        );
        let event = events.next().await.unwrap().unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{event}");
        assert!(events.next().await.is_none(), "and the stream ends");
        // The other one goes, with the watch of the product, and what it waits for happens meanwhile.
        real.plane.kill_api_server(0);
        let cordon = json!({"spec": {"unschedulable": true}});
        assert!(fresh.patch(&format!("{NODES}/w1"), MERGE_PATCH, &cordon).await.unwrap().is_ok());
    };
    let (seen, ()) = tokio::join!(uncordoned, meanwhile);
    assert!(seen.unwrap().unschedulable);
}
