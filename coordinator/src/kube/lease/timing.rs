//! All times of the lease, scaled from its duration, so that a test shortens every one of them with one flag.

use std::time::Duration;

/// The longest that a mutating call may take, however long the lease.
const LONGEST_CALL: Duration = Duration::from_secs(60);

/// A record's duration is believed between these bounds.
const SHORTEST_WATCH: Duration = Duration::from_secs(15);
const LONGEST_WATCH: Duration = Duration::from_secs(600);

/// The times that belong to one lease duration. In figures for the default of 180 s: renewal every 30 s, call timeout
/// 8 s, renew deadline 120 s, margin 15 s, grace 120 s, settle 90 s, saved 60 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// `spec.leaseDurationSeconds`.
    pub duration: Duration,
    /// A renewal begins every so often, on a fixed grid: the call's latency is not added.
    pub renew: Duration,
    /// One call of the lease's own.
    pub call: Duration,
    /// From before the send of the last renewal that succeeded; past it the lease is lapsed.
    pub renew_deadline: Duration,
    /// Kept free before the deadline, on top of a call's timeout.
    pub margin: Duration,
    /// Added to the record's duration before it is taken over: at least twice the longest mutating call, within which
    /// a late request of the dead holder lands.
    pub grace: Duration,
    /// How long an unchanged boot and RUNNING must stand before a reboot counts as not happened.
    pub settle: Duration,
    /// How long an applied machine config must stand until Talos has saved it for certain.
    pub saved: Duration,
}

impl Timing {
    /// The times for a lease duration.
    #[must_use]
    pub fn scaled(duration: Duration) -> Self {
        Self {
            duration,
            renew: duration / 6,
            call: (duration / 6).min(Duration::from_secs(8)),
            renew_deadline: duration * 2 / 3,
            margin: duration / 12,
            grace: duration * 2 / 3,
            settle: duration / 2,
            saved: duration / 3,
        }
    }

    /// No mutating call may have a longer timeout.
    #[must_use]
    pub fn longest_call(&self) -> Duration {
        (self.duration / 3).min(LONGEST_CALL)
    }

    /// How long a holder whose process is known to be dead is waited for before its lease is taken: what it had sent to
    /// Kubernetes has landed by then, within twice a call's timeout, or never will. Its reboot is waited for under its
    /// fence.
    #[must_use]
    pub fn dead_wait(&self) -> Duration {
        self.call * 2
    }

    /// Between two tries of a renewal that did not succeed, and between two reads of a watched record.
    #[must_use]
    pub fn pause(&self) -> Duration {
        (self.duration / 36).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }

    /// How long the record of a holder whose CI job has ended must stand unchanged: a runner that the server has lost
    /// may still run it, and would renew twice in this time.
    #[must_use]
    pub fn confirm(&self, theirs: Option<Duration>) -> Duration {
        self.believed(theirs).max(self.duration) / 3
    }

    fn believed(&self, theirs: Option<Duration>) -> Duration {
        theirs.unwrap_or(self.duration).clamp(SHORTEST_WATCH.min(self.duration), LONGEST_WATCH.max(self.duration))
    }

    /// How long a record of this duration must stand unchanged before its holder is taken for dead. The grace is that
    /// of the longer of both durations: it covers the calls of the one who holds it.
    #[must_use]
    pub fn watch(&self, theirs: Option<Duration>) -> Duration {
        let theirs = self.believed(theirs);
        theirs + self.grace.max((theirs * 2 / 3).min(LONGEST_CALL * 2))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::scaled(Duration::from_secs(180))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_default_has_the_documented_figures() {
        let timing = Timing::default();
        assert_eq!((timing.renew, timing.call, timing.renew_deadline), (s(30), s(8), s(120)));
        assert_eq!((timing.margin, timing.grace, timing.settle), (s(15), s(120), s(90)));
        assert_eq!((timing.longest_call(), timing.dead_wait()), (s(60), s(16)));
        assert!(timing.grace >= timing.longest_call() * 2);
    }

    #[test]
    fn a_renewed_lease_covers_its_longest_call_at_any_scale() {
        for seconds in [2, 15, 60, 180, 600] {
            let timing = Timing::scaled(s(seconds));
            let left = timing.renew_deadline - timing.renew - timing.margin;
            assert!(left >= timing.call, "{timing:?}");
            assert!(timing.grace >= timing.longest_call() * 2, "{timing:?}");
        }
    }

    #[test]
    fn a_job_that_has_ended_is_confirmed_by_two_renewals() {
        let timing = Timing::default();
        assert_eq!((timing.confirm(None), timing.confirm(Some(s(180)))), (s(60), s(60)));
        assert_eq!(timing.confirm(Some(s(120))), s(60), "the older script renews every 30 s");
        assert_eq!(timing.confirm(Some(s(u64::from(u32::MAX)))), s(200));
        assert!(timing.confirm(None) >= timing.renew * 2);
    }

    #[test]
    fn the_watch_is_clamped() {
        let timing = Timing::default();
        assert_eq!(timing.watch(Some(s(180))), s(300));
        assert_eq!(timing.watch(None), s(300));
        assert_eq!(timing.watch(Some(s(0))), s(15 + 120));
        assert_eq!(timing.watch(Some(s(u64::from(i32::MAX as u32)))), s(600 + 120));
        let quick = Timing::scaled(s(2));
        assert_eq!(quick.watch(Some(s(2))), s(2) + quick.grace);
        assert_eq!(quick.watch(Some(s(180))), s(180 + 120), "grace is that of the holder's own calls");
    }
}
