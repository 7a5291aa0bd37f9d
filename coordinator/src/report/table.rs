//! The plan and the verification as tables.

use std::fmt::Write as _;
use std::time::Duration;

use agent::claims::{Answer, Claims};
use anstream::adapter::strip_str;

use super::columns::columns;
use super::progress::short;
use super::width::wrapped;
use crate::plan::{NodeRow, PlanDocument};

/// Under a row whose last columns have no room beside the others.
const INDENT: &str = "        ";

/// The plan for people. At a terminal of that many columns a table that is wider has steps and reasons below each row.
#[must_use]
pub fn plan(document: &PlanDocument, wide: bool, terminal: Option<usize>) -> String {
    let mut text = String::new();
    let header: &[&str] = if wide {
        &["ORDER", "NODE", "ROLE", "TALOS", "ADDRESS", "VERDICT", "ADOPTS BY", "STEPS", "WHY"]
    } else {
        &["ORDER", "NODE", "TALOS", "VERDICT", "STEPS", "WHY"]
    };
    let rows: Vec<Vec<String>> = document.nodes.iter().map(|node| plan_row(node, wide)).collect();
    let table = columns(header, &rows);
    match terminal {
        Some(room) if strip_str(&table).to_string().lines().any(|line| line.chars().count() > room) => {
            text.push_str(&stacked(header, &rows, room));
        }
        _ => text.push_str(&table),
    }
    text.push('\n');
    let endpoint = &document.endpoint;
    let goes = |name: &String| document.nodes.iter().any(|node| node.name == *name && node.order.is_some());
    let words = |name: &String| if goes(name) { format!("{name}, goes last") } else { name.clone() };
    let node = endpoint.node.as_ref().map_or_else(|| "no single node".to_owned(), words);
    let _ = writeln!(text, "Endpoint {}: {node} ({})", endpoint.server, endpoint.rule);
    if let Some(holder) = &document.lease.holder {
        let run = document.lease.run.as_ref().map(|run| format!(" ({run})")).unwrap_or_default();
        let _ = writeln!(text, "Lease {}: held by {holder}{run}", document.lease.name);
    }
    for warning in &document.warnings {
        let _ = writeln!(text, "Warning: {warning}");
    }
    for node in &document.nodes {
        let Some(drain) = &node.drain else { continue };
        for refused in &drain.refused {
            let _ = writeln!(text, "{} cannot be drained, and would be left as it is: {refused}", node.name);
        }
        if let Some(unknown) = &drain.unknown {
            let _ = writeln!(text, "Whether {} can be drained is not known: {unknown}", node.name);
        }
    }
    for gate in document.gates.iter().flatten() {
        match &gate.closed {
            None => drop(writeln!(text, "Gates of {}: open now", gate.node)),
            Some(closed) => {
                let wait = Duration::try_from_secs_f64(document.budgets.gate_seconds).unwrap_or_default();
                let _ =
                    writeln!(text, "Gates of {}: closed now, a run waits up to {}: {closed}", gate.node, short(wait));
            }
        }
    }
    for need in document.needs.iter().flatten() {
        let _ = writeln!(text, "Missing for a run: {need}");
    }
    let _ = writeln!(text, "{}", summary(document));
    if let Some(words) = document.left_out.words() {
        let _ = writeln!(text, "{words}.");
    }
    text
}

/// All columns but the last two, which stand below each row.
fn stacked(header: &[&str], rows: &[Vec<String>], room: usize) -> String {
    let beside = header.len() - 2;
    let short: Vec<Vec<String>> = rows.iter().map(|row| row[..beside].to_vec()).collect();
    let table = columns(&header[..beside], &short);
    let mut lines = table.lines();
    let mut text = lines.next().map(|head| format!("{head}\n")).unwrap_or_default();
    for (line, row) in lines.zip(rows) {
        let _ = writeln!(text, "{line}");
        for cell in row[beside..].iter().filter(|cell| !cell.is_empty() && *cell != "-") {
            for line in wrapped(cell, room.saturating_sub(INDENT.len())) {
                let _ = writeln!(text, "{INDENT}{line}");
            }
        }
    }
    text
}

