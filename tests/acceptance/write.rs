//! Writing a machine config when its answer is a refusal or is lost, or when somebody else owns the annotation: C08,
//! C09, C14, N24.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt as _;
use jiff::SignedDuration;
use lab::Held;
use lab::cluster::USER;
use lab::faults::When::{After, Before};
use lab::kube::kind::Kind;
use serde_json::json;

use crate::harness::{Bed, Ended, ended, eventually, leaks, read};
use crate::scene::{BOTH, Gate, Story, lease_is_held, requests, side_by_side, two_workers};

/// The annotation of the record.
const PROOF: &str = "talos-ghcr/proof";

/// Another tool stages a change that only a boot can bring, and the node boots: what was made of the config from before
/// cannot be applied any more. Talos refuses it with a diff.
async fn change_by_boot(bed: &Bed, name: &str) {
    let node = bed.lab.node(name);
    let other = bed.config(name).replacen("machine:\n", "machine:\n    udev:\n        rules: []\n", 1);
    node.stage_foreign(other.as_bytes()).expect("the node takes it");
    let before = node.boots();
    bed.lab.power_cycle(name);
    eventually("it boots", || node.boots() > before && node.is_up()).await;
}

/// A run with everything logged, whose apply to `name` is refused.
async fn refused(bed: &Bed, name: &str) -> Ended {
    let mut gate = Gate::new(bed);
    let mut run = bed.command("run", &BOTH);
    // With a third of it as the longest call there is time for a boot.
    run.args(["--lease-duration", "30s", "-o", "json"]).env("TALOS_GHCR_LOG", "trace");
    // More than a pipe holds.
    let stderr = bed.lab.dir().join("stderr");
    run.stderr(std::fs::File::create(&stderr).expect("the lab's folder can be written"));
    let child = run.kill_on_drop(true).spawn().expect("the product starts");
    let held = gate.hold(Before, &format!("ApplyConfiguration {name}"), 1).await;
    change_by_boot(bed, name).await;
    held.release();
    drop(gate);
    let failed = ended(child).await;
    Ended { stderr: read(&stderr), ..failed }.expect(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c08_c14_a_refused_apply_is_our_own_error_and_shows_none_of_its_words() {
    // The first is the canary's TRY, the second the NO_REBOOT of the first wave.
    let cases = ["worker-1", "worker-2"].into_iter().map(|name| {
        let case = async move {
            let bed = two_workers().await;
            let story = Story::begin(&bed);
            let failed = refused(&bed, name).await;
            let left = failed.json()["left"][name].as_str().unwrap_or_default().to_owned();
            for words in ["refused the machine config", "withheld", "InvalidArgument"] {
                assert!(left.contains(words), "{words}: {left}");
            }
            assert!(failed.stderr.contains("TRACE"), "everything is logged");
            let auth = STANDARD.encode(format!("{USER}:{}", bed.lab.new_password()));
            for shown in [&failed.stdout, &failed.stderr] {
                assert!(!leaks(&bed.lab, shown) && !shown.contains(&auth), "a secret is shown");
                // Words of the refusal beside the secrets.
                let found = ["immediate mode", "diff:"].into_iter().find(|words| shown.contains(words));
                assert_eq!(found, None);
            }
            assert_eq!(requests(&bed, "ApplyConfiguration", name).len(), 1, "it is not sent again");
            let node = bed.truth_of(name);
            assert_eq!((node.configured, node.boots, node.cordoned, node.fence), (Held::Old, 1, false, None));
            assert!(story.fenced(name).is_empty() && bed.config(name).contains("udev"), "{name} is left as it is");
            assert!(!lease_is_held(&bed));
            // It concerns that node alone, and the next run finds the new config and edits that.
            let other = if name == "worker-1" { "worker-2" } else { "worker-1" };
            assert_eq!((bed.truth_of(other).cri_loaded, bed.truth_of(other).boots), (Held::New, 1));
            bed.run(&BOTH).await.expect(0);
            let node = bed.truth_of(name);
            assert_eq!((node.cri_loaded, node.boots), (Held::New, 2));
            assert!(bed.config(name).contains("udev"));
        };
        (name.to_owned(), case.boxed())
    });
    side_by_side(cases.collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_an_apply_whose_reply_is_lost_is_read_back_and_not_sent_again() {
    // The canary's TRY, the NO_REBOOT that makes it permanent, the first wave, and the proof after the reboot.
    let points =
        [("worker-1", 1, "TRY"), ("worker-1", 2, "permanent"), ("worker-2", 1, "wave"), ("worker-2", 2, "proof")];
    let cases = points.into_iter().map(|(name, nth, what)| {
        let case = async move {
            let bed = two_workers().await;
            let mut gate = Gate::new(&bed);
            let child = bed.start(&BOTH);
            let held = gate.hold(After, &format!("ApplyConfiguration {name}"), nth).await;
            held.cut();
            drop(gate);
            let done = ended(child).await.expect(0);
            for (name, applies) in [("worker-1", 3), ("worker-2", 2)] {
                let node = bed.truth_of(name);
                assert_eq!((node.configured, node.cri_loaded, node.boots), (Held::New, Held::New, 1), "{name}");
                assert_eq!(node.record.expect("a record")["state"], "proved", "{name}");
                assert_eq!(requests(&bed, "ApplyConfiguration", name).len(), applies, "{name}: {}", done.stderr);
            }
            assert!(!lease_is_held(&bed));
            bed.lab.reset_counters();
            bed.run(&BOTH).await.expect(0);
            assert_eq!(bed.writes(), 0);
        };
        (what.to_owned(), case.boxed())
    });
    side_by_side(cases.collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n24_a_foreign_value_of_our_annotation_is_a_warning_and_written_against_never() {
    let bed = two_workers().await;
    let store = bed.lab.objects();
    // It was there first: Talos leaves it alone.
    store.edit_node("worker-1", |node| node["metadata"]["annotations"][PROOF] = json!("of somebody else"));
    let warning = |ended: &Ended| {
        let lines = ended.stderr.lines().filter(|line| line.contains("warning") && line.contains(PROOF));
        lines.filter(|line| line.contains("worker-1")).count()
    };
    let run = bed.product_with_old("run", &["-n", "worker-1"]).await.expect(0);
    assert_eq!(warning(&run), 1, "said once: {}", run.stderr);
    assert_eq!(requests(&bed, "ApplyConfiguration", "worker-1").len(), 1);
    assert_eq!(bed.truth_of("worker-1").record.expect("a record")["state"], "proved");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = store.get(Kind::Node, "", "worker-1").expect("it is there");
    assert_eq!(seen["metadata"]["annotations"][PROOF], "of somebody else");
    // And again: nothing to do, and nothing is done.
    bed.lab.reset_counters();
    let again = bed.product_with_old("run", &["-n", "worker-1", "-o", "json"]).await.expect(0);
    assert_eq!((warning(&again), &again.json()["result"]), (1, &json!("nothing-to-do")), "{}", again.stderr);
    assert_eq!(bed.writes(), 0);
    let verified = bed.product_with_old("verify", &["-n", "worker-1", "-o", "json"]).await.expect(0).json();
    let warnings = verified["warnings"].to_string();
    assert!(warnings.contains(PROOF) && warnings.contains("worker-1"), "{warnings}");
}

/// The times lie afterwards: only the process that the record names tells that it holds the old credential still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n22_a_cri_that_was_restarted_since_the_look_is_not_taken_for_one_that_has_loaded() {
    let bed = two_workers().await;
    let mut gate = Gate::new(&bed);
    let child = bed.start(&BOTH);
    // By now the run has looked at the other worker, which is written to after the canary.
    let canary = gate.hold(After, "ApplyConfiguration worker-1", 2).await;
    let node = bed.lab.node("worker-2");
    node.kill_cri();
    eventually("its CRI runs again", || bed.truth_of("worker-2").cri_loaded == Held::Old).await;
    node.set_clock_offset(SignedDuration::from_hours(-1));
    drop(gate);
    canary.release();
    let done = ended(child).await.expect(0);
    assert!(done.stderr.contains("its CRI was restarted"), "{}", done.stderr);
    let truth = bed.truth_of("worker-2");
    assert_eq!((truth.boots, truth.cri_loaded), (1, Held::New), "{}", done.stderr);
    assert_eq!(requests(&bed, "ApplyConfiguration", "worker-2").len(), 2, "the credential and the proof");
}
