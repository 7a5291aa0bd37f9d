//! deploy/rbac/ under the real authoriser, applied as its first lines say: L25.

use std::path::Path;

use lab::real::servers::REAL_PORT;
use serde_json::{Value, json};

use crate::harness::{Bed, LIMIT, lease_duration};
use crate::kubectl::{Kubectl, real, two_workers};
use crate::scene::fence_of;

const USER: &str = "talos-ghcr";

fn folder() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/rbac").display().to_string()
}

/// A kubeconfig of that user, for the kube-apiserver of `cp-1` itself: its certificate is what the server knows it by,
/// and no listener of the lab stands in between.
fn kubeconfig(bed: &Bed) -> String {
    let server = format!("https://{}:{REAL_PORT}", bed.lab.node("cp-1").address());
    bed.write("kubeconfig-least", &bed.lab.kubeconfig_for(USER, &[], &server))
}

async fn apply(kubectl: &Kubectl) {
    kubectl.ok(&["apply", "-f", &folder()]).await;
    kubectl.ok(&["create", "clusterrolebinding", USER, "--clusterrole=talos-ghcr", "--user=talos-ghcr"]).await;
}

/// What must not move when nothing is written: Nodes but for heartbeats, and the Leases that are no machine's.
fn state(bed: &Bed) -> Value {
    use lab::kube::kind::Kind;
    let nodes = bed.lab.objects().list(Kind::Node);
    let nodes: Vec<_> = nodes.iter().map(|node| json!([node["metadata"]["annotations"], node["spec"]])).collect();
    let leases = bed.lab.objects().list(Kind::Lease);
    let leases: Vec<_> = leases
        .iter()
        .filter(|lease| lease["metadata"]["namespace"] != "kube-node-lease")
        .filter(|lease| !lease["metadata"]["name"].as_str().unwrap_or_default().starts_with("apiserver-"))
        .map(|lease| json!([lease["metadata"]["name"], lease["metadata"]["resourceVersion"]]))
        .collect();
    json!({"nodes": nodes, "leases": leases})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l25_o01_the_role_as_it_is_delivered_is_enough_for_a_whole_roll() {
    let bed = Bed::new(real).await;
    let file = kubeconfig(&bed);
    let least = [("--kubeconfig", file.as_str())];
    // Without the role nothing is allowed: what follows is allowed by it alone.
    let refused = bed.product_with("plan", &least, &[]).await.expect(1);
    assert!(refused.stderr.contains("forbidden"), "{}", refused.stderr);
    apply(&Kubectl::of(&bed)).await;
    let done = bed.product_with("run", &least, &["--lease-duration", lease_duration(), "-o", "json"]).await.expect(0);
    bed.assert_done();
    assert_eq!(done.json()["rebooted"].as_array().map(Vec::len), Some(6));
    assert_eq!(bed.lab.truth().boot_order.last().map(String::as_str), Some("cp-1"));
    let before = state(&bed);
    bed.product_with("run", &least, &["--lease-duration", lease_duration()]).await.expect(0);
    assert_eq!(state(&bed), before, "nothing to do, nothing written");
    let mut through = bed.lab.truth().total("kubernetes/").by_method;
    // Talos's own port is tried beside the kubeconfig's, and there the listeners stand.
    through.remove("GET readyz");
    assert_eq!(through, Default::default(), "not through the listeners");
    assert!(bed.lab.objects().list(lab::kube::kind::Kind::Node).iter().all(|node| fence_of(node).is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l25_without_any_one_verb_of_the_role_it_is_named_before_the_first_mutation() {
    let bed = two_workers().await;
    let kubectl = Kubectl::of(&bed);
    let file = kubeconfig(&bed);
    let least = [("--kubeconfig", file.as_str())];
    apply(&kubectl).await;
    let role: Value = serde_json::from_str(&kubectl.ok(&["get", "clusterrole", "talos-ghcr", "-o", "json"]).await)
        .expect("kubectl prints JSON");
    let rules = role["rules"].as_array().expect("it has rules").clone();
    let mut tried = 0;
    for (number, rule) in rules.iter().enumerate() {
        let resource = rule["resources"][0].as_str().expect("each rule has one resource");
        for verb in rule["verbs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let mut fewer = rules.clone();
            fewer[number]["verbs"].as_array_mut().expect("it has verbs").retain(|kept| kept != verb);
            if fewer[number]["verbs"] == json!([]) {
                fewer.remove(number);
            }
            set(&kubectl, &fewer).await;
            until(&bed, rule, verb, false).await;
            let before = state(&bed);
            let run =
                bed.product_with("run", &least, &["--lease-duration", lease_duration(), "-o", "json"]).await.expect(1);
            let left = run.json()["left"][""].as_str().unwrap_or_default().to_owned();
            // Kubernetes' own words where the inventory needs it, ours where only the roll does.
            let (ours, theirs) = (format!("{verb} {resource}"), format!("cannot {verb} resource \"{resource}\""));
            assert!(left.contains(&ours) || left.contains(&theirs), "without {ours}: {left}");
            assert_eq!(state(&bed), before, "without {ours} nothing is written");
            assert_eq!(bed.lab.truth().total("talos/").writes, 0, "without {ours}, nor in Talos");
            set(&kubectl, &rules).await;
            until(&bed, rule, verb, true).await;
            tried += 1;
        }
    }
    assert_eq!(tried, 12, "every verb of the role");
    bed.product_with("run", &least, &["--lease-duration", lease_duration(), "-n", "worker-1"]).await.expect(0);
}

async fn set(kubectl: &Kubectl, rules: &[Value]) {
    let patch = json!([{"op": "replace", "path": "/rules", "value": rules}]).to_string();
    kubectl.ok(&["patch", "clusterrole", "talos-ghcr", "--type=json", "-p", &patch]).await;
}

/// Waits until the authoriser of the one control plane knows whether the rule's verb is allowed.
async fn until(bed: &Bed, rule: &Value, verb: &str, allowed: bool) {
    let resource = rule["resources"][0].as_str().unwrap_or_default();
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    // A name is part of the question where the rule has one.
    let name = rule["resourceNames"][0].as_str().unwrap_or_default();
    let attributes = json!({
        "verb": verb, "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource,
        "name": name, "namespace": if resource == "leases" { "kube-system" } else { "" },
    });
    let cluster = bed.lab.real().expect("it is real");
    let server = cluster.member_api("cp-1").expect("it has an API server");
    let known = tokio::time::timeout(LIMIT, cluster.until_known(server, USER, &[(attributes, allowed)])).await;
    assert!(known.is_ok(), "{verb} {resource} never becomes {allowed}");
}
