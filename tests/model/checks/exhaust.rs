//! Every state of small clusters, with the product's own decisions.

use model::check::Setup;
use model::cluster::Kind::{Endpoint, Plane, Worker};
use model::report::check;
use model::setups::{restarted_and_stepped, setup};

use crate::tell;

/// Looks at every state; `reaches` are what must have been seen on the way.
fn exhaust(setup: Setup, reaches: &[&str]) {
    let seen = check(setup, false);
    tell(&seen.summary);
    for (property, length, steps) in &seen.violated {
        tell(&format!("  {property} is violated after {length} steps:\n{steps}"));
    }
    let unmet: Vec<_> = reaches.iter().filter(|wanted| seen.missing.iter().any(|missing| missing == *wanted)).collect();
    assert!(seen.violated.is_empty() && seen.complete, "see above");
    assert!(unmet.is_empty(), "never reached: {unmet:?}");
}

const ONE_RUN: &[&str] = &["a finished roll", "a canary rolled back", "a lapse ridden out"];
const CRASHES: &[&str] = &["a finished roll", "a takeover", "an adoption", "a residue given back", "refused"];
const ALL: &[&str] = &[
    "a finished roll",
    "a canary rolled back",
    "a takeover",
    "an adoption",
    "a residue given back",
    "control lost",
    "refused",
];

#[test]
fn one_run_on_one_node() {
    exhaust(setup("1 run, 1 worker, 1 disturbance", &[Worker], 1), ONE_RUN);
}

/// Two disturbances that lie together: which process a record names is all that tells.
#[test]
fn one_run_on_a_node_that_others_reboot_while_its_clock_is_wrong() {
    exhaust(restarted_and_stepped("1 run, 1 worker, rebooted by others, its clock stepped"), &["a finished roll"]);
}

#[test]
fn two_runs_on_one_node() {
    exhaust(setup("2 runs, 1 worker, 1 disturbance", &[Worker], 2), ALL);
}

#[test]
fn two_runs_on_two_nodes() {
    let quiet = |name, kinds| Setup { faults: 0, ..setup(name, kinds, 2) };
    exhaust(quiet("2 runs, a worker and the endpoint node", &[Worker, Endpoint]), CRASHES);
    exhaust(quiet("2 runs, 2 workers", &[Worker, Worker]), CRASHES);
    let one_machine = Setup { one_machine: true, ..quiet("2 runs on one machine, 2 workers", &[Worker, Worker]) };
    exhaust(one_machine, CRASHES);
}

#[test]
fn two_runs_on_two_nodes_with_a_disturbance() {
    exhaust(setup("2 runs, a worker and the endpoint node, 1 disturbance", &[Worker, Endpoint], 2), ALL);
    let one_machine =
        Setup { one_machine: true, ..setup("2 runs on one machine, 2 workers, 1 disturbance", &[Worker, Worker], 2) };
    exhaust(one_machine, CRASHES);
}

#[test]
#[ignore = "minutes: make model"]
fn two_runs_on_three_nodes() {
    let quiet = Setup {
        faults: 0,
        ..setup("2 runs, a worker, a control plane and the endpoint node", &[Worker, Plane, Endpoint], 2)
    };
    exhaust(quiet, CRASHES);
}

#[test]
#[ignore = "minutes: make model"]
fn three_runs() {
    let three = |name, kinds| Setup { faults: 0, ..setup(name, kinds, 3) };
    // One that is killed in the middle of what it took over from another that was killed.
    let twice = Setup { deaths: 2, one_machine: true, ..three("3 runs on one machine, 2 workers", &[Worker, Worker]) };
    exhaust(twice, CRASHES);
    // On machines of their own nobody can tell whether a holder lives, and each watches it.
    exhaust(Setup { deaths: 2, cordoned: false, ..three("3 runs, a worker", &[Worker]) }, CRASHES);
}
