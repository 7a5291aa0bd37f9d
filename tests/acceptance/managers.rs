//! Other tools that reboot nodes: while one is at work no gate opens.

use futures::FutureExt as _;
use lab::Held;
use lab::faults::When::After;
use lab::kube::kind::Kind;
use lab::kube::objects;
use serde_json::json;

use crate::harness::{Bed, ended, eventually};
use crate::scene::{BOTH, Gate, Story, lease_is_held, side_by_side, two_workers};

/// What shows that a tool is at work on `worker-2`.
#[derive(Clone, Copy)]
enum Sign {
    Annotation(&'static str),
    Label(&'static str),
    Pod,
}

/// The tool, its sign, and how it is named.
const SIGNS: [(&str, Sign, &str); 3] = [
    (
        "kured",
        Sign::Annotation("weave.works/kured-reboot-in-progress"),
        "annotation weave.works/kured-reboot-in-progress",
    ),
    ("tuppr", Sign::Label("tuppr.home-operations.com/upgrading"), "label tuppr.home-operations.com/upgrading"),
    ("system-upgrade-controller", Sign::Pod, "pod default/apply-talos-on-worker-2"),
];

impl Sign {
    fn set(self, bed: &Bed) {
        match self {
            Sign::Annotation(key) => drop(bed.lab.objects().edit_node("worker-2", |node| {
                node["metadata"]["annotations"][key] = json!("2026-11-30T08:00:00Z");
            })),
            Sign::Label(key) => drop(bed.lab.objects().edit_node("worker-2", |node| {
                node["metadata"]["labels"][key] = json!("true");
            })),
            Sign::Pod => {
                let labels = json!({"upgrade.cattle.io/node": "worker-2", "upgrade.cattle.io/plan": "talos"});
                let owners = json!([{
                    "apiVersion": "batch/v1", "kind": "Job", "name": "apply-talos-on-worker-2", "uid": "j-1",
                    "controller": true,
                }]);
                let pod = objects::pod("default", "apply-talos-on-worker-2", "worker-2", &owners, &labels);
                bed.lab.objects().create(Kind::Pod, pod);
            }
        }
    }

    fn remove(self, bed: &Bed) {
        let object = |part: &'static str, key: &'static str| {
            bed.lab.objects().edit_node("worker-2", |node| {
                node["metadata"][part].as_object_mut().expect("a map").shift_remove(key);
            });
        };
        match self {
            Sign::Annotation(key) => object("annotations", key),
            Sign::Label(key) => object("labels", key),
            Sign::Pod => drop(bed.lab.objects().remove(Kind::Pod, "default", "apply-talos-on-worker-2")),
        }
    }
}

fn assert_given_back(bed: &Bed) {
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None));
    assert_eq!((node.configured, node.cri_loaded), (Held::New, Held::Old), "the staged config stays");
    assert!(!lease_is_held(bed));
}

async fn is_waited_for(manager: &'static str, sign: Sign, words: &'static str) {
    let bed = two_workers().await;
    let story = Story::begin(&bed);
    sign.set(&bed);
    let stopped = bed.run(&["-n", "worker-1", "--gate-timeout", "1s"]).await.expect(4);
    let said = format!("gate closed: {manager} is at work on worker-2 (the {words})");
    assert!(stopped.stderr.contains(&said), "{}", stopped.stderr);
    assert_given_back(&bed);
    assert!(story.fenced("worker-1").is_empty(), "nothing is quieted for nothing");

    // It comes to its end while it is waited for.
    let looks = || bed.lab.log().all().iter().filter(|entry| entry.method == "LIST nodes").count();
    let before = looks();
    let run = bed.start(&BOTH);
    // Two looks at the fleet, and two at the gates.
    eventually("the gates were looked at twice", || looks() >= before + 4).await;
    sign.remove(&bed);
    let done = ended(run).await.expect(0);
    assert!(done.stderr.contains(&said), "{}", done.stderr);
    for node in ["worker-1", "worker-2"] {
        assert_eq!((bed.truth_of(node).cri_loaded, bed.truth_of(node).boots), (Held::New, 1), "{node}");
    }
}

/// One that begins when a node was drained already: that is given back, and not rebooted.
async fn comes_after_the_drain() {
    let bed = two_workers().await;
    let story = Story::begin(&bed);
    let mut gate = Gate::new(&bed);
    let child = bed.start(&["-n", "worker-1", "--gate-timeout", "1s"]);
    let held = gate.hold_fence(After, "worker-1", None).await;
    SIGNS[1].1.set(&bed);
    held.release();
    drop(gate);
    let stopped = ended(child).await.expect(4);
    assert!(stopped.stderr.contains("tuppr is at work on worker-2"), "{}", stopped.stderr);
    assert_given_back(&bed);
    assert_eq!(story.fenced("worker-1").len(), 2, "claimed, and given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_a_reboot_manager_at_work_is_waited_for_and_named() {
    let mut cases: Vec<_> = SIGNS
        .into_iter()
        .map(|(manager, sign, words)| (manager.to_owned(), is_waited_for(manager, sign, words).boxed()))
        .collect();
    cases.push(("after the drain".to_owned(), comes_after_the_drain().boxed()));
    side_by_side(cases).await;
}
