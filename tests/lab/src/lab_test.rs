//! A whole lab, looked at from outside and shaken.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use talos_proto::clock::Clock;

use crate::control::{Question, ask};
use crate::faults::When;
use crate::kube::kind::Kind;
use crate::net::KUBE_PORT;
use crate::testing::Client;
use crate::{Held, Lab, Options, Truth};

async fn lab(dir: &tempfile::TempDir, control_planes: usize, workers: usize) -> Arc<Lab> {
    let mut options = Options::new(dir.path());
    (options.control_planes, options.workers) = (control_planes, workers);
    options.reboot_time = Duration::from_millis(600);
    Lab::start(options).await.unwrap()
}

async fn admin(lab: &Lab, node: &str) -> std::io::Result<Client> {
    let address = lab.node(node).address();
    let pair = lab.kube_ca().client("admin", &["system:masters"]);
    Client::connect((address, KUBE_PORT), lab.kube_ca().cert_pem(), Some(&pair)).await
}

/// Looks every few milliseconds until it is so.
async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let start = clock.now();
    while !so() {
        assert!(clock.now().since(start) < Duration::from_secs(10), "not within 10 s: {what}");
        clock.sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lab_says_the_truth_over_its_socket_and_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let lab = lab(&dir, 1, 1).await;
    let path = dir.path().to_owned();
    let ask_lab = |question| {
        let path = path.clone();
        tokio::task::spawn_blocking(move || ask(&path, question))
    };
    let ready: Value = serde_json::from_slice(&std::fs::read(dir.path().join("ready")).unwrap()).unwrap();
    assert_eq!(ready["image"], lab.image());
    assert_eq!(ready["nodes"][1]["name"], "worker-1");

    assert_eq!(admin(&lab, "cp-1").await.unwrap().ask("GET", "/api/v1/nodes", "").await.0, 200);
    let text = ask_lab(Question::Truth).await.unwrap().unwrap();
    let truth: Truth = serde_json::from_str(&text).unwrap();
    assert!(truth.nodes.iter().all(|node| (node.configured, node.cri_loaded) == (Held::Old, Held::Old)));
    assert!(truth.nodes.iter().all(|node| node.record.is_none() && node.fence.is_none() && !node.cordoned));
    assert_eq!(truth.lease, None);
    assert_eq!(truth.counters["kubernetes/cp-1"].by_method["LIST nodes"], 1);
    assert_eq!(truth.total("kubernetes/").writes, 0);
    assert!(truth.counters.contains_key("registry") && truth.counters.contains_key("talos/worker-1"));
    assert_eq!(truth.unexpected, [""; 0]);
    assert!(!text.contains(lab.old_password()) && !text.contains(lab.new_password()));

    ask_lab(Question::ResetCounters).await.unwrap().unwrap();
    assert_eq!(lab.truth().total("kubernetes/").reads, 0);
    let second = Lab::start(Options::new(dir.path())).await;
    assert!(second.is_err_and(|error| error.to_string().contains("cannot listen")), "one lab for a directory");
    lab.stop();
    assert!(!dir.path().join("ready").exists() && !dir.path().join("lab.sock").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_drained_within_the_budget_and_its_pods_live_on_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let lab = lab(&dir, 1, 2).await;
    let mut client = admin(&lab, "cp-1").await.unwrap();
    let cordon = json!([{"op": "add", "path": "/spec/unschedulable", "value": true}]).to_string();
    let request = http::Request::patch("/api/v1/nodes/worker-1").header("content-type", "application/json-patch+json");
    let answer = client.send(request.body(cordon.into_bytes().into()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    crate::testing::text(answer).await;
    let on_worker = |lab: &Lab, node: &str| -> Vec<String> {
        let pods = lab.objects().list(Kind::Pod);
        let here =
            pods.iter().filter(|pod| pod["spec"]["nodeName"] == node && pod["metadata"]["labels"]["app"] == "web");
        here.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let pods = on_worker(&lab, "worker-1");
    assert_eq!(pods.len(), 2);
    let mut refused = 0;
    for pod in &pods {
        let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
        let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}).to_string();
        loop {
            let (code, answer) = client.ask("POST", &path, &body).await;
            match code {
                201 => break,
                429 => refused += 1,
                _ => panic!("{answer}"),
            }
            Clock::system().sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(refused > 0, "the second pod has to wait for the first one's replacement");
    until("both pods live on worker-2", || on_worker(&lab, "worker-2").len() == 4).await;
    assert_eq!(on_worker(&lab, "worker-1"), [""; 0]);
    let node = lab.objects().get(Kind::Node, "", "worker-1").unwrap();
    assert_eq!(node["spec"]["taints"][0]["key"], "node.kubernetes.io/unschedulable", "another controller writes too");
    assert!(lab.truth().nodes[1].cordoned);
    let counters = lab.truth().total("kubernetes/");
    assert_eq!(counters.by_method["POST pods/eviction"], 2 + refused);
    assert_eq!(counters.writes, 3 + refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_is_down_while_its_node_is() {
    let dir = tempfile::tempdir().unwrap();
    let lab = lab(&dir, 3, 0).await;
    let boot = |lab: &Lab| lab.objects().get(Kind::Node, "", "cp-1").unwrap()["status"]["nodeInfo"]["bootID"].clone();
    let before = boot(&lab);
    assert_eq!(before, lab.node("cp-1").boot_id());
    lab.node("cp-1").ask_for_reboot(true);
    let mut listening = lab.server("cp-1").unwrap().listening();
    listening.wait_for(|listening| !listening).await.unwrap();
    let refused = admin(&lab, "cp-1").await.err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(admin(&lab, "cp-2").await.unwrap().ask("GET", "/readyz", "").await.0, 200);
    assert!(!lab.node_seen("cp-1").unwrap().ready);
    listening.wait_for(|listening| *listening).await.unwrap();
    until("cp-1 is Ready in its new boot", || lab.node_seen("cp-1").unwrap().ready && boot(&lab) != before).await;
    assert_eq!(boot(&lab), lab.node("cp-1").boot_id());
    assert_eq!(lab.truth().boot_order, ["cp-1"]);
    assert_eq!(admin(&lab, "cp-1").await.unwrap().ask("GET", "/readyz", "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_falls_silent_turns_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::new(dir.path());
    (options.control_planes, options.workers) = (1, 1);
    options.reboot_time = Duration::from_secs(2);
    options.pace.node_grace = Duration::from_millis(200);
    let lab = Lab::start(options).await.unwrap();
    lab.power_cycle("worker-1");
    let ready = |lab: &Lab| {
        let node = lab.objects().get(Kind::Node, "", "worker-1").unwrap();
        node["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap()["status"]
            .clone()
    };
    until("worker-1 is Unknown", || ready(&lab) == "Unknown").await;
    until("worker-1 is back", || ready(&lab) == "True").await;
    assert_eq!(lab.truth().nodes[1].boots, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labs_run_side_by_side_and_count_for_themselves() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, two) = tokio::join!(lab(&dirs[0], 1, 0), lab(&dirs[1], 1, 0));
    assert_ne!(one.registry().host(), two.registry().host());
    let mut point = one.faults().crash_point(1, When::Before);
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let body = json!({"metadata": {"name": "talos-ghcr"}, "spec": {"holderIdentity": "me", "leaseTransitions": 4}});
    let (mut first, mut second) = (admin(&one, "cp-1").await.unwrap(), admin(&two, "cp-1").await.unwrap());
    let body = body.to_string();
    let ((code, _), ()) = tokio::join!(first.ask("POST", path, &body), async {
        point.reached().await.unwrap();
        assert_eq!(one.truth().lease, None);
        point.release();
    });
    assert_eq!(code, 201);
    let lease = one.truth().lease.unwrap();
    assert_eq!((lease.holder.as_deref(), lease.transitions, lease.is_held()), (Some("me"), 4, true));
    assert_eq!(second.ask("GET", path, "").await.0, 200);
    assert_eq!((two.truth().lease, two.faults().mutations()), (None, 0));
    let lease = json!({"metadata": {"namespace": "kube-system", "name": "talos-ghcr"}, "spec": {"holderIdentity": ""}});
    one.objects().put_lease(lease);
    assert!(!one.truth().lease.unwrap().is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_narrowed_and_paged_and_a_user_of_few_rights_gets_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let lab = lab(&dir, 1, 2).await;
    let mut client = admin(&lab, "cp-1").await.unwrap();
    let mut names = Vec::new();
    let mut next = String::new();
    loop {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3Dworker-1&limit=2{next}");
        let (code, text) = client.ask("GET", &path, "").await;
        assert_eq!(code, 200, "{text}");
        let list: Value = serde_json::from_str(&text).unwrap();
        let items = list["items"].as_array().unwrap();
        assert!(items.len() <= 2 && items.iter().all(|pod| pod["spec"]["nodeName"] == "worker-1"));
        names.extend(items.iter().map(|pod| pod["metadata"]["name"].to_string()));
        match list["metadata"]["continue"].as_str() {
            Some(token) => next = format!("&continue={token}"),
            None => break,
        }
    }
    names.dedup();
    assert_eq!(names.len(), 3, "two of the app and one of the DaemonSet: {names:?}");
    let path = "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-flannel";
    assert_eq!(client.ask("GET", path, "").await.0, 200);
    let labelled = client.ask("GET", "/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fcontrol-plane", "").await.1;
    let labelled: Value = serde_json::from_str(&labelled).unwrap();
    assert_eq!(labelled["items"].as_array().unwrap().len(), 1);

    let role = "rules:\n- apiGroups: ['']\n  resources: [nodes, pods]\n  verbs: [get, list]\n";
    lab.grant("reader", crate::kube::authz::rules_of(role).unwrap());
    let pair = lab.kube_ca().client("reader", &[]);
    let address = (lab.node("cp-1").address(), KUBE_PORT);
    let mut reader = Client::connect(address, lab.kube_ca().cert_pem(), Some(&pair)).await.unwrap();
    assert_eq!(reader.ask("GET", "/api/v1/nodes/cp-1", "").await.0, 200);
    assert_eq!(reader.ask("GET", path, "").await.0, 403);
    assert_eq!(reader.ask("POST", "/api/v1/namespaces/default/pods/p/eviction", "{}").await.0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_in_trouble_hangs_fails_or_is_cut_off_on_its_own() {
    use crate::kube::server::Trouble;
    let dir = tempfile::tempdir().unwrap();
    let lab = lab(&dir, 2, 0).await;
    let server = lab.server("cp-1").unwrap();
    server.trouble(Trouble::Fail(503));
    let mut client = admin(&lab, "cp-1").await.unwrap();
    assert_eq!(client.ask("GET", "/api/v1/nodes", "").await.0, 503);
    assert_eq!(client.ask("GET", "/readyz", "").await.0, 200);
    server.trouble(Trouble::Hang);
    let clock = Clock::system();
    assert!(clock.timeout(Duration::from_millis(100), client.ask("GET", "/readyz", "")).await.is_err());
    server.trouble(Trouble::None);
    server.cut_off(true);
    server.listening().wait_for(|listening| !listening).await.unwrap();
    assert!(admin(&lab, "cp-1").await.is_err());
    assert_eq!(admin(&lab, "cp-2").await.unwrap().ask("GET", "/api/v1/nodes", "").await.0, 200);
    server.cut_off(false);
    server.listening().wait_for(|listening| *listening).await.unwrap();
    assert_eq!(admin(&lab, "cp-1").await.unwrap().ask("GET", "/api/v1/nodes", "").await.0, 200);
}
