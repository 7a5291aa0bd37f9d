//! `make conformance`: every suite on every backend, and a table of what came of it.

mod suites;
mod table;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use talos_proto::clock::Clock;

use self::suites::{Backend, How, SUITES};
use self::table::{Cell, Row};

/// Why the suites could not be run to their end.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// cargo, or a program that it has built.
    #[error("cannot run {what}")]
    Run {
        /// The command.
        what: String,
        /// As execve(2).
        #[source]
        source: io::Error,
    },
    /// Nobody reads.
    #[error("cannot write to stdout")]
    Stdout(#[source] io::Error),
    /// No such suite.
    #[error("there is no suite {0:?}; there are: {names}", names = SUITES.map(|suite| suite.name).join(", "))]
    Unknown(String),
}

/// Runs all suites, or those of that name; whether nothing failed.
///
/// # Errors
/// [`ConformanceError`].
pub fn run(only: &[String]) -> Result<bool, ConformanceError> {
    let clock = Clock::system();
    if let Some(unknown) = only.iter().find(|name| SUITES.iter().all(|suite| suite.name != name.as_str())) {
        return Err(ConformanceError::Unknown(unknown.clone()));
    }
    let mut rows = Vec::new();
    for suite in SUITES.iter().filter(|suite| only.is_empty() || only.iter().any(|name| name == suite.name)) {
        for (backend, how) in suite.on {
            let begun = clock.now();
            let cell = match how.missing(*backend) {
                Some(why) => Cell::CannotRun(why),
                None => {
                    say(&format!("\n=== {}, {backend}", suite.name))?;
                    perform(how, *backend)?
                }
            };
            rows.push(Row { suite: suite.name, of: suite.of, backend: *backend, cell, took: clock.now().since(begun) });
        }
    }
    say(&table::render(&rows))?;
    Ok(rows.iter().all(|row| !row.cell.failed()))
}

fn perform(how: &How, backend: Backend) -> Result<Cell, ConformanceError> {
    let mut command = how.command(backend);
    let what = format!("{command:?}");
    let failed = |source| ConformanceError::Run { what: what.clone(), source };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let (mut passed, mut bad) = (0, 0);
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(failed)?;
            if let Some((good, failures)) = table::result_of(&line) {
                passed += good;
                bad += failures;
            }
            say(&line)?;
        }
    }
    let status = child.wait().map_err(failed)?;
    Ok(match how {
        How::Demo => Cell::Ran { passed: u32::from(status.success()), failed: u32::from(!status.success()) },
        // A suite in which nothing ran has proved nothing, and one that died has said no numbers.
        How::Tests { .. } => Cell::Ran { passed, failed: bad.max(u32::from(!status.success() || passed == 0)) },
        How::Not(why) => Cell::CannotRun((*why).to_owned()),
    })
}

fn say(text: &str) -> Result<(), ConformanceError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(ConformanceError::Stdout)
}
