//! The records for people.

use std::time::Duration;

use super::columns::columns;
use super::progress::short;
use crate::proofs::{ProofRow, ProofsDocument};

/// The document for people.
#[must_use]
pub fn text(document: &ProofsDocument, wide: bool) -> String {
    let header: &[&str] = if wide {
        &["NODE", "STATE", "HOLDS", "REVISION", "WRITTEN", "AGE", "PULL", "BOOT", "CRI", "BY", "WHY"]
    } else {
        &["NODE", "STATE", "HOLDS", "REVISION", "WRITTEN", "PULL", "BOOT", "BY"]
    };
    let rows: Vec<Vec<String>> = document.nodes.iter().map(|node| row(node, wide)).collect();
    let mut text = columns(header, &rows);
    let not = document.nodes.iter().filter(|node| node.holds != Some(true));
    let mut reasons: Vec<String> = not.map(|node| format!("{}: {}", node.node, node.evidence)).collect();
    if !wide && !reasons.is_empty() {
        reasons.insert(0, String::new());
        text.push_str(&(reasons.join("\n") + "\n"));
    }
    let held = document.nodes.iter().filter(|node| node.holds == Some(true)).count();
    text.push_str(&format!("\n{held} of {} proofs hold.\n", document.nodes.len()));
    for warning in &document.warnings {
        text.push_str(&format!("Warning: {warning}\n"));
    }
    text
}

fn row(node: &ProofRow, wide: bool) -> Vec<String> {
    let dash = || "-".to_owned();
    let holds = match node.holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "?",
    };
    // The first half of a revision is what a holder's name begins with.
    let revision = node.revision.as_ref().map_or_else(dash, |revision| revision.chars().take(16).collect());
    let written = node.at.map_or_else(dash, |at| at.to_string());
    let pull = node.pull.unwrap_or("-").to_owned();
    let boot = node.boot.as_ref().map_or_else(dash, |boot| boot.chars().take(8).collect());
    let by = node.run.clone().or_else(|| node.holder.clone()).unwrap_or_else(dash);
    let mut row = vec![node.node.clone(), node.state.to_owned(), holds.to_owned(), revision, written];
    if !wide {
        row.extend([pull, boot, by]);
        return row;
    }
    let age = node.age_seconds.and_then(|age| Duration::try_from_secs_f64(age).ok()).map_or_else(dash, short);
    let cri = node.cri_pid.map_or_else(dash, |pid| format!("pid {pid}"));
    let boot = node.boot.clone().unwrap_or_else(dash);
    row.extend([age, pull, boot, cri, by, node.evidence.clone()]);
    row
}
