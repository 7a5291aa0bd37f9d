//! A permit to change something, with a deadline.
//!
//! Whoever holds the Lease may mutate, and only while its renew deadline is far enough away that the call lands before
//! anybody else could take over. The type stands on the lowest floor so that no mutating call of any floor can be
//! written without one: it is consumed by the call and checked last, when the bytes are about to be handed over.

use std::time::Duration;

use crate::clock::{Clock, Moment, short};

/// Why nothing may be changed now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPermit {
    /// The lease was not renewed in time. It may still be ours; until that is known nothing mutates.
    #[error("the lease could not be renewed in time (lapsed): nothing is changed until it is renewed")]
    Lapsed,
    /// Somebody else holds the lease, or it is gone.
    #[error("the lease was lost to {holder}")]
    Lost {
        /// Who holds it now, or `nobody`.
        holder: String,
    },
    /// The lease is being released.
    #[error("the run is ending: the lease is being released")]
    Released,
    /// A signal or `--timeout` asked the run to stop: no new step is begun.
    #[error("the run was asked to stop")]
    Stopping,
    /// The deadline is too close for a call that may take this long.
    #[error("the lease runs out in {}, too soon for a call that may take {}", short(*left), short(*needed))]
    TooLate {
        /// What is left until the deadline.
        left: Duration,
        /// The call's timeout plus the margin.
        needed: Duration,
    },
}

/// One allowance for one mutating call.
#[derive(Debug)]
pub struct Permit {
    clock: Clock,
    /// When the lease may be taken by another, less the margin.
    deadline: Moment,
}

impl Permit {
    /// A permit that runs out at `deadline` (margin already taken off).
    #[must_use]
    pub fn until(clock: Clock, deadline: Moment) -> Self {
        Self { clock, deadline }
    }

    /// Uses the permit up for a call that may take `timeout`.
    ///
    /// # Errors
    /// [`NoPermit::TooLate`] when the call could land after the deadline.
    pub fn spend(self, timeout: Duration) -> Result<(), NoPermit> {
        self.covers(timeout)
    }

    /// Looked at before each attempt of the one call that the permit is for, when its bytes are about to be handed over:
    /// the call may have waited for its turn since the permit was given.
    pub(crate) fn covers(&self, timeout: Duration) -> Result<(), NoPermit> {
        let left = self.deadline.since(self.clock.now());
        if left < timeout { Err(NoPermit::TooLate { left, needed: timeout }) } else { Ok(()) }
    }
}

/// Where permits come from: the held lease, or a test's stand-in.
pub trait Permits: Send + Sync {
    /// The timeout that a mutating call may have when it would like to have `wanted`. A lease allows at most a third of
    /// its duration: a request must land before anybody else could take over.
    fn limit(&self, wanted: Duration) -> Duration {
        wanted
    }

    /// A permit for one call that may take `timeout`.
    ///
    /// # Errors
    /// Any [`NoPermit`]; the caller must then leave everything as it is.
    fn permit(&self, timeout: Duration) -> Result<Permit, NoPermit>;

    /// As [`Permits::permit`], but also while stopping: to undo what this run has done (uncordon, release a fence).
    ///
    /// # Errors
    /// [`NoPermit::Lapsed`], [`NoPermit::Lost`], [`NoPermit::Released`] or [`NoPermit::TooLate`].
    fn undo_permit(&self, timeout: Duration) -> Result<Permit, NoPermit>;
}
