//! The credential itself goes wrong, or somebody else writes machine configs too: K07, C05, C06, C07.

use std::time::Duration;

use futures::FutureExt as _;
use lab::Held;
use lab::cluster::USER;
use lab::faults::When::{After, Before};

use crate::harness::{Bed, Ended, ended, eventually};
use crate::scene::{Gate, Story, kill, lease_is_held, only_stale, only_stale_of, requests, side_by_side, with_comment};

/// The canary has its old config again, byte for byte; no other node was written to, none was disturbed, nothing is held.
fn assert_nothing_happened(bed: &Bed, before: &[(String, String)], story: &Story<'_>, failed: &Ended) {
    for (name, config) in before {
        assert_eq!(bed.config(name), *config, "{name}");
        assert_eq!(bed.lab.node(name).persisted_config(), config.as_bytes(), "{name}");
        let node = bed.truth_of(name);
        assert_eq!((node.configured, node.cri_loaded, node.boots, node.fence), (Held::Old, Held::Old, 0, None));
        assert!(story.fenced(name).is_empty() && !node.cordoned, "{name}");
        let writes = requests(bed, "ApplyConfiguration", name).len();
        assert_eq!(writes, usize::from(name == "worker-1"), "{name}: {}", failed.stderr);
    }
    assert!(!lease_is_held(bed));
}

fn configs(bed: &Bed) -> Vec<(String, String)> {
    bed.lab.truth().nodes.into_iter().map(|node| (node.name.clone(), bed.config(&node.name))).collect()
}

