//! A lease that we hold: where permits come from.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use talos_proto::clock::{Clock, Moment};
use talos_proto::permit::{NoPermit, Permit, Permits};
use tokio::sync::{mpsc, oneshot, watch};

use super::super::api_servers::{ReadError, WriteError};
use super::super::fence::Claimant;
use super::record::LeaseRecord;
use super::timing::Timing;

/// Whether the lease is still held, as the writer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Renewed in time.
    Held,
    /// Not renewed in time. It may still be ours: nothing mutates until it is renewed.
    Lapsed,
    /// Somebody else holds it, or it is gone. This does not heal.
    Lost {
        /// Who holds it now, or `nobody`.
        holder: String,
    },
    /// Released by us.
    Released,
}

/// How a release ended; none of these is a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was ours and is free now.
    Freed,
    /// It was free already.
    AlreadyFree,
    /// There is no such Lease any more.
    Gone,
    /// Another holds it: nothing was written.
    TakenBy {
        /// Who.
        holder: String,
    },
}

/// The lease could not be released; it frees itself when its duration has run out.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The API refused.
    #[error("the Lease could not be released")]
    Write(#[source] WriteError),
    /// It could not be read.
    #[error("the Lease could not be read for its release")]
    Read(#[source] ReadError),
    /// The task that writes the lease is gone.
    #[error("the Lease's writer ended before the release")]
    WriterEnded,
}

pub(super) type Reply = oneshot::Sender<Result<Release, ReleaseError>>;

/// What the writer and the holders of permits share.
pub(super) struct Shared {
    pub clock: Clock,
    pub timing: Timing,
    pub uid: String,
    pub epoch: i64,
    pub holder: String,
    /// `namespace/name`.
    pub lease: String,
    /// The moment before the send of the last renewal that succeeded.
    renewed_from: Mutex<Moment>,
    /// The record as it was seen last; none when there was no Lease any more.
    last: Mutex<Option<LeaseRecord>>,
    state: watch::Sender<LeaseState>,
    stopping: AtomicBool,
    releasing: AtomicBool,
}

/// The held lease. Its writer renews it until [`HeldLease::release`], or until this value is dropped: then nothing is
/// written any more, and the lease runs out.
pub struct HeldLease {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Reply>,
}

impl Shared {
    pub(super) fn new(
        clock: Clock,
        timing: Timing,
        (uid, epoch): (String, i64),
        holder: String,
        lease: String,
        renewed_from: Moment,
    ) -> Self {
        Self {
            clock,
            timing,
            uid,
            epoch,
            holder,
            lease,
            renewed_from: Mutex::new(renewed_from),
            last: Mutex::new(None),
            state: watch::Sender::new(LeaseState::Held),
            stopping: AtomicBool::new(false),
            releasing: AtomicBool::new(false),
        }
    }

    fn renewed_from(&self) -> Moment {
        *self.renewed_from.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Past this the lease is lapsed.
    pub(super) fn lapses_at(&self) -> Moment {
        self.renewed_from() + self.timing.renew_deadline
    }

    pub(super) fn renewed(&self, from: Moment) {
        let mut renewed = self.renewed_from.lock().unwrap_or_else(PoisonError::into_inner);
        *renewed = (*renewed).max(from);
        drop(renewed);
        self.set(if self.clock.now() < self.lapses_at() { LeaseState::Held } else { LeaseState::Lapsed });
    }

    /// Keeps a reading for the words about a loss.
    pub(super) fn saw(&self, record: Option<LeaseRecord>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = record;
    }

    pub(super) fn set(&self, state: LeaseState) {
        self.state.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        });
    }

    pub(super) fn state(&self) -> LeaseState {
        self.state.borrow().clone()
    }

    fn grant(&self, timeout: Duration, undo: bool) -> Result<Permit, NoPermit> {
        let standing = Standing {
            state: &self.state(),
            releasing: self.releasing.load(Ordering::SeqCst),
            stopping: self.stopping.load(Ordering::SeqCst),
            renewed_from: self.renewed_from(),
        };
        let deadline = grant(standing, &self.timing, self.clock.now(), Asked { timeout, undo })?;
        Ok(Permit::until(self.clock.clone(), deadline))
    }
}

