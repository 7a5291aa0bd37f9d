//! Every state of small clusters, and the mistakes that must be found in them. What was looked at is printed although the
//! checks pass: how much it was is part of the answer.

mod exhaust;
mod mutants;

use std::io::Write as _;

/// A line for people. The test harness keeps what the macros print to itself when a test passes.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
