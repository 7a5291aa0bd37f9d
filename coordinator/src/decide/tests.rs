//! Whose turn it is, by examples.

use agent::claims::{Blocked, Pull, Verdict};
use agent::step::Step;

use super::*;
use crate::fleet::Talk;
use crate::fleet::testing::{fleet, node};
use crate::kube::fence;

fn policy() -> FleetPolicy {
    FleetPolicy { max_unavailable: MaxUnavailable::Number(1), step: StepPolicy::default() }
}

/// What is begun, as `node: task`.
fn begun(snapshot: &Snapshot, policy: &FleetPolicy) -> Vec<String> {
    let word = |task: &Task| match task {
        Task::Adopt => "adopt".to_owned(),
        Task::Canary => "canary".to_owned(),
        Task::Step(step) => step.to_string(),
    };
    decide(snapshot, policy).iter().map(|action| format!("{}: {}", action.node, word(&action.task))).collect()
}

fn stale(names: &[&str]) -> Vec<FleetNode> {
    names.iter().map(|name| node(name, Verdict::Stale)).collect()
}

/// Performs each claim at once and to its end, and lists the order.
fn whole_roll(mut snapshot: Snapshot) -> Vec<String> {
    let mut order = Vec::new();
    loop {
        let claims: Vec<_> =
            decide(&snapshot, &policy()).into_iter().filter(|a| a.task == Task::Step(Step::Claim)).collect();
        let Some(first) = claims.first() else { return order };
        assert_eq!(claims.len(), 1, "one at a time: {claims:?}");
        order.push(first.node.clone());
        *snapshot.node_mut(&first.node).unwrap() = node(&first.node, Verdict::Current);
    }
}

#[test]
fn o01_workers_then_control_planes_then_the_leader_then_the_endpoint_node() {
    let mut snapshot = fleet(stale(&["cp-1", "cp-2", "cp-3", "worker-10", "worker-9"]));
    snapshot.leader = Some("cp-2".into());
    assert_eq!(whole_roll(snapshot), ["worker-9", "worker-10", "cp-3", "cp-2", "cp-1"]);
}

#[test]
fn o04_the_endpoint_node_is_done_when_it_is_the_only_one() {
    assert_eq!(whole_roll(fleet(vec![node("cp-1", Verdict::Stale), node("worker-1", Verdict::Current)])), ["cp-1"]);
}

#[test]
fn o01_the_endpoint_node_waits_for_a_control_plane_that_is_only_looked_at_again() {
    let mut nodes = stale(&["cp-1"]);
    nodes.push(node("cp-2", Verdict::Unknown("CRI is restarting".into())));
    assert_eq!(begun(&fleet(nodes), &policy()), ["cp-2: look again"]);
}

#[test]
fn s4_no_control_plane_while_a_known_worker_needs_its_turn() {
    let mut nodes = stale(&["cp-2"]);
    nodes.push(node("worker-1", Verdict::Unknown("kubelet has not reported".into())));
    assert_eq!(begun(&fleet(nodes), &policy()), ["worker-1: look again"]);
}

#[test]
fn n26_a_worker_that_was_dead_before_takes_a_place_and_the_control_planes_roll() {
    let nodes = || {
        vec![node("worker-1", Verdict::Stale).dead(), node("worker-2", Verdict::Stale), node("cp-2", Verdict::Stale)]
    };
    // Its place is the only one: the other worker waits, and so do the control planes, which come after it.
    assert_eq!(begun(&fleet(nodes()), &policy()), Vec::<String>::new());
    let two = FleetPolicy { max_unavailable: MaxUnavailable::Number(2), ..policy() };
    assert_eq!(begun(&fleet(nodes()), &two), ["worker-2: fence and cordon"]);
    let only_dead = vec![node("worker-1", Verdict::Stale).dead(), node("cp-2", Verdict::Stale)];
    assert_eq!(begun(&fleet(only_dead), &policy()), ["cp-2: fence and cordon"]);
}

#[test]
fn o13_a_foreign_fence_and_a_node_that_is_not_ready_count() {
    let mut unready = node("worker-1", Verdict::Current);
    unready.kube.ready = false;
    // It may come back, so that it is waited for, with its name.
    let waiting = fleet(vec![unready, node("worker-2", Verdict::Stale)]);
    let reason = Step::LookAgain("its place in the budget is taken by worker-1".into());
    assert_eq!(decide(&waiting, &policy()), [Action { node: "worker-2".into(), task: Task::Step(reason) }]);
    let mut fenced = node("worker-1", Verdict::Current);
    fenced.fencing = Fencing::Unreadable("?".into());
    assert_eq!(begun(&fleet(vec![fenced, node("worker-2", Verdict::Stale)]), &policy()), Vec::<String>::new());
}

