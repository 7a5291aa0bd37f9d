//! Pulls that prove nothing, or never answer: K08, N25, W08.

use futures::FutureExt as _;
use lab::Held;
use lab::cluster::USER;
use lab::faults::When::Before;
use lab::talos::Namespace;
use serde_json::json;

use crate::harness::{Bed, Ended, ended, eventually, finish, lease_duration, row};
use crate::scene::{BOTH, Gate, lease_is_held, requests, side_by_side, two_workers};

/// How often it is said that pulls prove nothing.
fn warnings(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.contains("warning: pulls cannot be proved")).collect()
}

/// `run` with some of the lab's flags replaced.
async fn roll(bed: &Bed, replaced: &[(&str, &str)], more: &[&str]) -> Ended {
    let mut run = bed.command_with("run", replaced, more);
    run.args(["--lease-duration", lease_duration()]);
    finish(run).await
}

/// Rolled and Current, though the pull is not proved; a second run finds nothing to do.
async fn assert_current_without_pull(bed: &Bed, replaced: &[(&str, &str)], nodes: &[&str], why: &str) {
    let verified = bed.product_with("verify", replaced, &["-n", &nodes.join(","), "-o", "json"]).await.expect(0).json();
    for name in nodes {
        let node = bed.truth_of(name);
        assert_eq!((node.configured, node.cri_loaded, node.boots, node.cordoned), (Held::New, Held::New, 1, false));
        let record = node.record.expect("a record");
        assert_eq!((&record["state"], &record["pull"]), (&json!("proved"), &json!("unprovable")), "{name}");
        let row = row(&verified, name);
        assert_eq!(
            (&row["verdict"], &row["claims"]["pull"]["answer"]),
            (&json!("Current"), &json!("unknown")),
            "{row:#}"
        );
    }
    bed.lab.reset_counters();
    let again = roll(bed, replaced, &["-n", &nodes.join(","), "-o", "json"]).await.expect(0);
    assert_eq!(again.json()["result"], "nothing-to-do", "{why}");
    assert_eq!(bed.writes(), 0, "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k08_a_pull_that_a_mirror_may_answer_proves_nothing_and_says_why() {
    fn document(host: &str, config: &str) -> String {
        let mirror = "endpoints:\n    - url: https://mirror.example\n";
        format!("{config}---\napiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {host}\n{mirror}")
    }
    fn legacy(host: &str, config: &str) -> String {
        let mirror = "            endpoints:\n                - https://mirror.example\n";
        config.replacen(
            "    registries:\n",
            &format!("    registries:\n        mirrors:\n          \"{host}\":\n{mirror}"),
            1,
        )
    }
    type Form = fn(&str, &str) -> String;
    let forms: [(&str, Form); 2] = [("document", document), ("legacy", legacy)];
    let cases = forms.into_iter().map(|(name, form)| {
        let case = async move {
            let bed = two_workers().await;
            let host = bed.lab.registry().host();
            bed.apply("worker-1", &form(&host, &bed.config("worker-1")));
            let done = bed.run(&["-n", "worker-1"]).await.expect(0);
            let reason = format!("a mirror may answer in the place of {host}");
            let [warning] = warnings(&done)[..] else { panic!("warned once: {}", done.stderr) };
            assert!(warning.contains(&reason), "{warning}");
            assert!(requests(&bed, "Pull", "worker-1").is_empty(), "what would prove nothing is not asked for");
            assert_current_without_pull(&bed, &[], &["worker-1"], name).await;
            assert!(bed.config("worker-1").contains("mirror.example"), "the mirror stays");
        };
        (name.to_owned(), case.boxed())
    });
    side_by_side(cases.collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n25_without_an_image_or_with_one_that_is_there_nothing_is_proved_and_it_is_said_once() {
    let names = ["worker-1", "worker-2"];
    let images = move |bed: &Bed, namespace| names.map(|name| bed.lab.node(name).images(namespace));
    let none = async move {
        let bed = two_workers().await;
        for name in names {
            bed.lab.node(name).preload_image(Namespace::Cri, &bed.lab.image(), "sha256:00");
        }
        let before = images(&bed, Namespace::Cri);
        let done = roll(&bed, &[("--image", "")], &BOTH).await.expect(0);
        let [warning] = warnings(&done)[..] else { panic!("warned once: {}", done.stderr) };
        assert!(warning.contains("no --image"), "{warning}");
        assert_current_without_pull(&bed, &[("--image", "")], &names, "no image").await;
        assert_eq!(images(&bed, Namespace::Cri), before);
        assert!(names.iter().all(|name| requests(&bed, "Pull", name).is_empty()));
    };
    // The canary alone: its warning is not swallowed by its own line.
    let alone = async move {
        let bed = two_workers().await;
        let done = roll(&bed, &[("--image", "")], &["-n", "worker-1"]).await.expect(0);
        assert_eq!(warnings(&done).len(), 1, "{}", done.stderr);
        assert_current_without_pull(&bed, &[("--image", "")], &["worker-1"], "no image").await;
    };
    let present = async move {
        let bed = two_workers().await;
        for name in names {
            bed.lab.node(name).preload_image(Namespace::System, &bed.lab.image(), "sha256:00");
            bed.lab.node(name).preload_image(Namespace::Cri, &bed.lab.image(), "sha256:00");
        }
        let before = [Namespace::System, Namespace::Cri].map(|namespace| images(&bed, namespace));
        let done = bed.run(&BOTH).await.expect(0);
        let [warning] = warnings(&done)[..] else { panic!("warned once: {}", done.stderr) };
        assert!(warning.contains("on the node already"), "{warning}");
        assert_current_without_pull(&bed, &[], &names, "present").await;
        let after = [Namespace::System, Namespace::Cri].map(|namespace| images(&bed, namespace));
        assert_eq!(after, before, "what was there is not removed");
    };
    // A pull that proves something leaves no name behind, and takes none of the applications' away.
    let proved = async move {
        let bed = two_workers().await;
        bed.lab.node("worker-1").preload_image(Namespace::Cri, &bed.lab.image(), "sha256:00");
        let before = bed.lab.node("worker-1").images(Namespace::Cri);
        let done = bed.run(&["-n", "worker-1"]).await.expect(0);
        assert_eq!(warnings(&done), Vec::<&str>::new());
        assert!(!requests(&bed, "Pull", "worker-1").is_empty());
        assert_eq!(bed.lab.node("worker-1").images(Namespace::Cri), before);
        assert_eq!(bed.lab.node("worker-1").images(Namespace::System), Vec::<String>::new());
    };
    let cases =
        [("none", none.boxed()), ("alone", alone.boxed()), ("present", present.boxed()), ("proved", proved.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

/// Talos tries a refused login over and over for 20 minutes and says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w08_a_pull_with_a_refused_credential_has_its_own_deadline_and_is_tried_once() {
    /// The registry refuses the credential after its preflight and before the node's pull.
    async fn run_refused_at_its_pull(bed: &Bed) -> Ended {
        let mut gate = Gate::new(bed);
        let child = bed.start(&["-n", "worker-1"]);
        let held = gate.hold(Before, "Pull worker-1", 1).await;
        drop(gate);
        bed.lab.registry().revoke(USER, bed.lab.new_password());
        held.release();
        let failed = ended(child).await.expect(1);
        assert_one_try(bed, &failed);
        failed
    }
    fn assert_one_try(bed: &Bed, failed: &Ended) {
        let pulls = requests(bed, "Pull", "worker-1");
        let [pull] = &pulls[..] else { panic!("{} pulls: {}", pulls.len(), failed.stderr) };
        // The longest call under a lease of 6 s is 2 s.
        assert!(failed.stderr.contains("within 2s"), "{}", failed.stderr);
        let later =
            bed.lab.log().all().into_iter().find(|entry| entry.seq > pull.seq && entry.method.ends_with("/List"));
        let took = later.expect("its name is looked for").at.duration_since(pull.at);
        assert!(took < jiff::SignedDuration::from_secs(6), "{took}");
        let logins = bed.lab.log().all().iter().filter(|entry| entry.method == "PULL manifests").count();
        assert!(logins >= 1, "the node did ask the registry");
        assert!(bed.lab.node("worker-1").images(Namespace::System).is_empty());
        assert!(!lease_is_held(bed));
    }
    let canary = async {
        let bed = two_workers().await;
        let before = bed.config("worker-1");
        let failed = run_refused_at_its_pull(&bed).await;
        assert!(failed.stderr.contains("the old credential is back"), "{}", failed.stderr);
        assert_eq!(bed.config("worker-1"), before);
        assert_eq!(bed.truth_of("worker-1").boots, 0);
    };
    // The same where the credential is there already and only its proof is missing: nothing to put back.
    let unproved = async {
        let bed = two_workers().await;
        bed.apply("worker-1", &bed.config_with_new("worker-1"));
        bed.lab.node("worker-1").kill_cri();
        eventually("it is loaded", || bed.truth_of("worker-1").cri_loaded == Held::New).await;
        run_refused_at_its_pull(&bed).await;
        let node = bed.truth_of("worker-1");
        assert_eq!((node.boots, node.record, node.cordoned), (0, None, false));
    };
    let cases = [("canary", canary.boxed()), ("unproved", unproved.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x03_a_pull_whose_reply_is_lost_is_proved_by_what_is_on_the_node_then() {
    let bed = two_workers().await;
    bed.lab.node("worker-1").set_reply_lost_once("Pull");
    let done = bed.run(&["-n", "worker-1"]).await.expect(0);
    assert!(done.stderr.contains("canary: pull proved"), "{}", done.stderr);
    let record = bed.truth_of("worker-1").record.expect("a record");
    assert_eq!((&record["state"], &record["pull"]), (&json!("proved"), &json!("proved")));
    assert_eq!(requests(&bed, "Pull", "worker-1").len(), 1, "it is asked for once");
    let left = bed.lab.node("worker-1").images(Namespace::System);
    assert_eq!(left, Vec::<String>::new(), "every name that it added is removed");
}

/// Of the canary only Talos's own rollback may decide; of any other node nothing is lost by asking again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x02_a_pull_that_never_reaches_its_node_says_nothing_of_the_credential_and_is_asked_for_again() {
    let bed = two_workers().await;
    let mut gate = Gate::new(&bed);
    let child = bed.start(&BOTH);
    let held = gate.hold(Before, "Pull worker-2", 1).await;
    drop(gate);
    held.cut();
    let done = ended(child).await.expect(0);
    assert!(done.stderr.contains("trying again"), "{}", done.stderr);
    assert_eq!(requests(&bed, "Pull", "worker-2").len(), 2);
    for name in BOTH[1].split(',') {
        let node = bed.truth_of(name);
        assert_eq!((node.cri_loaded, node.boots), (Held::New, 1), "{name}");
        assert_eq!(node.record.expect("a record")["pull"], json!("proved"), "{name}");
    }
}
