//! `make conformance`: every suite on every backend, and a table of what came of it.

mod suites;
mod table;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use talos_proto::clock::Clock;

use self::suites::{How, Needs, Plan, SUITES};
use self::table::{Cell, Row};

pub use self::suites::REGISTRY_VARIABLE;

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
}

/// The names of all suites.
#[must_use]
pub fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

/// Runs all suites, or those of that name; whether nothing failed. With `require` a suite that needs something which is
/// not there has failed, too.
///
/// # Errors
/// [`ConformanceError`].
pub fn run(only: &[String], require: bool) -> Result<bool, ConformanceError> {
    let clock = Clock::system();
    let mut rows = Vec::new();
    for suite in SUITES.iter().filter(|suite| only.is_empty() || only.iter().any(|name| name == suite.name)) {
        for (backend, plan) in suite.on {
            let begun = clock.now();
            let cell = match plan {
                Plan::Never(why) => Cell::Never(why),
                Plan::Run(how, needs) => match needs.missing() {
                    Some(why) => Cell::Missing(why),
                    None => {
                        say(&format!("\n=== {}, {backend}", suite.name))?;
                        perform(*how, *needs)?
                    }
                },
            };
            rows.push(Row { suite: suite.name, of: suite.of, backend: *backend, cell, took: clock.now().since(begun) });
        }
    }
    say(&table::render(&rows, require))?;
    Ok(rows.iter().all(|row| !row.cell.failed(require)))
}

/// A command that does not outlive a failure here.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already unless something went wrong.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn perform(how: How, needs: Needs) -> Result<Cell, ConformanceError> {
    let mut command = how.command(needs);
    let what = format!("{command:?}");
    let failed = |source| ConformanceError::Run { what: what.clone(), source };
    let mut child = Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?);
    let (mut passed, mut bad) = (0, 0);
    if let Some(stdout) = child.0.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(failed)?;
            let line = String::from_utf8_lossy(&line);
            if let Some((good, failures)) = table::result_of(&line) {
                passed += good;
                bad += failures;
            }
            say(&line)?;
        }
    }
    let status = child.0.wait().map_err(failed)?;
    Ok(match how {
        How::Demo => Cell::Ran { passed: u32::from(status.success()), failed: u32::from(!status.success()) },
        // A suite in which nothing ran has proved nothing, and one that died has said no numbers.
        How::Tests { .. } => Cell::Ran { passed, failed: bad.max(u32::from(!status.success() || passed == 0)) },
    })
}

fn say(text: &str) -> Result<(), ConformanceError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(ConformanceError::Stdout)
}
