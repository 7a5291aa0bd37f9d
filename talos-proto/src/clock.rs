//! Time, the one place that reads a clock.
//!
//! A deadline here is counted on a clock that does not stand still: elapsed time is the larger of `CLOCK_BOOTTIME`
//! and the wall clock's advance, because `CLOCK_MONOTONIC` (and so `std::time::Instant`) stops while a laptop sleeps
//! and a lease that was judged by it would look fresh after the lid opens. A wall clock that is stepped forward can
//! only make a deadline come early, which is the safe side.
//!
//! Tests run on [`Clock::paused`], which follows tokio's clock, so that `tokio::time::pause` moves everything.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the clock module")]

use std::future::Future;
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// A point in the elapsed time of one [`Clock`]; only points of the same clock compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// How long after `earlier` this is; zero when it is before.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// A moment that many units after a clock's origin, for tests of pure functions.
    #[must_use]
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self(elapsed)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(by))
    }
}

/// The time ran out before the future was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {}", short(*.0))]
pub struct TimedOut(pub Duration);

/// Elapsed time, wall time and sleeping.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(Arc<System>),
    Tokio { origin: Instant, utc: Timestamp },
}

#[derive(Debug)]
struct System {
    boot_origin: Duration,
    wall_origin: Duration,
    /// Nanoseconds; elapsed time never goes back, even when the wall clock that led is stepped back.
    high_water: AtomicU64,
}

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System(Arc::new(System {
            boot_origin: read(ClockId::Boottime),
            wall_origin: read(ClockId::Realtime),
            high_water: AtomicU64::new(0),
        })))
    }

    /// Follows tokio's clock: for tests with `start_paused` and in-memory transports.
    #[must_use]
    pub fn paused(utc: Timestamp) -> Self {
        Self(Source::Tokio { origin: Instant::now(), utc })
    }

    /// Now, on the clock that deadlines are counted on.
    #[must_use]
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::System(system) => {
                let boot = read(ClockId::Boottime).saturating_sub(system.boot_origin);
                let wall = read(ClockId::Realtime).saturating_sub(system.wall_origin);
                let elapsed = u64::try_from(boot.max(wall).as_nanos()).unwrap_or(u64::MAX);
                let before = system.high_water.fetch_max(elapsed, Ordering::Relaxed);
                Moment(Duration::from_nanos(elapsed.max(before)))
            }
            Source::Tokio { origin, .. } => Moment(Instant::now().duration_since(*origin)),
        }
    }

    /// Wall time, only for what people read and for `renewTime`; never compared with another machine's.
    #[must_use]
    pub fn utc(&self) -> Timestamp {
        match &self.0 {
            Source::System(_) => Timestamp::now(),
            Source::Tokio { utc, .. } => *utc + self.now().0,
        }
    }

    /// Sleeps that long.
    pub async fn sleep(&self, length: Duration) {
        tokio::time::sleep(length).await;
    }

    /// Sleeps until `moment`; looks again at this clock after each sleep, for tokio's stands still in a suspend.
    pub async fn sleep_until(&self, moment: Moment) {
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(Duration::from_secs(1))).await;
        }
    }

    /// Runs `future` for at most `length`.
    ///
    /// # Errors
    /// [`TimedOut`] when it was not done by then; the future is dropped.
    pub async fn timeout<F: Future>(&self, length: Duration, future: F) -> Result<F::Output, TimedOut> {
        tokio::time::timeout(length, future).await.map_err(|_| TimedOut(length))
    }
}

fn read(id: ClockId) -> Duration {
    let now = clock_gettime(id);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A duration for people: `5s`, `12.3s`, `4m10s`, `1h05m`.
#[must_use]
pub fn short(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0..60 if length.subsec_nanos() == 0 => format!("{seconds}s"),
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
        let cases =
            [(0, "0s"), (5_000, "5s"), (300, "0.3s"), (59_900, "59.9s"), (250_000, "4m10s"), (3_900_000, "1h05m")];
        for (millis, text) in cases {
            assert_eq!(short(Duration::from_millis(millis)), text);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_moves_with_tokio() {
        let clock = Clock::paused(Timestamp::UNIX_EPOCH);
        let start = clock.now();
        clock.sleep_until(start + Duration::from_secs(90)).await;
        assert_eq!(clock.now().since(start), Duration::from_secs(90));
        assert_eq!(clock.utc(), Timestamp::UNIX_EPOCH + Duration::from_secs(90));
    }

    #[test]
    fn system_time_never_goes_back() {
        let clock = Clock::system();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
