//! Where on the time axis something stands. Pure.

use std::time::Duration;

use crate::report::progress::short;

/// Lengths between two ticks, in seconds.
const TICKS: [f64; 21] = [
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0,
    21_600.0, 43_200.0, 86_400.0,
];
/// So many of them have room on a small screen.
const MOST: f64 = 7.0;

/// The axis of a run: from zero to its end, in percent of its width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    total: f64,
}

/// A bar on it, in percent of the axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// Its left end.
    pub left: f64,
    /// Its width.
    pub width: f64,
}

impl Scale {
    /// Of a run that took so many seconds.
    #[must_use]
    pub fn new(seconds: f64) -> Self {
        // A run that was over at once has an axis too.
        Self { total: seconds.max(0.001) }
    }

    /// The bar of what began after so many seconds and took so many; never outside of the axis.
    #[must_use]
    pub fn bar(self, offset: f64, seconds: f64) -> Bar {
        let percent = |seconds: f64| (seconds / self.total * 100.0).clamp(0.0, 100.0);
        let left = percent(offset);
        Bar { left, width: percent(seconds).min(100.0 - left) }
    }

    /// Seconds from a tick to the next.
    #[must_use]
    pub fn tick(self) -> f64 {
        let fits = |tick: &&f64| self.total / **tick <= MOST;
        // Longer than a week: by so many whole days as fit.
        let days = (self.total / 86_400.0 / MOST).ceil() * 86_400.0;
        TICKS.iter().find(fits).copied().unwrap_or(days)
    }

    /// All ticks, in seconds, from zero on.
    pub fn ticks(self) -> impl Iterator<Item = f64> {
        let tick = self.tick();
        (0_u32..).map(move |index| f64::from(index) * tick).take_while(move |at| *at <= self.total)
    }
}

/// A length for people: `12.3s`, `4m10s`.
#[must_use]
pub fn length(seconds: f64) -> String {
    let length = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    if length < Duration::from_secs(1) { format!("{}ms", length.as_millis()) } else { short(length) }
}

/// A time counted from the begin of the run, for people: `+12.3s`.
#[must_use]
pub fn after(seconds: f64) -> String {
    if seconds < 0.001 { "0".to_owned() } else { format!("+{}", length(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_where_their_time_is_and_never_outside() {
        let scale = Scale::new(200.0);
        assert_eq!(scale.bar(50.0, 20.0), Bar { left: 25.0, width: 10.0 });
        assert_eq!(scale.bar(0.0, 200.0), Bar { left: 0.0, width: 100.0 });
        assert_eq!(scale.bar(190.0, 60.0), Bar { left: 95.0, width: 5.0 });
        assert_eq!(scale.bar(300.0, 1.0), Bar { left: 100.0, width: 0.0 });
        assert_eq!(Scale::new(0.0).bar(0.0, 0.0), Bar { left: 0.0, width: 0.0 });
    }

    #[test]
    fn ticks_are_few_and_round() {
        let ticks = |seconds: f64| Scale::new(seconds).ticks().collect::<Vec<_>>();
        assert_eq!(ticks(30.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(ticks(3700.0), [0.0, 600.0, 1200.0, 1800.0, 2400.0, 3000.0, 3600.0]);
        assert_eq!(ticks(0.0), [0.0]);
        for seconds in [0.3, 1.0, 59.0, 61.0, 5000.0, 100_000.0, 3e6] {
            assert!((2..=8).contains(&ticks(seconds).len()), "{seconds}: {:?}", ticks(seconds));
        }
    }

    #[test]
    fn lengths_for_people() {
        assert_eq!([length(0.004), length(0.97), length(46.64), length(250.0)], ["4ms", "970ms", "46.6s", "4m10s"]);
    }
}
