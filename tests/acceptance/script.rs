//! The old script's fences: F19.

use futures::FutureExt as _;
use lab::Held;
use lab::kube::kind::Kind;
use serde_json::{Value, json};

use crate::fences::{annotate, hold};
use crate::harness::Bed;
use crate::scene::{lease_is_held, requests, side_by_side, two_workers};

const OWNER: &str = "platform.devantler.tech/ghcr-auth-drain-owner";
const PHASE: &str = "platform.devantler.tech/ghcr-auth-drain-phase";
const JOURNAL: &str = "platform.devantler.tech/ghcr-auth-drain-recovery";
/// As the script names its run.
const RUN: &str = "bootstrap-0123456789ab-gh17123456789.3-4711-12345";
const LEASE: (&str, &str) = ("flux-system", "ghcr-auth-refresh");

fn annotations(bed: &Bed, node: &str) -> Value {
    bed.lab.objects().get(Kind::Node, "", node).expect("the Node")["metadata"]["annotations"].clone()
}

fn journal(bed: &Bed, node: &str, phase: &str, was_cordoned: u8) -> String {
    let uid = bed.lab.objects().get(Kind::Node, "", node).expect("the Node")["metadata"]["uid"].clone();
    let revision = "0123456789abcdef".repeat(4);
    json!({
        "v": 1, "owner": RUN, "uid": uid, "desiredRevision": revision, "wasCordoned": was_cordoned,
        "initialTaints": [], "phase": phase,
    })
    .to_string()
}

/// What the script left on `worker-1`, and what becomes of it.
struct Case {
    phase: Option<&'static str>,
    journal: Option<(&'static str, u8)>,
    /// It boots again after the script died.
    boots: bool,
    /// Still cordoned after the run, and then the run ends with that code.
    cordoned: (bool, i32),
}

async fn finishes(case: Case) {
    let bed = two_workers().await;
    let journal = case.journal.map(|(phase, cordoned)| journal(&bed, "worker-1", phase, cordoned));
    let keys = [(OWNER, Some(RUN)), (PHASE, case.phase), (JOURNAL, journal.as_deref())];
    let keys: Vec<_> = keys.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    annotate(&bed, "worker-1", &keys, true);
    // The script died without its Lease, or gave it back, as it mostly does.
    hold(&bed, LEASE, "");
    if case.boots {
        bed.power_cycle("worker-1").await;
    }
    let boots = bed.truth_of("worker-1").boots;

    let document = bed.product("fences", &["-o", "json"]).await.expect(0).json();
    let row = &document["fences"][0];
    assert_eq!((&row["node"], &row["of"], &row["action"]), (&json!("worker-1"), &json!("script"), &json!("adopt")));
    assert_eq!((&row["holder"], &row["run"]), (&json!(RUN), &json!("17123456789, attempt 3")));
    let plan = bed.product("plan", &[]).await.expect(0).stdout;
    assert!(plan.contains(RUN), "{plan}");

    let ended = bed.run(&["-n", "worker-1", "-o", "json"]).await.expect(case.cordoned.1);
    assert!(ended.stderr.contains(&format!("adopted the old script's fence of {RUN}")), "{}", ended.stderr);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.configured, node.fence), (Held::New, None));
    assert_eq!((node.cordoned, node.cri_loaded, node.boots), (case.cordoned.0, Held::New, boots + 1));
    let left = annotations(&bed, "worker-1");
    assert!([OWNER, PHASE, JOURNAL].iter().all(|key| left[*key].is_null()), "{left:#}");
    let told = ended.json()["left"]["worker-1"].as_str().is_some_and(|left| left.contains("kubectl"));
    assert_eq!(told, case.cordoned.1 == 1, "{}", ended.stdout);
    assert!(!lease_is_held(&bed));
    assert_eq!(bed.lab.unexpected(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_a_fence_that_a_dead_script_left_is_adopted_and_judged_from_facts() {
    let (kept, undone, before) = ((true, 1), (false, 0), (true, 0));
    let cases = [
        ("claimed", Case { phase: Some("claimed"), journal: None, boots: false, cordoned: kept }),
        ("mutating", Case { phase: Some("mutating"), journal: None, boots: false, cordoned: kept }),
        ("mutating, and it rebooted", Case { phase: Some("mutating"), journal: None, boots: true, cordoned: kept }),
        ("no phase", Case { phase: None, journal: None, boots: false, cordoned: kept }),
        ("active", Case { phase: Some("mutating"), journal: Some(("active", 0)), boots: false, cordoned: undone }),
        (
            "active, cordoned before",
            Case { phase: Some("claimed"), journal: Some(("active", 1)), boots: false, cordoned: before },
        ),
        (
            "rollback-safe",
            Case { phase: Some("mutating"), journal: Some(("rollback-safe", 0)), boots: false, cordoned: undone },
        ),
        ("retain", Case { phase: Some("mutating"), journal: Some(("retain", 0)), boots: false, cordoned: undone }),
        (
            "release-ready",
            Case { phase: Some("mutating"), journal: Some(("release-ready", 1)), boots: false, cordoned: before },
        ),
    ];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), finishes(case).boxed())).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_while_the_scripts_lease_is_held_its_fence_is_untouched() {
    let bed = two_workers().await;
    annotate(&bed, "worker-1", &[(OWNER, RUN), (PHASE, "mutating")], true);
    hold(&bed, LEASE, RUN);
    let before = annotations(&bed, "worker-1");
    let document = bed.product("fences", &["-o", "json"]).await.expect(0).json();
    assert_eq!(document["fences"][0]["action"], "leave", "{document:#}");
    assert_eq!(document["decisions"][1]["object"], "Lease flux-system/ghcr-auth-refresh", "{document:#}");
    let refused = bed.run(&["-n", "worker-1,worker-2"]).await.expect(3);
    for part in [RUN, "same_holder=false", "transitions 535", "renewTime ", "duration 120s", "resourceVersion "] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    assert_eq!((bed.writes(), annotations(&bed, "worker-1")), (0, before));
    assert!(bed.truth_of("worker-1").cordoned);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_a_journal_that_cannot_be_read_blocks_only_its_node_and_a_phase_alone_is_no_fence() {
    // The third has room for what is drained off the second.
    let bed = Bed::new(|options| (options.control_planes, options.workers) = (1, 3)).await;
    annotate(&bed, "worker-1", &[(OWNER, RUN), (PHASE, "mutating"), (JOURNAL, "{}")], true);
    // It stays on every node that the script has processed.
    annotate(&bed, "worker-2", &[(PHASE, "mutating")], false);
    let ended = bed.run(&["-n", "worker-1,worker-2", "--max-unavailable", "2", "-o", "json"]).await.expect(1);
    let document = ended.json();
    let left = document["left"]["worker-1"].as_str().unwrap_or_default();
    assert!(left.contains(JOURNAL), "{document:#}");
    assert_eq!(document["left"].as_object().map(serde_json::Map::len), Some(1), "{document:#}");
    assert!(requests(&bed, "PATCH nodes", "worker-1").is_empty());
    assert_eq!((bed.truth_of("worker-1").boots, bed.truth_of("worker-1").cordoned), (0, true));
    let other = bed.truth_of("worker-2");
    assert_eq!((other.boots, other.cri_loaded, other.cordoned), (1, Held::New, false));
    let shown = bed.product("fences", &[]).await.expect(0).stdout;
    assert!(shown.contains("worker-1: fence") && !shown.contains("worker-2"), "{shown}");
}
