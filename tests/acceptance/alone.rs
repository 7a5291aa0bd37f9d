//! V: `verify` and `proofs` without a kubeconfig, by Talos alone.

use std::path::Path;

use lab::Held;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{Bed, Ended, finish, read, row};

const WITHOUT: &str = "there is no kubeconfig, so Talos alone was asked";
const OFF: &str = "Talos lists no members of the cluster (discovery is off)";

/// A bed whose nodes are proved, and which counts the requests from now on.
async fn bed(discovery: bool) -> Bed {
    let bed = Bed::proved(|_| {}).await;
    if discovery {
        bed.lab.talos().nodes().iter().for_each(|node| node.discover());
    }
    bed.lab.reset_counters();
    bed
}

/// The product with the old credential, in a home without a kubeconfig, and no word of one.
fn alone(bed: &Bed, command: &str, replaced: &[(&str, &str)], more: &[&str]) -> Command {
    let old = bed.lab.credential_file(Held::Old).display().to_string();
    let mut product =
        bed.command_with(command, &[replaced, &[("--kubeconfig", ""), ("--credential-file", &old)]].concat(), more);
    product.env("HOME", bed.lab.dir());
    product
}

async fn verify(bed: &Bed, more: &[&str]) -> Ended {
    finish(alone(bed, "verify", &[], &[&["-o", "json"], more].concat())).await
}

fn names(document: &Value) -> Vec<&str> {
    let rows = document["nodes"].as_array().expect("rows");
    rows.iter().map(|row| row["name"].as_str().or(row["node"].as_str()).expect("a name")).collect()
}

fn warnings(document: &Value) -> String {
    document["warnings"].to_string()
}

