//! Fences and Leases for people: a paragraph each, for their values are long, and the commands at the end.

use std::fmt::Write as _;
use std::time::Duration;

use super::progress::short;
use crate::fences::{FenceRow, FencesDocument, LeaseRow};

/// The document for people.
#[must_use]
pub fn text(document: &FencesDocument, wide: bool) -> String {
    let mut text = String::new();
    if document.fences.is_empty() {
        let _ = writeln!(text, "No fence on any of the {} nodes.", document.nodes);
    }
    for fence in &document.fences {
        of_fence(&mut text, fence, wide);
    }
    for lease in &document.leases {
        of_lease(&mut text, lease, wide);
    }
    for warning in &document.warnings {
        line(&mut text, &format!("Warning: {warning}"));
    }
    if !document.held {
        text.push_str("Nothing is held.\n");
        return text;
    }
    if !text.ends_with("\n\n") {
        text.push('\n');
    }
    line(&mut text, &format!("The next run {}.", document.next_run));
    if document.decisions.is_empty() {
        let then = if document.refused { "wait until that run has ended" } else { "talos-ghcr run goes on from it" };
        let _ = writeln!(text, "Nothing has to be done by hand: {then}.");
        return text;
    }
    text.push_str("\nOnly you may decide:\n");
    for decision in &document.decisions {
        line(&mut text, &format!("\n  {}: {}:", decision.object, decision.why));
        // Of the cluster's values it holds nothing but ASCII; the rest is what was typed.
        let _ = writeln!(text, "    {}", decision.command);
    }
    text
}

fn of_fence(text: &mut String, fence: &FenceRow, wide: bool) {
    let cordon = match fence.cordon {
        "fence" => "cordoned by it",
        "before" => "cordoned before it",
        "unknown" => "cordoned, nobody knows by whom",
        _ => "not cordoned",
    };
    let step = fence.step.as_deref().unwrap_or(if fence.action == "drop" { "of another node" } else { "unreadable" });
    let of = if fence.of == "script" { "fence of the old script" } else { "fence" };
    let age = fence.age_seconds.map(|age| format!(", for {}", length(age))).unwrap_or_default();
    line(text, &format!("{}: {of}, {step}{age}; {cordon}", fence.node));
    if let Some(holder) = &fence.holder {
        field(text, "holder", holder);
    }
    if let Some(run) = &fence.run {
        field(text, "run", run);
    }
    if let Some(lease) = &fence.lease {
        let epoch = fence.epoch.map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
        field(text, "lease", &format!("{lease}{epoch}"));
    }
    if wide && let (Some(since), Some(step)) = (fence.since, fence.step_since) {
        field(text, "since", &format!("{since}, at this step since {step}"));
    }
    if let Some(life) = &fence.life {
        field(text, "evidence", &life.words());
    }
    field(text, "next run", &fence.next_run);
    text.push('\n');
}

fn of_lease(text: &mut String, lease: &LeaseRow, wide: bool) {
    let of = if lease.of == "script" { " (the old script's)" } else { "" };
    let Some(holder) = &lease.holder else {
        let state = if lease.exists { "free" } else { "there is none" };
        line(text, &format!("Lease {}{of}: {state}", lease.name));
        return;
    };
    let renewed = match (lease.age_seconds, &lease.renew_time) {
        (Some(age), _) => format!("renewed {} ago", length(age)),
        (None, Some(time)) => format!("renewed at {time}, which is not before now here"),
        (None, None) => "never renewed".to_owned(),
    };
    let lasts = lease.duration_seconds.map_or_else(|| "no valid duration".to_owned(), |it| format!("lasts {it}s"));
    line(text, &format!("Lease {}{of}: held, {renewed}, {lasts}", lease.name));
    field(text, "holder", holder);
    if let Some(run) = &lease.run {
        field(text, "run", run);
    }
    if let Some(life) = &lease.life {
        field(text, "evidence", &life.words());
    }
    if wide {
        let or = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
        let transitions = or(lease.transitions.map(|number| number.to_string()));
        let (renewed, version) = (or(lease.renew_time.clone()), or(lease.resource_version.clone()));
        let uid = or(lease.uid.clone());
        let record = format!("transitions {transitions}, renewTime {renewed}, resourceVersion {version}, UID {uid}");
        field(text, "record", &record);
    }
    text.push('\n');
}

fn field(text: &mut String, name: &str, value: &str) {
    line(text, &format!("  {name:<9} {value}"));
}

/// One line.
fn line(text: &mut String, words: &str) {
    let (breaks, words) = words.strip_prefix('\n').map_or(("", words), |words| ("\n", words));
    let _ = writeln!(text, "{breaks}{}", escaped(words));
}

/// What stands in a cluster may have been written by anybody: nothing of it reaches a terminal that would not be seen for
/// what it is.
pub(super) fn escaped(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    for c in words.chars() {
        if c.is_control() || is_format(c) {
            let _ = write!(text, "{}", c.escape_unicode());
        } else {
            text.push(c);
        }
    }
    text
}

/// Characters that are not seen, or that turn the text around them.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn length(seconds: f64) -> String {
    short(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
