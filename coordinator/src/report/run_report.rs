//! What a run did and when, as a document: for a pull request, a ticket, or whoever compares two runs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use talos_proto::clock::Moment;

use crate::cli::args::VERSION;
use crate::exit::Exit;
use crate::kube::outages::Outage;
use crate::plan::{NodeRow, SCHEMA_VERSION};
use crate::rollout::{Ended, RunDocument};
use crate::trace::{Collected, Outcome, Phase, Span, StepSpan, Trace};

/// The report of a run. Lengths and offsets are in seconds, offsets from the begin of the run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportDocument {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `Report`.
    pub kind: &'static str,
    /// Version and commit of the tool.
    pub version: &'static str,
    /// When the run began, UTC.
    pub started: String,
    /// When it ended, UTC.
    pub ended: String,
    /// How long it took.
    pub seconds: f64,
    /// `done`, `nothing-to-do`, or why not.
    pub result: String,
    /// The exit code.
    pub exit_code: u8,
    /// How long each phase took, in the order of their begins. Those of the nodes may overlap.
    pub phases: Vec<PhaseRow>,
    /// Each step of each node, in the order of their begins.
    pub steps: Vec<StepRow>,
    /// Each renewal of the lease.
    pub renewals: Vec<RenewalRow>,
    /// When API servers of Kubernetes did not answer.
    pub outages: Vec<OutageRow>,
    /// The nodes as they were seen last, in the order of their turns.
    pub nodes: Vec<NodeRow>,
    /// What the run printed; `null` when it was ended at once by a repeated signal.
    pub run: Option<RunDocument>,
}

/// From when on and how long.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpanRow {
    /// Its begin, UTC.
    pub at: String,
    /// The same, counted from the begin of the run.
    pub offset_seconds: f64,
    /// How long it took; of what had not ended: until the end of the run.
    pub seconds: f64,
}

/// A phase.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseRow {
    /// Which.
    pub phase: Phase,
    /// How long the run was in it, all its spans together.
    pub seconds: f64,
    /// When.
    pub spans: Vec<SpanRow>,
}

/// A step of a node.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepRow {
    /// The Node's name.
    pub node: String,
    /// `control-plane` or `worker`.
    pub role: &'static str,
    /// Its name: [`crate::decide::Task::name`].
    pub step: &'static str,
    /// When.
    #[serde(flatten)]
    pub span: SpanRow,
    /// How long the look at the node after it took.
    pub look_seconds: f64,
    /// How often it was tried, one try after the other.
    pub tries: u32,
    /// How the last try ended.
    pub outcome: Outcome,
    /// Why it did not end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A renewal of the lease.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenewalRow {
    /// From its send until its answer.
    #[serde(flatten)]
    pub span: SpanRow,
    /// Whether the lease is renewed by it.
    pub renewed: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// When an API server did not answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutageRow {
    /// Its address; `null` is every server of the set.
    pub server: Option<String>,
    /// From the first request that failed until the next answer; where none was seen, until the last request that failed.
    #[serde(flatten)]
    pub span: SpanRow,
    /// The next answer, UTC; `null` when none was seen, be it that nobody asked there again.
    pub until: Option<String>,
    /// Requests that failed.
    pub failed_requests: u32,
    /// Why the first one failed.
    pub why: String,
}

/// The report of a run that has come to its end.
#[must_use]
pub fn document(trace: &Trace, outages: &[Outage], ended: &Ended) -> ReportDocument {
    let mut report = broken_off(trace, outages, ended.exit);
    report.result.clone_from(&ended.document.result);
    report.nodes.clone_from(&ended.nodes);
    report.run = Some(ended.document.clone());
    report
}

/// The report of a run that ends at this moment, whatever it was doing.
#[must_use]
pub fn broken_off(trace: &Trace, outages: &[Outage], exit: Exit) -> ReportDocument {
    let Collected { started, now, steps, phases, renewals } = trace.collected();
    let times = Times { started, now };
    let phases = phases.iter().map(|phase| PhaseRow {
        phase: phase.phase,
        seconds: seconds(phase.length(now)),
        spans: phase.spans.iter().map(|span| times.row(*span)).collect(),
    });
    let renewals = renewals.into_iter().map(|renewal| RenewalRow {
        span: times.row(renewal.span),
        renewed: renewal.why.is_none(),
        why: renewal.why,
    });
    ReportDocument {
        schema_version: SCHEMA_VERSION,
        kind: "Report",
        version: VERSION,
        started: times.utc(Duration::ZERO),
        ended: times.utc(now),
        seconds: seconds(now),
        result: "ended at once by a repeated signal: what was under way is left to the next run".to_owned(),
        exit_code: exit.code(),
        // What took no time was not done: nobody was asked.
        phases: phases.filter(|phase| phase.seconds > 0.0).collect(),
        steps: steps.into_iter().map(|step| times.step(step)).collect(),
        renewals: renewals.collect(),
        outages: outages.iter().map(|outage| times.outage(outage, |moment| trace.offset(moment))).collect(),
        nodes: Vec::new(),
        run: None,
    }
}

/// From offsets to what is written.
struct Times {
    started: Timestamp,
    now: Duration,
}

