use std::collections::BTreeMap;

use super::*;
use crate::left_out::LeftOut;
use crate::plan::NodeRow;
use crate::report::run_report::{OutageRow, PhaseRow, RenewalRow, SpanRow, StepRow};
use crate::rollout::{Requests, RunDocument};
use crate::trace::{Outcome, Phase};

/// What no field may bring into the page.
const EVIL: &str = "\"><script>alert('x')</script><img src=\"https://example.com/x\">&amp;";

fn span(offset_seconds: f64, seconds: f64) -> SpanRow {
    SpanRow { at: "2026-11-30T08:00:00.000Z".to_owned(), offset_seconds, seconds }
}

fn step(node: &str, step: &'static str, offset: f64, seconds: f64) -> StepRow {
    StepRow {
        node: node.to_owned(),
        role: "worker",
        step,
        span: span(offset, seconds),
        look_seconds: 0.0,
        tries: 1,
        outcome: Outcome::Done,
        why: None,
    }
}

fn node(name: &str, address: &str) -> NodeRow {
    NodeRow {
        name: name.to_owned(),
        role: "worker",
        address: Some(address.to_owned()),
        talos: Some("v1.13.9".to_owned()),
        verdict: "Current",
        reason: String::new(),
        adoption: None,
        claims: None,
        steps: Vec::new(),
        short_steps: Vec::new(),
        reboot_mode: None,
        order: None,
        order_reason: None,
        drain: None,
        fence: None,
        cordoned: false,
    }
}

fn report(steps: Vec<StepRow>) -> ReportDocument {
    ReportDocument {
        schema_version: 1,
        kind: "Report",
        version: "0.1.0",
        started: "2026-11-30T08:00:00.000Z".to_owned(),
        ended: "2026-11-30T08:03:20.000Z".to_owned(),
        seconds: 200.0,
        result: "done".to_owned(),
        exit_code: 0,
        phases: vec![PhaseRow { phase: Phase::Workers, seconds: 100.0, spans: vec![span(20.0, 100.0)] }],
        steps,
        renewals: Vec::new(),
        outages: Vec::new(),
        nodes: vec![node("w1", "10.0.0.1"), node("w2", "10.0.0.2")],
        run: Some(RunDocument {
            schema_version: 1,
            kind: "Run",
            result: "done".to_owned(),
            changed: true,
            exit_code: 0,
            revision: None,
            rebooted: Vec::new(),
            adopted_live: Vec::new(),
            left: BTreeMap::new(),
            left_out: LeftOut::default(),
            requests: Requests { talos: 1, kubernetes: 2 },
            seconds: 200.0,
        }),
    }
}

