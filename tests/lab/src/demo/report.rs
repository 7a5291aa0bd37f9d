//! The summary: what happened and how long each part took.

use std::fmt::Write as _;
use std::time::Duration;

use super::check::{Check, writes};
use super::turns::Turn;
use super::{ENDPOINT, Seen, heading};

/// The figures of a run that has nothing to do, for six nodes.
const TALOS_CALLS: u64 = 60;
const KUBERNETES_REQUESTS: u64 = 5;
/// What a node may cost beyond drain, reboot and ready.
const AIM: Duration = Duration::from_secs(1);
/// Of one node, besides evictions.
const NODE_PATCHES: usize = 3;

pub(super) fn summary(seen: &Seen, checks: &[Check]) -> String {
    let mut text = heading("What happened");
    // Writing into a string cannot fail.
    let _ = write_summary(&mut text, seen, checks);
    text.trim_end().to_owned()
}

fn write_summary(text: &mut String, seen: &Seen, checks: &[Check]) -> std::fmt::Result {
    writeln!(text, "\n{:<10} {:>8}   EXIT CODE", "COMMAND", "TOOK")?;
    for ended in &seen.commands {
        let code = ended.code.map_or_else(|| "signal".to_owned(), |code| code.to_string());
        writeln!(text, "{:<10} {:>8}   {code}", ended.name, seconds(ended.took))?;
    }
    let order = &seen.truth.boot_order;
    let order = if order.is_empty() { "no node booted".to_owned() } else { order.join(", ") };
    writeln!(text, "\nBoot order: {order} (the kubeconfig names {ENDPOINT})")?;
    let still = seen.truth.nodes.iter().filter(|node| node.boots == 0);
    let still: Vec<_> = still.map(|node| format!("{} (Talos {})", node.name, node.talos)).collect();
    if !still.is_empty() {
        writeln!(text, "Not rebooted: {}", still.join(", "))?;
    }
    if !seen.turns.is_empty() {
        write_turns(text, &seen.turns)?;
    }
    if seen.commands.iter().any(|ended| ended.name == "run again") {
        write_second_run(text, seen)?;
    }
    writeln!(text)?;
    for check in checks {
        if check.holds() {
            writeln!(text, "  ok      {}", check.demand)?;
        } else {
            writeln!(text, "  FAILED  {}: {}", check.demand, check.against)?;
        }
    }
    let failed = checks.iter().filter(|check| !check.holds()).count();
    match failed {
        0 => writeln!(text, "\nAll is as it must be."),
        _ => writeln!(text, "\n{failed} of {} did not hold.", checks.len()),
    }
}

fn write_turns(text: &mut String, turns: &[Turn]) -> std::fmt::Result {
    writeln!(text, "\nThe first run, node by node:\n")?;
    let row = |text: &mut String, [node, all, drain, reboot, beyond, patches]: [&str; 6]| {
        writeln!(text, "{node:<10} {all:>8} {drain:>8} {reboot:>17} {beyond:>9} {patches:>14}")
    };
    row(text, ["NODE", "TURN", "DRAIN", "REBOOT TO READY", "BEYOND", "NODE PATCHES"])?;
    for turn in turns {
        let [all, drain, reboot, beyond] = [turn.all, turn.drain, turn.reboot, turn.beyond()].map(seconds);
        row(text, [&turn.node, &all, &drain, &reboot, &beyond, &turn.patches.to_string()])?;
    }
    let worst = turns.iter().map(Turn::beyond).max().unwrap_or_default();
    writeln!(text, "{:<10} {:>8} {:>8} {:>17} {:>9} {NODE_PATCHES:>14}", "aim", "", "", "", seconds(AIM))?;
    let above = if worst > AIM { "; the aim was missed" } else { "" };
    writeln!(
        text,
        "\nAs the lab saw it, not as the product tells it. A turn is from the release of the node before until its\n\
         own; a drain from the first eviction until the last pod is gone; a control plane is ready when its API\n\
         server is, too. BEYOND is the rest of the turn: what the tool itself costs. Worst: {}{above}.",
        seconds(worst)
    )
}

fn write_second_run(text: &mut String, seen: &Seen) -> std::fmt::Result {
    let count = |prefix| {
        let total = seen.truth.total(prefix);
        total.reads + total.writes
    };
    writeln!(text, "\nThe second run, counted by the servers:\n")?;
    writeln!(text, "                      SEEN   AT MOST")?;
    let rows = [
        ("Talos calls", count("talos/"), TALOS_CALLS),
        ("Kubernetes requests", count("kubernetes/"), KUBERNETES_REQUESTS),
        ("writes", writes(&seen.truth), 0),
    ];
    for (what, number, most) in rows {
        let above = if number > most { "   above" } else { "" };
        writeln!(text, "{what:<20} {number:>5} {most:>9}{above}")?;
    }
    Ok(())
}

fn seconds(length: Duration) -> String {
    format!("{:.1} s", length.as_secs_f64())
}
