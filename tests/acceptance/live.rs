//! Nodes that adopt a credential without a reboot: N07, N08.

use std::time::Duration;

use lab::{Held, Options};

use crate::harness::Bed;
use crate::scene::{Story, lease_is_held, only_stale_of, requests};

/// From the start of a CRI process until it is healthy.
const HEALTH: Duration = Duration::from_secs(1);

/// Workers 1 and 2 are of 1.14.
fn two_live_workers(options: &mut Options) {
    options.talos = vec!["1.13.9=3".parse().unwrap(), "1.14.0".parse().unwrap()];
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n07_a_live_node_is_neither_cordoned_nor_rebooted_and_its_health_is_waited_for() {
    let bed = only_stale_of(&["worker-2"], |options| {
        two_live_workers(options);
        options.cri_health = HEALTH;
    })
    .await;
    let live = bed.lab.node("worker-2");
    let (cri, kubelet) = (live.pid("cri"), live.pid("kubelet"));
    let story = Story::begin(&bed);
    let done = bed.run(&["-o", "json"]).await.expect(0).json();
    bed.assert_done();
    assert_eq!((&done["rebooted"], &done["adoptedLive"]), (&serde_json::json!([]), &serde_json::json!(["worker-2"])));
    assert_eq!((bed.truth_of("worker-2").boots, requests(&bed, "Reboot", "worker-2").len()), (0, 0));
    assert!(story.fenced("worker-2").is_empty());
    let untouched = |node: &serde_json::Value| node["spec"]["unschedulable"] != true;
    assert!(story.of("worker-2").iter().all(|(before, after)| untouched(before) && untouched(after)));
    assert!(requests(&bed, "PATCH nodes", "worker-2").is_empty());
    assert_ne!(live.pid("cri"), cri, "CRI was restarted");
    assert_eq!(live.pid("kubelet"), kubelet, "the kubelet lives on");
    // The last apply is the proof; the first made Talos restart CRI, which was healthy so much later.
    let applies = requests(&bed, "ApplyConfiguration", "worker-2");
    let (first, last) = (applies.first().unwrap(), applies.last().unwrap());
    let between = Duration::try_from(last.at.duration_since(first.at)).unwrap();
    assert!(between >= HEALTH, "proved {between:?} after the change");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n07_s1_live_control_planes_one_at_a_time_and_the_endpoint_node_last() {
    let bed = Bed::new(|options| {
        options.workers = 2;
        options.talos = vec!["1.14.0".parse().unwrap()];
        options.cri_health = HEALTH;
    })
    .await;
    let story = Story::begin(&bed);
    let done = bed.run(&["-o", "json"]).await.expect(0);
    bed.assert_done();
    let document = done.json();
    let adopted: Vec<&str> =
        document["adoptedLive"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    assert_eq!(adopted.len(), 5, "{adopted:?}: {}", done.stderr);
    assert_eq!(adopted[4], "cp-1", "{adopted:?}");
    assert!(adopted[..2].iter().all(|name| name.starts_with("worker-")), "{adopted:?}");
    assert!(bed.lab.truth().boot_order.is_empty());
    assert!(bed.lab.truth().nodes.iter().all(|node| story.fenced(&node.name).is_empty()));
    // A node's first apply takes its CRI away, and it is healthy so much later: nobody is proved before, and nobody of
    // the same class is next before.
    let span = |name: &str| {
        let applies = requests(&bed, "ApplyConfiguration", name);
        (applies.first().unwrap().at, applies.last().unwrap().at)
    };
    let apart =
        |from: jiff::Timestamp, to: jiff::Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
    for name in &adopted {
        let (changed, proved) = span(name);
        assert!(apart(changed, proved) >= HEALTH, "{name} is proved after {:?}", apart(changed, proved));
    }
    for pair in adopted.windows(2) {
        let between = apart(span(pair[0]).0, span(pair[1]).0);
        assert!(between >= HEALTH, "{pair:?} {between:?} apart: {}", done.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n08_a_live_node_whose_cri_does_not_restart_is_blocked_and_nothing_else_is_disturbed() {
    let bed = only_stale_of(&["worker-1", "worker-2", "cp-2"], two_live_workers).await;
    bed.lab.node("worker-1").hang_cri_restart(true);
    bed.lab.node("worker-2").hang_cri_restart(true);
    let story = Story::begin(&bed);
    let ended = bed.run(&["--adopt-timeout", "2s", "--gate-timeout", "8s", "-o", "json"]).await.expect(1);
    let document = ended.json();
    let left = document["left"].as_object().unwrap();
    let hung: Vec<&String> = left.keys().filter(|name| name.starts_with("worker-")).collect();
    assert!(!hung.is_empty() && hung.iter().any(|name| left[*name].as_str().unwrap_or_default().contains("CRI")));
    let hurt = bed.lab.truth().nodes.iter().filter(|node| node.cri_loaded == Held::None).count();
    assert_eq!(hurt, 1, "the second worker was spared: {}", ended.stderr);
    for node in bed.lab.truth().nodes {
        assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None), "{}", node.name);
        assert!(story.fenced(&node.name).is_empty(), "{}", node.name);
    }
    assert!(!lease_is_held(&bed));
}
