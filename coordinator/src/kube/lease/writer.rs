//! The one task that writes the lease: renewals on a fixed grid, and in the end the release. Because both are done by
//! this task, one after the other, a renewal can never land on a release.

use std::sync::Arc;
use std::time::Duration;

use talos_proto::chain;
use talos_proto::clock::Moment;
use tokio::sync::mpsc;

use super::super::api_servers::{ReadError, WriteError};
use super::held::{LeaseState, Release, ReleaseError, Reply, Shared};
use super::record::LeaseRecord;
use super::wire::{RenewTime, Wire};

/// Told of each renewal: the moment before its send, and why it did not renew, if it did not.
pub type Renewals = Arc<dyn Fn(Moment, Option<String>) + Send + Sync>;

/// The release is tried for the lease's duration, and at least for this long.
const SHORTEST_RELEASE: Duration = Duration::from_secs(20);

/// How many of our own renewals are remembered to be recognised in the record.
const REMEMBERED: usize = 8;

pub(super) struct Writer {
    wire: Wire,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Reply>,
    /// Renewals whose reply was lost may have landed: what the record then says, and the moment before the send.
    sent: Vec<(RenewTime, Moment)>,
    /// Told of each renewal.
    told: Renewals,
}

/// What came of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is ours, renewed by a request that was sent after this moment.
    Renewed {
        /// The moment before the send.
        from: Moment,
    },
    /// Not renewed, to be tried again.
    NotNow,
    /// Somebody else has it, or nobody.
    Lost {
        /// Who.
        holder: String,
    },
}

/// What we hold: a record that says something else is not ours.
#[derive(Clone, Copy, Debug)]
pub struct Claimed<'a> {
    /// The Lease's UID.
    pub uid: &'a str,
    /// Our identity.
    pub holder: &'a str,
    /// `leaseTransitions` at our acquisition.
    pub epoch: i64,
}

/// What a look at the record says of renewals of ours whose replies did not come: `sent` are their times with the
/// moments before their sends. Pure.
#[must_use]
pub fn renewal_seen(record: Option<&LeaseRecord>, ours: Claimed<'_>, sent: &[(String, Moment)]) -> Renewal {
    let Some(record) = record else { return Renewal::Lost { holder: "nobody".to_owned() } };
    let is_ours = record.uid == ours.uid
        && record.holder.as_deref() == Some(ours.holder)
        && record.transitions == Some(ours.epoch);
    if !is_ours {
        return Renewal::Lost { holder: record.holder.clone().unwrap_or_else(|| "nobody".to_owned()) };
    }
    let landed = sent.iter().find(|(time, _)| record.renew_time.as_ref() == Some(time));
    landed.map_or(Renewal::NotNow, |(_, from)| Renewal::Renewed { from: *from })
}

/// What a release does about the record that it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseNext {
    /// It is over.
    Done(Release),
    /// The record is ours: it is freed.
    Free,
}

/// Judges the record that a release has read; `wrote` says that a write of it may have been applied before. Pure.
#[must_use]
pub fn release_next(record: Option<&LeaseRecord>, ours: &str, wrote: bool) -> ReleaseNext {
    ReleaseNext::Done(match record {
        None => Release::Gone,
        Some(LeaseRecord { holder: None, .. }) if wrote => Release::Freed,
        Some(LeaseRecord { holder: None, .. }) => Release::AlreadyFree,
        Some(LeaseRecord { holder: Some(holder), .. }) if holder != ours => Release::TakenBy { holder: holder.clone() },
        Some(_) => return ReleaseNext::Free,
    })
}

impl Writer {
    pub(super) fn new(wire: Wire, shared: Arc<Shared>, commands: mpsc::Receiver<Reply>, told: Renewals) -> Self {
        Self { wire, shared, commands, sent: Vec::new(), told }
    }

    /// Runs until the release, or until nobody holds the lease's handle any more. `acquired` is where the grid begins.
    pub(super) async fn run(mut self, acquired: Moment) {
        let shared = Arc::clone(&self.shared);
        let clock = &shared.clock;
        let timing = &shared.timing;
        let mut grid = acquired + timing.renew;
        let mut due = grid;
        loop {
            let lost = matches!(shared.state(), LeaseState::Lost { .. });
            tokio::select! {
                biased;
                command = self.commands.recv() => {
                    let Some(reply) = command else { return };
                    // Nobody waits for the answer any more: the lease is released all the same.
                    let _ = reply.send(self.release().await);
                    return;
                }
                () = lapse(&shared) => {}
                () = clock.sleep_until(due), if !lost => {
                    match self.renew_while_watching_the_deadline().await {
                        Renewal::Renewed { from } => {
                            shared.renewed(from);
                            let now = clock.now();
                            while grid <= now {
                                grid = grid + timing.renew;
                            }
                            due = grid;
                        }
                        Renewal::NotNow => due = clock.now() + timing.pause(),
                        Renewal::Lost { holder } => shared.set(LeaseState::Lost { holder }),
                    }
                }
            }
        }
    }

