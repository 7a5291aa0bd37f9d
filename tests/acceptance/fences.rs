//! `fences`, what it shows and the commands that it prints: F17, F18.

use std::os::unix::fs::PermissionsExt as _;

use jiff::Timestamp;
use lab::faults::When;
use lab::kube::authz::rules_of;
use lab::kube::kind::Kind;
use lab::kube::store::{micros, seconds};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{Bed, Ended, bare, finish, read};
use crate::scene::{FENCE, Gate, kill, two_workers};

/// A holder in the form of a CI run's, of whom nothing else is known.
const OTHER: &str = "fedcba9876543210-gh17123456789.2-0a6e2a51-8a0f-4c7a-9a53-54f0a9f4ce10";
/// What anybody may have written into an annotation.
const ODD: &str = "it's \"$HOME\" `id` $(id) \\ \\n\nnew line; 'quoted' \u{1b}[31m \u{202e}é";

/// Puts a Lease as another holder would.
pub fn hold(bed: &Bed, (namespace, name): (&str, &str), holder: &str) {
    let now = micros(Timestamp::now());
    let spec = json!({
        "holderIdentity": holder, "leaseDurationSeconds": 120, "leaseTransitions": 535, "acquireTime": now,
        "renewTime": now,
    });
    if bed.lab.objects().get(Kind::Namespace, "", namespace).is_none() {
        bed.lab.objects().create(Kind::Namespace, json!({"metadata": {"name": namespace}}));
    }
    bed.lab.objects().put_lease(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}));
}

/// Sets annotations on a Node, and cordons it or not.
pub fn annotate(bed: &Bed, node: &str, annotations: &[(&str, &str)], cordoned: bool) {
    bed.lab.objects().edit_node(node, |object| {
        for (key, value) in annotations {
            object["metadata"]["annotations"][*key] = json!(value);
        }
        object["spec"]["unschedulable"] = json!(cordoned);
    });
}

/// A fence of `OTHER` for a node of that UID.
fn fence(bed: &Bed, node: &str, lease: &str, uid: Option<&str>) -> String {
    let store = bed.lab.objects();
    let own = store.get(Kind::Node, "", node).expect("the Node")["metadata"]["uid"].clone();
    let now = seconds(Timestamp::now());
    let uid = uid.map_or(own, Value::from);
    json!({
        "v": 1, "holder": OTHER, "lease": lease, "leaseUid": "5e0d4f1e", "epoch": 535, "node": node, "uid": uid,
        "step": "claimed", "stepSince": now, "boot": bed.lab.node(node).boot_id(), "rebootCalls": 0,
        "cordonedBefore": false, "revision": "00112233445566778899aabbccddeeff", "since": now,
    })
    .to_string()
}

/// `fences` with nothing but the kubeconfig.
async fn alone(bed: &Bed, kubeconfig: &str, more: &[&str]) -> Ended {
    let mut product = bare();
    product.args(["fences", "--kubeconfig", kubeconfig]).args(more).envs(bed.lab.product_env());
    finish(product).await
}

fn kubeconfig(bed: &Bed) -> String {
    bed.lab.dir().join("kubeconfig").display().to_string()
}

