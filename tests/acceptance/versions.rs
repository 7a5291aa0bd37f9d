//! Nodes of all Talos versions from 1.9 to 1.14: N09, N16, N21, C05.

use std::time::Duration;

use lab::faults::When;
use lab::{Held, Options};

use crate::harness::{Bed, Ended, ended, eventually};
use crate::scene::{Gate, Story, lease_is_held, only_stale_of, requests, with_comment};

/// A document beside which 1.12.0 and 1.12.1 render no registries any more.
const TLS: &str =
    "---\napiVersion: v1alpha1\nkind: RegistryTLSConfig\nname: other.example.com\ninsecureSkipVerify: true\n";

/// Three control planes of 1.13.9 and a worker of each of these.
fn workers_of(versions: &[&str]) -> impl FnOnce(&mut Options) {
    let of = |text: String| text.parse().expect("a share of nodes");
    let mut shares = vec![of("1.13.9=3".to_owned())];
    shares.extend(versions.iter().map(|version| of(format!("{version}=1"))));
    let count = versions.len();
    move |options| {
        options.workers = count;
        options.talos = shares;
    }
}

/// Why a node is left, in the document of a run.
fn left(ended: &Ended, node: &str) -> String {
    ended.json()["left"][node].as_str().unwrap_or_default().to_owned()
}

