//! The timeline: a row for each node with its steps as bars, and beneath them the lease and the API servers.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use super::html::Html;
use super::scale::{Scale, after, length};
use crate::report::run_report::{PhaseRow, ReportDocument, SpanRow, StepRow};
use crate::trace::{Outcome, Phase};

/// With more nodes a scale that fits shows no single step any more: a wide one can be chosen.
const MANY: usize = 12;
/// With so many the rows are low.
const CROWD: usize = 40;
/// Pixels of the wide scale for each node.
const FOR_EACH: usize = 48;
/// Pixels that the axis has at least; a bar that has room for its name then carries it.
const NARROWEST: f64 = 560.0;
/// Pixels of a letter in a bar, and of its padding.
const LETTER: f64 = 6.2;

/// What a step is drawn as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Credential,
    Pull,
    Cordon,
    Drain,
    Reboot,
    Ready,
    Proof,
    Waiting,
}

/// All of them, in the order of a node's turn.
const KINDS: [Kind; 8] =
    [Kind::Credential, Kind::Pull, Kind::Cordon, Kind::Drain, Kind::Reboot, Kind::Ready, Kind::Proof, Kind::Waiting];

impl Kind {
    /// Its class, and what the legend says.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Kind::Credential => ("credential", "credential written"),
            Kind::Pull => ("pull", "pull proved"),
            Kind::Cordon => ("cordon", "gates, cordon, uncordon"),
            Kind::Drain => ("drain", "drain"),
            Kind::Reboot => ("reboot", "reboot"),
            Kind::Ready => ("ready", "until ready"),
            Kind::Proof => ("proof", "proved"),
            Kind::Waiting => ("waiting", "looked at again"),
        }
    }
}

/// How a step is drawn, and what it is called.
fn kind(step: &str) -> (Kind, &'static str) {
    match step {
        "Canary" => (Kind::Credential, "canary"),
        "Stage" => (Kind::Credential, "credential"),
        "RecordStaged" => (Kind::Credential, "record staged"),
        "AwaitRollback" => (Kind::Credential, "rollback"),
        "CheckPull" => (Kind::Pull, "pull"),
        "Adopt" => (Kind::Cordon, "fence adopted"),
        "Claim" => (Kind::Cordon, "cordon"),
        "Release" => (Kind::Cordon, "uncordon"),
        "Drain" => (Kind::Drain, "drain"),
        "Reboot" => (Kind::Reboot, "reboot asked for"),
        "AwaitBoot" => (Kind::Reboot, "reboot"),
        "AwaitReady" => (Kind::Ready, "ready"),
        "AwaitAdopted" => (Kind::Ready, "CRI restart"),
        "WriteProof" => (Kind::Proof, "proved"),
        _ => (Kind::Waiting, "looked at again"),
    }
}

/// What a step is called.
pub fn name(step: &str) -> &'static str {
    kind(step).1
}

/// How a step ended, for people.
pub fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Again => "tried again",
        Outcome::Failed => "failed",
        Outcome::NoPermit => "no permit",
        Outcome::Gone => "node gone",
        Outcome::BrokenOff => "broken off",
    }
}

/// The section.
pub fn section(report: &ReportDocument) -> Html {
    let mut html = Html::default();
    let rows = by_node(&report.steps);
    html.raw("<section class=\"timeline")
        .raw(if rows.len() > CROWD { " crowd" } else { "" })
        .raw("\" aria-labelledby=\"timeline\" style=\"--wide:");
    let wide = u32::try_from(rows.len() * FOR_EACH).unwrap_or(u32::MAX).clamp(1000, 20_000);
    html.number(wide).raw("px\"><h2 id=\"timeline\">Timeline</h2>");
    if rows.len() > MANY {
        html.raw("<fieldset class=\"zoom\"><legend>Scale</legend><label><input type=\"radio\" name=\"zoom\" checked>fits</label>");
        html.raw("<label><input type=\"radio\" name=\"zoom\" id=\"wide\">wide</label></fieldset>");
    }
    legend(&mut html);
    let axis = Axis { scale: Scale::new(report.seconds), started: report.started.parse().unwrap_or_default() };
    html.raw("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Timeline, can be scrolled\"><table class=\"bars\">");
    html.raw("<caption class=\"unseen\">What was done to which node, from the begin to the end of the run</caption>");
    html.raw("<thead><tr><th scope=\"col\">Node</th><th scope=\"col\" class=\"axis\"><span class=\"unseen\">Time, relative and UTC</span>");
    axis.ticks(&mut html);
    html.raw("</th></tr></thead><tbody>");
    axis.run(&mut html, &report.phases);
    let domain = common_domain(rows.iter().map(|(node, _)| *node));
    for (node, steps) in &rows {
        axis.node(&mut html, (node, domain), steps);
    }
    html.raw("</tbody><tfoot>");
    axis.lease(&mut html, report);
    axis.outages(&mut html, report);
    html.raw("</tfoot></table></div>");
    let untouched = report.nodes.iter().filter(|node| !rows.iter().any(|(name, _)| **name == node.name)).count();
    if untouched > 0 {
        let words = if untouched == 1 { "1 more node needed no step." } else { "more nodes needed no step." };
        html.raw("<p class=\"note\">");
        if untouched > 1 {
            html.text(&untouched.to_string()).raw(" ");
        }
        html.raw(words).raw("</p>");
    }
    html.raw("</section>");
    html
}

