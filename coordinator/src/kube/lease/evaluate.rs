//! Whether a lease may be taken: pure.

use std::time::Duration;

use super::record::LeaseRecord;
use super::timing::Timing;
use crate::holder::Life;

/// `--takeover`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// On evidence that the holder is dead, or after watching its record long enough.
    #[default]
    Auto,
    /// Only on evidence that the holder is dead.
    Verified,
    /// Never: only a lease that is free.
    Never,
}

/// What may be done about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// Nobody holds it.
    Free,
    /// We hold it (an acquisition whose reply was lost).
    Ours,
    /// Another holds it and is not to be taken over.
    HeldAlive {
        /// Why it is left alone.
        why: String,
    },
    /// Nobody can tell whether the holder lives: to be watched for this long still.
    Watch {
        /// What is left.
        left: Duration,
    },
    /// The holder is dead.
    TakeOver {
        /// How that is known.
        why: String,
    },
}

/// Judges a record. `watched_unchanged` is the time for which it was seen unchanged while the API answered; the
/// record's own times are never compared with a clock. A renewal that was seen is told as [`Life::Alive`].
#[must_use]
pub fn evaluate(
    record: &LeaseRecord,
    me: &str,
    watched_unchanged: Duration,
    life: &Life,
    policy: Takeover,
    timing: &Timing,
) -> Evaluation {
    let Some(holder) = &record.holder else { return Evaluation::Free };
    if holder == me {
        return Evaluation::Ours;
    }
    match (life, policy) {
        (Life::Alive(why), _) => Evaluation::HeldAlive { why: why.clone() },
        (life, Takeover::Never) => Evaluation::HeldAlive { why: format!("{life}; --takeover never") },
        (Life::Dead(why), _) => Evaluation::TakeOver { why: why.clone() },
        (life @ Life::Unknown(_), Takeover::Verified) => {
            Evaluation::HeldAlive { why: format!("{life}; --takeover verified") }
        }
        (Life::Unknown(_), Takeover::Auto) => {
            let needed = timing.watch(record.duration);
            let left = needed.saturating_sub(watched_unchanged);
            if left.is_zero() {
                Evaluation::TakeOver { why: format!("its record stood unchanged for {needed:.0?}") }
            } else {
                Evaluation::Watch { left }
            }
        }
    }
}

/// How long a Lease that is absent must still be seen so before it is created. One that was `expected` was deleted, maybe
/// under a holder who lives: at the renew deadline at the latest he has no permit left, for no renewal of his succeeds.
/// Pure.
#[must_use]
pub fn creation_waits(expected: bool, seen_absent: Duration, timing: &Timing) -> Duration {
    if expected { timing.renew_deadline.saturating_sub(seen_absent) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(seconds: u64) -> LeaseRecord {
        LeaseRecord {
            holder: Some("other".to_owned()),
            duration: Some(Duration::from_secs(seconds)),
            ..LeaseRecord::default()
        }
    }

    fn judge(record: &LeaseRecord, watched: u64, life: &Life, policy: Takeover) -> Evaluation {
        evaluate(record, "me", Duration::from_secs(watched), life, policy, &Timing::default())
    }

    #[test]
    fn l33_each_policy_takes_what_it_says() {
        use Takeover::{Auto, Never, Verified};
        let (alive, dead, unknown) =
            (Life::Alive(String::new()), Life::Dead(String::new()), Life::Unknown(String::new()));
        for policy in [Auto, Verified, Never] {
            assert_eq!(judge(&LeaseRecord::default(), 0, &unknown, policy), Evaluation::Free);
            assert!(matches!(judge(&held(180), 9999, &alive, policy), Evaluation::HeldAlive { .. }));
        }
        assert!(matches!(judge(&held(180), 0, &dead, Auto), Evaluation::TakeOver { .. }));
        assert!(matches!(judge(&held(180), 0, &dead, Verified), Evaluation::TakeOver { .. }));
        assert!(matches!(judge(&held(180), 0, &dead, Never), Evaluation::HeldAlive { .. }));
        assert!(matches!(judge(&held(180), 9999, &unknown, Verified), Evaluation::HeldAlive { .. }));
        assert!(matches!(judge(&held(180), 9999, &unknown, Never), Evaluation::HeldAlive { .. }));
        assert_eq!(judge(&held(180), 299, &unknown, Auto), Evaluation::Watch { left: Duration::from_secs(1) });
        assert!(matches!(judge(&held(180), 300, &unknown, Auto), Evaluation::TakeOver { .. }));
    }

    #[test]
    fn a_record_in_our_name_is_ours() {
        let record = LeaseRecord { holder: Some("me".to_owned()), ..LeaseRecord::default() };
        assert_eq!(judge(&record, 0, &Life::Unknown(String::new()), Takeover::Never), Evaluation::Ours);
    }
}