impl Times {
    /// UTC, to the millisecond.
    fn utc(&self, offset: Duration) -> String {
        let offset = SignedDuration::try_from(offset).unwrap_or(SignedDuration::MAX);
        let at = self.started.checked_add(offset).unwrap_or(Timestamp::MAX);
        format!("{at:.3}")
    }

    fn row(&self, span: Span) -> SpanRow {
        SpanRow { at: self.utc(span.from), offset_seconds: seconds(span.from), seconds: seconds(span.length(self.now)) }
    }

    fn step(&self, step: StepSpan) -> StepRow {
        let end = step.span.to.unwrap_or(self.now);
        StepRow {
            role: if step.control_plane { "control-plane" } else { "worker" },
            step: step.task.name(),
            span: self.row(step.span),
            look_seconds: seconds(step.looked.unwrap_or(self.now).saturating_sub(end)),
            tries: step.tries,
            outcome: step.outcome.unwrap_or(Outcome::BrokenOff),
            why: step.why,
            node: step.node,
        }
    }

    fn outage(&self, outage: &Outage, offset: impl Fn(Moment) -> Duration) -> OutageRow {
        let to = Some(offset(outage.to.unwrap_or(outage.last)));
        OutageRow {
            server: outage.server.clone(),
            span: self.row(Span { from: offset(outage.from), to }),
            until: outage.to.map(|to| self.utc(offset(to))),
            failed_requests: outage.requests,
            why: outage.why.clone(),
        }
    }
}

/// To the millisecond: more is noise in a file that is compared.
fn seconds(length: Duration) -> f64 {
    (length.as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use agent::step::Step;
    use serde_json::json;
    use talos_proto::clock::Clock;

    use super::*;
    use crate::decide::Task;
    use crate::left_out::LeftOut;
    use crate::rollout::Requests;

    fn run(result: &str) -> Ended {
        Ended {
            exit: Exit::Failed,
            document: RunDocument {
                schema_version: 1,
                kind: "Run",
                result: result.to_owned(),
                changed: true,
                exit_code: 1,
                revision: None,
                rebooted: Vec::new(),
                adopted_live: Vec::new(),
                left: BTreeMap::new(),
                left_out: LeftOut::default(),
                requests: Requests { talos: 1, kubernetes: 2 },
                seconds: 1.0,
            },
            nodes: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_document_says_when_how_long_and_why() {
        let clock = Clock::paused("2026-11-30T08:00:00Z".parse().unwrap());
        let trace = Trace::new(clock.clone());
        let half = Duration::from_millis(500);
        clock.sleep(half).await;
        let (dark, drain) = (clock.now(), trace.step("w1", (false, false), &Task::Step(Step::Drain)));
        clock.sleep(half * 3).await;
        drain.ended(Outcome::Failed, Some("a budget".into()));
        trace.renewed(dark, Some("no answer".into()));
        clock.sleep(half).await;
        drop(drain);
        let seen =
            Outage { server: Some("a:1".into()), from: dark, last: dark, to: None, why: "x".into(), requests: 2 };
        let back = Outage { server: None, to: Some(clock.now()), ..seen.clone() };
        let _under_way = trace.step("cp-1", (true, false), &Task::Canary);
        clock.sleep(half).await;
        let report = serde_json::to_value(document(&trace, &[seen, back], &run("failed"))).unwrap();
        assert_eq!((&report["schemaVersion"], &report["kind"]), (&json!(1), &json!("Report")));
        assert_eq!(report["started"], "2026-11-30T08:00:00.000Z");
        assert_eq!((&report["ended"], &report["seconds"]), (&json!("2026-11-30T08:00:03.000Z"), &json!(3.0)));
        assert_eq!((&report["result"], &report["exitCode"]), (&json!("failed"), &json!(1)));
        assert_eq!(
            report["steps"],
            json!([
                {"node": "w1", "role": "worker", "step": "Drain", "at": "2026-11-30T08:00:00.500Z",
                 "offsetSeconds": 0.5, "seconds": 1.5, "lookSeconds": 0.5, "tries": 1, "outcome": "failed",
                 "why": "a budget"},
                {"node": "cp-1", "role": "control-plane", "step": "Canary", "at": "2026-11-30T08:00:02.500Z",
                 "offsetSeconds": 2.5, "seconds": 0.5, "lookSeconds": 0.0, "tries": 1, "outcome": "brokenOff"},
            ])
        );
        assert_eq!(report["phases"][0]["phase"], "workers");
        assert_eq!(report["phases"][0]["seconds"], 2.0, "with the look after the step");
        assert_eq!(report["renewals"][0]["renewed"], false);
        assert_eq!(report["outages"][0]["until"], json!(null));
        assert_eq!((&report["outages"][0]["seconds"], &report["outages"][0]["server"]), (&json!(0.0), &json!("a:1")));
        assert_eq!((&report["outages"][1]["seconds"], &report["outages"][1]["server"]), (&json!(2.0), &json!(null)));
        assert_eq!(report["run"]["kind"], "Run");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_was_ended_at_once_has_no_document_of_its_own() {
        let trace = Trace::new(Clock::paused("2026-11-30T08:00:00Z".parse().unwrap()));
        let report = serde_json::to_value(broken_off(&trace, &[], Exit::Signal(15))).unwrap();
        assert_eq!((&report["exitCode"], &report["run"]), (&json!(143), &json!(null)));
        assert!(report["result"].as_str().unwrap().contains("repeated signal"));
    }
}
