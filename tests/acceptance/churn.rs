//! An autoscaler is weather: nodes that go, that are about to go, and that come back as others.

use futures::FutureExt as _;
use lab::Held;
use lab::kube::kind::Kind;
use serde_json::{Value, json};

use crate::harness::{Bed, ended, eventually};
use crate::scene::{only_stale, only_stale_of, requests, side_by_side};

/// Two of four workers are stale, so that evicted pods find a place when one of them is gone.
async fn stale_of_four() -> Bed {
    only_stale_of(&["worker-1", "worker-2"], |options| options.workers = 4).await
}

/// The step of the fence on a node, as the lab sees it.
fn step(bed: &Bed, node: &str) -> Option<String> {
    Some(bed.truth_of(node).fence?["step"].as_str()?.to_owned())
}

fn assert_rolled(bed: &Bed, node: &str) {
    let truth = bed.truth_of(node);
    assert_eq!((truth.configured, truth.cri_loaded), (Held::New, Held::New), "{node}");
    assert!(truth.fence.is_none() && !truth.cordoned, "{node} is given back: {truth:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a01_a_node_that_is_deleted_while_it_reboots_is_no_failure_and_the_others_roll() {
    let bed = stale_of_four().await;
    let run = bed.start(&["--reboot-timeout", "60s"]);
    eventually("worker-1 is asked to reboot", || step(&bed, "worker-1").as_deref() == Some("rebooting")).await;
    eventually("it is dark", || !bed.is_up("worker-1")).await;
    bed.lab.node("worker-1").stop();
    bed.lab.objects().remove(Kind::Node, "", "worker-1").expect("it was there");
    ended(run).await.expect(0);
    assert_rolled(&bed, "worker-2");
    assert!(!bed.lab.truth().lease.is_some_and(|lease| lease.is_held()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a03_a04_a_node_that_the_autoscaler_takes_is_left_alone_and_a_candidate_is_rolled() {
    let bed = stale_of_four().await;
    let taint = |node: &str, key: &str, effect: &str| {
        bed.lab.objects().edit_node(node, |node| {
            let taint = json!({"key": key, "value": "1767000000", "effect": effect});
            match node["spec"]["taints"].as_array_mut() {
                Some(taints) => taints.push(taint),
                None => node["spec"]["taints"] = json!([taint]),
            }
        });
    };
    taint("worker-1", "ToBeDeletedByClusterAutoscaler", "NoSchedule");
    // Advisory, and its value changes every ten seconds.
    taint("worker-2", "DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule");
    let before = bed.config("worker-1");
    bed.run(&[]).await.expect(0);
    assert_rolled(&bed, "worker-2");
    let left = bed.truth_of("worker-1");
    assert_eq!((left.boots, left.fence, left.cordoned), (0, None, false));
    assert_eq!(bed.config("worker-1"), before, "nothing is written to it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a05_scale_down_disabled_is_kept_where_an_operator_set_it() {
    const KEY: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
    let bed = only_stale(&["worker-1"]).await;
    bed.lab.objects().edit_node("worker-1", |node| {
        node["metadata"]["annotations"][KEY] = Value::from("true");
    });
    bed.run(&[]).await.expect(0);
    assert_rolled(&bed, "worker-1");
    let node = bed.lab.objects().get(Kind::Node, "", "worker-1").expect("it is there");
    assert_eq!(node["metadata"]["annotations"][KEY], "true");
}

/// A check, asked in each look at the fleet, that notes the look and waits in some until the test lets it go on: so that
/// a node can come between two looks.
struct Looks<'a>(&'a Bed);

impl Looks<'_> {
    fn path(&self, name: &str) -> String {
        self.0.lab.dir().join(name).display().to_string()
    }

    /// The command: it holds the looks with these numbers.
    fn command(&self, held: std::ops::RangeInclusive<usize>) -> String {
        let (notes, go) = (self.path("looks"), self.path("go-on"));
        let (first, last) = held.into_inner();
        format!(
            "echo look >> {notes}; n=$(wc -l < {notes}); \
             while [ $n -ge {first} ] && [ $n -le {last} ] && ! test -e {go}; do sleep 0.02; done"
        )
    }

    fn count(&self) -> usize {
        std::fs::read_to_string(self.path("looks")).unwrap_or_default().lines().count()
    }

    fn let_go(&self) {
        std::fs::write(self.path("go-on"), "").expect("the lab's folder can be written");
    }
}

/// Its machine is gone, and so is its Node.
fn take_away(bed: &Bed, node: &str) {
    bed.lab.node(node).stop();
    bed.lab.objects().remove(Kind::Node, "", node).expect("it was there");
}

/// It boots, and its kubelet registers it: another Node, even if one had that name before.
async fn joins(bed: &Bed, node: &str) {
    bed.lab.node(node).start_again();
    eventually(&format!("{node} has joined"), || bed.is_up(node)).await;
}

/// How often Talos was asked about a node that needs nothing: once in each look at the whole fleet.
fn looks_at(bed: &Bed, node: &str) -> usize {
    let entries = bed.lab.log().all();
    entries.iter().filter(|entry| entry.target == node && entry.method.ends_with("/Version")).count()
}

/// All that was selected goes while it is worked on.
async fn all_selected_vanish(comes_back: bool) {
    let bed = stale_of_four().await;
    let looks = Looks(&bed);
    // The first look finds work, the second has the lease and drives it. The third finds nobody.
    let check = looks.command(3..=3);
    let run = bed.start(&["-n", "worker-1,worker-2", "--reboot-timeout", "60s", "--check-command", &check]);
    let fresh = bed.config("worker-1");
    for node in ["worker-1", "worker-2"] {
        eventually(&format!("{node} is asked to reboot"), || step(&bed, node).as_deref() == Some("rebooting")).await;
        // Whoever comes back is set up as all were.
        bed.apply(node, &fresh);
        take_away(&bed, node);
    }
    eventually("nobody is left in the third look", || looks.count() == 3).await;
    let before = looks_at(&bed, "worker-3");
    if comes_back {
        joins(&bed, "worker-1").await;
    }
    looks.let_go();
    let done = ended(run).await.expect(0);
    assert!(looks.count() > 3, "the fleet was looked at once more: {}", done.stderr);
    assert!(looks_at(&bed, "worker-3") > before, "all of it: {}", done.stderr);
    assert!(!bed.lab.truth().lease.is_some_and(|lease| lease.is_held()));
    if comes_back {
        // Its machine booted once to join, and once more for the credential.
        assert_rolled(&bed, "worker-1");
        assert_eq!(bed.truth_of("worker-1").boots, 2, "{}", done.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a06_a02_all_selected_nodes_vanish_and_the_fleet_is_looked_at_once_more_before_success() {
    let cases = [("for good", false), ("and one comes back as another", true)];
    let cases = cases.map(|(name, comes_back)| (name.to_owned(), all_selected_vanish(comes_back).boxed()));
    side_by_side(cases.into()).await;
}

/// Two nodes are not there when the run begins. One comes with the old credential while another is rolled, one with the
/// new one when all seemed done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o11_a_node_that_appears_in_the_roll_is_done_before_its_end() {
    let bed = only_stale_of(&["worker-1", "worker-2"], |options| options.workers = 4).await;
    for node in ["worker-2", "worker-3"] {
        take_away(&bed, node);
    }
    let looks = Looks(&bed);
    // The third look finds the one, and the fourth nobody.
    let check = looks.command(4..=4);
    let run = bed.start(&["--check-command", &check]);
    eventually("worker-1 is asked to reboot", || step(&bed, "worker-1").as_deref() == Some("rebooting")).await;
    joins(&bed, "worker-2").await;
    eventually("nobody is left in the fourth look", || looks.count() == 4).await;
    for node in ["worker-1", "worker-2"] {
        assert_rolled(&bed, node);
    }
    joins(&bed, "worker-3").await;
    looks.let_go();
    let done = ended(run).await.expect(0);
    bed.assert_done();
    for (node, boots) in [("worker-1", 1), ("worker-2", 2), ("worker-3", 1), ("worker-4", 0)] {
        let truth = bed.truth_of(node);
        assert_eq!(truth.boots, boots, "boots of {node}: {}", done.stderr);
        let record = truth.record.unwrap_or_default();
        assert_eq!(record["state"], "proved", "{node}: {}", done.stderr);
    }
    // Who came with the right credential was proved, and not disturbed.
    assert_eq!(requests(&bed, "Reboot", "worker-3").len(), 0);
}

/// The marker on the Node is Talos's copy of the record, and comes when it comes: here the one of the credential before
/// stands there for all of a roll and of the run after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o12_a_proved_node_whose_marker_has_not_propagated_is_not_rolled_again() {
    const MARKER: &str = "talos-ghcr/proof";
    let bed = Bed::proved(|options| options.workers = 2).await;
    let marker = |node: &str| {
        let object = bed.lab.objects().get(Kind::Node, "", node).expect("it is there");
        object["metadata"]["annotations"][MARKER].as_str().map(str::to_owned)
    };
    let record = |node: &str| bed.lab.node(node).record();
    eventually("the markers of the old credential are there", || {
        bed.lab
            .truth()
            .nodes
            .iter()
            .all(|node| marker(&node.name).is_some() && marker(&node.name) == record(&node.name))
    })
    .await;
    let old = marker("worker-1");
    for node in bed.lab.talos().nodes() {
        node.hold_annotations(true);
    }
    bed.run(&["-n", "worker-1"]).await.expect(0);
    let proved = bed.truth_of("worker-1");
    assert_eq!((proved.cri_loaded, proved.boots), (Held::New, 1));
    assert_eq!(proved.record.as_ref().map(|record| &record["state"]), Some(&json!("proved")));
    assert_eq!(marker("worker-1"), old, "its marker speaks of the credential before");

    // The next run sees the same, and does nothing to it.
    bed.lab.reset_counters();
    let again = bed.run(&["-n", "worker-1", "-o", "json"]).await.expect(0).json();
    assert_eq!((&again["result"], bed.writes()), (&json!("nothing-to-do"), 0));
    assert_eq!((bed.truth_of("worker-1").boots, marker("worker-1")), (1, old));

    bed.lab.node("worker-1").hold_annotations(false);
    eventually("the marker has come", || marker("worker-1") == record("worker-1")).await;
}