/// How it stands with the lease when a permit is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// As the writer knows it.
    pub state: &'a LeaseState,
    /// Its release has begun.
    pub releasing: bool,
    /// The run was asked to stop.
    pub stopping: bool,
    /// The moment before the send of the last renewal that succeeded.
    pub renewed_from: Moment,
}

/// What a permit is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// How long the call may take.
    pub timeout: Duration,
    /// It undoes what this run has done.
    pub undo: bool,
}

/// Whether a call may be made `now`, and until when it may be begun. Pure.
///
/// # Errors
/// [`NoPermit`].
pub fn grant(standing: Standing<'_>, timing: &Timing, now: Moment, asked: Asked) -> Result<Moment, NoPermit> {
    if standing.releasing {
        return Err(NoPermit::Released);
    }
    match standing.state {
        LeaseState::Lost { holder } => return Err(NoPermit::Lost { holder: holder.clone() }),
        LeaseState::Released => return Err(NoPermit::Released),
        LeaseState::Held | LeaseState::Lapsed => {}
    }
    if standing.stopping && !asked.undo {
        return Err(NoPermit::Stopping);
    }
    // Judged by the clock, not by the state: a process that was stopped has not noticed yet that time went by.
    if now >= standing.renewed_from + timing.renew_deadline {
        return Err(NoPermit::Lapsed);
    }
    let (longest, timeout) = (timing.longest_call(), asked.timeout);
    if timeout > longest {
        return Err(NoPermit::TooLate { left: longest, needed: timeout });
    }
    let deadline = standing.renewed_from + timing.renew_deadline.saturating_sub(timing.margin);
    let left = deadline.since(now);
    if left < timeout {
        return Err(NoPermit::TooLate { left, needed: timeout + timing.margin });
    }
    Ok(deadline)
}

impl HeldLease {
    pub(super) fn new(shared: Arc<Shared>, commands: mpsc::Sender<Reply>) -> Self {
        Self { shared, commands }
    }

    /// UID of the Lease.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.shared.uid
    }

    /// `leaseTransitions` at our acquisition.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.shared.epoch
    }

    /// Our identity.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.shared.holder
    }

    /// `namespace/name` of the Lease.
    #[must_use]
    pub fn lease(&self) -> &str {
        &self.shared.lease
    }

    /// The lease's times.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        &self.shared.timing
    }

    /// What a fence of ours says of its holder.
    #[must_use]
    pub fn claimant(&self) -> Claimant {
        Claimant {
            holder: self.holder().to_owned(),
            lease: self.lease().to_owned(),
            lease_uid: self.uid().to_owned(),
            epoch: self.epoch(),
        }
    }

    /// What the Lease said when it was seen last ([`LeaseRecord::facts`]), for the words about a loss.
    #[must_use]
    pub fn facts(&self) -> String {
        let last = self.shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map_or_else(|| "there is no such Lease any more".to_owned(), |record| record.facts(self.holder()))
    }

    /// Follows the state: [`LeaseState::Lapsed`] is told in time even while a renewal hangs.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.shared.state.subscribe()
    }

    /// From now on no new step gets a permit; undoing still does.
    pub fn request_stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }

    /// Releases the lease: no permit is given any more, the writer ends a renewal that is in flight, and then frees
    /// the lease if it is still ours. Conflicts and lost replies are resolved by reading. May be called once more
    /// without harm.
    ///
    /// # Errors
    /// [`ReleaseError`] when it could not be freed within its own duration.
    pub async fn release(&self) -> Result<Release, ReleaseError> {
        self.shared.releasing.store(true, Ordering::SeqCst);
        let (reply, answer) = oneshot::channel();
        if self.commands.send(reply).await.is_err() {
            return match self.shared.state() {
                LeaseState::Released => Ok(Release::AlreadyFree),
                LeaseState::Lost { holder } => Ok(Release::TakenBy { holder }),
                LeaseState::Held | LeaseState::Lapsed => Err(ReleaseError::WriterEnded),
            };
        }
        answer.await.unwrap_or(Err(ReleaseError::WriterEnded))
    }
}

impl Permits for HeldLease {
    fn limit(&self, wanted: Duration) -> Duration {
        wanted.min(self.shared.timing.longest_call())
    }

    fn permit(&self, timeout: Duration) -> Result<Permit, NoPermit> {
        self.shared.grant(timeout, false)
    }

    fn undo_permit(&self, timeout: Duration) -> Result<Permit, NoPermit> {
        self.shared.grant(timeout, true)
    }
}
