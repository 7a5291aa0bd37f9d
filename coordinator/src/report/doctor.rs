//! The checks for people: a line each, and under it what to do.

use std::fmt::Write as _;

use super::fences::escaped;
use super::style::{self, styled};
use super::width::{terminal, wrapped};
use crate::doctor::{Check, DoctorDocument, Health};

/// Where no terminal says how wide it is.
const WIDTH: usize = 120;
/// However narrow the terminal, a detail gets that much.
const NARROWEST: usize = 40;

/// The columns of the terminal that stdout is, or as many as a page has.
#[must_use]
pub fn width() -> usize {
    terminal(std::io::stdout()).unwrap_or(WIDTH)
}

/// The document for people, wrapped to that many columns. What is there to be pasted is never wrapped.
#[must_use]
pub fn text(document: &DoctorDocument, registry_only: bool, columns: usize) -> String {
    let name_width = document.checks.iter().map(|check| check.name.len()).max().unwrap_or(0).max("CHECK".len());
    let indent = name_width + 3 + "warning".len() + 3;
    let room = columns.saturating_sub(indent).max(NARROWEST);
    let mut text = String::new();
    let mut row = |name: &str, result: &str, detail: &str| {
        let style = style::of("RESULT", result);
        let gap = 3 + "warning".len().saturating_sub(result.len());
        let line = format!("{name:name_width$}   {}{:gap$}{detail}", styled(style, result), "");
        let _ = writeln!(text, "{}", line.trim_end());
    };
    row("CHECK", "RESULT", "DETAIL");
    for Check { name, health, detail, next } in &document.checks {
        let result = match health {
            Health::Ok => "ok",
            Health::Warning => "warning",
            Health::Fault => "FAULT",
        };
        let mut lines = wrapped(&escaped(detail), room).into_iter();
        row(name, result, &lines.next().unwrap_or_default());
        lines.for_each(|line| row("", "", &line));
        if let Some(next) = next {
            row("", "", &format!("-> {}", escaped(next)));
        }
    }
    let count = |health: Health, one: &str, more: &str| {
        let count = document.count(health);
        format!("{count} {}", if count == 1 { one } else { more })
    };
    let _ = writeln!(
        text,
        "\n{}, {}, {}.",
        count(Health::Ok, "ok", "ok"),
        count(Health::Warning, "warning", "warnings"),
        count(Health::Fault, "fault", "faults")
    );
    match document.unseen() {
        0 => {}
        1 => text.push_str("One of the warnings is about what could not be looked at.\n"),
        unseen => drop(writeln!(text, "{unseen} of the warnings are about what could not be looked at.")),
    }
    let _ = writeln!(text, "{}", then(document.health(), registry_only));
    text
}

/// What to type next.
fn then(health: Health, registry_only: bool) -> &'static str {
    match (health, registry_only) {
        (Health::Fault, _) => "A run would fail. Mend what is marked FAULT, then type the same command again.",
        (_, true) => "Next, for the cluster as well: talos-ghcr doctor",
        (Health::Warning, _) => "No fault. Read the warnings first; then, with the same flags: talos-ghcr plan",
        (Health::Ok, _) => "All is well. Next, with the same flags: talos-ghcr plan",
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    fn check(name: &'static str, health: Health, detail: &str, next: Option<&str>) -> Check {
        Check { name, health, detail: detail.into(), next: next.map(str::to_owned) }
    }

    #[test]
    fn columns_stand_under_each_other_and_commands_stay_whole() {
        let command = "kubectl create clusterrolebinding talos-ghcr --clusterrole=talos-ghcr --user=somebody";
        let document = DoctorDocument::new(vec![
            check("kubeconfig", Health::Ok, "/home/a/.kube/config: context lab", None),
            check("rights", Health::Fault, "not allowed: list pods, watch pods, create pods/eviction", Some(command)),
            check("lease", Health::Warning, "held by evil\u{1b}[2J", None),
        ]);
        let shown = strip_str(&text(&document, false, 64)).to_string();
        let expected = format!(
            "CHECK        RESULT    DETAIL
kubeconfig   ok        /home/a/.kube/config: context lab
rights       FAULT     not allowed: list pods, watch pods,
                       create pods/eviction
                       -> {command}
lease        warning   held by evil\\u{{1b}}[2J

1 ok, 1 warning, 1 fault.
A run would fail. Mend what is marked FAULT, then type the same command again.
"
        );
        assert_eq!(shown, expected);
        let fine = DoctorDocument::new(vec![check("registry", Health::Ok, "accepts the credential", None)]);
        assert!(
            text(&fine, false, 80)
                .ends_with("1 ok, 0 warnings, 0 faults.\nAll is well. Next, with the same flags: talos-ghcr plan\n")
        );
        assert!(text(&fine, true, 80).ends_with("talos-ghcr doctor\n"));
    }
}