/// The domain that all names end with, dot included: where there is little room it only hides what tells them apart.
fn common_domain<'a>(mut names: impl Iterator<Item = &'a str>) -> &'a str {
    let domain = |name: &'a str| name.find('.').map_or("", |dot| &name[dot..]);
    let Some(first) = names.next() else { return "" };
    let (first, mut others) = (domain(first), 0);
    let all = names.inspect(|_| others += 1).all(|name| domain(name) == first);
    if all && others > 0 { first } else { "" }
}

/// The steps by node, the node that was begun first at first.
fn by_node(steps: &[StepRow]) -> Vec<(&str, Vec<&StepRow>)> {
    let mut rows: Vec<(&str, Vec<&StepRow>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for step in steps {
        let place = *places.entry(&step.node).or_insert_with(|| {
            rows.push((&step.node, Vec::new()));
            rows.len() - 1
        });
        rows[place].1.push(step);
    }
    // By its turn: what is written to all of them beforehand says nothing about the order.
    let turn = |steps: &[&StepRow]| {
        let disturbs =
            |step: &&&StepRow| matches!(kind(step.step).0, Kind::Cordon | Kind::Drain | Kind::Reboot | Kind::Ready);
        steps.iter().find(disturbs).map_or(f64::INFINITY, |step| step.span.offset_seconds)
    };
    rows.sort_by(|a, b| turn(&a.1).total_cmp(&turn(&b.1)));
    rows
}

fn legend(html: &mut Html) {
    html.raw("<ul class=\"legend\" aria-label=\"Legend\">");
    for kind in KINDS {
        let (class, says) = kind.names();
        html.raw("<li><i class=\"").raw(class).raw("\"></i>").raw(says).raw("</li>");
    }
    html.raw("<li><i class=\"look\"></i>look after a step</li><li><i class=\"failed\"></i>did not end well</li></ul>");
}

struct Axis {
    scale: Scale,
    started: Timestamp,
}

impl Axis {
    /// The time of day, UTC.
    fn clock(&self, offset: f64) -> String {
        let at =
            SignedDuration::try_from_secs_f64(offset).ok().and_then(|offset| self.started.checked_add(offset).ok());
        at.map(|at| at.strftime("%H:%M:%S").to_string()).unwrap_or_default()
    }

    fn ticks(&self, html: &mut Html) {
        html.raw("<span class=\"ticks\" aria-hidden=\"true\">");
        for at in self.scale.ticks() {
            let left = self.scale.bar(at, 0.0).left;
            // The last one must not stand out of the box, nor the first.
            let class = if at == 0.0 {
                "first"
            } else if left > 95.0 {
                "last"
            } else {
                "mid"
            };
            html.raw("<span class=\"tick ").raw(class).raw("\" style=\"left:").number(left).raw("%\"><b>");
            let relative = if at == 0.0 { "0".to_owned() } else { format!("+{}", round(at)) };
            html.text(&relative).raw("</b><br>").text(&self.clock(at)).raw("</span>");
        }
        html.raw("</span>");
    }

    /// Opens a row and its track; `says` is what is drawn, in words.
    fn open(&self, html: &mut Html, name: &str, below: &str, says: &str) {
        self.open_as(html, (name, ""), below, says);
    }

    /// The same for a name that is shown without an end of it.
    fn open_as(&self, html: &mut Html, (name, end): (&str, &str), below: &str, says: &str) {
        let shown = name.strip_suffix(end).unwrap_or(name);
        html.raw("<tr><th scope=\"row\" title=\"")
            .text(name)
            .raw("\"><span class=\"name\">")
            .text(shown)
            .raw("</span>");
        if !below.is_empty() {
            html.raw("<small>").text(below).raw("</small>");
        }
        let tick = self.scale.bar(self.scale.tick(), 0.0).left;
        html.raw("</th><td><div class=\"track\" role=\"img\" style=\"--tick:").number(tick);
        html.raw("%\" aria-label=\"").text(if says.is_empty() { "nothing" } else { says }).raw("\">");
    }

    fn close(html: &mut Html) {
        html.raw("</div></td></tr>");
    }

    fn bar(&self, html: &mut Html, class: &'static str, span: &SpanRow, says: &str, label: &str) {
        let bar = self.scale.bar(span.offset_seconds, span.seconds);
        html.raw("<i class=\"").raw(class).raw("\" style=\"left:").number(bar.left).raw("%;width:").number(bar.width);
        html.raw("%\" title=\"").text(says).raw(", ").text(&length(span.seconds)).raw(" from ");
        html.text(&after(span.offset_seconds)).raw(" (").text(&self.clock(span.offset_seconds)).raw(" UTC)\">");
        let letters = u32::try_from(label.chars().count() + 1).unwrap_or(u32::MAX);
        if bar.width / 100.0 * NARROWEST >= f64::from(letters) * LETTER {
            html.text(label);
        }
        html.raw("</i>");
    }

    /// What the run does itself.
    fn run(&self, html: &mut Html, phases: &[PhaseRow]) {
        let own = phases.iter().filter(|phase| !phase.phase.is_of_nodes());
        let says: Vec<_> = own.clone().map(|phase| format!("{} {}", phase.phase, length(phase.seconds))).collect();
        self.open(html, "run", "", &says.join(", "));
        for phase in own {
            let name = phase.phase.to_string();
            phase.spans.iter().for_each(|span| self.bar(html, "own", span, &name, &name));
        }
        Self::close(html);
    }

    fn node(&self, html: &mut Html, named: (&str, &str), steps: &[&StepRow]) {
        let says = steps.iter().map(|step| {
            let ended = if step.outcome == Outcome::Done { "" } else { outcome(step.outcome) };
            format!("{} {} {ended}", name(step.step), length(step.span.seconds)).trim_end().to_owned()
        });
        let says = says.collect::<Vec<_>>().join(", ");
        self.open_as(html, named, &away(steps).map(|away| format!("away {}", length(away))).unwrap_or_default(), &says);
        for step in steps {
            let (kind, name) = kind(step.step);
            let mut says = format!("{name}: {}", outcome(step.outcome));
            if step.tries > 1 {
                says.push_str(&format!(" after {} tries", step.tries));
            }
            if let Some(why) = &step.why {
                says.push_str(&format!(": {why}"));
            }
            self.bar(html, kind.names().0, &step.span, &says, name);
            let end = step.span.offset_seconds + step.span.seconds;
            if self.scale.bar(end, step.look_seconds).width > 0.2 {
                let look = SpanRow { at: String::new(), offset_seconds: end, seconds: step.look_seconds };
                self.bar(html, "look", &look, "look after it", "");
            }
            if matches!(step.outcome, Outcome::Failed | Outcome::BrokenOff) {
                let mark = SpanRow { at: String::new(), offset_seconds: end, seconds: 0.0 };
                self.bar(html, "failed", &mark, &says, "");
            }
        }
        Self::close(html);
    }

    fn lease(&self, html: &mut Html, report: &ReportDocument) {
        let failed = report.renewals.iter().filter(|renewal| !renewal.renewed).count();
        let all = report.renewals.len();
        let all = if all == 1 { "1 renewal".to_owned() } else { format!("{all} renewals") };
        let says = format!("{all}, {failed} failed");
        let below = if failed == 0 { &all } else { &says };
        self.open(html, "lease", below, &says);
        let end_of = |phase: Phase, first: bool| {
            let spans = &report.phases.iter().find(|row| row.phase == phase)?.spans;
            if first {
                spans.first().map(|span| span.offset_seconds)
            } else {
                spans.last().map(|span| span.offset_seconds + span.seconds)
            }
        };
        let taken = end_of(Phase::Lease, false);
        if let Some(taken) = taken.filter(|_| !report.renewals.is_empty() || end_of(Phase::Release, true).is_some()) {
            let released = end_of(Phase::Release, true).unwrap_or(report.seconds);
            let held = SpanRow { at: String::new(), offset_seconds: taken, seconds: (released - taken).max(0.0) };
            self.bar(html, "held", &held, "held", "");
        }
        for renewal in &report.renewals {
            match &renewal.why {
                None => self.bar(html, "renewed", &renewal.span, "renewed", ""),
                Some(why) => self.bar(html, "missed", &renewal.span, &format!("not renewed: {why}"), ""),
            }
        }
        Self::close(html);
    }

    /// A row for each server that was away.
    fn outages(&self, html: &mut Html, report: &ReportDocument) {
        let outages = &report.outages;
        let mut servers: Vec<Option<&str>> = Vec::new();
        for outage in outages {
            if !servers.contains(&outage.server.as_deref()) {
                servers.push(outage.server.as_deref());
            }
        }
        for server in servers {
            let of_server: Vec<_> = outages.iter().filter(|outage| outage.server.as_deref() == server).collect();
            let says = of_server.iter().map(|outage| format!("away {}: {}", length(outage.span.seconds), outage.why));
            let name = match server {
                None => "no API server".to_owned(),
                Some(server) => {
                    node_at(report, server).map_or("API server".to_owned(), |node| format!("API of {node}"))
                }
            };
            self.open(html, &name, server.unwrap_or_default(), &says.collect::<Vec<_>>().join("; "));
            for outage in of_server {
                let until = if outage.until.is_some() { "did not answer" } else { "did not answer; not seen back" };
                self.bar(html, "outage", &outage.span, &format!("{until}: {}", outage.why), "no answer");
            }
            Self::close(html);
        }
        if outages.is_empty() {
            self.open(html, "API servers", "no outage", "no outage was seen");
            Self::close(html);
        }
    }
}

/// The node at the address of an API server.
pub fn node_at<'a>(report: &'a ReportDocument, server: &str) -> Option<&'a str> {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host).trim_matches(['[', ']']);
    report.nodes.iter().find(|node| node.address.as_deref() == Some(host)).map(|node| node.name.as_str())
}

