//! What stands in the way of a run: Leases that are held, and fences. Judged as `fences` judges them.

use std::time::Duration;

use jiff::Timestamp;

use super::{Check, plural};
use crate::fences::{FenceRow, FencesDocument, LeaseRow, Seen, document};
use crate::report::progress::short;
use crate::settings::Settings;

/// What follows. Pure.
pub(super) fn checks(
    seen: &Result<Seen, String>,
    settings: &Settings,
    now: Timestamp,
    without: Option<&str>,
) -> Vec<Check> {
    let seen = match (seen, without) {
        (Ok(seen), _) => seen,
        (Err(_), Some(why)) => {
            return vec![Check::not_looked_at("lease", why), Check::not_looked_at("fences", why)];
        }
        (Err(why), None) => {
            let none = "a Lease that cannot be read is never taken for a free one";
            return vec![Check::fault("lease", why.clone()), Check::not_looked_at("fences", none)];
        }
    };
    let document = document(seen, settings.leases(), &settings.kubectl, now);
    let leases = document.leases.iter().filter(|lease| lease.of == "talos-ghcr" || lease.exists);
    let mut checks: Vec<_> = leases.map(|lease| of_lease(lease, &document)).collect();
    checks.extend(document.fences.iter().map(|fence| of_fence(fence, &document)));
    if document.fences.is_empty() {
        checks.push(Check::ok("fences", format!("none on {}", plural(document.nodes, "node"))));
    }
    checks.extend(document.warnings.iter().map(|odd| Check::warning("fences", odd.clone())));
    checks
}

fn of_lease(lease: &LeaseRow, document: &FencesDocument) -> Check {
    const NAME: &str = "lease";
    let name = &lease.name;
    let of = if lease.of == "script" { " (the old script's)" } else { "" };
    let Some(holder) = &lease.holder else {
        let state =
            if lease.exists { "free" } else { "there is none yet, the first run that changes something makes it" };
        return Check::ok(NAME, format!("{name}{of}: {state}"));
    };
    let renewed = lease.age_seconds.map(|age| Duration::try_from_secs_f64(age).unwrap_or_default());
    let renewed = renewed.map(|age| format!(", renewed {} ago", short(age))).unwrap_or_default();
    let evidence = lease.life.as_ref().map(|life| format!("; {}", life.words())).unwrap_or_default();
    let check = Check::warning(NAME, format!("{name}{of} is held by {holder}{renewed}{evidence}"));
    let decided = document.decisions.iter().find(|it| it.object == format!("Lease {name}"));
    match (decided, &lease.run) {
        (Some(decision), _) => check.next(format!("{}: {}", decision.why, decision.command)),
        (None, Some(run)) if document.refused => check.next(format!("the next run {}; see {run}", document.next_run)),
        (None, _) => check.next(format!("the next run {}", document.next_run)),
    }
}

fn of_fence(fence: &FenceRow, document: &FencesDocument) -> Check {
    let step = fence.step.as_ref().map(|step| format!(", {step}")).unwrap_or_default();
    let holder = fence.holder.as_ref().map(|holder| format!(" of {holder}")).unwrap_or_default();
    let evidence = fence.life.as_ref().map(|life| format!("; {}", life.words())).unwrap_or_default();
    let check = Check::warning("fences", format!("{} carries a fence{holder}{step}{evidence}", fence.node));
    let decided = document.decisions.iter().find(|it| it.object == format!("node {}", fence.node));
    match decided {
        Some(decision) => check.next(format!("{}: {}", decision.why, decision.command)),
        None => check.next(format!("the next run {}", fence.next_run)),
    }
}
