//! The part that rolls a credential and reboots nodes, only with `I_MEAN_IT=1`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use super::cluster::{Seen, text};
use super::look::indented;
use super::suite::Suite;

/// The suite, if its nodes may be rebooted.
async fn begin() -> Suite {
    let meant = std::env::var("I_MEAN_IT").is_ok_and(|value| value == "1");
    assert!(meant, "not run: this reboots the nodes of the cluster one after another; I_MEAN_IT=1 says that it may");
    Suite::begin().await
}

/// A credential that the cluster does not have, and the plan for it.
struct Target {
    credential: PathBuf,
    plan: Value,
}

impl Target {
    /// The first of the credentials that some node does not hold. A roll that has nothing to do proves nothing.
    async fn choose(suite: &Suite) -> Self {
        for credential in [Some(&suite.credential), suite.other.as_ref()].into_iter().flatten() {
            let plan = suite.look_with(credential, "plan", &["--allow-older", "-o", "json"]).await.expect(0).json();
            let count = |what: &str| plan["summary"][what].as_u64().expect("a number");
            assert_eq!(
                count("blocked") + count("unknown"),
                0,
                "a node must be seen to first, or the run cannot end well:\n{}",
                indented(&suite.look_with(credential, "plan", &[]).await.stdout)
            );
            if count("drifted") + count("stale") > 0 {
                println!("  rolling {}", credential.display());
                return Self { credential: credential.clone(), plan };
            }
        }
        panic!(
            "every node has the credential already, so there is nothing to roll: \
             name another with TALOS_GHCR_OTHER_CREDENTIAL_FILE"
        );
    }

    fn rows(&self) -> impl Iterator<Item = &Value> {
        self.plan["nodes"].as_array().into_iter().flatten()
    }

    /// Nodes that the plan reboots.
    fn to_reboot(&self) -> BTreeSet<&str> {
        let reboots = |row: &&Value| row["steps"].as_array().is_some_and(|steps| steps.iter().any(|s| s == "reboot"));
        self.rows().filter(reboots).map(|row| text(&row["name"])).collect()
    }

    fn is_worker(&self, name: &str) -> bool {
        self.rows().any(|row| row["name"] == name && row["role"] == "worker")
    }
}

/// The names in a list of a document.
fn names<'a>(document: &'a Value, list: &str) -> Vec<&'a str> {
    document[list].as_array().into_iter().flatten().map(text).collect()
}

/// What the cluster must be like before the suite changes it.
async fn quiet(suite: &Suite) -> Seen {
    let before = suite.cluster.seen().await;
    assert_eq!(before.holder(), None, "a run of talos-ghcr is at work, or has died: wait, or run it again");
    assert_eq!(before.fenced(), BTreeSet::new(), "a run of talos-ghcr has left fences: run it again first");
    before
}

/// The order in which nodes may be disrupted.
fn assert_in_order(target: &Target, rebooted: &[&str], said_by: &str) {
    let first_control_plane = rebooted.iter().position(|name| !target.is_worker(name)).unwrap_or(rebooted.len());
    assert!(
        rebooted[first_control_plane..].iter().all(|name| !target.is_worker(name)),
        "workers come before control planes, by {said_by}: {rebooted:?}"
    );
    match target.plan["endpoint"]["node"].as_str() {
        Some(endpoint) if rebooted.contains(&endpoint) => {
            assert_eq!(rebooted.last(), Some(&endpoint), "the endpoint node is last, by {said_by}: {rebooted:?}");
        }
        Some(_) => {}
        None => println!("  which node goes last was not looked at: {}", text(&target.plan["endpoint"]["rule"])),
    }
}

/// What must be so when a run has ended with 0. Gives the cluster as it is when Talos has written its copies of the proofs.
async fn assert_converged(suite: &Suite, target: &Target, before: &Seen) -> Seen {
    let after = suite.cluster.seen().await;
    assert_eq!(after.fenced(), BTreeSet::new(), "a fence is left");
    assert_eq!(after.cordoned(), before.cordoned(), "cordons are as they were before");
    assert_eq!(after.holder(), None, "the lease is free");
    let verified = suite.look_with(&target.credential, "verify", &["-o", "json"]).await.expect(0).json();
    for row in verified["nodes"].as_array().expect("a document has nodes") {
        assert_eq!(row["verdict"], "Current", "{row:#}");
    }
    suite.cluster.proofs_shown(text(&verified["revision"])).await
}

