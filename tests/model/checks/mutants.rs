//! Each mistake must be found. One that survives fails the test: then the model looks away from it.

use model::check::Setup;
use model::cluster::Kind::{Endpoint, Plane, Worker};
use model::mutants::{Mutant, all};
use model::report::check;
use model::setups::{restarted_and_stepped, setup};
use model::world::Fault;

use crate::tell;

/// The smallest cluster that shows the mistake, and the disturbance that it needs.
fn smallest(mutant: &Mutant) -> Setup {
    let one = |only| Setup { deaths: 0, losses: false, only, ..setup(mutant.name, &[Worker], 1) };
    let none: fn(&Fault) -> bool = |_| false;
    match mutant.name {
        "the endpoint node first" => Setup { faults: 0, deaths: 0, ..setup(mutant.name, &[Endpoint, Plane], 1) },
        "residue first without re-queueing" => {
            let replaced: fn(&Fault) -> bool = |fault| matches!(fault, Fault::Replaced(0));
            Setup { deaths: 0, losses: false, only: replaced, ..setup(mutant.name, &[Worker, Endpoint], 1) }
        }
        "permit not checked at the call" => Setup { faults: 0, deaths: 0, ..setup(mutant.name, &[Worker], 2) },
        "expiry judged by wall clock on first sight" => {
            Setup { runs: 2, ..one(|fault| matches!(fault, Fault::RunClock(_))) }
        }
        "an absent Lease created at once" => Setup { runs: 2, ..one(|fault| matches!(fault, Fault::LeaseDeleted)) },
        "epochs compared across Leases" => one(|fault| matches!(fault, Fault::LeaseDeleted)),
        "the process of the last look is recorded" => restarted_and_stepped(mutant.name),
        "loaded by times alone" => one(|fault| matches!(fault, Fault::NodeClock(_))),
        _ => Setup { losses: true, ..one(none) },
    }
}

#[test]
fn every_mutant_is_found() {
    let mut survived = Vec::new();
    for mutant in all() {
        let seen = check(Setup { rules: mutant.rules, ..smallest(&mutant) }, true);
        match seen.violated.first() {
            Some((property, length, _)) => {
                tell(&format!("{}: {property}, after {length} steps ({})", mutant.name, seen.summary));
            }
            None => {
                tell(&format!("{}: SURVIVED ({})", mutant.name, seen.summary));
                survived.push(mutant.name);
            }
        }
    }
    assert!(survived.is_empty(), "survived: {survived:?}");
}
