//! The report as one page for people: no script, and nothing that is fetched from elsewhere.

use self::html::Html;
use self::scale::{Scale, after, length};
use super::run_report::ReportDocument;

mod html;
mod scale;
mod tables;
mod timeline;

const STYLE: &str = include_str!("page/style.css");

/// The page.
#[must_use]
pub fn text(report: &ReportDocument) -> String {
    let mut html = Html::default();
    html.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    // A browser is told what this file promises.
    html.raw("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"referrer\" content=\"no-referrer\">");
    html.raw("<meta name=\"color-scheme\" content=\"light dark\"><title>talos-ghcr run: ").text(&report.result);
    html.raw(" (")
        .text(&minute(&report.started))
        .raw(")</title><style>")
        .raw(STYLE)
        .raw("</style></head>\n<body><main>");
    summary(&mut html, report);
    left(&mut html, report);
    html.then(&timeline::section(report));
    phases(&mut html, report);
    tables::verdicts(&mut html, report);
    tables::outages(&mut html, report);
    tables::steps(&mut html, report);
    html.raw("<footer>talos-ghcr ").text(report.version).raw(". Times are UTC.</footer></main></body></html>\n");
    html.into_string()
}

/// `2026-11-30 08:00 UTC`.
fn minute(at: &str) -> String {
    format!("{} UTC", at.get(..16).unwrap_or(at).replace('T', " "))
}

/// `2026-11-30 08:00:00 to 08:03:20 UTC`.
fn from_to(from: &str, to: &str) -> String {
    let [from, to] = [from, to].map(|at| at.get(..19).unwrap_or(at).replace('T', " "));
    let same_day = from.get(..11).filter(|day| to.starts_with(day));
    let to = same_day.map_or(to.as_str(), |day| &to[day.len()..]);
    format!("{from} to {to} UTC")
}

fn state(exit_code: u8) -> (&'static str, &'static str) {
    match exit_code {
        0 => ("ok", "Success"),
        3 | 4 | 130 | 143 => ("warn", "Not done"),
        _ => ("bad", "Failed"),
    }
}

fn summary(html: &mut Html, report: &ReportDocument) {
    let (class, says) = state(report.exit_code);
    html.raw("<header><span class=\"state ").raw(class).raw("\">").raw(says).raw("</span><h1>talos-ghcr run: ");
    html.text(&report.result).raw("</h1><p class=\"when\">").text(&from_to(&report.started, &report.ended));
    html.raw("</p><dl class=\"facts\">");
    fact(html, "Exit code", &report.exit_code.to_string(), "");
    fact(html, "Took", &length(report.seconds), "");
    if let Some(run) = &report.run {
        let nodes = report.nodes.len();
        fact(html, "Rebooted", &run.rebooted.len().to_string(), &format!("of {nodes} nodes"));
        fact(html, "Adopted live", &run.adopted_live.len().to_string(), "by a restart of CRI");
        let current = report.nodes.iter().filter(|node| node.verdict == "Current").count();
        fact(html, "Current", &current.to_string(), &format!("of {nodes} nodes"));
        fact(
            html,
            "Requests",
            &(run.requests.talos + run.requests.kubernetes).to_string(),
            &format!("{} Talos, {} Kubernetes", run.requests.talos, run.requests.kubernetes),
        );
        let revision = run.revision.as_deref().map(|revision| revision.get(..16).unwrap_or(revision));
        html.raw("<div>").element("dt", "Revision").raw("<dd>").element("code", revision.unwrap_or("not known"));
        html.raw("</dd></div>");
    }
    html.raw("</dl>");
    if let Some(words) = report.run.as_ref().and_then(|run| run.left_out.words()) {
        html.raw("<p class=\"note\">").text(&words).raw(".</p>");
    }
    html.raw("</header>");
}

fn fact(html: &mut Html, name: &'static str, value: &str, below: &str) {
    html.raw("<div>").element("dt", name).raw("<dd>").text(value);
    if !below.is_empty() {
        html.element("small", below);
    }
    html.raw("</dd></div>");
}

/// What a human must see.
fn left(html: &mut Html, report: &ReportDocument) {
    let Some(run) = report.run.as_ref().filter(|run| !run.left.is_empty()) else { return };
    html.raw("<section class=\"left\" aria-labelledby=\"left\"><h2 id=\"left\">Left for you to see</h2><dl>");
    for (node, reason) in &run.left {
        html.element("dt", if node.is_empty() { "run" } else { node }).element("dd", reason);
    }
    html.raw("</dl></section>");
}

fn phases(html: &mut Html, report: &ReportDocument) {
    if report.phases.is_empty() {
        return;
    }
    html.raw("<section class=\"phases\" aria-labelledby=\"phases\"><h2 id=\"phases\">Phases</h2><table>");
    html.raw(
        "<caption class=\"unseen\">How long the run was in each phase</caption><thead><tr><th scope=\"col\">Phase</th>",
    );
    html.raw("<th scope=\"col\" class=\"number\">Began</th><th scope=\"col\" class=\"number\">Took</th><th scope=\"col\"><span class=\"unseen\">Share of the run</span></th></tr></thead><tbody>");
    let scale = Scale::new(report.seconds);
    for row in &report.phases {
        let began = row.spans.first().map_or(0.0, |span| span.offset_seconds);
        html.raw("<tr>").raw("<th scope=\"row\">").text(&row.phase.to_string()).raw("</th><td class=\"number\">");
        html.text(&after(began)).raw("</td><td class=\"number\">").text(&length(row.seconds));
        html.raw("</td><td class=\"share\"><span class=\"meter\"><i class=\"");
        html.raw(if row.phase.is_of_nodes() { "nodes" } else { "own" }).raw("\" style=\"width:");
        html.number(scale.bar(0.0, row.seconds).width).raw("%\"></i></span></td></tr>");
    }
    html.raw("</tbody></table><p class=\"note\">Time in which anything of a phase went on, all its spans together. The phases of the nodes (blue) may overlap; a short one may come again.</p></section>");
}

#[cfg(test)]
mod tests;