#[test]
fn whatever_a_node_a_server_or_a_command_says_is_text() {
    let mut evil = report(vec![StepRow { why: Some(EVIL.to_owned()), ..step(EVIL, "Drain", 1.0, 2.0) }]);
    evil.result = EVIL.to_owned();
    evil.renewals = vec![RenewalRow { span: span(1.0, 1.0), renewed: false, why: Some(EVIL.to_owned()) }];
    evil.outages = vec![OutageRow {
        server: Some(EVIL.to_owned()),
        span: span(1.0, 1.0),
        until: None,
        failed_requests: 1,
        why: EVIL.to_owned(),
    }];
    evil.nodes =
        vec![NodeRow { name: EVIL.to_owned(), talos: Some(EVIL.to_owned()), reason: EVIL.to_owned(), ..node("", "") }];
    let run = evil.run.as_mut().unwrap();
    run.left = [(EVIL.to_owned(), EVIL.to_owned())].into();
    run.revision = Some(EVIL.to_owned());
    run.left_out.not_current = [(EVIL.to_owned(), "Drifted")].into();
    let page = text(&evil);
    assert!(page.matches("&lt;script&gt;alert(&#39;x&#39;)").count() > 12, "it is shown, and everywhere");
    for never in ["<script", "<img", "<link", "url(", "@import", "@font-face", " src=\"", " href=\""] {
        assert!(!page.contains(never), "{never}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_step_stands_where_its_time_is() {
    let page = text(&report(vec![step("w1", "Drain", 50.0, 20.0), step("w1", "AwaitBoot", 70.0, 46.5)]));
    assert!(page.contains(
        "<i class=\"drain\" style=\"left:25%;width:10%\" title=\"drain: done, 20s from +50s (08:00:50 UTC)\">"
    ));
    assert!(page.contains("<i class=\"reboot\" style=\"left:35%;width:23.25%\""), "{page}");
    assert!(page.contains("aria-label=\"drain 20s, reboot 46.5s\""), "the same in words");
    assert!(page.contains("<small>away 1m06s</small>"));
    assert!(page.contains("1 more node needed no step."));
    assert!(page.contains("<b>+30s</b><br>08:00:30"));
    assert!(page.contains(">2026-11-30 08:00:00 to 08:03:20 UTC<"));
    assert_eq!(
        from_to("2026-11-30T23:59:59.5Z", "2026-12-01T00:01:00.1Z"),
        "2026-11-30 23:59:59 to 2026-12-01 00:01:00 UTC"
    );
}

#[test]
fn nodes_stand_in_the_order_of_their_turns_and_what_went_wrong_is_marked() {
    let failed =
        StepRow { outcome: Outcome::Failed, why: Some("a budget".into()), tries: 3, ..step("w1", "Drain", 90.0, 5.0) };
    let page = text(&report(vec![
        step("w1", "Stage", 1.0, 1.0),
        step("w2", "Stage", 1.1, 1.0),
        step("w2", "Drain", 5.0, 9.0),
        failed,
    ]));
    let row = |name: &str| page.find(&format!("<th scope=\"row\" title=\"{name}\">")).unwrap();
    assert!(row("run") < row("w2") && row("w2") < row("w1") && row("w1") < row("lease"));
    assert!(page.contains("drain: failed after 3 tries: a budget"));
    assert!(page.contains("<i class=\"failed\" style=\"left:47.5%;width:0%\""));
    assert!(page.contains("API servers</span><small>no outage</small>"));
}

#[test]
fn an_outage_is_told_by_the_node_and_the_lease_by_its_renewals() {
    let mut dark = report(vec![]);
    let outage = |server: Option<&str>| OutageRow {
        server: server.map(str::to_owned),
        span: span(100.0, 50.0),
        until: None,
        failed_requests: 4,
        why: "refused".to_owned(),
    };
    dark.outages = vec![outage(Some("10.0.0.2:6443")), outage(Some("lb.example:443")), outage(None)];
    dark.renewals = vec![RenewalRow { span: span(30.0, 0.1), renewed: true, why: None }];
    dark.phases.push(PhaseRow { phase: Phase::Lease, seconds: 1.0, spans: vec![span(0.0, 20.0)] });
    let page = text(&dark);
    for name in ["API of w2", "API server", "no API server"] {
        assert!(page.contains(&format!("<span class=\"name\">{name}</span>")), "{name}");
    }
    assert!(page.contains("API server of w2 (10.0.0.2:6443)") && page.contains("50s, not seen back"));
    assert!(
        page.contains("<i class=\"held\" style=\"left:10%;width:90%\""),
        "held until the end, for it was not released"
    );
    assert!(page.contains("<small>1 renewal</small>") && page.contains("aria-label=\"1 renewal, 0 failed\""));
}

#[test]
fn a_run_that_was_over_at_once_has_a_page_too() {
    let mut nothing = report(Vec::new());
    (nothing.run, nothing.seconds, nothing.exit_code) = (None, 0.0, 143);
    (nothing.nodes, nothing.phases) = (Vec::new(), Vec::new());
    let page = text(&nothing);
    assert!(!page.contains("NaN") && !page.contains("inf%"));
    assert!(page.contains("No look at the nodes is known.") && page.contains("Not done"));
}