#[track_caller]
fn of<'a>(document: &'a Value, list: &str, key: &str, value: &str) -> &'a Value {
    let rows = document[list].as_array().expect("a list");
    rows.iter().find(|row| row[key] == value).unwrap_or_else(|| panic!("no {value} in {list}: {document:#}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_nothing_held_is_said_with_the_kubeconfig_alone_and_three_reads() {
    let bed = two_workers().await;
    bed.lab.reset_counters();
    let said = alone(&bed, &kubeconfig(&bed), &[]).await.expect(0);
    for part in ["No fence on any of the 3 nodes", "Nothing is held", "Lease kube-system/talos-ghcr: there is none"] {
        assert!(said.stdout.contains(part), "{part}: {}", said.stdout);
    }
    let truth = bed.lab.truth();
    let kubernetes = truth.total("kubernetes/");
    assert_eq!((bed.writes(), truth.total("talos/").reads, truth.total("registry").reads), (0, 0, 0));
    assert_eq!(kubernetes.reads, 3, "{:?}", kubernetes.by_method);
    // One that was held and is free again is none either.
    hold(&bed, ("kube-system", "talos-ghcr"), "");
    let document = bed.product("fences", &["-o", "json"]).await.expect(0).json();
    assert_eq!((&document["schemaVersion"], &document["kind"]), (&json!(1), &json!("Fences")));
    assert_eq!(
        (&document["held"], &document["fences"], &document["decisions"]),
        (&json!(false), &json!([]), &json!([]))
    );
    assert_eq!(of(&document, "leases", "name", "kube-system/talos-ghcr")["exists"], true);
    let yaml = bed.product("fences", &["-o", "yaml"]).await.expect(0).stdout;
    assert!(yaml.contains("kind: Fences"), "{yaml}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_a_read_that_fails_is_an_error_and_never_nothing_held() {
    let bed = two_workers().await;
    let server = format!("https://{}:6443", bed.lab.node("cp-1").address());
    let some = bed.write("kubeconfig-some", &bed.lab.kubeconfig_for("looker", &[], &server));
    let role = |resources: &str| {
        let rule = |group: &str, resource: &str| {
            format!("  - apiGroups: [\"{group}\"]\n    resources: [\"{resource}\"]\n    verbs: [\"get\", \"list\"]\n")
        };
        let rules: String = resources
            .split(' ')
            .filter(|it| !it.is_empty())
            .map(|it| rule(if it == "leases" { "coordination.k8s.io" } else { "" }, it))
            .collect();
        rules_of(&format!("kind: ClusterRole\nrules:\n{rules}")).expect("a role")
    };
    for (allowed, says) in [("leases", "Nodes"), ("nodes", "the Lease")] {
        bed.lab.grant("looker", role(allowed));
        for format in ["table", "json"] {
            let failed = alone(&bed, &some, &["-o", format]).await.expect(1);
            assert!(failed.stderr.contains(says) && failed.stderr.contains("forbidden"), "{}", failed.stderr);
            assert_eq!(failed.stdout, "", "{allowed}: nothing that could be taken for an answer");
        }
    }
    bed.lab.grant("looker", role("nodes leases"));
    alone(&bed, &some, &[]).await.expect(0);
    // Nobody answers.
    let nowhere = bed.write("kubeconfig-nowhere", &bed.lab.kubeconfig_for("looker", &[], "https://127.0.0.1:1"));
    let failed = alone(&bed, &nowhere, &[]).await.expect(1);
    assert_eq!(failed.stdout, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_what_a_killed_run_left_is_shown_with_evidence_and_the_next_run_needs_no_hand() {
    let bed = two_workers().await;
    let mut gate = Gate::new(&bed);
    let child = bed.start(&["-n", "worker-1"]);
    let held = gate.hold_fence(When::After, "worker-1", Some("claimed")).await;
    // While it lives nobody is told to do anything.
    let document = bed.product("fences", &["-o", "json"]).await.expect(0).json();
    assert_eq!(of(&document, "fences", "node", "worker-1")["life"]["state"], "alive", "{document:#}");
    assert!(document["nextRun"].as_str().unwrap_or_default().starts_with("refuses with exit 3"), "{document:#}");
    assert_eq!((&document["fences"][0]["action"], &document["refused"]), (&json!("leave"), &json!(true)));
    kill(child).await;
    held.cut();
    drop(gate);
    let holder = bed.lab.truth().lease.and_then(|lease| lease.holder).expect("it is held");

    bed.lab.reset_counters();
    let document = bed.product("fences", &["-o", "json"]).await.expect(0).json();
    assert_eq!((bed.writes(), bed.lab.truth().total("kubernetes/").reads), (0, 3));
    let row = of(&document, "fences", "node", "worker-1");
    assert_eq!((&row["holder"], &row["lease"]), (&json!(holder), &json!("kube-system/talos-ghcr")));
    assert_eq!((&row["of"], &row["step"], &row["epoch"]), (&json!("talos-ghcr"), &json!("rebooting"), &json!(0)));
    assert_eq!((&row["cordoned"], &row["cordon"]), (&json!(true), &json!("fence")));
    assert!(row["since"].is_string() && row["stepSince"].is_string(), "{row:#}");
    assert_eq!((&row["life"]["state"], &row["action"]), (&json!("dead"), &json!("adopt")));
    let lease = of(&document, "leases", "name", "kube-system/talos-ghcr");
    assert_eq!((&lease["holder"], &lease["life"]["state"]), (&json!(holder), &json!("dead")));
    for field in ["renewTime", "resourceVersion", "uid"] {
        assert!(lease[field].is_string(), "{field}: {lease:#}");
    }
    assert_eq!(document["decisions"], json!([]), "nothing that only a human may decide");
    for format in ["table", "wide"] {
        let shown = bed.product("fences", &["-o", format]).await.expect(0).stdout;
        for part in [
            "worker-1: fence, rebooting",
            "cordoned by it",
            &holder,
            "dead: ",
            "adopts it",
            "Nothing has to be done by hand",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("kubectl"), "{shown}");
    }
    // And so it is.
    bed.run(&["-n", "worker-1"]).await.expect(0);
    let after = bed.product("fences", &["-o", "json"]).await.expect(0).json();
    assert_eq!(after["held"], false, "{after:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_fences_of_others_unreadable_ones_and_their_leases_are_shown_each_with_what_becomes_of_it() {
    let bed = Bed::new(|options| (options.control_planes, options.workers) = (1, 5)).await;
    hold(&bed, ("platform", "another"), OTHER);
    hold(&bed, ("flux-system", "ghcr-auth-refresh"), OTHER);
    annotate(&bed, "worker-1", &[(FENCE, &fence(&bed, "worker-1", "platform/another", None))], true);
    annotate(&bed, "worker-2", &[(FENCE, &fence(&bed, "worker-2", "platform/gone", None))], true);
    annotate(&bed, "worker-3", &[(FENCE, "{\"v\":1,")], true);
    annotate(
        &bed,
        "worker-4",
        &[(FENCE, &fence(&bed, "worker-4", "kube-system/talos-ghcr", Some("of-another")))],
        false,
    );
    annotate(&bed, "worker-5", &[(FENCE, &fence(&bed, "worker-5", "no lease at all", None))], true);
    bed.lab.reset_counters();
    let document = bed.product("fences", &["-o", "json"]).await.expect(0).json();
    let reads = bed.lab.truth().total("kubernetes/");
    assert_eq!((bed.writes(), reads.reads), (0, 5), "one list and a read of each Lease: {:?}", reads.by_method);
    let row = |node: &str| of(&document, "fences", "node", node).clone();
    let action = |node: &str| row(node)["action"].clone();
    assert_eq!(
        (action("worker-1"), action("worker-2"), action("worker-3")),
        ("leave".into(), "adopt".into(), "leave".into())
    );
    assert_eq!((action("worker-4"), action("worker-5")), ("drop".into(), "leave".into()));
    assert_eq!(row("worker-1")["life"]["state"], "unknown");
    assert_eq!(row("worker-1")["run"], "17123456789, attempt 2", "no link is known, but the number");
    assert_eq!(row("worker-2")["life"]["state"], "gone");
    assert!(document["nextRun"].as_str().unwrap().contains("the old script's Lease flux-system/ghcr-auth-refresh"));
    let commands: Vec<_> = document["decisions"].as_array().unwrap().iter().map(|it| it["object"].clone()).collect();
    let expected = [
        "node worker-3",
        "node worker-3",
        "node worker-5",
        "Lease flux-system/ghcr-auth-refresh",
        "Lease platform/another",
    ];
    assert_eq!(commands, expected, "{document:#}");
    let shown = bed.product("fences", &[]).await.expect(0).stdout;
    for decision in document["decisions"].as_array().unwrap() {
        let command = decision["command"].as_str().unwrap();
        assert!(shown.lines().any(|line| line.trim() == command), "{command}: {shown}");
    }
}

/// A folder with a `kubectl` that only writes down how it is called.
fn stub(bed: &Bed) -> String {
    let folder = bed.lab.dir().join("stub");
    std::fs::create_dir_all(&folder).expect("the lab's folder can be written");
    let kubectl = folder.join("kubectl");
    std::fs::write(&kubectl, "#!/bin/sh\nprintf '%s\\0' \"$@\"\n").expect("it is written");
    std::fs::set_permissions(&kubectl, std::fs::Permissions::from_mode(0o755)).expect("it may run");
    folder.display().to_string()
}

/// What kubectl is called with when the line is pasted into a shell.
async fn pasted(stub: &str, line: &str) -> Vec<String> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", line]).env_clear().env("PATH", format!("{stub}:/usr/bin:/bin")).env("HOME", "/nonexistent");
    shell.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let ended = finish(shell).await.expect(0);
    assert_eq!(ended.stderr, "", "{line}");
    ended.stdout.split_terminator('\0').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_printed_commands_reach_kubectl_through_a_shell_with_every_byte_of_the_clusters_values() {
    let bed = two_workers().await;
    annotate(&bed, "worker-1", &[(FENCE, ODD)], true);
    annotate(&bed, "worker-2", &[("platform.devantler.tech/ghcr-auth-drain-owner", ODD)], true);
    hold(&bed, ("flux-system", "ghcr-auth-refresh"), ODD);
    let odd = bed.write("it's a $kubeconfig", &read(std::path::Path::new(&kubeconfig(&bed))));
    let document = alone(&bed, &odd, &["-o", "json"]).await.expect(0).json();
    let shown = alone(&bed, &odd, &[]).await.expect(0).stdout;
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "nothing of it reaches the terminal: {shown:?}");
    let stub = stub(&bed);
    let decisions = document["decisions"].as_array().expect("a list");
    assert_eq!(decisions.len(), 4, "{document:#}");
    let mut tested = Vec::new();
    for decision in decisions {
        let command = decision["command"].as_str().expect("a command");
        assert!(shown.contains(command), "{shown}");
        let words = pasted(&stub, command).await;
        assert_eq!(words[..2], ["--kubeconfig".to_owned(), odd.clone()]);
        let patch: Vec<Value> = serde_json::from_str(words.last().expect("a patch")).expect("JSON");
        assert!(patch.iter().any(|it| it["op"] == "test" && it["path"] == "/metadata/uid"), "{patch:#?}");
        tested.extend(
            patch.into_iter().filter(|it| it["op"] == "test" && it["value"] == ODD).map(|it| it["path"].clone()),
        );
    }
    assert_eq!(tested, ["/metadata/annotations/talos-ghcr~1fence", "/spec/holderIdentity"]);
}
