//! What a run did and when: for its report, and for whoever watches it. Data and their collector; nothing is decided by
//! them, and nothing is printed here.
//!
//! All times are offsets from the run's begin on the one clock of the run, so that they fit together even when the
//! machine's wall clock is stepped meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use talos_proto::clock::{Clock, Moment};

use crate::decide::Task;

mod phase;

pub use phase::{Phase, PhaseSpans};

/// A step that is tried again so soon is one step with several tries: a node that is looked at twice a second for ten
/// minutes is one line for people, not a thousand.
const ONE_STEP: Duration = Duration::from_secs(5);

/// From when to when, counted from the run's begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its begin.
    pub from: Duration,
    /// Its end; none while it goes on.
    pub to: Option<Duration>,
}

impl Span {
    /// How long it took, or has taken by `now`.
    #[must_use]
    pub fn length(&self, now: Duration) -> Duration {
        self.to.unwrap_or(now).saturating_sub(self.from)
    }
}

/// How a step came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Done, or the look after it says what is next.
    Done,
    /// Something was in the way that may pass: it is tried again.
    Again,
    /// For good, in this run.
    Failed,
    /// The lease did not allow it then.
    NoPermit,
    /// The node left the cluster meanwhile, which is no failure.
    Gone,
    /// The run was ended under it.
    BrokenOff,
}

/// A step of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSpan {
    /// The Node's name.
    pub node: String,
    /// Whether it is a control plane.
    pub control_plane: bool,
    /// Whether it adopts by a restart of its CRI.
    pub live: bool,
    /// What is done.
    pub task: Task,
    /// Without the look after it.
    pub span: Span,
    /// When the look at the node after it came to its end; until then the node is busy.
    pub looked: Option<Duration>,
    /// None while it goes on.
    pub outcome: Option<Outcome>,
    /// Why it did not end well.
    pub why: Option<String>,
    /// How often it was tried.
    pub tries: u32,
}

/// A renewal of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalSpan {
    /// From the moment before the send until its answer.
    pub span: Span,
    /// Why the lease is not renewed by it; none when it is.
    pub why: Option<String>,
}

/// Everything that was collected until a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// When the run began.
    pub started: Timestamp,
    /// How long it has taken by then.
    pub now: Duration,
    /// Every step, in the order of their begins.
    pub steps: Vec<StepSpan>,
    /// What the run itself did, by phase, in the order of their begins; those of the nodes are derived from the steps.
    pub phases: Vec<PhaseSpans>,
    /// Every renewal of the lease.
    pub renewals: Vec<RenewalSpan>,
}

/// The collector; clones share it.
#[derive(Clone)]
pub struct Trace(Arc<Inner>);

struct Inner {
    clock: Clock,
    start: Moment,
    started: Timestamp,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    steps: Vec<StepSpan>,
    /// The last step of each node.
    last: HashMap<String, usize>,
    own: Vec<(Phase, Span)>,
    renewals: Vec<RenewalSpan>,
}