#[test]
fn a_nodes_own_ill_health_does_not_keep_it_from_its_turn() {
    let mut unready = node("worker-1", Verdict::Stale);
    unready.kube.ready = false;
    assert_eq!(begun(&fleet(vec![unready]), &policy()), ["worker-1: fence and cordon"]);
}

#[test]
fn o10_max_unavailable_is_never_exceeded_and_control_planes_stay_one() {
    let half = FleetPolicy { max_unavailable: MaxUnavailable::Percent(50), ..policy() };
    let workers = fleet(stale(&["worker-1", "worker-2", "worker-3", "worker-4", "cp-1", "cp-2"]));
    assert_eq!(begun(&workers, &half), ["worker-1: fence and cordon", "worker-2: fence and cordon"]);
    let planes = fleet(stale(&["cp-1", "cp-2", "cp-3"]));
    assert_eq!(begun(&planes, &half), ["cp-2: fence and cordon"]);
    let mut one_away = fleet(stale(&["cp-1", "cp-2", "cp-3"]));
    one_away.nodes[2] = one_away.nodes[2].clone().ours(fence::Step::Rebooting, "boot-1");
    assert_eq!(begun(&one_away, &half), ["cp-3: wait for the boot"]);
}

#[test]
fn o09_residue_is_adopted_first_and_what_was_not_rebooted_takes_its_ordinary_turn() {
    let mut snapshot = fleet(stale(&["cp-1", "cp-2", "worker-1"]));
    snapshot.nodes[0] = snapshot.nodes[0].clone().residue(fence::Step::Claimed, "boot-1");
    let actions = begun(&snapshot, &policy());
    assert_eq!(actions, ["cp-1: adopt"], "nothing else is disturbed meanwhile");
    // Adopted, it is given back; its turn comes last, for it is the endpoint node.
    let mut adopted = node("cp-1", Verdict::Stale).ours(fence::Step::Claimed, "boot-1");
    if let Fencing::Ours { in_turn, .. } = &mut adopted.fencing {
        *in_turn = false;
    }
    assert_eq!(adopted.next_step(policy().step), Step::Release);
}

#[test]
fn a_first_node_tries_the_credential_alone() {
    let drifted = |name: &str| node(name, Verdict::Drifted);
    let mut snapshot = fleet(vec![drifted("cp-1"), drifted("worker-1").live(), drifted("worker-2"), drifted("cp-2")]);
    snapshot.canary_passed = false;
    assert_eq!(begun(&snapshot, &policy()), ["worker-2: canary"], "a Reboot-mode worker is not disturbed by it");
    snapshot.node_mut("worker-2").unwrap().busy = Some(Step::Stage);
    assert_eq!(begun(&snapshot, &policy()), Vec::<String>::new());
    snapshot.node_mut("worker-2").unwrap().busy = None;
    snapshot.halted = true;
    assert_eq!(begun(&snapshot, &policy()), Vec::<String>::new(), "a canary that failed is not followed by another");
}

#[test]
fn a_node_that_came_back_from_a_dead_runs_reboot_tries_the_credential_like_any_other() {
    let mut snapshot = fleet(vec![
        node("worker-1", Verdict::Drifted).ours(fence::Step::Rebooting, "boot-0"),
        node("worker-2", Verdict::Drifted),
    ]);
    snapshot.canary_passed = false;
    assert_eq!(begun(&snapshot, &policy()), ["worker-1: canary"], "one at a time, and the cordoned one first");
    snapshot.canary_passed = true;
    assert_eq!(begun(&snapshot, &policy()), ["worker-1: write credential", "worker-2: write credential"]);
}

#[test]
fn o03_no_control_plane_is_taken_while_the_endpoint_node_is_not_known() {
    let mut snapshot = fleet(stale(&["cp-1", "cp-2"]));
    snapshot.endpoint.known = false;
    snapshot.endpoint.node = None;
    assert_eq!(begun(&snapshot, &policy()), ["cp-1: look again"]);
}

#[test]
fn a_fence_that_could_not_be_taken_over_is_left_to_a_human() {
    let mut stuck = node("worker-1", Verdict::Stale).residue(fence::Step::Claimed, "boot-1");
    stuck.memory.failed = Some(Blocked::Step("the API refused".into()));
    stuck.memory.stuck = true;
    let snapshot = fleet(vec![stuck]);
    assert_eq!(begun(&snapshot, &policy()), Vec::<String>::new());
    assert_eq!(left_over(&snapshot, &policy()).len(), 1);
}

#[test]
fn s3_what_another_tool_undoes_is_not_done_for_ever() {
    let mut undone = node("worker-1", Verdict::Stale);
    undone.memory.rebooted = true;
    assert!(matches!(undone.next_step(policy().step), Step::Blocked(Blocked::Undone(_))));
    let mut drifted = node("worker-1", Verdict::Drifted);
    drifted.memory.staged = 3;
    assert!(matches!(drifted.next_step(policy().step), Step::Blocked(Blocked::Undone(_))));
    let mut unproved = node("worker-1", Verdict::Unproved);
    unproved.memory.proof_written = true;
    assert!(matches!(unproved.next_step(policy().step), Step::Blocked(Blocked::Undone(_))));
}

