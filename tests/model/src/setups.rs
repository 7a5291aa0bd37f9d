//! The clusters that are checked.

use crate::check::Setup;
use crate::cluster::Kind;
use crate::rules::Rules;

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
