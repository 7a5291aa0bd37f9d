//! The clusters that are checked.

use crate::check::Setup;
use crate::cluster::Kind;
use crate::rules::Rules;
use crate::world::Fault;

/// Two runs on two nodes, and what else is asked of them.
#[must_use]
pub fn setup(name: &'static str, kinds: &[Kind], runs: usize) -> Setup {
    Setup {
        name,
        kinds: kinds.to_vec(),
        runs,
        one_machine: false,
        cordoned: kinds.len() == 1,
        faults: 1,
        deaths: 1,
        losses: true,
        only: |_| true,
        rules: Rules::product(),
    }
}

/// One run on one node, which somebody else reboots while its clock is stepped back.
#[must_use]
pub fn restarted_and_stepped(name: &'static str) -> Setup {
    let only: fn(&Fault) -> bool = |fault| matches!(fault, Fault::Rebooted(_) | Fault::NodeClock(_));
    Setup { faults: 2, deaths: 0, losses: false, only, ..setup(name, &[Kind::Worker], 1) }
}
