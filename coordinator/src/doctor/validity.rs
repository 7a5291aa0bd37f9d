//! When a certificate or token is over, in words.

use jiff::{SignedDuration, Timestamp};

use super::Health;

/// What runs out sooner is worth a word, while there is time.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
/// What lives no longer than that is meant to be short, and made anew for each use; it is judged by its own length.
const SHORT_LIVED: SignedDuration = SignedDuration::from_hours(48);

/// What the times say, both ways: how long, and when.
pub(super) fn validity(from: Option<Timestamp>, until: Timestamp, now: Timestamp) -> (Health, String) {
    if until <= now {
        return (Health::Fault, format!("expired {} ago ({until})", length(now.duration_since(until))));
    }
    if let Some(from) = from.filter(|from| *from > now) {
        let words =
            format!("not valid before {from}, in {}: is this machine's clock right?", length(from.duration_since(now)));
        return (Health::Fault, words);
    }
    let left = until.duration_since(now);
    let life = from.map(|from| until.duration_since(from)).filter(|life| *life <= SHORT_LIVED);
    let soon = life.map_or(SOON, |life| life / 6);
    if left < soon {
        return (Health::Warning, format!("expires in {} ({until})", length(left)));
    }
    (Health::Ok, format!("valid for {} ({until})", length(left)))
}

/// In one unit, for more would be too much: `12 days`, `40 hours`, `50 minutes`.
pub(super) fn length(length: SignedDuration) -> String {
    let seconds = length.as_secs().max(0);
    let (count, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_out_is_said_both_ways() {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        let hours = SignedDuration::from_hours;
        let of = |from: i64, until: i64| validity(Some(now + hours(from)), now + hours(until), now);
        let cases = [
            ((-24, 24 * 364), Health::Ok, "valid for 364 days (2027-11-29T12:00:00Z)"),
            ((-24 * 340, 24 * 30), Health::Ok, "valid for 30 days (2026-12-30T12:00:00Z)"),
            ((-24 * 340, 24 * 30 - 1), Health::Warning, "expires in 29 days (2026-12-30T11:00:00Z)"),
            ((-24 * 365, 40), Health::Warning, "expires in 40 hours (2026-12-02T04:00:00Z)"),
            ((-24 * 365, -72), Health::Fault, "expired 3 days ago (2026-11-27T12:00:00Z)"),
            (
                (2, 72),
                Health::Fault,
                "not valid before 2026-11-30T14:00:00Z, in 2 hours: is this machine's clock right?",
            ),
            // A token for one job.
            ((-1, 5), Health::Ok, "valid for 5 hours (2026-11-30T17:00:00Z)"),
            ((-11, 1), Health::Warning, "expires in 60 minutes (2026-11-30T13:00:00Z)"),
        ];
        for ((from, until), health, words) in cases {
            assert_eq!(of(from, until), (health, words.to_owned()));
        }
        // Of a token it is not known when it began.
        assert_eq!(validity(None, now + hours(5), now).0, Health::Warning);
    }
}