/// The one line that says what would be done.
#[must_use]
pub fn summary(document: &PlanDocument) -> String {
    let counts = &document.summary;
    let changing = document.nodes.iter().filter(|node| !node.steps.is_empty()).count();
    let check = document.check_finds_work == Some(true);
    let mut line = if check && changing == 0 {
        format!("Plan: no node to change ({} current), the commands to call", counts.current)
    } else if changing == 0 && counts.blocked + counts.unknown == 0 {
        format!("Nothing to do: {} current", counts.current)
    } else {
        format!(
            "Plan: {} to reboot, {} to adopt live, {} to change without disruption, {} unchanged",
            counts.to_reboot,
            counts.to_adopt_live,
            changing.saturating_sub(counts.to_reboot + counts.to_adopt_live),
            counts.current
        )
    };
    for (number, word) in [(counts.blocked, "blocked"), (counts.unknown, "unknown"), (counts.left_alone, "left alone")]
    {
        if number > 0 {
            let _ = write!(line, ", {number} {word}");
        }
    }
    line.push('.');
    if check {
        line.push_str(" --check-command finds something to do.");
    }
    line
}

fn plan_row(node: &NodeRow, wide: bool) -> Vec<String> {
    let dash = || "-".to_owned();
    let order = node.order.map_or_else(dash, |order| order.to_string());
    let steps = if node.short_steps.is_empty() { dash() } else { node.short_steps.join(" > ") };
    let talos = node.talos.clone().unwrap_or_else(dash);
    let mut why = node.reason.clone();
    if let Some(fence) = &node.fence {
        let _ = write!(why, "; fenced: {fence}");
    }
    if wide {
        let address = node.address.clone().unwrap_or_else(dash);
        let adoption = node.adoption.clone().unwrap_or_else(dash);
        vec![order, node.name.clone(), node.role.into(), talos, address, node.verdict.into(), adoption, steps, why]
    } else {
        vec![order, node.name.clone(), talos, node.verdict.into(), steps, why]
    }
}

/// The verification for people: the four claims side by side, then the evidence of what does not hold.
#[must_use]
pub fn verification<'a>(document: &'a PlanDocument, wide: bool) -> String {
    let rows: Vec<Vec<String>> = document
        .nodes
        .iter()
        .map(|node| {
            let mut row = vec![node.name.clone(), node.talos.clone().unwrap_or_else(|| "-".into())];
            match &node.claims {
                Some(claims) => row.extend(each(claims).map(|(_, answer, _)| word(answer).to_owned())),
                None => row.extend(std::iter::repeat_n("?".to_owned(), 4)),
            }
            row.push(node.verdict.into());
            row
        })
        .collect();
    let mut text = columns(&["NODE", "TALOS", "CONFIGURED", "LOADED", "PULL", "PROOF", "VERDICT"], &rows);
    // The same evidence on several nodes is said once.
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    let mut note = |node: &'a str, words: String| match groups.iter_mut().find(|(said, _)| *said == words) {
        Some((_, nodes)) => nodes.push(node),
        None => groups.push((words, vec![node])),
    };
    for node in &document.nodes {
        match &node.claims {
            Some(claims) => {
                for (name, answer, why) in each(claims) {
                    if wide || answer != Answer::True {
                        note(&node.name, format!("{name}: {} ({why})", word(answer)));
                    }
                }
            }
            None => note(&node.name, node.reason.clone()),
        }
    }
    let mut evidence = String::new();
    for (words, nodes) in groups {
        let _ = writeln!(evidence, "{}: {words}", nodes.join(", "));
    }
    if !evidence.is_empty() {
        text.push('\n');
        text.push_str(&evidence);
    }
    for warning in &document.warnings {
        let _ = writeln!(text, "Warning: {warning}");
    }
    text
}

fn each(claims: &Claims) -> [(&'static str, Answer, &str); 4] {
    [
        ("configured", claims.configured.answer, claims.configured.evidence.as_str()),
        ("loaded", claims.loaded.answer, claims.loaded.evidence.as_str()),
        ("pull", claims.pull.answer, claims.pull.evidence.as_str()),
        ("proof", claims.proof.answer, claims.proof.evidence.as_str()),
    ]
}

fn word(answer: Answer) -> &'static str {
    match answer {
        Answer::True => "yes",
        Answer::False => "no",
        Answer::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_room_steps_and_reasons_stand_below() {
        let rows = vec![
            vec![
                "1".to_owned(),
                "w1".into(),
                "stage > pull > cordon > drain".into(),
                "another credential for r".into(),
            ],
            vec!["-".to_owned(), "w2".into(), "-".into(), "proved".into()],
        ];
        let expected = "ORDER   NODE\n1       w1\n        stage > pull >\n        cordon > drain\n        another\n        credential for r\n-       w2\n        proved\n";
        assert_eq!(strip_str(&stacked(&["ORDER", "NODE", "STEPS", "WHY"], &rows, 24)).to_string(), expected);
    }
}
