//! An operator with kubectl, in the middle of a run: F03, F06, F07, A02. The acceptance tests have the same deeds done
//! by the lab's own hand; here they come from the client that operators use, through the real server.

use lab::Held;
use lab::faults::When::Before;
use lab::kube::store::micros;
use serde_json::{Value, json};
use tokio::process::Child;

use crate::harness::{Bed, Ended, ended, eventually};
use crate::kubectl::{Kubectl, two_workers};
use crate::scene::{FENCE, Gate, Story, evictions, fence_of, lease_is_held, requests};

async fn cluster() -> (Bed, Kubectl) {
    let bed = two_workers().await;
    let kubectl = Kubectl::of(&bed);
    (bed, kubectl)
}

/// Holds the claim of worker-1 while somebody does something to its Node; gives how the run ended.
async fn claimed_late(bed: &Bed, kubectl: &Kubectl, deed: &[&str]) -> Ended {
    let mut gate = Gate::new(bed);
    let child = bed.start(&["-n", "worker-1", "--gate-timeout", "2s", "-o", "json"]);
    let claim = gate.hold_fence(Before, "worker-1", None).await;
    kubectl.ok(deed).await;
    claim.release();
    drop(gate);
    ended(child).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f03_a_node_that_kubectl_cordons_before_our_claim_lands_is_still_cordoned_after() {
    let (bed, kubectl) = cluster().await;
    let story = Story::begin(&bed);
    let done = claimed_late(&bed, &kubectl, &["cordon", "worker-1"]).await.expect(0);
    assert!(done.stderr.contains("cordoned by somebody else in between"), "{}", done.stderr);
    assert!(done.stderr.contains("still cordoned as somebody else left it"), "{}", done.stderr);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cri_loaded, node.cordoned, node.fence), (1, Held::New, true, None));
    let changes = story.of("worker-1");
    let uncordons = changes
        .iter()
        .filter(|(before, after)| before["spec"]["unschedulable"] == true && after["spec"]["unschedulable"] != true);
    assert_eq!(uncordons.count(), 0, "all the time");
    let (_, claimed) = &story.fenced("worker-1")[0];
    assert_eq!(fence_of(claimed).unwrap()["cordonedBefore"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f03_a_fence_or_a_hard_taint_that_comes_before_our_claim_refuses_it() {
    for (code, deed, why) in [
        (1, ["annotate", "node", "worker-1", "talos-ghcr/fence={\"v\":1}"], "carries another fence"),
        (0, ["taint", "node", "worker-1", "ToBeDeletedByClusterAutoscaler=1767000000:NoSchedule"], "taking it away"),
    ] {
        let (bed, kubectl) = cluster().await;
        let story = Story::begin(&bed);
        let stopped = claimed_late(&bed, &kubectl, &deed).await.expect(code);
        assert!(stopped.stderr.contains(why), "{why}: {}", stopped.stderr);
        let node = bed.truth_of("worker-1");
        assert_eq!((node.boots, node.cri_loaded, node.cordoned), (0, Held::Old, false), "{why}");
        // Ours is one patch, fence and cordon or neither: it was neither.
        assert!(story.of("worker-1").iter().all(|(_, after)| after["spec"]["unschedulable"] != true), "{why}");
        assert!(requests(&bed, "Reboot", "worker-1").is_empty(), "{why}");
        assert!(!lease_is_held(&bed));
    }
}

/// Whether the budget of the workload lets a pod go.
async fn let_go(kubectl: &Kubectl, allowed: u32) {
    let patch = json!({"spec": {"maxUnavailable": allowed}}).to_string();
    kubectl.ok(&["patch", "pdb", "web", "--type=merge", "-p", &patch]).await;
}

/// A run whose drain of worker-1 is held back by a budget.
async fn draining(bed: &Bed, kubectl: &Kubectl, gate_timeout: &str) -> Child {
    let_go(kubectl, 0).await;
    let child = bed.start(&["-n", "worker-1", "--gate-timeout", gate_timeout, "-o", "json"]);
    eventually("the drain is held", || evictions(bed) > 0).await;
    child
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_a_node_that_kubectl_uncordons_in_the_drain_is_not_rebooted() {
    let (bed, kubectl) = cluster().await;
    let child = draining(&bed, &kubectl, "3s").await;
    kubectl.ok(&["uncordon", "worker-1"]).await;
    let_go(&kubectl, 1).await;
    let stopped = ended(child).await.expect(4);
    assert_eq!(stopped.json()["left"], json!({"worker-1": "somebody uncordoned it"}));
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cri_loaded, node.cordoned, node.fence), (0, Held::Old, false, None));
    assert!(requests(&bed, "Reboot", "worker-1").is_empty());
    assert!(!lease_is_held(&bed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_a_fence_that_kubectl_changes_in_the_drain_is_no_longer_ours() {
    let (bed, kubectl) = cluster().await;
    let child = draining(&bed, &kubectl, "3s").await;
    // Whole and readable, and somebody else's, whose lease is held.
    const OTHER: &str = "0123456789abcdef-gh17123456789.2-2f1c0f5e-7a0b-4c58-9a3e-1d2c3b4a5968";
    let now = micros(jiff::Timestamp::now());
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "another-rollout", "namespace": "default"},
        "spec": {"holderIdentity": OTHER, "leaseDurationSeconds": 3600, "leaseTransitions": 7, "renewTime": now},
    });
    kubectl.fed(&["create", "-f", "-"], &lease.to_string()).await.expect(0);
    let uid = ["get", "lease", "another-rollout", "-o", "jsonpath={.metadata.uid}"];
    let mut fence = bed.truth_of("worker-1").fence.expect("it is fenced");
    fence["leaseUid"] = json!(kubectl.ok(&uid).await);
    (fence["holder"], fence["lease"], fence["epoch"]) = (json!(OTHER), json!("default/another-rollout"), json!(7));
    kubectl.ok(&["annotate", "node", "worker-1", "--overwrite", &format!("{FENCE}={fence}")]).await;
    let_go(&kubectl, 1).await;
    let stopped = ended(child).await.expect(1);
    assert!(stopped.json()["left"]["worker-1"].to_string().contains("fence"), "{:#}", stopped.json());
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cri_loaded, node.cordoned), (0, Held::Old, true), "nothing is undone");
    assert_eq!(node.fence, Some(fence), "it is left as it stands");
    assert!(requests(&bed, "Reboot", "worker-1").is_empty());
    assert!(!lease_is_held(&bed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_a_node_that_is_made_anew_under_its_name_inherits_no_claim() {
    let (bed, kubectl) = cluster().await;
    let story = Story::begin(&bed);
    let child = draining(&bed, &kubectl, "20s").await;
    // Deleted, and made again from its own YAML: another UID, and our fence copied with the rest.
    let shown = kubectl.ok(&["get", "node", "worker-1", "-o", "json"]).await;
    let mut node: Value = serde_json::from_str(&shown).expect("kubectl prints JSON");
    let old = node["metadata"]["uid"].take();
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        node["metadata"].as_object_mut().expect("it has metadata").shift_remove(field);
    }
    assert!(fence_of(&node).is_some(), "it is fenced");
    kubectl.ok(&["delete", "node", "worker-1"]).await;
    kubectl.fed(&["create", "-f", "-"], &node.to_string()).await.expect(0);
    let new = json!(kubectl.ok(&["get", "node", "worker-1", "-o", "jsonpath={.metadata.uid}"]).await);
    assert_ne!(new, old);
    let_go(&kubectl, 1).await;
    let done = ended(child).await.expect(0);
    assert!(done.stderr.contains("dropped a fence that speaks of another node"), "{}", done.stderr);
    // It was rebooted under a claim of its own, and once.
    let of_the_new = |(_, after): &&(Value, Value)| after["metadata"]["uid"] == new;
    let fenced = story.fenced("worker-1");
    let claims: Vec<_> = fenced.iter().filter(of_the_new).filter_map(|(_, after)| fence_of(after)).collect();
    assert_eq!(claims.len(), 1, "{fenced:#?}");
    assert_eq!(claims[0]["uid"], new);
    assert_eq!(requests(&bed, "Reboot", "worker-1").len(), 1);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cri_loaded, node.fence), (1, Held::New, None));
    // Whoever made it, made it cordoned: that is theirs to undo, and it is said.
    assert!(node.cordoned && done.stderr.contains("still cordoned as somebody else left it"), "{}", done.stderr);
    assert!(!lease_is_held(&bed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_finds_the_plugin_under_its_name_and_gives_it_the_kubeconfig() {
    let (bed, kubectl) = cluster().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let link = folder.path().join("kubectl-talos_ghcr");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_talos-ghcr"), link).expect("a link");
    let wrong = kubectl.with_plugins(folder.path(), &["talos-ghcr", "fences", "--no-such-flag"]).await;
    assert!(wrong.stderr.contains("Usage: kubectl talos-ghcr fences"), "{}", wrong.stderr);
    let shown = kubectl.with_plugins(folder.path(), &["talos-ghcr", "fences", "-o", "json"]).await.expect(0).json();
    assert_eq!((shown["held"].as_bool(), shown["nodes"].as_u64()), (Some(false), Some(3)));
    drop(bed);
}