fn assert_rolled(bed: &Bed, node: &str, boots: u32) {
    let truth = bed.truth_of(node);
    let held = (truth.configured, truth.cri_loaded, truth.boots);
    assert_eq!(held, (Held::New, Held::New, boots), "{node} of {}", truth.talos);
    assert!(!truth.cordoned && truth.fence.is_none(), "{node}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n09_a_fleet_of_1_9_to_1_14_is_rolled_each_by_its_own_rules() {
    let bed = Bed::new(workers_of(&["1.9.6", "1.10.9", "1.11.6", "1.12.11", "1.14.0"])).await;
    let story = Story::begin(&bed);
    bed.run(&[]).await.expect(0);
    bed.assert_done();
    story.assert_budget(1);
    for node in bed.lab.truth().nodes {
        let live = node.talos == "1.14.0";
        assert_eq!(node.boots, u32::from(!live), "{} of {}", node.name, node.talos);
        assert_eq!(story.fenced(&node.name).is_empty(), live, "{}", node.name);
        let record = node.record.unwrap_or_default();
        assert_eq!((&record["state"], &record["pull"]), (&"proved".into(), &"proved".into()), "{}", node.name);
        let names = bed.lab.node(&node.name).images(lab::talos::Namespace::System);
        // Below 1.13 no call removes an image.
        let stays = ["1.9.6", "1.10.9", "1.11.6", "1.12.11"].contains(&node.talos.as_str());
        assert_eq!(!names.is_empty(), stays, "{} of {}: {names:?}", node.name, node.talos);
        assert!(bed.lab.node(&node.name).images(lab::talos::Namespace::Cri).is_empty());
    }
    // S10 for all of them.
    bed.lab.reset_counters();
    bed.run(&[]).await.expect(0);
    assert_eq!(bed.writes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n21_a_start_that_left_the_event_ring_is_bounded_by_what_is_kept_and_else_blocks_with_a_hint() {
    let bed = Bed::new(workers_of(&["1.12.11", "1.12.11", "1.11.6"])).await;
    // Somebody wrote the new credential, and later the start was pushed out: which was first cannot be told.
    bed.apply("worker-2", &bed.config_with_new("worker-2"));
    eventually("it is rendered", || bed.truth_of("worker-2").configured == Held::New).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    bed.lab.node("worker-2").push_cri_start_out();
    // What is kept here is older than our own change: the process cannot have loaded it.
    bed.lab.node("worker-3").push_cri_start_out();
    let story = Story::begin(&bed);
    let ended = bed.run(&["-o", "json"]).await.expect(1);
    let why = left(&ended, "worker-2");
    assert!(why.contains("event ring") && why.contains("reboot of the node by hand"), "{why}");
    let blocked = bed.truth_of("worker-2");
    assert_eq!((blocked.cri_loaded, blocked.boots, blocked.cordoned), (Held::Old, 0, false));
    assert!(story.fenced("worker-2").is_empty());
    assert_eq!(requests(&bed, "ApplyConfiguration", "worker-2").len(), 0);
    for node in ["worker-1", "worker-3", "cp-1", "cp-2", "cp-3"] {
        assert_rolled(&bed, node, 1);
    }
    assert!(!lease_is_held(&bed));
    // The hint works.
    bed.power_cycle("worker-2").await;
    bed.run(&[]).await.expect(0);
    bed.assert_done();
    assert_eq!(bed.truth_of("worker-2").boots, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n16_an_apply_that_1_12_0_never_renders_blocks_its_node_and_is_named() {
    let bed = Bed::new(workers_of(&["1.13.9", "1.12.0", "1.12.11"])).await;
    for node in ["worker-2", "worker-3"] {
        bed.apply(node, &(bed.config(node) + TLS));
    }
    let story = Story::begin(&bed);
    let ended = bed.run(&["-o", "json"]).await.expect(1);
    let why = left(&ended, "worker-2");
    assert!(why.contains("1.12.0") && why.contains("does not follow"), "{why}");
    let blocked = bed.truth_of("worker-2");
    assert_eq!((blocked.cri_loaded, blocked.boots, blocked.cordoned), (Held::Old, 0, false));
    assert!(story.fenced("worker-2").is_empty());
    for node in ["worker-1", "worker-3", "cp-1", "cp-2", "cp-3"] {
        assert_rolled(&bed, node, 1);
    }
    assert!(!lease_is_held(&bed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n16_a_canary_that_1_12_0_never_renders_is_put_back_and_another_node_is_the_canary() {
    let bed = Bed::new(workers_of(&["1.12.0", "1.12.11"])).await;
    bed.apply("worker-1", &(bed.config("worker-1") + TLS));
    let before = bed.config("worker-1");
    // A node of 1.13 would be tried first, so only the two are worked on. The TRY lasts 20 s then, longer than the wait for the effective credential.
    let ended =
        bed.product("run", &["-o", "json", "--lease-duration", "12s", "-n", "worker-1,worker-2"]).await.expect(1);
    let why = left(&ended, "worker-1");
    assert!(why.contains("1.12.0") && why.contains("does not follow"), "{why}");
    eventually("Talos puts the old config back", || bed.config("worker-1") == before).await;
    let blocked = bed.truth_of("worker-1");
    assert_eq!((blocked.configured, blocked.cri_loaded, blocked.boots), (Held::Old, Held::Old, 0));
    assert_eq!(requests(&bed, "ApplyConfiguration", "worker-1").len(), 1);
    assert_rolled(&bed, "worker-2", 1);
    assert!(!lease_is_held(&bed));
}

/// Talos 1.9 does not show what is persisted: the file on disk tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_on_1_9_a_foreign_try_or_staged_config_is_seen_on_disk() {
    let workers = ["worker-1", "worker-2", "worker-3", "worker-4"];
    let bed = only_stale_of(&workers, workers_of(&["1.9.6"; 4])).await;
    // An ordinary change of somebody else is none of them.
    for changed in ["worker-2", "worker-4"] {
        bed.apply(changed, &with_comment(&bed.config(changed), "an ordinary change"));
    }
    let staged = with_comment(&bed.config("worker-1"), "staged");
    bed.lab.node("worker-1").stage_foreign(staged.as_bytes()).unwrap();
    for tried in ["worker-2", "worker-3"] {
        let config = with_comment(&bed.config(tried), "tried");
        bed.lab.node(tried).try_foreign(config.as_bytes(), Duration::from_secs(600)).unwrap();
    }
    let both = |name: &str| (bed.config(name), bed.lab.node(name).persisted_config());
    let before: Vec<_> = workers[..3].iter().map(|name| both(name)).collect();
    let ended = bed.run(&["-o", "json"]).await.expect(1);
    for (name, before) in workers.iter().zip(before) {
        assert_eq!(both(name), before, "{name}");
        assert!(requests(&bed, "ApplyConfiguration", name).is_empty(), "{name}: also no dry run");
        assert_eq!((bed.truth_of(name).boots, bed.truth_of(name).cordoned), (0, false), "{name}");
        let why = left(&ended, name);
        assert!(why.contains("TRY") && why.contains("STAGED"), "{name}: {why}");
    }
    assert_rolled(&bed, "worker-4", 1);
    assert!(!lease_is_held(&bed));
}

/// No version counter tells of a change that is only on disk: the file is read again before each write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_on_1_9_a_config_that_is_staged_while_our_canary_is_tried_is_not_dropped() {
    let bed = only_stale_of(&["worker-1"], workers_of(&["1.9.6", "1.13.9"])).await;
    let staged = with_comment(&bed.config("worker-1"), "staged by another tool meanwhile");
    let mut gate = Gate::new(&bed);
    let child = bed.start(&["-o", "json"]);
    let held = gate.hold(When::Before, "Pull worker-1", 1).await;
    drop(gate);
    bed.lab.node("worker-1").stage_foreign(staged.as_bytes()).unwrap();
    held.release();
    let ended = ended(child).await.expect(1);
    assert_eq!(bed.lab.node("worker-1").persisted_config(), staged.as_bytes(), "{}", ended.stderr);
    assert_eq!(bed.truth_of("worker-1").boots, 0);
    assert!(bed.truth_of("worker-1").fence.is_none() && !lease_is_held(&bed));
}
