//! Progress on stderr: one line an event, and a line every 30 s that says what is waited for and how long is left.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use talos_proto::clock::{Clock, Moment};

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
        Self { inner: Arc::new(Inner { clock, start, state: Mutex::default() }) }
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
    use super::*;

    #[test]
    fn durations_for_people() {
        let cases = [(300, "0.3s"), (59_900, "59.9s"), (250_000, "4m10s"), (3_900_000, "1h05m")];
        for (millis, text) in cases {
            assert_eq!(short(Duration::from_millis(millis)), text);
        }
    }
}
