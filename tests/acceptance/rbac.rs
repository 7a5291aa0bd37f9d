//! What the product may ask of Kubernetes: deploy/rbac/clusterrole.yaml, and no more.

use std::path::Path;

use lab::kube::authz::{Rule, rules_of};

use crate::harness::{Bed, lease_duration, read};

/// Its certificate names no group: all its rights come from the role.
const USER: &str = "talos-ghcr";

fn the_one_clusterrole() -> Vec<Rule> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/rbac/clusterrole.yaml");
    rules_of(&read(&file)).expect("the ClusterRole can be read")
}

/// A kubeconfig of that user for the API server of `cp-1`, in the lab's folder.
fn kubeconfig(bed: &Bed) -> String {
    let server = format!("https://{}:6443", bed.lab.node("cp-1").address());
    let file = bed.lab.dir().join("kubeconfig-least");
    std::fs::write(&file, bed.lab.kubeconfig_for(USER, &[], &server)).expect("the kubeconfig is written");
    file.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l25_the_one_clusterrole_is_enough_for_a_whole_roll() {
    let bed = Bed::new(|options| options.talos = vec!["1.13.9=5".parse().unwrap(), "1.14.0=1".parse().unwrap()]).await;
    let file = kubeconfig(&bed);
    let least = [("--kubeconfig", file.as_str())];

    // Without the role nothing is allowed: what follows is allowed by it alone.
    let refused = bed.product_with("plan", &least, &[]).await.expect(1);
    assert!(refused.stderr.contains("forbidden"), "{}", refused.stderr);

    let rules = the_one_clusterrole();
    bed.lab.grant(USER, rules.clone());
    bed.product_with("run", &least, &["--lease-duration", lease_duration()]).await.expect(0);
    bed.assert_done();
    bed.product_with("verify", &least, &[]).await.expect(0);

    // No right is there that nothing uses. Rare: a Node that is not ready yet at the first look is watched, and a budget
    // is read when a drain is given up.
    let rare = ["watch nodes", "get poddisruptionbudgets"];
    let used = bed.lab.truth().total("kubernetes/").by_method;
    for rule in &rules {
        for verb in &rule.verbs {
            let method = match verb.as_str() {
                "create" => "POST",
                other => &other.to_uppercase(),
            };
            let right = format!("{verb} {}", rule.resource);
            let asked = used.contains_key(&format!("{method} {}", rule.resource));
            assert!(asked || rare.contains(&right.as_str()), "nothing asked for {right}: {used:?}");
        }
    }
}