/// How long a node was cordoned, or its CRI not healthy.
fn away(steps: &[&StepRow]) -> Option<f64> {
    let disturbs =
        |step: &&&StepRow| matches!(kind(step.step).0, Kind::Cordon | Kind::Drain | Kind::Reboot | Kind::Ready);
    let ends = |step: &StepRow| step.span.offset_seconds + step.span.seconds;
    let first = steps.iter().find(disturbs)?;
    let last = steps.iter().rev().find(disturbs)?;
    // The gates were waited for before the cordon: that is no time away.
    let from = if first.step == "Claim" { ends(first) } else { first.span.offset_seconds };
    Some((ends(last) - from).max(0.0))
}

/// A round length without what is zero: `5s`, `2m`, `1h30m`.
fn round(seconds: f64) -> String {
    let span = SignedDuration::try_from_secs_f64(seconds).unwrap_or_default();
    format!("{span:#}").replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_left_out_where_all_names_have_it() {
        let common = |names: &[&'static str]| common_domain(names.iter().copied());
        assert_eq!(common(&["a.example.com", "b.example.com"]), ".example.com");
        for none in
            [&["a.example.com", "b.example.org"][..], &["a.example.com", "b"], &["a", "b"], &["a.example.com"], &[]]
        {
            assert_eq!(common(none), "", "{none:?}");
        }
    }

    #[test]
    fn a_step_of_every_name_is_drawn() {
        use agent::step::Step;
        let steps = [
            Step::Stage,
            Step::AwaitRollback,
            Step::RecordStaged,
            Step::CheckPull,
            Step::AwaitAdopted,
            Step::Claim,
            Step::Drain,
            Step::Reboot,
            Step::AwaitBoot,
            Step::AwaitReady,
            Step::Release,
            Step::WriteProof,
        ];
        for step in steps {
            assert_ne!(kind(step.name()).0, Kind::Waiting, "{step}");
        }
        for task in [crate::decide::Task::Adopt, crate::decide::Task::Canary] {
            assert_ne!(kind(task.name()).0, Kind::Waiting, "{task:?}");
        }
    }
}
