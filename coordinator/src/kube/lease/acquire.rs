//! Taking the lease.

use std::sync::Arc;
use std::time::Duration;

use talos_proto::clock::{Moment, short};
use tokio::sync::mpsc;

use super::super::api_servers::{ApiServers, ReadError, WriteError};
use super::evaluate::{Evaluation, Takeover, creation_waits, evaluate};
use super::held::{HeldLease, Shared};
use super::record::LeaseRecord;
use super::timing::Timing;
use super::watched::Watched;
use super::wire::Wire;
use super::writer::{Renewals, Writer};
use crate::ci::{By, Ci, Judged};
use crate::holder::{Holder, Life, life_of};

/// How the lease is taken.
#[derive(Clone)]
pub struct LeaseOptions {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// Who takes it.
    pub holder: Holder,
    /// Its times.
    pub timing: Timing,
    /// What may be taken from another.
    pub takeover: Takeover,
    /// `None`: refuse once life was seen. Zero: refuse at first sight of a holder that is not known to be dead.
    /// Else go on waiting for that long after life was seen.
    pub wait: Option<Duration>,
    /// What says that the Lease was there before, if anything does: where it is absent all the same, somebody deleted it,
    /// and a holder may not have noticed yet.
    pub expected: Option<String>,
    /// Who asks for the CI job of a holder; `None` judges by processes alone.
    pub ci: Option<Arc<Ci>>,
    /// Told what is waited for.
    pub progress: Arc<dyn Fn(&LeaseProgress) + Send + Sync>,
    /// Told of each renewal once the lease is held.
    pub renewals: Renewals,
}

impl LeaseOptions {
    /// The default Lease with default times.
    #[must_use]
    pub fn new(holder: Holder) -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: "talos-ghcr".to_owned(),
            holder,
            timing: Timing::default(),
            takeover: Takeover::Auto,
            wait: None,
            expected: None,
            ci: None,
            progress: Arc::new(|_| {}),
            renewals: Arc::new(|_, _| {}),
        }
    }
}

/// What taking the lease waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseProgress {
    /// Nobody can tell whether the holder lives: taken over when its record has stood unchanged for `left` more.
    Watching {
        /// The holder.
        holder: String,
        /// Its CI run.
        run_link: Option<String>,
        /// Why nobody can tell.
        why: String,
        /// How long the record has stood.
        unchanged: Duration,
        /// What is left.
        left: Duration,
    },
    /// The holder lives, and `--lease-wait` says to wait.
    Waiting {
        /// The holder.
        holder: String,
        /// How it is known to live.
        why: String,
        /// How long is still waited.
        left: Duration,
    },
    /// Somebody deleted the Lease: created when nobody can hold a permit from it any more.
    Deleted {
        /// What says that it was there.
        why: String,
        /// What is left.
        left: Duration,
    },
    /// The holder is dead: its lease is being taken.
    TakingOver {
        /// The holder.
        holder: String,
        /// How it is known to be dead.
        why: String,
    },
    /// No API server answers; this time does not count.
    Unreachable {
        /// What was tried.
        tried: String,
    },
}

/// Another holds the lease.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldByAnother {
    /// The Lease, `namespace/name`.
    pub lease: String,
    /// The record as it was read last: holder, transitions, renewTime, duration, resourceVersion, and the holder's CI run.
    pub record: LeaseRecord,
    /// Since its renewTime, by our clock: for people only.
    pub age: Option<Duration>,
    /// Why it was left alone.
    pub why: String,
}

impl std::fmt::Display for HeldByAnother {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let record = &self.record;
        write!(f, "the lease {} is held by {}", self.lease, record.holder.as_deref().unwrap_or("nobody"))?;
        match self.age {
            Some(age) => write!(f, ", renewed {} ago", short(Duration::from_secs(age.as_secs())))?,
            None => write!(f, ", age unknown")?,
        }
        // Only another's lease is refused.
        write!(
            f,
            " ({}): wait until it has ended (--lease-wait TIME), or see `talos-ghcr fences` ({})",
            self.why,
            record.facts("")
        )
    }
}

/// The lease was not taken; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// Another holds it.
    #[error("{0}")]
    HeldByAnother(Box<HeldByAnother>),
    /// The API refused to let it be read.
    #[error("the Lease {lease} could not be read")]
    Read {
        /// `namespace/name`.
        lease: String,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// The API refused to let it be written.
    #[error("the Lease {lease} could not be written: allow get, create and patch of leases in its namespace")]
    Write {
        /// `namespace/name`.
        lease: String,
        /// Why.
        #[source]
        source: WriteError,
    },
}

