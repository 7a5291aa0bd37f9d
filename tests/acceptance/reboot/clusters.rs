//! Clusters of every size: R09.

use futures::FutureExt as _;
use lab::Held;

use crate::harness::{Bed, row};
use crate::scene::{Story, requests, side_by_side};

async fn control_planes(count: usize) -> Bed {
    Bed::new(|options| (options.control_planes, options.workers) = (count, 0)).await
}

/// With one or two the API or etcd's quorum is away during a reboot, which is for a human to allow.
async fn small(count: usize) {
    let bed = control_planes(count).await;
    let story = Story::begin(&bed);
    let plan = bed.product("plan", &["-o", "json"]).await.expect(0).json();
    assert_eq!(row(&plan, "cp-1")["verdict"], "Blocked", "{plan:#}");
    let refused = bed.run(&[]).await.expect(1);
    let words = format!("the cluster has {count} control plane(s)");
    for words in [words.as_str(), "--allow-control-plane-outage"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
    for node in bed.lab.truth().nodes {
        let name = node.name;
        assert_eq!((node.boots, node.configured, node.cri_loaded), (0, Held::Old, Held::Old), "{name}");
        assert!(story.fenced(&name).is_empty() && requests(&bed, "Reboot", &name).is_empty(), "{name}");
    }
    assert_eq!(bed.writes(), 0, "nothing is touched");
    roll(&bed, &["--allow-control-plane-outage"]).await;
}

async fn roll(bed: &Bed, more: &[&str]) {
    let story = Story::begin(bed);
    bed.run(more).await.expect(0);
    bed.assert_done();
    story.assert_budget(1);
    let order = bed.lab.truth().boot_order;
    assert_eq!(order.last().map(String::as_str), Some("cp-1"), "the endpoint node goes last: {order:?}");
    assert!(bed.lab.truth().nodes.iter().all(|node| node.boots == 1), "{order:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r09_one_two_three_and_five_control_planes() {
    let cases = [1, 2, 3, 5].map(|count| {
        let case =
            async move { if count < 3 { small(count).await } else { roll(&control_planes(count).await, &[]).await } };
        (format!("{count} control planes"), case.boxed())
    });
    side_by_side(cases.into()).await;
}
