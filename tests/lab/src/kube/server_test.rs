//! An API server of the lab on its own: what recordings do not show, and how it comes, goes and breaks.

use std::sync::Arc;

use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::kind::Kind;
use crate::faults::{Faults, When};
use crate::net::KUBE_PORT;
use crate::replay::Target as _;
use crate::replay::scripts::node;
use crate::replay::simulated::Bare;
use crate::talos::log::Log;
use crate::testing::Client;

#[tokio::test]
async fn a_watch_sees_changes_and_is_told_when_it_is_too_old() {
    let bare = Bare::start().await;
    bare.put(Kind::Node, node("n1", None, None)).await;
    let start = bare.store().get(Kind::Node, "", "n1").unwrap()["metadata"]["resourceVersion"].clone();
    let mut client = bare.client().await;
    let target = |version: &str| {
        format!("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dn1&timeoutSeconds=1&resourceVersion={version}")
    };
    bare.put(Kind::Node, node("n2", None, None)).await;
    bare.store().edit_node("n1", |node| node["spec"]["unschedulable"] = json!(true));
    bare.store().remove(Kind::Node, "", "n1");
    let (code, lines) = client.ask("GET", &target(start.as_str().unwrap()), "").await;
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(code, 200);
    assert_eq!(events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>(), ["MODIFIED", "DELETED"]);
    assert_eq!(events[0]["object"]["spec"]["unschedulable"], true);

    bare.store().with(super::store::State::compact);
    let (code, lines) = client.ask("GET", &target("1"), "").await;
    let event: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!((code, &event["type"]), (200, &json!("ERROR")));
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
}

#[tokio::test]
async fn what_the_product_does_not_ask_is_501_and_noted() {
    let bare = Bare::start().await;
    let mut client = bare.client().await;
    for (method, path) in [("DELETE", "/api/v1/nodes/n1"), ("GET", "/api/v1/secrets"), ("POST", "/api/v1/nodes")] {
        assert_eq!(client.ask(method, path, "{}").await.0, 501);
    }
    assert_eq!(bare.shared.log.surprises().len(), 3);
}

#[tokio::test]
async fn a_request_is_held_at_a_crash_point_and_cut() {
    for (when, holder) in [(When::Before, Value::Null), (When::After, json!("x"))] {
        let bare = Bare::start().await;
        let (log, faults): (&Arc<Log>, &Arc<Faults>) = (&bare.shared.log, &bare.shared.faults);
        let mut point = faults.crash_point(1, when);
        let mut client = bare.client().await;
        let body = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}).to_string();
        let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
        let request = Request::builder().method("POST").uri(path).body(Full::new(Bytes::from(body))).unwrap();
        let (answer, ()) = tokio::join!(client.send(request), async {
            let mutation = point.reached().await.unwrap();
            assert_eq!(mutation.what, format!("kubernetes/cp-1 POST leases {path}"));
            point.cut();
        });
        assert!(answer.is_err(), "the connection was closed without an answer");
        let lease =
            bare.store().get(Kind::Lease, "kube-system", "l").map(|lease| lease["spec"]["holderIdentity"].clone());
        assert_eq!(lease.unwrap_or_default(), holder);
        assert_eq!(log.writes().len(), usize::from(when == When::After), "what never happened is not counted");
    }
}

#[tokio::test]
async fn a_stopped_server_refuses_and_a_started_one_answers_again() {
    let bare = Bare::start().await;
    let mut client = bare.client().await;
    assert_eq!(client.ask("GET", "/readyz", "").await, (200, "ok".into()));
    let mut listening = bare.server.listening();
    bare.server.stop();
    listening.wait_for(|listening| !listening).await.unwrap();
    let refused = Client::connect((bare.address, KUBE_PORT), bare.ca.cert_pem(), None).await;
    assert_eq!(refused.err().unwrap().kind(), std::io::ErrorKind::ConnectionRefused);
    bare.server.start();
    listening.wait_for(|listening| *listening).await.unwrap();
    assert_eq!(bare.client().await.ask("GET", "/readyz", "").await.0, 200);
}