/// Reads a Lease without touching it.
///
/// # Errors
/// [`ReadError`].
pub async fn look(servers: &ApiServers, namespace: &str, name: &str) -> Result<Option<LeaseRecord>, ReadError> {
    let call = Timing::default().call;
    Wire { servers: servers.clone(), namespace: namespace.to_owned(), name: name.to_owned(), call }.read().await
}

/// Takes the lease, waiting as the options say, and starts its writer.
///
/// # Errors
/// [`AcquireError`].
pub async fn acquire(servers: &ApiServers, options: LeaseOptions) -> Result<HeldLease, AcquireError> {
    let wire = Wire {
        servers: servers.clone(),
        namespace: options.namespace.clone(),
        name: options.name.clone(),
        call: options.timing.call,
    };
    let began = servers.clock().now();
    let (record, from) =
        Acquisition { wire: wire.clone(), options: &options, began, answered: began, tried: None, deleted: None }
            .run()
            .await?;
    servers.set_write_timeout(options.timing.call);
    let epoch = record.transitions.unwrap_or(0);
    let lease = format!("{}/{}", options.namespace, options.name);
    let clock = servers.clock().clone();
    let shared = Shared::new(clock, options.timing, (record.uid.clone(), epoch), options.holder.identity, lease, from);
    shared.saw(Some(record));
    let shared = Arc::new(shared);
    let (commands, received) = mpsc::channel(1);
    tokio::spawn(Writer::new(wire, Arc::clone(&shared), received, options.renewals).run(from));
    Ok(HeldLease::new(shared, commands))
}

struct Acquisition<'a> {
    wire: Wire,
    options: &'a LeaseOptions,
    began: Moment,
    /// When the API answered last.
    answered: Moment,
    /// The moment before the first write that was sent, whose reply may have been lost.
    tried: Option<Moment>,
    /// The Lease was deleted while we looked at it: what says so.
    deleted: Option<String>,
}