    /// A renewal may hang for longer than the lease has left.
    async fn renew_while_watching_the_deadline(&mut self) -> Renewal {
        let shared = Arc::clone(&self.shared);
        let renewal = self.renew();
        tokio::pin!(renewal);
        loop {
            tokio::select! {
                biased;
                done = &mut renewal => return done,
                () = lapse(&shared) => {}
            }
        }
    }

    async fn renew(&mut self) -> Renewal {
        let from = self.shared.clock.now();
        let (renewal, problem) = self.try_renewal(from).await;
        let why = match &renewal {
            Renewal::Renewed { .. } => None,
            Renewal::NotNow => Some(problem.unwrap_or_default()),
            Renewal::Lost { holder } => Some(format!("the lease is lost: held by {holder}")),
        };
        (self.told)(from, why);
        renewal
    }

    /// What came of a renewal, and what was in its way.
    async fn try_renewal(&mut self, from: Moment) -> (Renewal, Option<String>) {
        let time = self.wire.time();
        if self.sent.len() == REMEMBERED {
            self.sent.remove(0);
        }
        self.sent.push((time.clone(), from));
        let shared = &self.shared;
        match self.wire.renew(&shared.uid, &shared.holder, shared.epoch, &time).await {
            Ok(record) => {
                shared.saw(Some(record));
                (Renewal::Renewed { from }, None)
            }
            Err(WriteError::Refused(status)) if status.code == 404 => {
                shared.saw(None);
                (Renewal::Lost { holder: "nobody".to_owned() }, None)
            }
            Err(error @ WriteError::Refused(_)) if !is_conflict(&error) => {
                tracing::debug!(%error, "the lease was not renewed");
                (Renewal::NotNow, Some(chain(&error)))
            }
            // A failed test does not say which it was, and a lost reply not whether it was applied: look.
            Err(error @ (WriteError::Refused(_) | WriteError::Ambiguous { .. })) => {
                tracing::debug!(%error, "reading the lease after a renewal");
                (self.look().await, Some(chain(&error)))
            }
            Err(error) => {
                tracing::debug!(%error, "the lease was not renewed");
                (Renewal::NotNow, Some(chain(&error)))
            }
        }
    }

    /// Reads the Lease, and keeps the reading for the words about a loss.
    async fn read(&self) -> Result<Option<LeaseRecord>, ReadError> {
        let record = self.wire.read().await?;
        self.shared.saw(record.clone());
        Ok(record)
    }

    async fn look(&self) -> Renewal {
        let shared = &self.shared;
        let ours = Claimed { uid: &shared.uid, holder: &shared.holder, epoch: shared.epoch };
        match self.read().await {
            Ok(record) => renewal_seen(record.as_ref(), ours, &self.sent),
            Err(_) => Renewal::NotNow,
        }
    }

    async fn release(&self) -> Result<Release, ReleaseError> {
        let shared = &self.shared;
        let give_up = shared.clock.now() + shared.timing.duration.max(SHORTEST_RELEASE);
        let mut wrote = false;
        loop {
            let failed = match self.read().await {
                Ok(record) => match self.free(record.as_ref(), wrote).await {
                    Ok(release) => return Ok(self.released(release)),
                    Err(WriteError::Refused(status)) if status.code == 404 => {
                        return Ok(self.released(Release::Gone));
                    }
                    Err(WriteError::Refused(status)) if !matches!(status.code, 409 | 422 | 429) => {
                        return Err(ReleaseError::Write(WriteError::Refused(status)));
                    }
                    Err(error) => {
                        wrote |= matches!(error, WriteError::Ambiguous { .. });
                        ReleaseError::Write(error)
                    }
                },
                Err(error @ ReadError::Refused(_)) if !error.may_pass() => return Err(ReleaseError::Read(error)),
                Err(error) => ReleaseError::Read(error),
            };
            if shared.clock.now() >= give_up {
                return Err(failed);
            }
            shared.clock.sleep(shared.timing.pause()).await;
        }
    }

    async fn free(&self, record: Option<&LeaseRecord>, wrote: bool) -> Result<Release, WriteError> {
        match (release_next(record, &self.shared.holder, wrote), record) {
            (ReleaseNext::Free, Some(record)) => {
                self.wire.release(record, &self.shared.holder).await.map(|_| Release::Freed)
            }
            (ReleaseNext::Done(release), _) => Ok(release),
            (ReleaseNext::Free, None) => Ok(Release::Gone),
        }
    }

    fn released(&self, release: Release) -> Release {
        self.shared.set(match &release {
            Release::TakenBy { holder } => LeaseState::Lost { holder: holder.clone() },
            Release::Freed | Release::AlreadyFree | Release::Gone => LeaseState::Released,
        });
        release
    }
}

/// Whether a test of the patch failed.
fn is_conflict(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused(status) if matches!(status.code, 409 | 422))
}

/// Ends when the lease lapses, having said so; never while it is not held.
async fn lapse(shared: &Shared) {
    if shared.state() != LeaseState::Held {
        return std::future::pending().await;
    }
    shared.clock.sleep_until(shared.lapses_at()).await;
    shared.set(LeaseState::Lapsed);
}