/// A run that finds nothing to do says so, and no write is seen.
async fn assert_nothing_to_do(suite: &Suite, target: &Target, before: &Seen) {
    let again = suite.run(&target.credential, before.nodes.len()).await.expect(0).json();
    assert_eq!((text(&again["result"]), &again["changed"]), ("nothing-to-do", &Value::Bool(false)), "{again:#}");
    assert_eq!(names(&again, "rebooted"), Vec::<&str>::new());
    let after = suite.cluster.seen().await;
    assert_eq!(after.booted_since(before), BTreeSet::new(), "no node was rebooted");
    before.assert_unchanged(&after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "reboots the nodes of a Talos cluster: make conformance-talos I_MEAN_IT=1"]
async fn a_roll_reaches_every_node_and_a_second_run_has_nothing_to_do() {
    let suite = begin().await;
    let before = quiet(&suite).await;
    let target = Target::choose(&suite).await;
    let mut order = Vec::new();
    let ended = tokio::select! {
        ended = suite.run(&target.credential, before.nodes.len()) => ended,
        () = suite.cluster.watch_boots(&before, &mut order) => unreachable!("it never ends"),
    };
    let document = ended.expect(0).json();
    assert_eq!((text(&document["result"]), &document["changed"]), ("done", &Value::Bool(true)), "{document:#}");
    let after = assert_converged(&suite, &target, &before).await;

    let rebooted = names(&document, "rebooted");
    let said: BTreeSet<_> = rebooted.iter().copied().collect();
    assert_eq!(said, target.to_reboot(), "the run reboots what the plan said");
    assert_eq!(
        said,
        after.booted_since(&before),
        "exactly the nodes that the run names have booted, by their kubelets"
    );
    assert_in_order(&target, &rebooted, "the run");
    // The watch sees nothing while its API server is away, so the node that serves it is seen when it is back.
    let seen: Vec<&str> = order.iter().map(String::as_str).collect();
    assert_in_order(&target, &seen, "what was seen of the boots");
    println!("  rebooted: {}", if rebooted.is_empty() { "none".to_owned() } else { rebooted.join(", ") });

    assert_nothing_to_do(&suite, &target, &after).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "reboots the nodes of a Talos cluster: make conformance-talos I_MEAN_IT=1"]
async fn a_run_killed_in_the_middle_is_finished_by_the_next() {
    let suite = begin().await;
    assert!(
        suite.other.is_some(),
        "not run: it needs a second credential, TALOS_GHCR_OTHER_CREDENTIAL_FILE, for the cluster has the first by now"
    );
    let before = quiet(&suite).await;
    let target = Target::choose(&suite).await;
    // In the worst moment: a reboot is asked for and nobody waits for it. Talos 1.14 needs none; there it is the moment
    // in which the first node has the credential.
    let moment = if target.to_reboot().is_empty() { "made permanent" } else { "reboot asked for" };
    let killed =
        suite.follow(suite.start_run(&target.credential), before.nodes.len(), |line| line.contains(moment)).await;
    assert_eq!(killed.status.code(), None, "it was killed when it said {moment:?}:\n{}", killed.stderr);
    let left = suite.cluster.seen().await;
    assert!(left.holder().is_some(), "a killed run cannot give its lease back");
    let fenced: Vec<_> = left.fenced().into_iter().collect();
    println!(
        "  left behind: the lease, and the fence of {}",
        if fenced.is_empty() { "no node".into() } else { fenced.join(", ") }
    );
    if moment == "reboot asked for" {
        assert_eq!(fenced.len(), 1, "the node whose reboot was asked for is fenced: {fenced:?}");
    }

    let finished = suite.run(&target.credential, before.nodes.len()).await.expect(0).json();
    let after = assert_converged(&suite, &target, &before).await;
    let booted = after.booted_since(&before);
    assert_eq!(booted, target.to_reboot(), "by both runs together, what the plan said was rebooted");
    let named: BTreeSet<_> = names(&finished, "rebooted").into_iter().collect();
    let unnamed: Vec<_> = booted.difference(&named).filter(|name| !fenced.contains(name)).collect();
    assert!(unnamed.is_empty() && named.is_subset(&booted), "no run says that it rebooted {unnamed:?}: {finished:#}");
    assert_in_order(&target, &names(&finished, "rebooted"), "the second run");

    assert_nothing_to_do(&suite, &target, &after).await;
}