impl Trace {
    /// A run that begins now.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let (start, started) = (clock.now(), clock.utc());
        Self(Arc::new(Inner { clock, start, started, log: Mutex::default() }))
    }

    /// When the run began.
    #[must_use]
    pub fn started(&self) -> Timestamp {
        self.0.started
    }

    /// A moment as its offset from the begin.
    #[must_use]
    pub fn offset(&self, moment: Moment) -> Duration {
        moment.since(self.0.start)
    }

    /// A step of a node begins; it ends with the guard, as broken off unless [`Working::ended`] says otherwise.
    #[must_use]
    pub fn step(&self, node: &str, (control_plane, live): (bool, bool), task: &Task) -> Working {
        let now = self.now();
        let mut log = self.log();
        let before = log.last.get(node).copied().filter(|index| is_one_with(&log.steps[*index], task, now));
        let index = before.unwrap_or(log.steps.len());
        if let Some(step) = before.and_then(|index| log.steps.get_mut(index)) {
            // Its reason may be another one now.
            step.task = task.clone();
            (step.span.to, step.looked, step.outcome) = (None, None, None);
            step.tries += 1;
        } else {
            log.steps.push(StepSpan {
                node: node.to_owned(),
                control_plane,
                live,
                task: task.clone(),
                span: Span { from: now, to: None },
                looked: None,
                outcome: None,
                why: None,
                tries: 1,
            });
            log.last.insert(node.to_owned(), index);
        }
        Working { trace: self.clone(), index }
    }

    /// The run itself does something from now on; it ends with the guard.
    #[must_use]
    pub fn phase(&self, phase: Phase) -> InPhase {
        let span = Span { from: self.now(), to: None };
        let mut log = self.log();
        log.own.push((phase, span));
        InPhase { trace: self.clone(), index: log.own.len() - 1 }
    }

    /// A renewal of the lease has its answer, or none in time; `why` says why it did not renew.
    pub fn renewed(&self, sent: Moment, why: Option<String>) {
        let span = Span { from: self.offset(sent), to: Some(self.now()) };
        self.log().renewals.push(RenewalSpan { span, why });
    }

    /// The steps that go on now, in the order of their begins, and the time by now.
    #[must_use]
    pub fn running(&self) -> (Vec<StepSpan>, Duration) {
        let log = self.log();
        (log.steps.iter().filter(|step| step.looked.is_none()).cloned().collect(), self.now())
    }

    /// What the run itself does now, and for how long already: the phase that began last.
    #[must_use]
    pub fn phase_now(&self) -> Option<(Phase, Duration)> {
        let now = self.now();
        let log = self.log();
        let open = log.own.iter().rev().find(|(_, span)| span.to.is_none());
        open.map(|(phase, span)| (*phase, span.length(now)))
    }

    /// Everything until now.
    #[must_use]
    pub fn collected(&self) -> Collected {
        let now = self.now();
        let log = self.log();
        Collected {
            started: self.0.started,
            now,
            phases: phase::of(&log.own, &log.steps, now),
            steps: log.steps.clone(),
            renewals: log.renewals.clone(),
        }
    }

    fn now(&self) -> Duration {
        self.offset(self.0.clock.now())
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a step is the last one of its node over again.
fn is_one_with(last: &StepSpan, task: &Task, now: Duration) -> bool {
    let again = matches!(last.outcome, Some(Outcome::Again | Outcome::NoPermit));
    last.task.name() == task.name() && again && last.looked.is_some_and(|looked| now.saturating_sub(looked) < ONE_STEP)
}

/// A step that goes on.
pub struct Working {
    trace: Trace,
    index: usize,
}

impl Working {
    /// It has come to its end; what follows until the guard is dropped is the look after it.
    pub fn ended(&self, outcome: Outcome, why: Option<String>) {
        let now = self.trace.now();
        self.change(|step| {
            step.span.to = Some(now);
            step.outcome = Some(outcome);
            step.why = why;
        });
    }

    /// The look after it has not found the node any more.
    pub fn gone(&self, how: &str) {
        self.change(|step| (step.outcome, step.why) = (Some(Outcome::Gone), Some(how.to_owned())));
    }

    fn change(&self, change: impl FnOnce(&mut StepSpan)) {
        if let Some(step) = self.trace.log().steps.get_mut(self.index) {
            change(step);
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let now = self.trace.now();
        self.change(|step| {
            step.looked = Some(now);
            step.span.to.get_or_insert(now);
            step.outcome.get_or_insert(Outcome::BrokenOff);
        });
    }
}

/// Something that the run itself does.
pub struct InPhase {
    trace: Trace,
    index: usize,
}

impl Drop for InPhase {
    fn drop(&mut self) {
        let now = self.trace.now();
        if let Some((_, span)) = self.trace.log().own.get_mut(self.index) {
            span.to = Some(now);
        }
    }
}

#[cfg(test)]
mod tests;
