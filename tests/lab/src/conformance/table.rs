//! The table at the end.

use std::fmt::Write as _;
use std::time::Duration;

use super::suites::Backend;

/// What came of a suite on a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// So many tests.
    Ran { passed: u32, failed: u32 },
    /// Not here: something is missing.
    Missing(String),
    /// Nowhere, for that reason.
    Never(&'static str),
}

impl Cell {
    /// Whether anything is wrong.
    pub fn failed(&self, require: bool) -> bool {
        match self {
            Self::Ran { failed, .. } => *failed > 0,
            Self::Missing(_) => require,
            Self::Never(_) => false,
        }
    }

    /// Why it did not run.
    fn why(&self) -> Option<&str> {
        match self {
            Self::Ran { .. } => None,
            Self::Missing(why) => Some(why),
            Self::Never(why) => Some(why),
        }
    }
}

/// A line of it.
pub(super) struct Row {
    pub suite: &'static str,
    pub of: &'static str,
    pub backend: Backend,
    pub cell: Cell,
    pub took: Duration,
}

/// The numbers in libtest's last line.
pub(super) fn result_of(line: &str) -> Option<(u32, u32)> {
    let numbers = line.strip_prefix("test result: ")?;
    let number = |what: &str| {
        let before = numbers.split(&format!(" {what}")).next()?;
        before.rsplit(' ').next()?.parse().ok()
    };
    Some((number("passed")?, number("failed")?))
}

/// All rows, what each suite is about, and the reasons.
pub(super) fn render(rows: &[Row], require: bool) -> String {
    let mut text = String::from("\n=== conformance\n\n");
    // Writing into a string cannot fail.
    let _ = write_table(&mut text, rows, require);
    text.trim_end().to_owned()
}

fn write_table(text: &mut String, rows: &[Row], require: bool) -> std::fmt::Result {
    writeln!(text, "{:<12} {:<10} {:>7} {:>7} {:>8}   WHAT", "SUITE", "BACKEND", "PASSED", "FAILED", "TOOK")?;
    let mut before = "";
    for row in rows {
        let (suite, of) = if row.suite == before { ("", "") } else { (row.suite, row.of) };
        before = row.suite;
        let (passed, failed) = match &row.cell {
            Cell::Ran { passed, failed } => (passed.to_string(), failed.to_string()),
            Cell::Missing(_) | Cell::Never(_) => ("-".to_owned(), "-".to_owned()),
        };
        let took = match &row.cell {
            Cell::Ran { .. } => format!("{} s", row.took.as_secs()),
            Cell::Missing(_) | Cell::Never(_) => "-".to_owned(),
        };
        let line = format!("{suite:<12} {:<10} {passed:>7} {failed:>7} {took:>8}   {of}", row.backend.to_string());
        writeln!(text, "{}", line.trim_end())?;
    }
    let cannot: Vec<_> = rows.iter().filter_map(|row| Some((row, row.cell.why()?))).collect();
    if !cannot.is_empty() {
        writeln!(text, "\nCannot run:")?;
        for (row, why) in cannot {
            writeln!(text, "  {}, {}: {why}", row.suite, row.backend)?;
        }
    }
    let failed: Vec<_> = rows.iter().filter(|row| row.cell.failed(require)).collect();
    match failed.as_slice() {
        [] => writeln!(text, "\nNothing failed."),
        failed => {
            let names: Vec<_> = failed.iter().map(|row| format!("{} ({})", row.suite, row.backend)).collect();
            writeln!(text, "\nFAILED: {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_test_binary_is_understood() {
        let line =
            "test result: FAILED. 11 passed; 3 failed; 0 ignored; 0 measured; 77 filtered out; finished in 302.84s";
        assert_eq!(result_of(line), Some((11, 3)));
        assert_eq!(result_of("test lease::l01 ... ok"), None);
    }

    #[test]
    fn a_table_names_what_failed_and_why_something_was_not_run() {
        let row = |suite, backend, cell| Row { suite, of: "of it", backend, cell, took: Duration::from_secs(75) };
        let rows = [
            row("a", Backend::Simulated, Cell::Ran { passed: 3, failed: 0 }),
            row("a", Backend::Real, Cell::Ran { passed: 2, failed: 1 }),
            row("b", Backend::Real, Cell::Missing("no such thing".into())),
        ];
        let text = render(&rows, false);
        assert!(text.contains("a            simulated        3       0     75 s   of it\n"), "{text}");
        assert!(text.contains("             real             2       1     75 s\n"), "{text}");
        assert!(text.contains("  b, real: no such thing\n") && text.ends_with("FAILED: a (real)"), "{text}");
        assert!(render(&rows, true).ends_with("FAILED: a (real), b (real)"), "what is missing was required");
        assert!(render(&rows[..1], false).ends_with("Nothing failed."));
    }
}
