//! Two and three coordinators at once: exactly one changes anything at any time, by the servers' own log of who changed
//! what and when it took effect: L24, also when the one at work is killed or stopped, and L12, L17.

use futures::FutureExt as _;
use lab::faults::When;
use rustix::process::Signal;
use tokio::process::Child;

use crate::harness::{Bed, Ended, ended, eventually};
use crate::scene::{Gate, Story, kill, lease_is_held, only_stale, side_by_side, signal};

const STALE: [&str; 3] = ["worker-1", "cp-2", "cp-1"];
const CLIENTS: [&str; 3] = ["first", "second", "third"];
/// A holder who lives is waited for.
const PATIENT: [&str; 2] = ["--lease-wait", "100s"];

fn start(bed: &Bed, clients: &[&str], more: &[&str]) -> Vec<Child> {
    clients.iter().map(|client| bed.start_as(client, more)).collect()
}

async fn all_ended(children: Vec<Child>) -> Vec<Ended> {
    futures::future::join_all(children.into_iter().map(ended)).await
}

fn assert_rolled_once(bed: &Bed) {
    bed.assert_done();
    for node in bed.lab.truth().nodes {
        assert_eq!(node.boots, u32::from(STALE.contains(&node.name.as_str())), "boots of {}", node.name);
    }
    let order = bed.lab.truth().boot_order;
    assert_eq!(order.last().map(String::as_str), Some("cp-1"), "{order:?}");
}

/// With default flags who comes second refuses, or finds nothing to do.
async fn started_together(clients: &[&str]) {
    let bed = only_stale(&STALE).await;
    let story = Story::begin(&bed);
    let runs = all_ended(start(&bed, clients, &[])).await;
    let holders = bed.assert_one_changes_things_at_a_time();
    assert_eq!(holders.len(), 1, "{holders:?}");
    for (client, run) in clients.iter().zip(runs) {
        if holders[0] == *client {
            run.expect(0);
            bed.assert_released_last(client);
        } else {
            let run = run.expect(3);
            assert!(run.stderr.contains("is held by"), "{}", run.stderr);
            assert_eq!(bed.effects_of(client), Vec::<String>::new(), "who was refused has changed nothing");
        }
    }
    story.assert_budget(1);
    assert_rolled_once(&bed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l24_of_two_and_three_started_together_one_changes_everything_and_the_others_nothing() {
    let cases = [2, 3].map(|count| (format!("{count} at once"), started_together(&CLIENTS[..count]).boxed()));
    side_by_side(cases.into()).await;
}

/// Where the first is hurt, on one side of a request's effect.
#[derive(Clone, Copy)]
enum Hurt {
    Killed(When, &'static str),
    Stopped(&'static str),
}

/// The first is at work when the others come; they wait for it. It is hurt, one of them finishes, the other finds nothing
/// to do.
async fn the_first_is_hurt(hurt: Hurt) {
    let bed = only_stale(&STALE).await;
    let story = Story::begin(&bed);
    let mut gate = Gate::new(&bed);
    let first = bed.start_as(CLIENTS[0], &[]);
    let (when, what) = match hurt {
        Hurt::Killed(when, what) => (when, what),
        Hurt::Stopped(what) => (When::Before, what),
    };
    let held = gate.hold(when, what, 1).await;
    drop(gate);
    assert!(lease_is_held(&bed));
    let others = start(&bed, &CLIENTS[1..], &PATIENT);
    let first = match hurt {
        Hurt::Killed(..) => {
            // While they wait for one who lives, and before its lease runs out.
            kill(first).await;
            held.cut();
            None
        }
        Hurt::Stopped(_) => {
            signal(&first, Signal::STOP);
            held.cut();
            bed.holder_runs_elsewhere();
            Some(first)
        }
    };
    let others = all_ended(others).await;
    assert_rolled_once(&bed);
    let order = bed.lab.truth().boot_order;
    if let Some(first) = first {
        // What was under way when it was stopped may have taken effect since: before the others, which is judged below.
        let left = bed.effects_of(CLIENTS[0]);
        signal(&first, Signal::CONT);
        let thawed = ended(first).await.expect(5);
        assert!(thawed.stderr.contains("lease"), "{}", thawed.stderr);
        assert_eq!(bed.effects_of(CLIENTS[0]), left, "the thawed run changed something");
        assert_rolled_once(&bed);
        assert_eq!(bed.lab.truth().boot_order, order);
    }
    let holders = bed.assert_one_changes_things_at_a_time();
    assert_eq!(holders[0], CLIENTS[0]);
    assert!(holders.len() >= 2, "{holders:?}");
    for (client, other) in CLIENTS[1..].iter().zip(others) {
        other.expect(0);
        if holders.iter().any(|holder| holder == client) {
            bed.assert_released_last(client);
        } else {
            assert_eq!(bed.effects_of(client), Vec::<String>::new());
        }
    }
    story.assert_budget(1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l24_l12_l17_the_one_at_work_is_killed_or_stopped_and_exactly_one_of_the_others_goes_on() {
    let cases = [
        ("killed, a worker is claimed", Hurt::Killed(When::After, "PATCH nodes /api/v1/nodes/worker-1")),
        ("killed, the reboot is asked for", Hurt::Killed(When::After, "Reboot cp-2")),
        ("killed, the credential is written", Hurt::Killed(When::Before, "ApplyConfiguration")),
        ("stopped, a pod is evicted", Hurt::Stopped("POST pods/eviction")),
        ("stopped, the endpoint node is to reboot", Hurt::Stopped("Reboot cp-1")),
    ];
    let cases = cases.map(|(name, hurt)| (name.to_owned(), the_first_is_hurt(hurt).boxed()));
    side_by_side(cases.into()).await;
}

/// Two patient ones started together: the second goes on when the first is done, and finds nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l24_l33_of_two_patient_ones_the_second_finds_nothing_to_do() {
    let bed = only_stale(&STALE[..1]).await;
    let first = bed.start_as(CLIENTS[0], &PATIENT);
    eventually("the first holds the lease", || lease_is_held(&bed)).await;
    let second = bed.start_as(CLIENTS[1], &PATIENT);
    let runs = all_ended(vec![first, second]).await;
    for run in runs {
        run.expect(0);
    }
    let holders = bed.assert_one_changes_things_at_a_time();
    assert_eq!(holders[0], CLIENTS[0]);
    bed.assert_released_last(CLIENTS[0]);
    let second = bed.effects_of(CLIENTS[1]);
    assert!(second.iter().all(|effect| effect.contains("leases")), "{second:#?}");
    bed.assert_done();
}
