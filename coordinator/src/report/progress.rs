//! Progress on stderr: one line an event, and a line every 30 s that says what is waited for and how long is left.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use talos_proto::clock::{Clock, Moment};

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

    /// What goes on now, in the order of its begin.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        let (steps, elapsed) = self.inner.trace.running();
        let now = self.inner.clock.now();
        let waiting = self.lock().waiting.clone();
        let steps = steps.into_iter().map(|step| {
            let (waits_for, deadline) = waiting.get(&step.node).cloned().unzip();
            Running {
                time: step.span.length(elapsed),
                left: deadline.flatten().map(|deadline| deadline.since(now)),
                node: step.node,
                task: step.task,
                waits_for,
            }
        });
        steps.collect()
    }

    /// Something happened, about a node or, with an empty `node`, about the run.
    pub fn event(&self, node: &str, text: &str) {
        let line = self.line(node, text);
        let mut state = self.lock();
        state.last = Some(self.inner.clock.now());
        drop(state);
        super::say(&line);
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
            let waiting = {
                let mut state = self.lock();
                let last = *state.last.get_or_insert(self.inner.start);
                if now.since(last) < HEARTBEAT {
                    continue;
                }
                state.last = Some(now);
                state.waiting.clone()
            };
            for (node, (what, deadline)) in waiting {
                let left = deadline.map(|deadline| format!(", {} left", short(deadline.since(now))));
                super::say(&self.line(&node, &format!("still {what}{}", left.unwrap_or_default())));
            }
        }
    }

    fn line(&self, node: &str, text: &str) -> String {
        let elapsed = self.inner.clock.now().since(self.inner.start);
        let node = if node.is_empty() { "run" } else { node };
        format!("{:>7.1}s  {node:<14} {text}", elapsed.as_secs_f64())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step of a node that goes on now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The Node's name.
    pub node: String,
    /// What is done.
    pub task: Task,
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

impl Drop for Waiting {
    fn drop(&mut self) {
        self.progress.lock().waiting.remove(&self.node);
    }
}

/// A duration for people: `12.3s`, `4m10s`, `1h05m`.
#[must_use]
pub fn short(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0..60 => format!("{:.1}s", length.as_secs_f64()),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use agent::step::Step;

    use super::*;

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
        let row = |node: &str, task: &Task, time, waits_for: Option<&str>, left| Running {
            node: node.to_owned(),
            task: task.clone(),
            time: Duration::from_secs(time),
            waits_for: waits_for.map(str::to_owned),
            left,
        };
        let left = Some(Duration::from_secs(50));
        assert_eq!(
            progress.running(),
            [row("w1", &drain, 12, None, None), row("w2", &boot, 10, Some("waiting for its boot"), left)]
        );
        drop(waiting);
        assert_eq!(progress.running()[1], row("w2", &boot, 10, None, None));
    }

    #[test]
    fn durations_for_people() {
        let cases = [(300, "0.3s"), (59_900, "59.9s"), (250_000, "4m10s"), (3_900_000, "1h05m")];
        for (millis, text) in cases {
            assert_eq!(short(Duration::from_millis(millis)), text);
        }
    }
}
