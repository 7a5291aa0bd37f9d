//! What a run tells GitHub Actions beside its lines: masks, a group, one annotation, outputs, a summary.
//!
//! Workflow commands are lines of the form `::name::value`, and the runner obeys any such line of any program
//! (docs.github.com, "Workflow commands for GitHub Actions"). So from the masks on it is told to obey none
//! (`stop-commands`) but between our own: what a node, a server or a hook says is only shown.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use agent::credential::Desired;
use uuid::Uuid;

use super::page::scale::length;
use super::page::timeline::away;
use super::run_report::ReportDocument;
use crate::rollout::RunDocument;

/// A run inside of a workflow.
pub struct Actions {
    /// Ends the pause in which no command is obeyed.
    resume: String,
}

impl Actions {
    /// Inside of GitHub Actions: opens a group, and has no command obeyed from then on that others print.
    #[must_use]
    pub fn begin() -> Option<Self> {
        if !are_here() {
            return None;
        }
        let actions = Self { resume: Uuid::new_v4().simple().to_string() };
        super::say("::group::talos-ghcr run");
        super::say(&format!("::stop-commands::{}", actions.resume));
        Some(actions)
    }

    /// Closes the group, says in one annotation why a run failed, and writes outputs and summary.
    ///
    /// # Errors
    /// A file that cannot be written, in words.
    pub fn end(self, document: &RunDocument, report: &ReportDocument) -> Result<(), String> {
        super::say(&format!("::{}::", self.resume));
        super::say("::endgroup::");
        if let Some(text) = failure(document) {
            super::say(&format!("::error title=talos-ghcr run::{}", value(&text)));
        }
        append("GITHUB_OUTPUT", &outputs(document, &delimiter()))?;
        append("GITHUB_STEP_SUMMARY", &summary(document, report))
    }
}

/// Adds to the file that this variable names; where it names none, nobody reads it.
fn append(variable: &str, text: &str) -> Result<(), String> {
    let Some(file) = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from) else {
        return Ok(());
    };
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    opened
        .and_then(|mut opened| opened.write_all(text.as_bytes()))
        .map_err(|error| format!("{variable} ({}) cannot be written: {error}", file.display()))
}

/// That no value can hold.
fn delimiter() -> String {
    format!("ghadelimiter_{}", Uuid::new_v4())
}

/// Whether we are a step of a workflow.
fn are_here() -> bool {
    std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true")
}

/// Inside of GitHub Actions: the outputs and the summary of a run that ended before it began, so that the steps that read
/// them see that nothing was changed.
pub fn never_began(error: &str) {
    if !are_here() {
        return;
    }
    let nothing = [("changed", "false"), ("rebooted", ""), ("unproved", ""), ("revision", "")];
    let outputs = lines(&nothing.map(|(name, value)| (name, value.to_owned())), &delimiter());
    let summary = format!("### talos-ghcr run: failed before it began\n\n{}\n", cell(error));
    // The run has failed already.
    let _ = append("GITHUB_OUTPUT", &outputs);
    let _ = append("GITHUB_STEP_SUMMARY", &summary);
}

/// Inside of GitHub Actions: masks every secret, as soon as it is known and before anything else is said.
pub fn mask(secrets: &Desired) {
    if !are_here() {
        return;
    }
    for secret in secrets.secrets() {
        // A secret of several lines is masked line by line: so the runner compares.
        for line in secret.lines().filter(|line| !line.trim().is_empty()) {
            super::say(&format!("::add-mask::{}", value(line)));
        }
    }
}

/// Inside of GitHub Actions: one annotation for what failed before a run began, and for the commands that only look.
pub fn annotate(text: &str) {
    if are_here() {
        super::say(&format!("::error title=talos-ghcr::{}", value(text)));
    }
}

