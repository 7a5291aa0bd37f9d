//! The part that changes nothing.

use std::collections::BTreeSet;

use serde_json::Value;

use super::cluster::text;
use super::suite::Suite;

/// The rows of a document, whose names must be there once.
fn rows(document: &Value) -> &Vec<Value> {
    let rows = document["nodes"].as_array().expect("a document has nodes");
    let names: BTreeSet<_> = rows.iter().map(|row| text(&row["name"])).collect();
    assert_eq!(names.len(), rows.len(), "a node appears more than once: {document:#}");
    rows
}

/// The JSON document of a command that ended with one of the codes.
async fn document(suite: &Suite, command: &str, kind: &str, codes: &[i32]) -> (i32, Value) {
    let ended = suite.look(command, &["-o", "json"]).await;
    let code = ended.code();
    assert!(
        codes.contains(&code),
        "{command} ends with {code}, not one of {codes:?}:\n{}{}",
        ended.stdout,
        ended.stderr
    );
    let document = ended.json();
    assert_eq!((&document["schemaVersion"], text(&document["kind"])), (&Value::from(1), kind));
    (code, document)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Talos cluster: make conformance-talos"]
async fn doctor_says_how_the_cluster_is_and_writes_nothing() {
    let suite = Suite::begin().await;
    let before = suite.cluster.seen().await;
    let (code, document) = document(&suite, "doctor", "Doctor", &[0, 1]).await;
    let checks = document["checks"].as_array().expect("doctor has checks");
    for check in checks {
        println!("  {:8} {}: {}", text(&check["health"]), text(&check["name"]), text(&check["detail"]));
    }
    assert!(!checks.is_empty());
    let failed = checks.iter().any(|check| check["health"] == "fault");
    assert_eq!(code == 1, failed, "the exit code says what the checks say");
    before.assert_unchanged(&suite.cluster.seen().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Talos cluster: make conformance-talos"]
async fn plan_names_every_node_once_and_says_the_same_twice() {
    let suite = Suite::begin().await;
    let before = suite.cluster.seen().await;
    let (_, first) = document(&suite, "plan", "Plan", &[0]).await;
    let (_, second) = document(&suite, "plan", "Plan", &[0]).await;
    let detailed = suite.look("plan", &["--detailed-exitcode"]).await;
    print!("{}", indented(&detailed.stdout));
    before.assert_unchanged(&suite.cluster.seen().await);

    let planned: BTreeSet<_> = rows(&first).iter().map(|row| text(&row["name"])).collect();
    assert_eq!(planned, before.nodes.keys().map(String::as_str).collect(), "the plan is about the nodes of Kubernetes");
    for row in rows(&first) {
        let labels = &before.nodes[text(&row["name"])]["metadata"]["labels"];
        let control_plane = labels.get("node-role.kubernetes.io/control-plane").is_some();
        assert_eq!(row["role"] == "control-plane", control_plane, "{row:#}");
    }
    for (one, other) in rows(&first).iter().zip(rows(&second)) {
        for key in ["name", "verdict", "steps", "order", "talos"] {
            assert_eq!(one[key], other[key], "a second plan says something else of {}", one["name"]);
        }
    }
    assert_eq!(first["revision"], second["revision"], "equal credential, equal revision");
    let differs = rows(&first).iter().any(|row| row["steps"] != Value::Array(Vec::new()))
        || first["summary"]["blocked"] != 0
        || first["summary"]["unknown"] != 0;
    assert_eq!(detailed.code(), if differs { 2 } else { 0 }, "{}{}", detailed.stdout, detailed.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Talos cluster: make conformance-talos"]
async fn verify_ends_with_what_its_claims_say_and_writes_nothing() {
    let suite = Suite::begin().await;
    let before = suite.cluster.seen().await;
    let (code, document) = document(&suite, "verify", "Verification", &[0, 1, 2]).await;
    let table = suite.look("verify", &[]).await;
    print!("{}", indented(&table.stdout));
    before.assert_unchanged(&suite.cluster.seen().await);

    let rows = rows(&document);
    let left_alone = document["summary"]["leftAlone"].as_u64().expect("a number");
    assert_eq!(rows.len() as u64 + left_alone, before.nodes.len() as u64, "every node, but for those left alone");
    assert!(rows.iter().all(|row| before.nodes.contains_key(text(&row["name"]))), "{document:#}");
    let holds = |row: &Value| ["configured", "loaded", "proof"].iter().all(|c| row["claims"][c]["answer"] == "true");
    let expected = match () {
        () if rows.iter().any(|row| row["claims"].is_null()) => 1,
        () if rows.iter().all(holds) => 0,
        () => 2,
    };
    assert_eq!(code, expected, "{document:#}");
    assert_eq!(table.code(), code, "the form of the document does not change the answer");
    let names = rows.iter().map(|row| text(&row["name"]));
    assert!(names.clone().all(|name| table.stdout.contains(name)), "{}", table.stdout);
    for row in rows.iter().filter(|row| !row["claims"].is_null()) {
        for claim in ["configured", "loaded", "pull", "proof"] {
            let seen = &row["claims"][claim];
            assert!(["true", "false", "unknown"].contains(&text(&seen["answer"])), "{row:#}");
            assert!(!text(&seen["evidence"]).is_empty(), "{claim} of {} has no evidence", row["name"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Talos cluster: make conformance-talos"]
async fn no_secret_is_in_any_output_even_with_everything_logged() {
    let suite = Suite::begin().await;
    let before = suite.cluster.seen().await;
    // That no output holds a secret is checked for every command of the suite; here there is most to check.
    let mut bytes = 0;
    for command in ["doctor", "plan", "verify"] {
        let ended = suite.look_traced(command).await;
        assert!([0, 1, 2].contains(&ended.code()), "{}", ended.stderr);
        assert!(ended.stderr.contains("TRACE"), "the log holds everything");
        bytes += ended.stdout.len() + ended.stderr.len();
    }
    println!("  none of {} secrets in {bytes} bytes", suite.secrets.count());
    before.assert_unchanged(&suite.cluster.seen().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Talos cluster: make conformance-talos"]
async fn what_i_mean_it_would_do_to_the_cluster() {
    let suite = Suite::begin().await;
    let files = [Some(&suite.credential), suite.other.as_ref()];
    for file in files.into_iter().flatten() {
        let ended = suite.look_with(file, "plan", &["--allow-older", "-o", "json"]).await.expect(0);
        let plan = ended.json();
        let mut order: Vec<_> = rows(&plan).iter().filter(|row| row["order"].is_u64()).collect();
        order.sort_by_key(|row| row["order"].as_u64());
        let list = order.iter().map(|row| text(&row["name"])).collect::<Vec<_>>().join(", ");
        let list = if list.is_empty() { "no node" } else { &list };
        println!("  rolling {} would disrupt, in this order: {list}", file.display());
    }
    if std::env::var("I_MEAN_IT").as_deref() == Ok("1") {
        println!("  I_MEAN_IT=1: the tests of talos::roll do that");
    } else {
        println!("  NOT RUN: the tests of talos::roll, which do that; I_MEAN_IT=1 runs them");
    }
    if suite.other.is_none() {
        println!("  NOT RUN: the killed run, which needs a second credential: TALOS_GHCR_OTHER_CREDENTIAL_FILE");
    }
}

/// A table, a bit to the right.
pub fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}").trim_end().to_owned() + "\n").collect()
}
