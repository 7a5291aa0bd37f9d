//! What is said while the lease is waited for: each thing once, and a countdown now and then. The lease is read every few
//! seconds, and a line for each read would bury the rest of a job's log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use talos_proto::clock::{Clock, Moment};

use crate::kube::lease::LeaseProgress;
use crate::report::progress::{Progress, short};

/// Between two lines of a countdown.
const EVERY: Duration = Duration::from_secs(30);

/// What was said last.
pub(super) struct LeaseWords {
    clock: Clock,
    last: Mutex<Option<Said>>,
}

struct Said {
    /// Without the time that is left.
    what: String,
    left: Option<Duration>,
    at: Moment,
}

impl LeaseWords {
    pub fn new(clock: Clock) -> Self {
        Self { clock, last: Mutex::default() }
    }

    /// Says it, unless it was said.
    pub fn tell(&self, progress: &Progress, event: &LeaseProgress) {
        if let Some(text) = self.due(event) {
            progress.event("", &text);
        }
    }

    fn due(&self, event: &LeaseProgress) -> Option<String> {
        let (what, left) = words(event);
        let at = self.clock.now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let news = last.as_ref().is_none_or(|said| {
            // A countdown that begins anew is news: the holder has renewed, or we have not seen the lease for a while.
            said.what != what || left > said.left || at.since(said.at) >= EVERY
        });
        if !news {
            return None;
        }
        let text = left.map_or_else(|| what.clone(), |left| format!("{what} ({} left)", short(left)));
        *last = Some(Said { what, left, at });
        Some(text)
    }
}

/// What is said, and the time that is left.
fn words(event: &LeaseProgress) -> (String, Option<Duration>) {
    match event {
        LeaseProgress::Watching { holder, run_link, why, left, .. } => {
            let link = run_link.as_ref().map(|link| format!(" ({link})")).unwrap_or_default();
            let what =
                format!("the lease is held by {holder}{link}, who may be dead ({why}): taken over unless renewed");
            (what, Some(*left))
        }
        LeaseProgress::Waiting { holder, why, left } => {
            (format!("the lease is held by {holder}, who lives ({why}): waiting"), Some(*left))
        }
        LeaseProgress::Deleted { why, left } => {
            let what = format!(
                "the Lease is gone although {why}: somebody deleted it, maybe under a run that has not noticed yet; created when no permit of that run can be valid any more"
            );
            (what, Some(*left))
        }
        LeaseProgress::TakingOver { holder, why } => (format!("taking the lease of {holder} over: {why}"), None),
        LeaseProgress::Unreachable { tried } => (format!("the lease cannot be read: {tried}"), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watching(holder: &str, left: u64) -> LeaseProgress {
        let (unchanged, left) = (Duration::ZERO, Duration::from_secs(left));
        LeaseProgress::Watching { holder: holder.to_owned(), run_link: None, why: "x".into(), unchanged, left }
    }

    #[tokio::test(start_paused = true)]
    async fn a_countdown_is_said_at_first_every_half_minute_and_when_it_begins_anew() {
        let clock = Clock::paused("2026-11-30T08:00:00Z".parse().unwrap());
        let words = LeaseWords::new(clock.clone());
        let mut said = Vec::new();
        for left in (0..=100).rev().step_by(5) {
            said.extend(words.due(&watching("a", left)).map(|_| left));
            clock.sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(said, [100, 70, 40, 10]);
        let again = words.due(&watching("a", 90)).unwrap();
        assert!(again.ends_with("taken over unless renewed (1m30s left)"), "{again}");
        assert!(words.due(&watching("a", 85)).is_none());
        assert!(words.due(&watching("b", 85)).is_some(), "another holder is news");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_said_every_half_minute() {
        let clock = Clock::paused("2026-11-30T08:00:00Z".parse().unwrap());
        let words = LeaseWords::new(clock.clone());
        let dark = LeaseProgress::Unreachable { tried: "cp-1: refused".into() };
        let mut said = 0;
        for _ in 0..14 {
            said += usize::from(words.due(&dark).is_some());
            clock.sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(said, 3);
        assert!(words.due(&watching("a", 60)).is_some());
        assert!(words.due(&dark).is_some());
    }
}
