//! Runs the checker and says what it saw.

use std::fmt::Write as _;

use stateright::{Checker, HasDiscoveries, Model};
use talos_proto::clock::Clock;

use crate::check::{Setup, World};

/// Threads of the checker.
const THREADS: usize = 2;

/// What came of a check.
pub struct Seen {
    /// One line: states, depth, time.
    pub summary: String,
    /// Properties that were violated, with the length and the steps of the counterexample.
    pub violated: Vec<(String, usize, String)>,
    /// What should have been reachable and was not.
    pub missing: Vec<String>,
    /// Every state was looked at.
    pub complete: bool,
}

/// Looks at every state of a setup, or, for a mutant, until something is violated.
#[must_use]
pub fn check(setup: Setup, until_violated: bool) -> Seen {
    let clock = Clock::system();
    let began = clock.now();
    let name = setup.name;
    let threads = if until_violated { 1 } else { THREADS };
    let checker =
        World::new(setup).checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let seconds = clock.now().since(began).as_secs_f64();
    let found = checker.discoveries();
    let mut violated = Vec::new();
    let mut missing = Vec::new();
    for property in checker.model().properties() {
        let path = found.get(property.name);
        match (property.expectation, path) {
            (stateright::Expectation::Always, Some(path)) => {
                let actions = path.clone().into_actions();
                let mut steps = String::new();
                for action in &actions {
                    let _ = writeln!(steps, "    {action:?}");
                }
                violated.push((property.name.to_owned(), actions.len(), steps));
            }
            (stateright::Expectation::Sometimes, None) => missing.push(property.name.to_owned()),
            _ => {}
        }
    }
    let summary = format!(
        "{name}: {} states, {} of them unique, depth {}, {seconds:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    Seen { summary, complete: violated.is_empty() && checker.is_done(), violated, missing }
}