/// No request was made of Kubernetes, none changed anything, and all were known to the lab.
#[track_caller]
fn assert_kubernetes_was_left_alone(bed: &Bed) {
    let of_kubernetes = bed.lab.truth().total("kubernetes/");
    assert_eq!((of_kubernetes.reads, of_kubernetes.writes), (0, 0));
    assert_eq!((bed.writes(), bed.lab.unexpected()), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v02_v05_without_a_kubeconfig_discovery_says_which_nodes_there_are() {
    let bed = bed(true).await;
    let verified = verify(&bed, &[]).await.expect(0).json();
    assert_eq!(names(&verified), ["worker-1", "worker-2", "worker-3", "cp-1", "cp-2", "cp-3"]);
    assert_eq!(verified["summary"]["current"], 6, "{verified:#}");
    for (name, role) in [("worker-2", "worker"), ("cp-2", "control-plane")] {
        let (row, own) = (row(&verified, name), bed.lab.node(name).address().to_string());
        assert_eq!((&row["role"], &row["address"]), (&json!(role), &json!(own)));
        assert_eq!(row["claims"]["configured"]["answer"], "true", "{row:#}");
    }
    assert_eq!(verified["endpoint"], json!({"server": "none", "node": null, "rule": "there is no kubeconfig"}));
    assert!(warnings(&verified).contains(WITHOUT) && !warnings(&verified).contains(OFF), "{}", warnings(&verified));

    // The flags about nodes, and the exit codes, are those of every day.
    assert_eq!(names(&verify(&bed, &["-n", "worker-2,cp-1"]).await.expect(0).json()), ["worker-2", "cp-1"]);
    assert_eq!(names(&verify(&bed, &["--exclude", "worker-2"]).await.expect(0).json()).len(), 5);
    let unknown = verify(&bed, &["-n", "worker-9"]).await.expect(1);
    assert!(
        unknown.stderr.contains("there is no node worker-9 in the cluster (named by --nodes)"),
        "{}",
        unknown.stderr
    );
    bed.apply("worker-1", &bed.config_with_new("worker-1"));
    bed.lab.reset_counters();
    crate::harness::eventually("Talos shows it", || bed.truth_of("worker-1").configured == Held::New).await;
    let differs = verify(&bed, &[]).await.expect(2).json();
    assert_eq!(row(&differs, "worker-1")["verdict"], "Drifted");
    let table = finish(alone(&bed, "verify", &[], &[])).await.expect(2).stdout;
    assert!(table.contains(&format!("Warning: {WITHOUT}")), "{table}");
    assert_kubernetes_was_left_alone(&bed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v02_v05_without_a_kubeconfig_and_discovery_only_what_the_talosconfig_names_is_looked_at() {
    let bed = bed(false).await;
    let verified = verify(&bed, &[]).await.expect(0).json();
    assert_eq!(names(&verified), ["cp-1", "cp-2", "cp-3"]);
    assert!(warnings(&verified).contains(OFF) && warnings(&verified).contains("give a kubeconfig"), "{verified:#}");
    assert_eq!(row(&verified, "cp-1")["role"], "control-plane");
    // A worker that is not seen is not there; why is said.
    let missing = verify(&bed, &["-n", "worker-1"]).await.expect(1);
    assert!(missing.stderr.contains("there is no node worker-1") && missing.stderr.contains(OFF), "{}", missing.stderr);

    // The talosconfig's `nodes` are looked at, one that is an endpoint too once.
    let (worker, plane) = (bed.lab.node("worker-1").address(), bed.lab.node("cp-1").address());
    let file = bed.lab.dir().join("talosconfig-nodes");
    let text = read(&bed.lab.dir().join("talosconfig"));
    let key = text.lines().find(|line| line.trim_start().starts_with("endpoints:")).expect("endpoints");
    let indent = &key[..key.len() - key.trim_start().len()];
    let nodes = format!("{indent}nodes: [{worker}, {plane}, nowhere.invalid]\n{key}");
    std::fs::write(&file, text.replacen(key, &nodes, 1)).expect("it is written");
    let named = [("--talosconfig", file.to_str().expect("UTF-8"))];
    let verified = finish(alone(&bed, "verify", &named, &["-o", "json"])).await.expect(1).json();
    assert_eq!(names(&verified), ["nowhere.invalid", "worker-1", "cp-1", "cp-2", "cp-3"]);
    assert_eq!(row(&verified, "worker-1")["role"], "worker");
    let nowhere = row(&verified, "nowhere.invalid");
    assert_eq!((&nowhere["verdict"], &nowhere["claims"]), (&json!("Blocked"), &Value::Null), "{nowhere:#}");

    // A control plane that is dead is a row with its address for a name, and a failure.
    bed.lab.node("cp-2").cut_off_apid(true);
    let dead = verify(&bed, &[]).await.expect(1).json();
    let address = bed.lab.node("cp-2").address().to_string();
    let mut rows = names(&dead);
    rows.sort_unstable();
    assert_eq!(rows, [address.as_str(), "cp-1", "cp-3"]);
    assert!(row(&dead, &address)["reason"].as_str().unwrap().starts_with("unreachable: "), "{dead:#}");
    assert_kubernetes_was_left_alone(&bed);
}

/// Discovery lists the VIP under its dead holder for over a minute; who has it now answers there, and is another node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v05_without_a_kubeconfig_a_dead_node_is_not_judged_by_who_has_its_vip_now() {
    let bed = bed(true).await;
    let front = bed.lab.front(6443, &[]).expect("the port is free");
    let vip = front.ip();
    bed.lab.talos().nodes().iter().for_each(|node| node.discover_vip("cp-3", vip));
    bed.lab.node("cp-3").set_vip(Some(vip));
    assert_eq!(row(&verify(&bed, &[]).await.expect(0).json(), "cp-3")["verdict"], "Current");

    bed.lab.node("cp-3").stop();
    bed.lab.node("cp-3").set_vip(None);
    bed.lab.node("cp-2").set_vip(Some(vip));
    let verified = verify(&bed, &[]).await.expect(1).json();
    let dead = row(&verified, "cp-3");
    assert_eq!((&dead["verdict"], &dead["claims"], &dead["talos"]), (&json!("Blocked"), &Value::Null, &Value::Null));
    assert_eq!(dead["address"], bed.lab.node("cp-3").address().to_string(), "its own, not the VIP");
    assert!(dead["reason"].as_str().unwrap().starts_with("unreachable: "), "{dead:#}");
    assert_eq!((names(&verified).len(), &row(&verified, "cp-2")["verdict"]), (6, &json!("Current")));
    assert_kubernetes_was_left_alone(&bed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v04_v06_without_a_kubeconfig_a_reader_sees_the_records() {
    let bed = bed(true).await;
    let file = bed.lab.dir().join("talosconfig-reader").display().to_string();
    let reader = [("--talosconfig", file.as_str())];
    // Without os:admin the record is what the node sees on its Node, where it shows a moment later.
    for node in bed.lab.truth().nodes {
        bed.verified_with(&[("--talosconfig", &file)], &node.name, "/claims/proof/answer", "true").await;
    }
    bed.lab.reset_counters();
    let verified = finish(alone(&bed, "verify", &reader, &["-o", "json"])).await.expect(2).json();
    assert_eq!(names(&verified).len(), 6);
    assert!(warnings(&verified).contains("os:reader") && warnings(&verified).contains(WITHOUT), "{verified:#}");
    finish(alone(&bed, "verify", &reader, &["--claims", "loaded,proof"])).await.expect(0);
    let proofs = finish(alone(&bed, "proofs", &reader, &["-o", "json"])).await.expect(0).json();
    assert_eq!(names(&proofs), ["cp-1", "cp-2", "cp-3", "worker-1", "worker-2", "worker-3"]);
    for proof in proofs["nodes"].as_array().unwrap() {
        assert_eq!((&proof["state"], &proof["holds"]), (&json!("proved"), &json!(true)), "{proof:#}");
    }
    assert!(warnings(&proofs).contains(WITHOUT), "{proofs:#}");
    let table = finish(alone(&bed, "proofs", &reader, &[])).await.expect(0).stdout;
    assert!(table.contains("6 of 6 proofs hold.") && table.contains(&format!("Warning: {WITHOUT}")), "{table}");
    bed.lab.node("worker-1").cut_off_apid(true);
    finish(alone(&bed, "proofs", &reader, &[])).await.expect(1);
    assert_kubernetes_was_left_alone(&bed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p05_a_kubeconfig_that_somebody_counts_on_is_not_done_without() {
    let bed = Bed::new(|options| (options.control_planes, options.workers) = (1, 0)).await;
    let expect = |ended: Ended, words: &str| {
        let ended = ended.expect(1);
        assert!(ended.stdout.is_empty() && ended.stderr.contains(words), "{words}: {}", ended.stderr);
    };
    for command in ["verify", "proofs"] {
        let missing = finish(bed.command_with(command, &[("--kubeconfig", "/nowhere/kubeconfig")], &[])).await;
        expect(missing, "cannot read the kubeconfig /nowhere/kubeconfig");
        let mut listed = alone(&bed, command, &[], &[]);
        listed.env("KUBECONFIG", "/nowhere/kubeconfig");
        expect(finish(listed).await, "no kubeconfig found (looked at /nowhere/kubeconfig)");
        for flag in [["--kube-context", "prod"], ["--kube-server", "10.0.0.1"]] {
            expect(finish(alone(&bed, command, &[], &flag)).await, "no kubeconfig found (looked at ");
        }
        // A broken one at the usual place was meant as well.
        let home = tempfile::tempdir().expect("a folder");
        broken(home.path());
        let mut product = alone(&bed, command, &[], &[]);
        product.env("HOME", home.path());
        expect(finish(product).await, "is not a kubeconfig");
    }
    // The other commands cannot do without.
    expect(finish(alone(&bed, "plan", &[], &[])).await, "no kubeconfig found (looked at ");
    assert_eq!(bed.requests(), 0, "nobody was asked");
    // A variable that is set to nothing names none: CI sets optional ones so.
    let mut nothing = alone(&bed, "verify", &[("--credential-file", "")], &["--claims", "loaded"]);
    for name in ["KUBECONFIG", "TALOS_GHCR_KUBECONFIG", "TALOS_GHCR_CREDENTIAL_FILE", "TALOS_GHCR_JUNIT"] {
        nothing.env(name, "");
    }
    finish(nothing).await.expect(0);
}

fn broken(home: &Path) {
    std::fs::create_dir(home.join(".kube")).expect("a folder");
    std::fs::write(home.join(".kube/config"), "[]\n").expect("it is written");
}
