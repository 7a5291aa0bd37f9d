//! Pods that must not or cannot be evicted: D02, D10, on the binary.

use lab::kube::authz::rules_of;
use serde_json::json;

use crate::harness::{Bed, lease_duration, row};
use crate::scene::{block_evictions, evictions, requests, two_workers};

/// A pod that nothing would start again.
fn put_bare_pod(bed: &Bed, node: &str) {
    let pod = json!({
        "metadata": {"name": "bare", "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "app"}]},
        "status": {"phase": "Running"},
    });
    bed.lab.objects().create(lab::kube::kind::Kind::Pod, pod);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_what_cannot_be_drained_is_said_in_the_plan_and_its_node_is_left_as_it_is() {
    let bed = two_workers().await;
    put_bare_pod(&bed, "worker-1");
    let plan = bed.product("plan", &["-n", "worker-1,worker-2"]).await.expect(0);
    let words = "worker-1 cannot be drained, and would be left as it is: default/bare: ";
    assert!(plan.stdout.contains(words) && plan.stdout.contains("--force"), "{}", plan.stdout);
    let document = bed.product("plan", &["-n", "worker-1,worker-2", "-o", "json"]).await.expect(0).json();
    assert_eq!(row(&document, "worker-1")["drain"]["refused"].as_array().map(Vec::len), Some(1));
    assert_eq!(row(&document, "worker-2")["drain"]["refused"], json!([]));
    assert!(row(&document, "worker-2")["drain"]["evict"].as_u64().is_some_and(|pods| pods > 0), "{document:#}");
    assert_eq!(bed.writes(), 0);

    let left = bed.run(&["-n", "worker-1", "-o", "json"]).await;
    assert!(left.stderr.contains("default/bare"), "{}", left.stderr);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None), "never fenced");
    assert!(requests(&bed, "PATCH nodes", "worker-1").is_empty() && evictions(&bed) == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d02_a_budget_that_never_allows_anything_is_passed_by_deletion_only_when_asked_for_and_allowed() {
    let bed = two_workers().await;
    block_evictions(&bed, true);
    let only = ["-n", "worker-1"];
    let stopped = bed.run(&[&only[..], &["--drain-timeout", "1s"]].concat()).await.expect(4);
    assert!(stopped.stderr.contains("disruption budget"), "{}", stopped.stderr);
    assert!(requests(&bed, "DELETE pods", "").is_empty());
    assert_eq!((bed.truth_of("worker-1").boots, bed.truth_of("worker-1").cordoned), (0, false));

    // The role of this tool does not reach that far.
    let role = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/rbac/clusterrole.yaml");
    bed.lab.grant("talos-ghcr", rules_of(&crate::harness::read(&role)).expect("the ClusterRole can be read"));
    let server = format!("https://{}:6443", bed.lab.node("cp-1").address());
    let least = bed.write("kubeconfig-least", &bed.lab.kubeconfig_for("talos-ghcr", &[], &server));
    let more = ["-n", "worker-1", "--disable-eviction", "--lease-duration", lease_duration()];
    let refused = bed.product_with("run", &[("--kubeconfig", &least)], &more).await.expect(1);
    assert!(refused.stderr.contains("may not: delete pods"), "{}", refused.stderr);
    assert!(refused.stderr.contains("--disable-eviction needs"), "{}", refused.stderr);

    let before = evictions(&bed);
    bed.run(&[&only[..], &["--disable-eviction"]].concat()).await.expect(0);
    assert_eq!((bed.truth_of("worker-1").boots, evictions(&bed)), (1, before), "nothing was evicted");
    let deleted = bed.lab.log().all().into_iter().filter(|entry| entry.method == "DELETE pods").count();
    assert!(deleted > 0);
    assert_eq!(bed.lab.unexpected(), Vec::<String>::new());
}
