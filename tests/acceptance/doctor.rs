//! What `doctor` and the first moments of a run say: K11, L25, N12, P10 to P14.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab::Held;
use lab::cluster::USER;
use lab::kube::authz::{Rule, rules_of};
use serde_json::{Value, json};

use crate::harness::{Ended, bare, finish, lease_duration, read, row};
use crate::scene::two_workers;

mod faults;
mod well;

/// The checks of one name, each as its result and its detail.
fn checks(ended: &Ended, name: &str) -> Vec<(String, String)> {
    let document = ended.json();
    let all = document["checks"].as_array().expect("the document lists checks").clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    all.iter().filter(|check| check["name"] == name).map(|it| (text(&it["health"]), text(&it["detail"]))).collect()
}

/// What to do about the first check of that name that says so.
fn next(ended: &Ended, name: &str) -> String {
    let document = ended.json();
    let all = document["checks"].as_array().expect("the document lists checks");
    let found = all.iter().filter(|check| check["name"] == name).find_map(|check| check["next"].as_str());
    found.unwrap_or_else(|| panic!("{name} says what to do: {document:#}")).to_owned()
}

/// The checks that did not come out well, each as its name and its result.
fn ill(ended: &Ended) -> Vec<(String, String)> {
    let document = ended.json();
    let all = document["checks"].as_array().expect("the document lists checks").clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    all.iter().filter(|it| it["health"] != "ok").map(|it| (text(&it["name"]), text(&it["health"]))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k11_the_registry_alone_is_asked_without_any_cluster() {
    let bed = two_workers().await;
    let (host, image) = (bed.lab.registry().host(), bed.lab.image());
    let doctor = async |file: &str, image: &str| {
        let mut doctor = bare();
        doctor.args(["doctor", "--registry-only", "--registry", &host, "--image", image, "-o", "json"]);
        doctor.args(["--credential-file", file]).envs(bed.lab.product_env());
        finish(doctor).await
    };
    let good = bed.lab.credential_file(Held::New).display().to_string();
    let fine = doctor(&good, &image).await.expect(0);
    let registry = checks(&fine, "registry");
    assert_eq!(registry[0].0, "ok");
    assert!(registry[0].1.contains(&host) && registry[0].1.contains("accepts the credential"), "{registry:?}");
    assert_eq!(fine.json()["checks"].as_array().map(Vec::len), Some(registry.len()), "and nothing else is looked at");
    // Even with files that cannot be read: they are not looked for.
    let nowhere = [("TALOSCONFIG", "/nonexistent/talosconfig"), ("KUBECONFIG", "/nonexistent/kubeconfig")];
    let mut blind = bare();
    blind.args(["doctor", "--registry-only", "--registry", &host, "--credential-file", &good]);
    blind.envs(nowhere).envs(bed.lab.product_env());
    finish(blind).await.expect(0);

    let auth = STANDARD.encode(format!("{USER}:wrong-by-one-letter"));
    let wrong = bed.write("wrong.json", &json!({"auths": {&host: {"auth": auth}}}).to_string());
    let refused = doctor(&wrong, &image).await.expect(1);
    let registry = checks(&refused, "registry");
    assert_eq!((registry.len(), registry[0].0.as_str()), (1, "fault"));
    assert!(registry[0].1.contains("refuses the credential") && registry[0].1.contains(&host), "{registry:?}");
    assert!(!refused.stdout.contains("wrong-by") && !refused.stderr.contains("wrong-by"));
    let missing = format!("{host}/lab/nothing:1");
    let failed = doctor(&good, &missing).await.expect(1);
    assert!(checks(&failed, "registry")[0].1.contains(&missing), "{}", failed.stdout);
    // Without a credential it is a usage error.
    let mut none = bare();
    none.args(["doctor", "--registry-only", "--registry", &host]);
    finish(none).await.expect(64);

    let truth = bed.lab.truth();
    for prefix in ["kubernetes/", "talos/"] {
        let asked = truth.total(prefix);
        assert_eq!((asked.reads, asked.writes), (0, 0), "{prefix}: {asked:?}");
    }
    assert!(truth.total("registry").reads > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n12_an_operator_is_told_what_it_can_and_cannot_do() {
    let bed = two_workers().await;
    bed.prove_old().await;
    let operator = bed.lab.dir().join("talosconfig-operator").display().to_string();
    let old = bed.lab.credential_file(Held::Old).display().to_string();
    let replaced = [("--talosconfig", operator.as_str()), ("--credential-file", &old)];

    let doctor = bed.product_with("doctor", &replaced, &["-o", "json"]).await.expect(1);
    let identity = checks(&doctor, "talos identity");
    assert_eq!((identity.len(), identity[0].0.as_str()), (1, "fault"));
    for words in ["os:operator", "may reboot and pull", "not see whether the credential is configured", "os:admin"] {
        assert!(identity[0].1.contains(words), "{words}: {identity:?}");
    }
    // All else is looked at as ever.
    let nodes = checks(&doctor, "nodes");
    assert_eq!(nodes[0], ("ok".to_owned(), "3 of 3 answer".to_owned()), "{nodes:?}");
    for name in ["registry", "kubernetes rights", "endpoint"] {
        assert_eq!(checks(&doctor, name)[0].0, "ok", "{name}");
    }
    let reader = bed.lab.dir().join("talosconfig-reader").display().to_string();
    let doctor = bed.product_with("doctor", &[("--talosconfig", &reader)], &["-o", "json"]).await.expect(1);
    assert!(checks(&doctor, "talos identity")[0].1.contains("may only look"), "{}", doctor.stdout);

    for name in ["cp-1", "worker-1"] {
        bed.verified_with(&replaced, name, "/claims/proof/answer", "true").await;
    }
    let verified = bed.product_with("verify", &replaced, &["-o", "json"]).await.expect(2).json();
    for name in ["cp-1", "worker-1"] {
        let claims = &row(&verified, name)["claims"];
        for (claim, answer) in [("configured", "unknown"), ("loaded", "true"), ("proof", "true")] {
            assert_eq!(claims[claim]["answer"], answer, "{claim} of {name}: {claims:#}");
        }
        let why = claims["configured"]["evidence"].as_str().unwrap_or_default();
        assert!(why.contains("not permitted"), "{why}");
    }
    assert!(verified["warnings"].to_string().contains("os:operator"), "{}", verified["warnings"]);
    bed.product_with("verify", &replaced, &["--claims", "loaded,proof"]).await.expect(0);
    assert_eq!((bed.writes(), bed.lab.unexpected()), (0, vec![]));
}

/// Its certificate names no group: all its rights come from the role.
const LEAST: &str = "talos-ghcr";

/// The rules of the one ClusterRole, a verb each.
fn rights() -> Vec<Rule> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/rbac/clusterrole.yaml");
    let rules = rules_of(&read(&file)).expect("the ClusterRole can be read");
    let each = |rule: Rule| {
        let Rule { group, resource, verbs } = rule;
        verbs.into_iter().map(move |verb| Rule { group: group.clone(), resource: resource.clone(), verbs: vec![verb] })
    };
    rules.into_iter().flat_map(each).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l25_a_verb_that_is_missing_is_named_before_the_first_mutation() {
    let bed = two_workers().await;
    let server = format!("https://{}:6443", bed.lab.node("cp-1").address());
    let kubeconfig = bed.write("kubeconfig-least", &bed.lab.kubeconfig_for(LEAST, &[], &server));
    let least = [("--kubeconfig", kubeconfig.as_str())];
    let all = rights();
    assert_eq!(all.len(), 12, "{all:?}");
    for missing in &all {
        let (verb, resource) = (&missing.verbs[0], &missing.resource);
        let others = all.iter().filter(|rule| rule.resource != *resource || rule.verbs != missing.verbs);
        bed.lab.grant(LEAST, others.cloned().collect());
        let refused =
            bed.product_with("run", &least, &["--lease-duration", lease_duration(), "-o", "json"]).await.expect(1);
        let left = refused.json()["left"][""].as_str().unwrap_or_default().to_owned();
        // Kubernetes' own words where the inventory needs it, ours where only the roll does.
        let ours = format!("{verb} {resource}");
        let theirs = format!("cannot {verb} resource \"{resource}\"");
        assert!(left.contains(&ours) || left.contains(&theirs), "without {ours}: {left}");
        let also_named = all.iter().filter(|rule| left.contains(&format!("{} {}", rule.verbs[0], rule.resource)));
        assert!(also_named.count() <= 1, "only what is missing is named: {left}");
        let truth = bed.lab.truth();
        assert_eq!((bed.writes(), truth.lease, truth.unexpected), (0, None, vec![]), "without {ours}");
        let doctor = bed.product_with("doctor", &least, &["-o", "json"]).await.expect(1);
        let said = checks(&doctor, "kubernetes rights");
        assert_eq!(said[0].0, "fault");
        assert!(said[0].1.contains(&ours), "without {ours}: {said:?}");
        assert!(next(&doctor, "kubernetes rights").contains("clusterrole.yaml"), "{}", doctor.stdout);
    }
    // With all of them it goes on to its first write.
    bed.lab.grant(LEAST, all);
    let doctor = bed.product_with("doctor", &least, &["-o", "json"]).await.expect(0);
    assert_eq!(checks(&doctor, "kubernetes rights")[0].0, "ok", "{}", doctor.stdout);
    let only = [("control planes".to_owned(), "warning".to_owned())];
    assert_eq!(ill(&doctor), only, "it asks for no right that a run does without: {}", doctor.stdout);
    bed.product_with("run", &least, &["--lease-duration", lease_duration(), "-n", "worker-1"]).await.expect(0);
}
