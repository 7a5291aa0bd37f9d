//! A record that is watched because nobody can tell whether its holder lives. Pure.

use std::time::Duration;

use talos_proto::clock::Moment;

use super::record::LeaseRecord;
use super::timing::Timing;

/// A record that is being watched.
#[derive(Clone, Debug)]
pub struct Watched {
    /// As it was read first.
    pub record: LeaseRecord,
    /// How long it was seen unchanged; only time between two answers in a row counts.
    pub unchanged: Duration,
    /// The end of the last read, unless one failed since.
    pub read: Option<Moment>,
}

impl Watched {
    /// Takes a reading in that was sent and answered at these moments. Returns what of life was seen: the same record
    /// moved on, or another holder came.
    ///
    /// Between two readings no more counts than twice the pause that was meant to lie there: our clock also runs with the
    /// wall clock, and a step of that would make a holder that lives look silent for an hour.
    pub fn next(
        watched: &mut Option<Self>,
        record: &LeaseRecord,
        (sent, answered): (Moment, Moment),
        timing: &Timing,
    ) -> Option<String> {
        if let Some(same) = watched.as_mut().filter(|watched| record.same_holding(&watched.record)) {
            if let Some(read) = same.read {
                same.unchanged += sent.since(read).min(timing.pause() * 2);
            }
            same.read = Some(answered);
            return None;
        }
        let fresh = Self { record: record.clone(), unchanged: Duration::ZERO, read: Some(answered) };
        let before = watched.replace(fresh)?.record;
        let before_holder = before.holder?;
        let holder = record.holder.as_ref()?;
        Some(if *holder == before_holder {
            "it renewed the lease while we watched".to_owned()
        } else {
            "it took the lease while we watched".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn l05_a_step_of_our_clock_between_two_reads_is_not_silence_of_the_holder() {
        let timing = Timing::default();
        let record = LeaseRecord { holder: Some("other".to_owned()), ..LeaseRecord::default() };
        let mut watched = None;
        for moment in [0, 5, 10, 3_610, 3_615] {
            assert_eq!(Watched::next(&mut watched, &record, (at(moment), at(moment)), &timing), None);
        }
        let unchanged = watched.unwrap().unchanged;
        assert_eq!(unchanged, Duration::from_secs(5 + 5 + 10 + 5));
        assert!(unchanged < timing.watch(record.duration));
    }
}
