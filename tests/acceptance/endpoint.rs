//! The order of a roll and the node behind the kubeconfig's address: O01, O04, O06, O09, S1.

use std::time::Duration;

use futures::FutureExt as _;
use lab::Held;
use lab::faults::When::{After, Before};
use serde_json::json;

use crate::harness::{Bed, finish, lease_duration};
use crate::scene::{
    Gate, Story, fence_of, kill, lease_is_held, newer_credential, only_stale, only_stale_of, requests, side_by_side,
};

/// A Lease that was used before: its transitions say whether a run lost it in between.
fn used_lease(bed: &Bed, transitions: i64) {
    bed.lab.objects().put_lease(json!({
        "metadata": {"namespace": "kube-system", "name": "talos-ghcr"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": transitions},
    }));
}

fn transitions(bed: &Bed) -> i64 {
    bed.lab.truth().lease.expect("the Lease is there").transitions
}

/// One whole roll of the default lab, and all that its course must show.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o01_s1_workers_then_control_planes_one_at_a_time_and_the_endpoint_node_last() {
    let bed = Bed::default().await;
    used_lease(&bed, 7);
    let story = Story::begin(&bed);
    let done = bed.run(&["-o", "json"]).await.expect(0).json();
    bed.assert_done();

    let order = bed.lab.truth().boot_order;
    assert_eq!(order.len(), 6, "{order:?}");
    assert!(order[..3].iter().all(|name| name.starts_with("worker-")), "{order:?}");
    assert!(order[3..].iter().all(|name| name.starts_with("cp-")), "{order:?}");
    assert_eq!(order[5], "cp-1", "the kubeconfig names cp-1");
    assert_eq!(done["rebooted"], json!(order));
    story.assert_budget(1);
    assert_eq!(transitions(&bed), 8, "taken once and never lost");

    for node in bed.lab.truth().nodes {
        let name = node.name;
        assert_eq!((node.boots, requests(&bed, "Reboot", &name).len()), (1, 1), "{name}");
        // F01: fence and cordon come in one write, F08: and go in one, with nothing left.
        let fenced = story.fenced(&name);
        let [(free, claimed), (fence, released)] = fenced.as_slice() else { panic!("{name}: {fenced:#?}") };
        assert!(free["spec"]["unschedulable"].is_null() && claimed["spec"]["unschedulable"] == true, "{name}");
        assert!(fence["spec"]["unschedulable"] == true && released["spec"]["unschedulable"] != true, "{name}");
        assert_eq!(fence_of(fence).unwrap()["step"], "rebooting");
        assert!(fence_of(fence).unwrap()["revision"] == done["revision"], "{name}");
        assert_eq!(story.fence_changes(&name), 3, "{name}: claimed, asked to reboot, released");
        // R03, R04: it was given back in another boot than the one in which it was asked to reboot.
        assert_ne!(fence_of(fence).unwrap()["boot"], released["status"]["nodeInfo"]["bootID"], "{name}");
        assert!(lab::kube::is_ready(released), "{name}");
        // F05: nothing of ours is left but the record, which Talos sets from the machine config.
        let left = bed.lab.objects().get(lab::kube::kind::Kind::Node, "", &name).unwrap();
        let ours = left["metadata"]["annotations"].as_object().unwrap().keys();
        let ours: Vec<_> = ours.filter(|key| key.starts_with("talos-ghcr/") || key.contains("scale-down")).collect();
        assert!(ours.iter().all(|key| *key == "talos-ghcr/proof"), "{name}: {ours:?}");
        assert!(left["spec"]["unschedulable"] != true, "{name}");
    }

    // While the endpoint node was away the lease was renewed through another control plane.
    let asked = requests(&bed, "Reboot", "cp-1")[0].seq;
    let log = bed.lab.log().all();
    let renewals = log.iter().filter(|entry| entry.seq > asked && entry.method == "PATCH leases");
    assert!(renewals.filter(|entry| entry.server != "kubernetes/cp-1").count() > 0, "renewals fail over");
}

/// The etcd leader goes late, the endpoint node after it, and `plan` shows that order already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o01_the_plan_shows_the_order_that_a_run_takes_with_the_etcd_leader_late() {
    let bed = Bed::new(|options| options.workers = 2).await;
    bed.lab.talos().set_etcd_leader("cp-2");
    let plan = bed.product("plan", &["-o", "json"]).await.expect(0).json();
    let mut planned: Vec<_> = plan["nodes"].as_array().expect("it lists nodes").iter().collect();
    planned.sort_by_key(|row| row["order"].as_u64());
    let planned: Vec<_> = planned.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(planned, ["worker-1", "worker-2", "cp-3", "cp-2", "cp-1"], "{plan:#}");
    bed.run(&[]).await.expect(0);
    assert_eq!(bed.lab.truth().boot_order, planned);
}