impl Acquisition<'_> {
    async fn run(mut self) -> Result<(LeaseRecord, Moment), AcquireError> {
        let clock = self.wire.servers.clock().clone();
        let mut watched: Option<Watched> = None;
        // What a dead holder had sent to Kubernetes, a claim above all, has had its time to land or never will.
        let mut dead: Option<LeaseRecord> = None;
        loop {
            let sent = clock.now();
            let record = match self.wire.read().await {
                Ok(Some(record)) => record,
                Ok(None) => {
                    self.answered = clock.now();
                    if let Some(taken) = self.create(&mut watched, sent).await? {
                        return Ok(taken);
                    }
                    continue;
                }
                Err(error) => {
                    if let Some(watched) = &mut watched {
                        watched.read = None;
                    }
                    self.go_on_without_answer(error).await?;
                    continue;
                }
            };
            self.answered = clock.now();
            let seen = Watched::next(&mut watched, &record, (sent, self.answered), &self.options.timing);
            let Judged { life, by } = match seen {
                Some(why) => Judged { life: Life::Alive(why), by: By::Process },
                None => self.judge(&record).await,
            };
            let unchanged = watched.as_ref().map_or(Duration::ZERO, |watched| watched.unchanged);
            let options = self.options;
            match evaluate(&record, &options.holder.identity, unchanged, &life, options.takeover, &options.timing) {
                Evaluation::Ours => return Ok((record, self.tried.unwrap_or(self.began))),
                Evaluation::Free => {
                    if let Some(taken) = self.write(Some(&record)).await? {
                        return Ok(taken);
                    }
                }
                Evaluation::HeldAlive { why } => self.wait_or_refuse(record, why).await?,
                Evaluation::Watch { .. } if options.wait == Some(Duration::ZERO) => {
                    return Err(self.held_by_another(record, format!("{life}; --lease-wait 0")));
                }
                Evaluation::Watch { left } => {
                    self.tell(&LeaseProgress::Watching {
                        run_link: record.run_link(),
                        why: life.into_reason(),
                        holder: record.holder.unwrap_or_default(),
                        unchanged,
                        left,
                    });
                    clock.sleep(options.timing.pause().min(left)).await;
                }
                Evaluation::TakeOver { why } => {
                    let holder = record.holder.clone().unwrap_or_default();
                    self.tell(&LeaseProgress::TakingOver { holder, why });
                    let confirmed = dead.as_ref().is_some_and(|earlier| record.same_holding(earlier));
                    if matches!(life, Life::Dead(_)) && !confirmed {
                        let confirm = match by {
                            By::Process => options.timing.dead_wait(),
                            By::Ci => options.timing.confirm(record.duration),
                        };
                        dead = Some(record);
                        clock.sleep(confirm).await;
                        continue;
                    }
                    if let Some(taken) = self.write(Some(&record)).await? {
                        return Ok(taken);
                    }
                }
            }
        }
    }

    /// Creates a Lease that a read which was sent then did not find, unless one must be waited out that was deleted. None:
    /// it is read again.
    async fn create(
        &mut self,
        watched: &mut Option<Watched>,
        sent: Moment,
    ) -> Result<Option<(LeaseRecord, Moment)>, AcquireError> {
        let LeaseOptions { expected, timing, .. } = self.options;
        let seen_before = watched.as_ref().is_some_and(|watched| !watched.record.uid.is_empty());
        if seen_before {
            self.deleted = Some("it was there a moment ago".to_owned());
        }
        // Absence is watched like a record that says nothing.
        Watched::next(watched, &LeaseRecord::default(), (sent, self.answered), timing);
        let absent = watched.as_ref().map_or(Duration::ZERO, |watched| watched.unchanged);
        let why = self.deleted.clone().or_else(|| expected.clone());
        let left = creation_waits(why.is_some(), absent, timing);
        match why {
            Some(why) if !left.is_zero() => {
                self.tell(&LeaseProgress::Deleted { why, left });
                self.wire.servers.clock().sleep(timing.pause().min(left)).await;
                Ok(None)
            }
            _ => self.write(None).await,
        }
    }

    /// Judges the holder of a record, if it is another.
    async fn judge(&self, record: &LeaseRecord) -> Judged {
        let other = record.holder.as_ref().filter(|holder| **holder != self.options.holder.identity);
        match (other, &self.options.ci) {
            (Some(holder), Some(ci)) => ci.life(holder, record.evidence.as_ref()).await,
            _ => Judged { life: life_of(record.evidence.as_ref()), by: By::Process },
        }
    }

    fn tell(&self, progress: &LeaseProgress) {
        (self.options.progress)(progress);
    }

    /// Writes us into the lease as it was read, or creates it. None: it was not written this time, and is read again.
    async fn write(&mut self, read: Option<&LeaseRecord>) -> Result<Option<(LeaseRecord, Moment)>, AcquireError> {
        let from = self.wire.servers.clock().now();
        self.tried.get_or_insert(from);
        let LeaseOptions { holder, timing, .. } = self.options;
        let written = match read {
            Some(record) => self.wire.take(record, holder, timing).await,
            None => self.wire.create(holder, timing).await,
        };
        match written {
            Ok(record) => Ok(Some((record, from))),
            Err(error) => self.go_on_after(error).await.map(|()| None),
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.options.namespace, self.options.name)
    }

    async fn wait_or_refuse(&self, record: LeaseRecord, why: String) -> Result<(), AcquireError> {
        let clock = self.wire.servers.clock();
        let left = (self.began + self.options.wait.unwrap_or_default()).since(clock.now());
        if left.is_zero() {
            return Err(self.held_by_another(record, why));
        }
        self.tell(&LeaseProgress::Waiting { holder: record.holder.unwrap_or_default(), why, left });
        clock.sleep(self.options.timing.pause().min(left)).await;
        Ok(())
    }

    fn held_by_another(&self, record: LeaseRecord, why: String) -> AcquireError {
        AcquireError::HeldByAnother(Box::new(HeldByAnother {
            lease: self.lease(),
            age: record.age(self.wire.servers.clock().utc()),
            record,
            why,
        }))
    }

    /// After a write that did not succeed or whose reply was lost, the record is read again.
    async fn go_on_after(&self, error: WriteError) -> Result<(), AcquireError> {
        let clock = self.wire.servers.clock();
        let final_refusal = match &error {
            WriteError::Refused(status) => !matches!(status.code, 409 | 422 | 429) && !self.vanished(status),
            WriteError::Other(_) => true,
            _ => false,
        };
        if final_refusal || clock.now().since(self.answered) > self.options.timing.duration {
            return Err(AcquireError::Write { lease: self.lease(), source: error });
        }
        clock.sleep(self.options.timing.pause().min(Duration::from_millis(250))).await;
        Ok(())
    }

    /// The Lease was deleted between our read and our patch; a missing namespace is told by the same code.
    fn vanished(&self, status: &kube::core::Status) -> bool {
        status.code == 404 && status.message.contains(&format!("\"{}\"", self.options.name))
    }

    async fn go_on_without_answer(&self, error: ReadError) -> Result<(), AcquireError> {
        let clock = self.wire.servers.clock();
        if !error.may_pass() || clock.now().since(self.answered) > self.options.timing.duration {
            return Err(AcquireError::Read { lease: self.lease(), source: error });
        }
        self.tell(&LeaseProgress::Unreachable { tried: error.to_string() });
        clock.sleep(self.options.timing.pause()).await;
        Ok(())
    }
}
