//! What is said while the lease is waited for: each thing once, and a countdown now and then. The lease is read every few
//! seconds, and a line for each read would bury the rest of a job's log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::kube::lease::LeaseProgress;
use crate::report::progress::{Progress, short};

/// Between two lines of a countdown.
const EVERY: Duration = Duration::from_secs(30);

/// What was said last.
#[derive(Default)]
pub(super) struct LeaseWords(Mutex<Option<Said>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    /// Without the time that is left.
    what: String,
    left: Option<Duration>,
}

impl LeaseWords {
    /// Says it, unless it was said.
    pub fn tell(&self, progress: &Progress, event: &LeaseProgress) {
        if let Some(text) = self.due(event) {
            progress.event("", &text);
        }
    }

    fn due(&self, event: &LeaseProgress) -> Option<String> {
        let (what, left) = words(event);
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = last.as_ref().filter(|said| said.what == what);
        let due = match (said, left) {
            (None, _) => true,
            (Some(said), Some(left)) => {
                // A countdown that begins anew is news: the holder has renewed, or we have not seen the lease for a while.
                said.left.is_none_or(|before| left > before || before - left >= EVERY)
            }
            (Some(_), None) => false,
        };
        if !due {
            return None;
        }
        let text = left.map_or_else(|| what.clone(), |left| what.replace("{}", &short(left)));
        *last = Some(Said { what, left });
        Some(text)
    }
}

/// What is said, `{}` for the time that is left.
fn words(event: &LeaseProgress) -> (String, Option<Duration>) {
    match event {
        LeaseProgress::Watching { holder, run_link, why, left, .. } => {
            let link = run_link.as_ref().map(|link| format!(" ({link})")).unwrap_or_default();
            let what = format!(
                "the lease is held by {holder}{link}, who may be dead ({why}): taken over in {{}} unless renewed"
            );
            (what, Some(*left))
        }
        LeaseProgress::Waiting { holder, why, left } => {
            (format!("the lease is held by {holder}, who lives ({why}): waiting up to {{}}"), Some(*left))
        }
        LeaseProgress::TakingOver { holder, why } => (format!("taking the lease of {holder} over: {why}"), None),
        LeaseProgress::Unreachable { tried } => (format!("no API server answers ({tried})"), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watching(holder: &str, left: u64) -> LeaseProgress {
        let (unchanged, left) = (Duration::ZERO, Duration::from_secs(left));
        LeaseProgress::Watching { holder: holder.to_owned(), run_link: None, why: "x".into(), unchanged, left }
    }

    #[test]
    fn a_countdown_is_said_at_first_every_half_minute_and_when_it_begins_anew() {
        let words = LeaseWords::default();
        let said: Vec<u64> =
            (0..=100).rev().step_by(5).filter(|left| words.due(&watching("a", *left)).is_some()).collect();
        assert_eq!(said, [100, 70, 40, 10]);
        let again = words.due(&watching("a", 90)).unwrap();
        assert!(again.contains("taken over in 1m30s"), "{again}");
        assert!(words.due(&watching("a", 85)).is_none());
        assert!(words.due(&watching("b", 85)).is_some(), "another holder is news");
    }

    #[test]
    fn that_no_server_answers_is_said_once_until_one_has_answered() {
        let words = LeaseWords::default();
        let dark = LeaseProgress::Unreachable { tried: "cp-1: refused".into() };
        assert!(words.due(&dark).is_some());
        assert!(words.due(&dark).is_none());
        assert!(words.due(&watching("a", 60)).is_some());
        assert!(words.due(&dark).is_some());
    }
}