/// The incident of 2026-08-10, scaled: the kubeconfig names the node that is rebooted and no other API server can be
/// reached. Every renewal is refused from then on, the lease lapses while the node boots, and nobody else comes.
async fn the_only_api_goes_away_with_the_endpoint_node(planes: usize) {
    let change = |options: &mut lab::Options| {
        (options.control_planes, options.reboot_time) = (planes, Duration::from_secs(6));
    };
    let bed = only_stale_of(&["cp-1"], change).await;
    used_lease(&bed, 7);
    let others: Vec<_> = (2..=planes).map(|number| format!("cp-{number}")).collect();
    for other in &others {
        bed.lab.server(other).expect("it has an API server").cut_off(true);
    }
    let allowed: &[&str] = if planes < 3 { &["--allow-control-plane-outage"] } else { &[] };
    let done = bed.run(&[&["-o", "json"], allowed].concat()).await.expect(0);
    bed.assert_done();
    assert_eq!(done.json()["rebooted"], json!(["cp-1"]), "{}", done.stderr);
    assert_eq!(bed.lab.truth().boot_order, ["cp-1"]);
    assert_eq!(transitions(&bed), 8, "it was ours all the time");
    for other in &others {
        assert_eq!(bed.lab.counters()[&format!("kubernetes/{other}")].writes, 0);
    }
    // The incident's course: the node serves until its shutdown is over, then no renewal succeeds for longer than the
    // deadline.
    let renewals: Vec<_> = bed.lab.log().all().into_iter().filter(|entry| entry.method == "PATCH leases").collect();
    let pauses = renewals.windows(2).map(|pair| pair[1].at.duration_since(pair[0].at));
    let longest = pauses.max().expect("it was held").as_secs_f64();
    assert!(longest > 4.0, "the lease was renewed within its deadline, after {longest} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o01_o04_o06_l14_only_the_endpoint_node_is_stale_and_its_reboot_takes_the_only_api_away() {
    side_by_side(vec![
        ("of three control planes".to_owned(), the_only_api_goes_away_with_the_endpoint_node(3).boxed()),
        ("the only control plane".to_owned(), the_only_api_goes_away_with_the_endpoint_node(1).boxed()),
    ])
    .await;
}

/// A dead run left the endpoint node fenced at some step, and by now there is a newer credential: all nodes need it, and
/// the fenced one is still last.
async fn residue_on_the_endpoint_node(when: lab::faults::When, step: Option<&str>, boots_before: u32) {
    let bed = only_stale(&["cp-1"]).await;
    let mut gate = Gate::new(&bed);
    let child = bed.start(&[]);
    let held = gate.hold_fence(when, "cp-1", step).await;
    kill(child).await;
    held.cut();
    drop(gate);
    let left = bed.truth_of("cp-1");
    assert!(left.fence.is_some() && left.boots == boots_before, "{left:?}");

    let newer = newer_credential(&bed);
    let story = Story::begin(&bed);
    let mut roll = bed.command_with("run", &[("--credential-file", &newer)], &["-o", "json"]);
    roll.args(["--lease-duration", lease_duration()]);
    let done = finish(roll).await.expect(0);
    let order = bed.lab.truth().boot_order.split_off(boots_before as usize);
    assert_eq!(order.len(), 5, "{order:?}");
    assert_eq!(order[4], "cp-1", "{order:?}");
    assert!(order[..2].iter().all(|name| name.starts_with("worker-")), "{order:?}");
    assert_eq!(done.json()["rebooted"], json!(order), "{}", done.stderr);
    story.assert_budget(1);
    for node in bed.lab.truth().nodes {
        let boots = 1 + if node.name == "cp-1" { boots_before } else { 0 };
        assert_eq!((node.boots, node.configured, node.cri_loaded), (boots, Held::Other, Held::Other), "{}", node.name);
        assert!(node.fence.is_none() && !node.cordoned, "{}", node.name);
    }
    assert!(!lease_is_held(&bed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o09_residue_on_the_endpoint_node_and_a_newer_credential_still_last() {
    side_by_side(vec![
        ("claimed".to_owned(), residue_on_the_endpoint_node(After, None, 0).boxed()),
        ("reboot never asked for".to_owned(), residue_on_the_endpoint_node(After, Some("claimed"), 0).boxed()),
        ("rebooted, not released".to_owned(), residue_on_the_endpoint_node(Before, Some("rebooting"), 1).boxed()),
    ])
    .await;
}