fn assert_both_causes_are_named(failed: &Ended) {
    for words in ["worker-1", "is refused", "cannot be reached from the node", "the old credential is back"] {
        assert!(failed.stderr.contains(words), "{words}: {}", failed.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k07_a_pull_that_is_not_proven_is_rolled_back_and_touches_no_other_node() {
    let unreachable = async {
        let bed = Bed::new(|options| options.workers = 2).await;
        let (before, story) = (configs(&bed), Story::begin(&bed));
        bed.lab.registry().cut_off_nodes(true);
        let failed = bed.run(&[]).await.expect(1);
        assert_both_causes_are_named(&failed);
        assert_nothing_happened(&bed, &before, &story, &failed);
    };
    let refused = async {
        let bed = Bed::new(|options| options.workers = 2).await;
        let (before, story) = (configs(&bed), Story::begin(&bed));
        let mut gate = Gate::new(&bed);
        let child = bed.start(&[]);
        // It was good when the registry was asked before the first write.
        let held = gate.hold(Before, "Pull worker-1", 1).await;
        drop(gate);
        bed.lab.registry().revoke(USER, bed.lab.new_password());
        held.release();
        let failed = ended(child).await.expect(1);
        assert_both_causes_are_named(&failed);
        assert_nothing_happened(&bed, &before, &story, &failed);
    };
    let cases = [("unreachable", unreachable.boxed()), ("refused", refused.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k07_killed_between_the_canarys_apply_and_the_verdict() {
    async fn killed() -> Bed {
        let bed = only_stale(&["worker-1"]).await;
        let mut gate = Gate::new(&bed);
        let child = bed.start(&[]);
        let held = gate.hold(Before, "Pull worker-1", 1).await;
        assert_eq!(bed.truth_of("worker-1").configured, Held::New, "it is being tried");
        kill(child).await;
        held.cut();
        bed
    }
    let rolled_back = async {
        let bed = killed().await;
        eventually("Talos puts the old one back", || bed.truth_of("worker-1").configured == Held::Old).await;
        let node = bed.truth_of("worker-1");
        assert_eq!((node.boots, node.record), (0, None));
        bed.run(&[]).await.expect(0);
        bed.assert_done();
        assert_eq!(bed.truth_of("worker-1").boots, 1);
    };
    let waited_for = async {
        let bed = killed().await;
        let done = bed.run(&[]).await.expect(0);
        assert!(done.stderr.contains("rolled back"), "{}", done.stderr);
        bed.assert_done();
        assert_eq!(bed.truth_of("worker-1").boots, 1);
    };
    let cases = [("rolled back", rolled_back.boxed()), ("waited for", waited_for.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

/// What `persistent` says does not matter: it is absent on a node that nobody applied to since its boot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_a_foreign_try_or_staged_config_blocks_its_node_and_nothing_is_written_to_it() {
    let workers = ["worker-1", "worker-2", "worker-3", "worker-4", "worker-5"];
    let bed = only_stale_of(&workers, |options| options.workers = 5).await;
    for present in ["worker-3", "worker-4"] {
        bed.apply(present, &with_comment(&bed.config(present), "an ordinary change"));
    }
    for staged in ["worker-1", "worker-3"] {
        let config = with_comment(&bed.config(staged), "staged");
        bed.lab.node(staged).stage_foreign(config.as_bytes()).unwrap();
    }
    for tried in ["worker-2", "worker-4"] {
        let config = with_comment(&bed.config(tried), "tried");
        bed.lab.node(tried).try_foreign(config.as_bytes(), Duration::from_secs(600)).unwrap();
    }
    let foreign = &workers[..4];
    let both = |name: &str| (bed.config(name), bed.lab.node(name).persisted_config());
    let before: Vec<_> = foreign.iter().map(|name| both(name)).collect();
    let story = Story::begin(&bed);
    let ended = bed.run(&["-o", "json"]).await.expect(1);
    let document = ended.json();
    for (name, before) in foreign.iter().zip(before) {
        assert_eq!(both(name), before, "{name}");
        assert!(requests(&bed, "ApplyConfiguration", name).is_empty(), "{name}: also no dry run");
        let node = bed.truth_of(name);
        assert_eq!((node.boots, node.cordoned), (0, false), "{name}");
        assert!(story.fenced(name).is_empty(), "{name}");
        let left = document["left"][*name].as_str().unwrap_or_default();
        assert!(left.contains("TRY") && left.contains("STAGED"), "{name}: {document:#}");
    }
    let good = bed.truth_of("worker-5");
    assert_eq!((good.configured, good.cri_loaded, good.boots), (Held::New, Held::New, 1));
    assert!(document["left"].get("worker-5").is_none());
    assert!(bed.lab.truth().nodes.iter().all(|node| node.fence.is_none() && !node.cordoned));
    assert!(!lease_is_held(&bed));
}

/// Another tool's line and our credential are both there in the end, and every other byte is the other tool's.
fn assert_merged(bed: &Bed, name: &str, theirs: &str) {
    let (old, new) = (bed.lab.old_password(), bed.lab.new_password());
    let now = bed.config(name);
    assert!(now.contains(new) && !now.contains(old), "the credential arrived on {name}");
    assert_eq!(bed.lab.node(name).persisted_config(), now.as_bytes(), "it is persisted on {name}");
    let lines: Vec<&str> = now.lines().collect();
    for line in theirs.lines().filter(|line| !line.contains(old)) {
        assert!(lines.contains(&line), "lost on {name}: {line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_c07_another_writer_in_between_loses_nothing_and_the_credential_arrives() {
    // The first is the canary's TRY, the second the ordinary NO_REBOOT of the first wave.
    let cases = ["worker-1", "worker-2"].into_iter().flat_map(|name| {
        [Before, After].into_iter().map(move |when| {
            let case = async move {
                let bed = only_stale(&["worker-1", "worker-2"]).await;
                let theirs = with_comment(&bed.config(name), "of another tool");
                let mut gate = Gate::new(&bed);
                let child = bed.start(&[]);
                let held = gate.hold(when, &format!("ApplyConfiguration {name}"), 1).await;
                bed.apply(name, &theirs);
                held.release();
                drop(gate);
                ended(child).await.expect(0);
                bed.assert_done();
                assert_merged(&bed, name, &theirs);
            };
            (format!("{when:?} the apply to {name}"), case.boxed())
        })
    });
    side_by_side(cases.collect()).await;
}
