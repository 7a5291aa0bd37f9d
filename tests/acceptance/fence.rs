//! Fences and cordons, ours and those of others: F04, F06, F12.

use lab::Held;
use serde_json::json;

use crate::harness::{ended, eventually};
use crate::scene::{
    FENCE, Story, block_evictions, evictions, fence_of, lease_is_held, only_stale, only_stale_of, requests,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f04_f08_a_node_that_was_cordoned_before_is_rolled_and_still_cordoned_after() {
    let bed = only_stale(&["worker-1", "cp-2"]).await;
    let store = bed.lab.objects();
    for name in ["worker-1", "cp-2"] {
        store.edit_node(name, |node| {
            node["spec"]["unschedulable"] = json!(true);
            node["metadata"]["annotations"]["ops.example/why"] = json!("disk");
        });
    }
    let story = Story::begin(&bed);
    bed.run(&[]).await.expect(0);
    for name in ["worker-1", "cp-2"] {
        let node = bed.truth_of(name);
        assert_eq!((node.configured, node.cri_loaded, node.boots), (Held::New, Held::New, 1), "{name}");
        assert!(node.cordoned, "{name} is left as it was found");
        assert_eq!(node.fence, None, "{name}");
        assert!(story.of(name).iter().all(|(_, after)| after["spec"]["unschedulable"] == true), "{name}: all the time");
        let fenced = story.fenced(name);
        assert_eq!(fence_of(&fenced[0].1).unwrap()["cordonedBefore"], true, "{name}");
        let left = store.get(lab::kube::kind::Kind::Node, "", name).unwrap();
        assert_eq!(left["metadata"]["annotations"]["ops.example/why"], "disk", "{name}");
    }
    assert!(!lease_is_held(&bed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f06_a_node_that_an_operator_uncordons_in_the_drain_is_not_rebooted() {
    let bed = only_stale(&["worker-1"]).await;
    block_evictions(&bed, true);
    let story = Story::begin(&bed);
    let child = bed.start(&["--gate-timeout", "2s"]);
    eventually("the drain is held", || evictions(&bed) > 0).await;
    bed.lab.objects().edit_node("worker-1", |node| node["spec"]["unschedulable"] = json!(false));
    block_evictions(&bed, false);
    let stopped = ended(child).await.expect(4);
    assert!(stopped.stderr.contains("uncordoned"), "{}", stopped.stderr);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cri_loaded, node.cordoned, node.fence), (0, Held::Old, false, None));
    assert!(requests(&bed, "Reboot", "worker-1").is_empty());
    // Nobody cordoned it again: there is one change to unschedulable, our claim.
    let cordons = story
        .of("worker-1")
        .into_iter()
        .filter(|(before, after)| before["spec"]["unschedulable"] != true && after["spec"]["unschedulable"] == true);
    assert_eq!(cordons.count(), 1);
    assert!(!lease_is_held(&bed));
    bed.run(&[]).await.expect(0);
    bed.assert_done();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_a_fence_that_cannot_be_read_blocks_only_its_node() {
    let bed = only_stale_of(&["worker-1", "worker-2", "cp-2"], |_| {}).await;
    let odd = r#"{"v":1,"holder":"#;
    let store = bed.lab.objects();
    store.edit_node("worker-1", |node| node["metadata"]["annotations"][FENCE] = json!(odd));
    // It takes a place of the budget, so there must be two for anything else to go on.
    let ended = bed.run(&["--max-unavailable", "2", "-o", "json"]).await.expect(1);
    let document = ended.json();
    let left = document["left"]["worker-1"].as_str().unwrap_or_default();
    assert!(left.contains("fence") && left.contains("worker-1"), "{document:#}");
    assert_eq!(document["left"].as_object().map(|left| left.len()), Some(1), "{document:#}");
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.configured, node.cordoned), (0, Held::Old, false));
    assert_eq!(node.fence, Some(json!(odd)), "it is left as it stands");
    assert!(requests(&bed, "PATCH nodes", "worker-1").is_empty());
    for name in ["worker-2", "cp-2"] {
        let node = bed.truth_of(name);
        assert_eq!((node.boots, node.cri_loaded, node.cordoned, node.fence), (1, Held::New, false, None), "{name}");
    }
    assert!(!lease_is_held(&bed));
    // A human removes it, and the next run does the rest.
    store.edit_node("worker-1", |node| {
        node["metadata"]["annotations"].as_object_mut().unwrap().shift_remove(FENCE);
    });
    bed.run(&[]).await.expect(0);
    bed.assert_done();
}
