//! Progress on stderr: one line an event, and a line every 30 s that says what is waited for and how long is left.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::step::Step;
use talos_proto::clock::{Clock, Moment};

pub use talos_proto::clock::short;

use crate::decide::Task;
use crate::trace::Trace;

/// Silence is worse than noise at 3 am: this long without a line and one is made.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Where the events of a run go.
#[derive(Clone)]
pub struct Progress {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    start: Moment,
    trace: Trace,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    begun: bool,
    last: Option<Moment>,
    waiting: BTreeMap<String, (String, Option<Moment>)>,
}

impl Progress {
    /// Progress that counts its times from now.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let start = clock.now();
        let trace = Trace::new(clock.clone());
        Self { inner: Arc::new(Inner { clock, start, trace, state: Mutex::default() }) }
    }

    /// What the run did so far.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// The clock that its times are of.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// What goes on now: first what the run itself does, then the steps of nodes, in the order of their begin.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        let trace = &self.inner.trace;
        let (steps, elapsed) = trace.running();
        let now = self.inner.clock.now();
        let waiting = self.lock().waiting.clone();
        let row = |node: &str, what: String, time: Duration, also: Option<String>| {
            let (waits_for, deadline) = waiting.get(node).cloned().unzip();
            Running {
                node: if node.is_empty() { "run".to_owned() } else { node.to_owned() },
                what,
                time,
                waits_for: waits_for.or(also),
                left: deadline.flatten().map(|deadline| deadline.since(now)),
            }
        };
        let own = trace.phase_now().map(|(phase, time)| row("", phase.to_string(), time, None));
        let steps = steps.into_iter().map(|step| {
            let also = match &step.task {
                Task::Step(Step::LookAgain(why)) => Some(why.clone()),
                _ => None,
            };
            row(&step.node, step.task.to_string(), step.span.length(elapsed), also)
        });
        own.into_iter().chain(steps).collect()
    }

    /// Something happened, about a node or, with an empty `node`, about the run.
    pub fn event(&self, node: &str, text: &str) {
        let line = self.line(node, text);
        self.lock().last = Some(self.inner.clock.now());
        self.say(&line);
    }

    /// From now on `node` is waited for, at most until `deadline`; the heartbeat says so. Ends with the guard.
    #[must_use]
    pub fn waiting(&self, node: &str, what: impl Into<String>, deadline: Option<Moment>) -> Waiting {
        self.lock().waiting.insert(node.to_owned(), (what.into(), deadline));
        Waiting { progress: self.clone(), node: node.to_owned() }
    }

    /// Runs until it is dropped, and makes a line when there was none for a while.
    pub async fn heartbeat(&self) {
        let clock = &self.inner.clock;
        loop {
            clock.sleep(Duration::from_secs(1)).await;
            let now = clock.now();
            {
                let mut state = self.lock();
                let last = state.last.unwrap_or(self.inner.start);
                if now.since(last) < HEARTBEAT {
                    continue;
                }
                state.last = Some(now);
            }
            for Running { node, what, waits_for, left, .. } in self.running() {
                let left = left.map(|left| format!(", {} left", short(left))).unwrap_or_default();
                self.say(&self.line(&node, &format!("still {}{left}", waits_for.unwrap_or(what))));
            }
        }
    }

    /// Before the first line of a run it is said which time all the others are counted from.
    fn say(&self, line: &str) {
        if !std::mem::replace(&mut self.lock().begun, true) {
            super::say(&self.line("", &format!("times are counted from {:.0}", self.inner.trace.started())));
        }
        super::say(line);
    }

    fn line(&self, node: &str, text: &str) -> String {
        let elapsed = self.inner.clock.now().since(self.inner.start);
        let node = if node.is_empty() { "run" } else { node };
        format!("{:>7.1}s  {node:<14} {}", elapsed.as_secs_f64(), super::style::lead(text))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something that goes on now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The Node's name, or `run`.
    pub node: String,
    /// What is done.
    pub what: String,
    /// For how long so far.
    pub time: Duration,
    /// What it waits for, in words.
    pub waits_for: Option<String>,
    /// How long it may still wait.
    pub left: Option<Duration>,
}

/// While it lives its node is waited for.
pub struct Waiting {
    progress: Progress,
    node: String,
}

impl Waiting {
    /// What exactly it waits for now; the deadline stays.
    pub fn is_for(&self, what: impl Into<String>) {
        if let Some(waiting) = self.progress.lock().waiting.get_mut(&self.node) {
            waiting.0 = what.into();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.progress.lock().waiting.remove(&self.node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Phase;

    #[tokio::test(start_paused = true)]
    async fn what_runs_says_for_how_long_and_what_it_waits_for() {
        let clock = Clock::paused("2026-11-30T08:00:00Z".parse().unwrap());
        let progress = Progress::new(clock.clone());
        let (drain, boot) = (Task::Step(Step::Drain), Task::Step(Step::AwaitBoot));
        let _first = progress.trace().step("w1", (false, false), &drain);
        clock.sleep(Duration::from_secs(2)).await;
        let _second = progress.trace().step("w2", (false, false), &boot);
        let waiting = progress.waiting("w2", "waiting for its boot", Some(clock.now() + Duration::from_secs(60)));
        clock.sleep(Duration::from_secs(10)).await;
        let row = |node: &str, what: &str, time, waits_for: Option<&str>, left| Running {
            node: node.to_owned(),
            what: what.to_owned(),
            time: Duration::from_secs(time),
            waits_for: waits_for.map(str::to_owned),
            left,
        };
        let left = Some(Duration::from_secs(50));
        assert_eq!(
            progress.running(),
            [
                row("w1", "drain", 12, None, None),
                row("w2", "wait for the boot", 10, Some("waiting for its boot"), left)
            ]
        );
        waiting.is_for("an answer");
        let release = progress.trace().phase(Phase::Release);
        clock.sleep(Duration::from_secs(1)).await;
        let left = Some(Duration::from_secs(49));
        let run = row("run", "release", 1, None, None);
        let second = row("w2", "wait for the boot", 11, Some("an answer"), left);
        assert_eq!(progress.running(), [run, row("w1", "drain", 13, None, None), second]);
        drop((waiting, release));
        assert_eq!(progress.running()[1], row("w2", "wait for the boot", 11, None, None));
    }
}