#[test]
fn f14_a_fence_of_another_node_is_dropped() {
    let mut copied = node("worker-1", Verdict::Stale);
    copied.fencing = Fencing::Misplaced { raw: "{}".into() };
    assert_eq!(begun(&fleet(vec![copied]), &policy()), ["worker-1: adopt"]);
}

#[test]
fn the_endpoint_node_is_the_canary_only_when_it_is_alone() {
    let mut snapshot = fleet(vec![node("cp-1", Verdict::Drifted), node("cp-2", Verdict::Drifted)]);
    snapshot.canary_passed = false;
    assert_eq!(begun(&snapshot, &policy()), ["cp-2: canary"]);
    snapshot.nodes.pop();
    assert_eq!(begun(&snapshot, &policy()), ["cp-1: canary"]);
}

#[test]
fn after_the_canary_the_reboot_nodes_are_staged_at_once_and_the_live_ones_in_their_turn() {
    let drifted = |name: &str| node(name, Verdict::Drifted);
    let snapshot = fleet(vec![drifted("cp-1"), drifted("worker-1").live(), drifted("worker-2"), drifted("worker-3")]);
    assert_eq!(
        begun(&snapshot, &policy()),
        ["worker-2: write credential", "worker-3: write credential", "cp-1: write credential"]
    );
    let staged = fleet(vec![node("cp-1", Verdict::Current), drifted("worker-1").live(), drifted("worker-2").live()]);
    assert_eq!(begun(&staged, &policy()), ["worker-1: write credential"]);
}

#[test]
fn s1_a_live_node_counts_from_its_staging_until_its_cri_is_back() {
    let mut staged = node("worker-1", Verdict::Unknown("CRI is not running now".into())).live();
    if let Some(judgement) = &mut staged.judgement {
        judgement.claims.configured.answer = agent::claims::Answer::True;
    }
    let waiting = fleet(vec![staged, node("worker-2", Verdict::Drifted).live()]);
    assert_eq!(begun(&waiting, &policy()), ["worker-1: wait for CRI to restart"]);
}

#[test]
fn pulls_are_at_most_four_at_once() {
    let mut nodes = stale(&["worker-1", "worker-2", "worker-3", "worker-4", "worker-5", "worker-6"]);
    for node in &mut nodes {
        node.memory.pull = Pull::NotTried;
    }
    nodes[0].busy = Some(Step::CheckPull);
    assert_eq!(begun(&fleet(nodes), &policy()).len(), 3);
}

#[test]
fn r06_nothing_is_disrupted_after_a_node_that_did_not_come_back() {
    let mut snapshot = fleet(stale(&["worker-1", "cp-2"]));
    snapshot.halted = true;
    assert_eq!(begun(&snapshot, &policy()), Vec::<String>::new());
}

#[test]
fn a_left_out_node_is_left_alone_but_counts() {
    let mut left_out = node("worker-1", Verdict::Stale);
    left_out.left_out = true;
    left_out.kube.ready = false;
    let snapshot = fleet(vec![left_out, node("worker-2", Verdict::Stale)]);
    assert_eq!(begun(&snapshot, &policy()), ["worker-2: look again"]);
    assert_eq!(left_over(&snapshot, &policy()).len(), 1);
}

#[test]
fn what_is_left_over_is_named_with_its_reason() {
    let mut blocked = node("worker-2", Verdict::Blocked(Blocked::Times));
    blocked.kube.ready = true;
    let mut foreign = node("worker-3", Verdict::Current);
    foreign.talk = Talk::NotTalos("osImage is Debian".into());
    let snapshot = fleet(vec![node("worker-1", Verdict::Current), blocked, foreign, node("cp-1", Verdict::Leaving)]);
    let left = left_over(&snapshot, &policy());
    assert_eq!(left.len(), 1);
    assert!(left[0].0 == "worker-2" && left[0].1.starts_with("times:"), "{left:?}");
}

#[test]
fn max_unavailable_as_people_write_it() {
    assert_eq!("2".parse(), Ok(MaxUnavailable::Number(2)));
    assert_eq!("25%".parse(), Ok(MaxUnavailable::Percent(25)));
    for wrong in ["0", "0%", "101%", "-1", "many", ""] {
        assert!(wrong.parse::<MaxUnavailable>().is_err(), "{wrong}");
    }
    assert_eq!(MaxUnavailable::Percent(25).of(3), 1, "at least one");
    assert_eq!(MaxUnavailable::Percent(50).of(7), 3, "rounded down");
}
