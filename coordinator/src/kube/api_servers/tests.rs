//! Failover, and what is never sent twice.

use serde_json::{Value, json};

use super::super::testing::{Allow, FakeApi, Fault};
use super::super::{nodes, patch};
use super::*;
use crate::inventory::InventoryError;

const W1: &str = "/api/v1/nodes/w1";

fn two() -> (FakeApi, FakeApi, ApiServers) {
    let (first, second) = (FakeApi::new(), FakeApi::new());
    for api in [&first, &second] {
        api.put(W1, json!({ "metadata": {} }));
    }
    let servers = first.servers().and("second", second.client());
    (first, second, servers)
}

async fn label(servers: &ApiServers, permits: &Allow) -> Result<Value, WriteError> {
    let timeout = Duration::from_secs(8);
    let operations = [patch::add("/metadata/labels", json!({ "x": "1" }))];
    servers
        .write(Authority::Step(permits), timeout, |client| {
            let request = patch::request(W1, &operations, timeout);
            async move { client.request(request?).await }
        })
        .await
}

#[tokio::test(start_paused = true)]
async fn reads_fail_over_and_stay_with_the_address_that_answered() {
    let (first, second, servers) = two();
    first.fault(1, Fault::Reset, |_| true);
    assert!(nodes::get(&servers, "w1").await.unwrap().is_some());
    assert!(nodes::get(&servers, "w1").await.unwrap().is_some());
    assert_eq!((first.log().len(), second.log().len(), servers.requests()), (1, 2, 3));
    second.unreachable();
    assert!(nodes::get(&servers, "w1").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_address_that_hangs_is_left_after_its_deadline() {
    let (first, _, servers) = two();
    first.fault(1, Fault::Late(Duration::from_secs(3600)), |_| true);
    let began = servers.clock().now();
    assert!(nodes::get(&servers, "w1").await.unwrap().is_some());
    assert_eq!(servers.clock().now().since(began), READ_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_the_clusters_word() {
    let (first, second, servers) = two();
    first.delete(W1);
    assert_eq!(nodes::get(&servers, "w1").await.unwrap(), None);
    first.fault(1, Fault::Answer(503, json!({ "status": "Failure", "code": 503, "message": "down" })), |_| true);
    assert!(matches!(nodes::get(&servers, "w1").await, Err(ReadError::Refused(status)) if status.code == 503));
    assert!(second.log().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_do_its_work_is_not_the_first_to_be_asked_next() {
    let (first, second, servers) = two();
    let permits = Allow::all(&first);
    let down = json!({ "status": "Failure", "code": 503, "message": "down" });
    first.fault(usize::MAX, Fault::Answer(503, down.clone()), |_| true);
    assert!(nodes::get(&servers, "w1").await.is_err());
    assert!(nodes::get(&servers, "w1").await.is_ok());
    assert!(label(&servers, &permits).await.is_ok());
    first.heal();
    second.fault(1, Fault::Answer(503, down), |_| true);
    assert!(matches!(label(&servers, &permits).await, Err(WriteError::Ambiguous { .. })));
    label(&servers, &permits).await.unwrap();
    assert_eq!((first.log().len(), second.log().len()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn what_a_server_cannot_read_now_may_pass_and_what_it_refuses_does_not() {
    for (code, passes) in [(400, false), (401, false), (403, false), (404, false), (410, false)]
        .into_iter()
        .chain([429, 500, 503, 504].map(|code| (code, true)))
    {
        let (first, _, servers) = two();
        first.fault(1, Fault::Answer(code, json!({ "status": "Failure", "code": code, "message": "no" })), |_| true);
        let error = nodes::list(&servers).await.unwrap_err();
        assert_eq!(error.may_pass(), passes, "{code}");
        assert_eq!(InventoryError::Nodes(error).may_pass(), passes, "{code}");
    }
    let (first, second, servers) = two();
    first.unreachable();
    second.unreachable();
    assert!(nodes::list(&servers).await.unwrap_err().may_pass());
}

#[tokio::test(start_paused = true)]
async fn a_write_fails_over_only_when_nothing_was_sent() {
    let (first, second, servers) = two();
    let permits = Allow::all(&first);
    first.fault(1, Fault::Refused, |_| true);
    label(&servers, &permits).await.unwrap();
    assert_eq!((first.log().len(), second.log().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_may_have_arrived_is_not_sent_again() {
    let gone = json!({ "status": "Failure", "code": 504, "reason": "Timeout", "message": "request timed out" });
    for fault in [Fault::Reset, Fault::ReplyLost, Fault::ReplyLate(Duration::from_secs(60)), Fault::Answer(504, gone)] {
        let (first, second, servers) = two();
        let permits = Allow::all(&first);
        first.fault(1, fault, |_| true);
        assert!(matches!(label(&servers, &permits).await, Err(WriteError::Ambiguous { .. })));
        assert_eq!((first.writes().len(), second.log().len()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_answers_anywhere() {
    let (first, second, servers) = two();
    let permits = Allow::all(&first);
    first.unreachable();
    second.unreachable();
    let error = nodes::get(&servers, "w1").await.unwrap_err();
    assert!(error.to_string().contains("in-memory") && error.to_string().contains("second"), "{error}");
    assert!(matches!(label(&servers, &permits).await, Err(WriteError::Unreachable { .. })));
}

#[tokio::test(start_paused = true)]
async fn s2_without_a_permit_nothing_is_sent() {
    let (first, second, servers) = two();
    let permits = Allow::all(&first);
    *permits.refused.lock().unwrap() = Some(NoPermit::Stopping);
    assert!(matches!(label(&servers, &permits).await, Err(WriteError::NoPermit(NoPermit::Stopping))));
    assert!(first.log().is_empty() && second.log().is_empty());
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named() {
    let path = Path::new("/nowhere/kubeconfig");
    let error = ApiServers::connect(Some(path), Some("prod"), Clock::system()).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/nowhere/kubeconfig") && text.contains("--kubeconfig"), "{text}");
}

#[tokio::test]
async fn the_kubeconfigs_server_is_told_and_not_dialled() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config");
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {cluster: k, user: u}}]\n\
        clusters: [{name: k, cluster: {server: 'https://10.0.0.1:6443'}}]\n\
        users: [{name: u, user: {token: t}}]\n";
    std::fs::write(&path, kubeconfig).unwrap();
    let servers = ApiServers::connect(Some(&path), None, Clock::system()).await.unwrap();
    assert_eq!(servers.server(), ("10.0.0.1".to_owned(), 6443));
    assert_eq!((servers.requests(), servers.warnings()), (0, &[][..]));
    assert!(servers.extend(vec!["10.0.0.1".parse().unwrap()], &[]).await.is_empty());
    assert_eq!(servers.requests(), 0, "the server itself is not added again");
}
