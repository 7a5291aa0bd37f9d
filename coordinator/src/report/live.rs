//! The table below the lines, on a terminal: what is done on each node, since when, what it waits for and for how long
//! it may. It is drawn over; whatever else is said meanwhile goes above it ([`super::say`]).

use std::io::IsTerminal as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::columns::columns;
use super::progress::{Progress, Running, short};

/// Between two looks at what has changed. The times are shown in tenths of a second only while they are short.
const TICK: Duration = Duration::from_millis(250);

/// Rows at once; a terminal of 24 lines then shows some lines above, too.
const ROWS: usize = 12;

/// The one table of this process, while there is one.
static SHOWN: Mutex<Option<MultiProgress>> = Mutex::new(None);

fn shown() -> MutexGuard<'static, Option<MultiProgress>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says a line above the table; `false` when there is none.
pub(super) fn above(line: &str) -> bool {
    let shown = shown();
    let Some(table) = shown.as_ref() else { return false };
    let plain = AutoStream::choice(&std::io::stderr()) == ColorChoice::Never;
    let line = if plain { strip_str(line).to_string() } else { line.to_owned() };
    table.println(line).is_ok()
}

/// Whether stderr is a terminal that can be drawn over.
#[must_use]
pub fn is_possible() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Takes the table away while something else has the terminal.
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    let table = shown().take();
    let Some(table) = table else { return work() };
    let done = table.suspend(work);
    *shown() = Some(table);
    done
}

/// The table; it is taken away when this is dropped.
pub struct Live {
    table: MultiProgress,
    lines: Vec<ProgressBar>,
}

impl Live {
    /// Shows it on stderr, which the caller knows to be a terminal.
    #[must_use]
    pub fn begin() -> Self {
        let table = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        *shown() = Some(table.clone());
        Self { table, lines: Vec::new() }
    }

    /// Draws it over and over until this is dropped.
    pub async fn keep(mut self, progress: &Progress) {
        loop {
            self.draw(&rows(&progress.running()));
            progress.clock().sleep(TICK).await;
        }
    }

    fn draw(&mut self, text: &str) {
        let wanted: Vec<&str> = text.lines().collect();
        while self.lines.len() > wanted.len() {
            if let Some(line) = self.lines.pop() {
                line.finish_and_clear();
                self.table.remove(&line);
            }
        }
        while self.lines.len() < wanted.len() {
            let line = self.table.add(ProgressBar::new_spinner());
            // Cut off at the terminal's edge, for a line that is wrapped cannot be drawn over.
            line.set_style(
                ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            self.lines.push(line);
        }
        for (line, text) in self.lines.iter().zip(wanted) {
            if line.message() != text {
                line.set_message(text.to_owned());
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.table.clear();
        *shown() = None;
    }
}

/// The table's lines; empty while nothing goes on.
fn rows(running: &[Running]) -> String {
    if running.is_empty() {
        return String::new();
    }
    let cells = |row: &Running| {
        vec![
            row.node.clone(),
            row.what.clone(),
            short(row.time),
            row.waits_for.clone().unwrap_or_else(|| "-".to_owned()),
            row.left.map_or_else(|| "-".to_owned(), short),
        ]
    };
    let rows: Vec<Vec<String>> = running.iter().take(ROWS).map(cells).collect();
    let mut text = columns(&["NODE", "STEP", "TIME", "NOW", "LEFT"], &rows);
    if running.len() > ROWS {
        text.push_str(&format!("and {} more\n", running.len() - ROWS));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(node: &str, waits_for: Option<&str>, left: Option<u64>) -> Running {
        Running {
            node: node.to_owned(),
            what: "drain".to_owned(),
            time: Duration::from_secs(75),
            waits_for: waits_for.map(str::to_owned),
            left: left.map(Duration::from_secs),
        }
    }

    #[test]
    fn a_row_for_each_node_that_is_worked_on() {
        assert_eq!(rows(&[]), "");
        let text = rows(&[running("w1", Some("3 pods to go"), Some(525)), running("worker-2", None, None)]);
        let text = strip_str(&text).to_string();
        let expected = "NODE       STEP    TIME    NOW            LEFT\n\
                        w1         drain   1m15s   3 pods to go   8m45s\n\
                        worker-2   drain   1m15s   -              -\n";
        assert_eq!(text, expected);
        let many: Vec<Running> = (0..40).map(|number| running(&format!("w{number}"), None, None)).collect();
        assert!(rows(&many).ends_with("and 28 more\n"));
        assert_eq!(rows(&many).lines().count(), ROWS + 2);
    }
}
