//! The tables beneath the timeline: what it shows in words, and what it cannot show.

use agent::claims::Answer;

use super::html::Html;
use super::scale::{after, length};
use super::timeline;
use crate::plan::NodeRow;
use crate::report::run_report::ReportDocument;

/// A column: its head, and whether it holds numbers.
type Column = (&'static str, bool);

/// A table in a box of its own, which scrolls where it has no room: the page itself never does.
fn table(html: &mut Html, caption: &'static str, columns: &[Column], rows: impl FnOnce(&mut Html)) {
    html.raw("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"").raw(caption);
    html.raw("; can be scrolled\"><table><caption class=\"unseen\">").raw(caption).raw("</caption><thead><tr>");
    for (name, number) in columns {
        html.raw(if *number { "<th scope=\"col\" class=\"number\">" } else { "<th scope=\"col\">" });
        html.raw(name).raw("</th>");
    }
    html.raw("</tr></thead><tbody>");
    rows(html);
    html.raw("</tbody></table></div>");
}

fn head(html: &mut Html, name: &str) {
    html.raw("<tr><th scope=\"row\">").text(name).raw("</th>");
}

fn cell(html: &mut Html, class: &'static str, text: &str) {
    html.raw("<td class=\"").raw(class).raw("\">").text(text).raw("</td>");
}

/// The verdicts.
pub fn verdicts(html: &mut Html, report: &ReportDocument) {
    html.raw("<section aria-labelledby=\"verdicts\"><h2 id=\"verdicts\">Nodes at the end</h2>");
    if report.nodes.is_empty() {
        html.raw("<p>No look at the nodes is known.</p></section>");
        return;
    }
    let columns = ["Node", "Role", "Talos", "Verdict", "Configured", "Loaded", "Pull", "Proof", "Why"];
    table(html, "Verdict and claims of each node, as it was seen last", &columns.map(|name| (name, false)), |html| {
        report.nodes.iter().for_each(|node| verdict(html, node));
    });
    html.raw("</section>");
}

fn verdict(html: &mut Html, node: &NodeRow) {
    head(html, &node.name);
    cell(html, "nowrap", &node.role.replace('-', " "));
    cell(html, "nowrap", node.talos.as_deref().unwrap_or("not known"));
    let class = match node.verdict {
        "Current" => "verdict yes",
        "Unproved" | "Leaving" | "Gone" => "verdict maybe",
        _ => "verdict no",
    };
    cell(html, class, node.verdict);
    let claims = node.claims.as_ref().map(|claims| [&claims.configured, &claims.loaded, &claims.pull, &claims.proof]);
    for index in 0..4 {
        let claim = claims.map(|claims| claims[index]);
        let (class, word) = match claim.map(|claim| claim.answer) {
            Some(Answer::True) => ("yes", "yes"),
            Some(Answer::False) => ("no", "no"),
            Some(Answer::Unknown) | None => ("maybe", "unknown"),
        };
        let evidence = claim.map_or("", |claim| &claim.evidence);
        html.raw("<td class=\"").raw(class).raw("\" title=\"").text(evidence).raw("\">").raw(word).raw("</td>");
    }
    cell(html, "why", &node.reason);
    html.raw("</tr>");
}

/// What did not answer: API servers, and renewals that came to nothing.
pub fn outages(html: &mut Html, report: &ReportDocument) {
    let missed: Vec<_> = report.renewals.iter().filter(|renewal| !renewal.renewed).collect();
    if report.outages.is_empty() && missed.is_empty() {
        return;
    }
    html.raw("<section aria-labelledby=\"outages\"><h2 id=\"outages\">What did not answer</h2>");
    let columns = [("What", false), ("From", true), ("For", true), ("Requests", true), ("Why", false)];
    table(html, "Outages of API servers, and renewals of the lease that failed", &columns, |html| {
        for outage in &report.outages {
            let lasted = length(outage.span.seconds);
            let lasted = if outage.until.is_some() { lasted } else { format!("{lasted}, not seen back") };
            head(html, &server(report, outage.server.as_deref()));
            cell(html, "number", &after(outage.span.offset_seconds));
            cell(html, "number", &lasted);
            cell(html, "number", &outage.failed_requests.to_string());
            cell(html, "why", &outage.why);
            html.raw("</tr>");
        }
        for renewal in missed {
            head(html, "renewal of the lease");
            cell(html, "number", &after(renewal.span.offset_seconds));
            cell(html, "number", &length(renewal.span.seconds));
            cell(html, "number", "1");
            cell(html, "why", renewal.why.as_deref().unwrap_or_default());
            html.raw("</tr>");
        }
    });
    html.raw("<p class=\"note\">A control plane's API server is away while its node boots; requests go to the others meanwhile.</p></section>");
}

fn server(report: &ReportDocument, server: Option<&str>) -> String {
    let Some(server) = server else { return "every API server".to_owned() };
    match timeline::node_at(report, server) {
        Some(node) => format!("API server of {node} ({server})"),
        None => format!("API server {server}"),
    }
}

/// What the timeline shows, in words.
pub fn steps(html: &mut Html, report: &ReportDocument) {
    if report.steps.is_empty() {
        return;
    }
    html.raw("<section><details><summary>All steps (").text(&report.steps.len().to_string()).raw(")</summary>");
    let columns = [
        ("Node", false),
        ("Step", false),
        ("Began (UTC)", true),
        ("After", true),
        ("Took", true),
        ("Outcome", false),
        ("Why", false),
    ];
    table(html, "Each step of each node", &columns, |html| {
        for step in &report.steps {
            let mut ended = timeline::outcome(step.outcome).to_owned();
            if step.tries > 1 {
                ended.push_str(&format!(" ({} tries)", step.tries));
            }
            head(html, &step.node);
            cell(html, "nowrap", timeline::name(step.step));
            cell(html, "number", step.span.at.get(11..23).unwrap_or(&step.span.at));
            cell(html, "number", &after(step.span.offset_seconds));
            cell(html, "number", &length(step.span.seconds));
            cell(html, "nowrap", &ended);
            cell(html, "why", step.why.as_deref().unwrap_or_default());
            html.raw("</tr>");
        }
    });
    html.raw("</details></section>");
}
