//! What people see: the document on stdout, the progress on stderr. The only room that prints.

use std::io::Write as _;

use serde::Serialize;

pub mod actions;
pub mod columns;
pub mod doctor;
pub mod fences;
pub mod junit;
pub mod live;
pub mod page;
pub mod progress;
pub mod proofs;
pub mod report_file;
pub mod run_report;
pub mod style;
pub mod table;
pub mod width;

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Columns for people.
    Table,
    /// More columns.
    Wide,
    /// JSON with a schema version.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Writes a text to stdout; a reader that has gone away (`| head`) is no error.
pub fn print(text: &str) {
    let mut out = anstream::stdout().lock();
    let text = style::harmless(text);
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a line to stderr.
pub fn say(line: &str) {
    let line = style::harmless(line);
    let line = style::lead(&line);
    if live::above(&line) {
        return;
    }
    let mut err = anstream::stderr().lock();
    let _ = writeln!(err, "{line}");
}

/// A document as JSON or YAML, `None` for the formats that are for people.
#[must_use]
pub fn machine_readable<T: Serialize>(document: &T, format: Format) -> Option<String> {
    match format {
        Format::Json => serde_json::to_string_pretty(document).ok().map(|text| text + "\n"),
        Format::Yaml => serde_yaml::to_string(document).ok(),
        Format::Table | Format::Wide => None,
    }
}