/// The value of a command: these three characters would end it or be read as an escape.
fn value(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Why a run ended as it did, and what to do, for one annotation; `None` when all is well.
fn failure(document: &RunDocument) -> Option<String> {
    if document.exit_code == 0 {
        return None;
    }
    // The first line is what a page of many jobs shows of it: the cause.
    let mut text = String::new();
    for (node, reason) in &document.left {
        if !node.is_empty() {
            let _ = write!(text, "{node}: ");
        }
        let _ = writeln!(text, "{reason}");
    }
    let _ = write!(text, "exit code {}: {}", document.exit_code, document.result);
    text.push_str(match document.exit_code {
        3 => "\nNext: wait until that run has ended; talos-ghcr fences shows who holds the lease.",
        4 | 5 => "\nNext: run the same command again; it goes on where this one ended.",
        _ => "\nNext: talos-ghcr plan shows every node; when the cause is gone, run the same command again.",
    });
    Some(text)
}

/// In the form of `GITHUB_OUTPUT`, with a delimiter that no value can hold.
fn outputs(document: &RunDocument, delimiter: &str) -> String {
    let unproved: Vec<&str> = document.left.keys().map(String::as_str).filter(|node| !node.is_empty()).collect();
    let values = [
        ("changed", document.changed.to_string()),
        ("rebooted", document.rebooted.join(",")),
        ("unproved", unproved.join(",")),
        ("revision", document.revision.clone().unwrap_or_default()),
    ];
    lines(&values, delimiter)
}

fn lines(values: &[(&str, String)], delimiter: &str) -> String {
    values
        .iter()
        .fold(String::new(), |text, (name, value)| text + &format!("{name}<<{delimiter}\n{value}\n{delimiter}\n"))
}

/// Markdown for the job's page.
fn summary(document: &RunDocument, report: &ReportDocument) -> String {
    let mut text = format!("### talos-ghcr run: {}\n\n", cell(&document.result));
    let mut rows: Vec<(&str, String)> = Vec::new();
    rows.extend(document.rebooted.iter().map(|node| (node.as_str(), "rebooted".to_owned())));
    rows.extend(document.adopted_live.iter().map(|node| (node.as_str(), "adopted by a restart of CRI".to_owned())));
    rows.extend(
        document.left.iter().map(|(node, why)| (if node.is_empty() { "run" } else { node.as_str() }, why.clone())),
    );
    if !rows.is_empty() {
        text.push_str("| node | | away |\n|---|---|---|\n");
        for (node, what) in rows {
            let steps: Vec<_> = report.steps.iter().filter(|step| step.node == node).collect();
            let away = away(&steps).map_or_else(|| "-".to_owned(), length);
            let _ = writeln!(text, "| {} | {} | {away} |", cell(node), cell(&what));
        }
        text.push('\n');
    }
    if !report.phases.is_empty() {
        text.push_str("| phase | took |\n|---|---|\n");
        for phase in &report.phases {
            let _ = writeln!(text, "| {} | {} |", phase.phase, length(phase.seconds));
        }
        text.push('\n');
    }
    let requests = document.requests;
    let _ = writeln!(
        text,
        "exit code {}, {}, {} Talos calls, {} Kubernetes requests{}\n",
        document.exit_code,
        length(document.seconds),
        requests.talos,
        requests.kubernetes,
        document.revision.as_ref().map(|revision| format!(", revision `{revision}`")).unwrap_or_default(),
    );
    text
}

/// What others said, as text in a table: no markup of theirs, no line that ends the row.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        match char {
            '\r' | '\n' => out.push(' '),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '~' | '#' => {
                out.push('\\');
                out.push(char);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            _ => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::exit::Exit;
    use crate::report::run_report::broken_off;
    use crate::rollout::Requests;
    use crate::trace::Trace;
    use talos_proto::clock::Clock;

    fn document(left: &[(&str, &str)], exit_code: u8) -> RunDocument {
        RunDocument {
            schema_version: 1,
            kind: "Run",
            result: "failed".to_owned(),
            changed: true,
            exit_code,
            revision: Some("00ff".to_owned()),
            rebooted: vec!["a".to_owned(), "b".to_owned()],
            adopted_live: Vec::new(),
            left: left.iter().map(|(node, why)| ((*node).to_owned(), (*why).to_owned())).collect::<BTreeMap<_, _>>(),
            left_out: crate::left_out::LeftOut::default(),
            requests: Requests { talos: 1, kubernetes: 2 },
            seconds: 1.0,
        }
    }

    #[test]
    fn p03_a_value_cannot_end_its_command() {
        assert_eq!(value("50%\r\n::error::x"), "50%25%0D%0A::error::x");
        let text = failure(&document(&[("a", "one\n::error::two")], 1)).unwrap();
        assert!(text.contains("a: one\n::error::two") && text.contains("Next: "), "{text}");
        assert!(!value(&text).contains('\n'));
        assert_eq!(failure(&document(&[], 0)), None);
    }

    #[test]
    fn p03_outputs_stand_between_delimiters_that_no_value_holds() {
        let text = outputs(&document(&[("", "the run"), ("c", "x")], 1), "D");
        let expected = [("changed", "true"), ("rebooted", "a,b"), ("unproved", "c"), ("revision", "00ff")];
        let expected: String = expected.iter().map(|(name, value)| format!("{name}<<D\n{value}\nD\n")).collect();
        assert_eq!(text, expected);
    }

    #[test]
    fn p03_what_others_say_is_no_markup_in_the_summary() {
        let run = document(&[("a", "<img src=x>|\n# head `code`")], 1);
        let text = summary(&run, &broken_off(&Trace::new(Clock::system()), &[], Exit::Failed));
        assert!(text.contains(r"| a | &lt;img src=x&gt;\|"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with('#')).count(), 1, "{text}");
    }
}
