//! The set of API servers, and how requests reach them.
//!
//! The kubeconfig names one address, and the node behind it may be the very one that is being rebooted. So requests
//! go to a set of addresses. They fail over when a connection fails, never on an HTTP answer: an answer is the
//! cluster's word, and only the next request begins elsewhere when it was 5xx. A mutating request that may have reached
//! a server is never sent again by itself; the caller reads first, for even one that was answered with 504 may have
//! been applied.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::Uri;
use kube::core::Status;
use kube::{Client, Config};
use talos_proto::clock::Clock;
use talos_proto::identity::address_of;
use talos_proto::permit::{NoPermit, Permits};

pub use self::greeting::{Greeting, NoGreeting};
pub use self::joining::{Dropped, KubeServer};
use super::connection::{self, Failure};
use super::kubeconfig::{self, Loaded, Sources};
pub use super::kubeconfig::{KubeconfigError, Login, Origin};
use super::lanes::Lanes;
use super::outages::{Outage, Outages};
use super::serving::{self, Serving};

mod greeting;
mod joining;

/// How long one read may take at one address.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A read had no answer.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The server answered, with a refusal.
    #[error("the Kubernetes API refused ({}): {}", .0.code, .0.message)]
    Refused(Box<Status>),
    /// TLS fails at every address, which does not pass by itself.
    #[error("no Kubernetes API server is trusted or trusts us ({tried}); see the kubeconfig's certificates")]
    Untrusted {
        /// Each address with its failure.
        tried: String,
    },
    /// No address answered.
    #[error("no Kubernetes API server answered ({tried})")]
    Unreachable {
        /// Each address with its failure.
        tried: String,
    },
    /// The request could not be made, or the answer not be read.
    #[error("a Kubernetes request failed")]
    Other(#[source] Box<kube::Error>),
}

impl ReadError {
    /// The object is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 404)
    }

    /// Asking again may help: nobody answered, or a server that cannot do its work now. An API server whose etcd hangs,
    /// is shut down or changes its leader says so by 500, 503 and 504, and a busy one by 429.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused(status) => status.code >= 500 || status.code == 429,
            Self::Untrusted { .. } | Self::Other(_) => false,
        }
    }
}

/// A mutating request did not succeed, or nobody knows whether it did.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing was sent: it is not allowed now.
    #[error(transparent)]
    NoPermit(#[from] NoPermit),
    /// The server refused: nothing was changed.
    #[error("the Kubernetes API refused ({}): {}", .0.code, .0.message)]
    Refused(Box<Status>),
    /// No connection was made anywhere: nothing was sent.
    #[error("no Kubernetes API server could be connected to ({tried})")]
    Unreachable {
        /// Each address with its failure.
        tried: String,
    },
    /// It was sent and may have been applied: read before anything else.
    #[error("a Kubernetes API server may or may not have applied the change ({reason})")]
    Ambiguous {
        /// What happened.
        reason: String,
        /// The server's answer of class 5xx, if there was one.
        answer: Option<Box<Status>>,
    },
    /// The request could not be made: nothing was sent.
    #[error("a Kubernetes request could not be made")]
    Other(#[source] Box<kube::Error>),
}

/// By what right a request changes something.
#[derive(Clone, Copy)]
pub enum Authority<'a> {
    /// A step of the roll.
    Step(&'a dyn Permits),
    /// Undoing what this run has done: allowed also while stopping.
    Undo(&'a dyn Permits),
    /// The lease's own writes, which are what permits come from; the API server's compare-and-set guards them.
    LeaseItself,
}

impl Authority<'_> {
    fn spend(self, timeout: Duration) -> Result<(), NoPermit> {
        match self {
            Self::Step(permits) => permits.permit(timeout)?.spend(timeout),
            Self::Undo(permits) => permits.undo_permit(timeout)?.spend(timeout),
            Self::LeaseItself => Ok(()),
        }
    }
}

/// The API servers of one cluster; clones share the set.
#[derive(Clone)]
pub struct ApiServers(Arc<Inner>);

struct Inner {
    clock: Clock,
    config: Option<Config>,
    server: (String, u16),
    origin: Origin,
    warnings: Vec<String>,
    addresses: RwLock<Vec<Address>>,
    /// Control planes whose own address did not join the set when the run began.
    out_of_reach: RwLock<BTreeSet<IpAddr>>,
    /// Index of the address to be asked first: the one that answered last, unless it could not do its work.
    good: AtomicUsize,
    requests: AtomicU64,
    outages: Outages,
    write_timeout_millis: AtomicU64,
    evictions: Lanes,
}

#[derive(Clone)]
struct Address {
    name: String,
    /// Where it was named by its address.
    ip: Option<IpAddr>,
    client: Client,
}

impl std::fmt::Debug for ApiServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ApiServers").field(&self.names()).finish()
    }
}

impl ApiServers {
    /// Reads the kubeconfig (the named file, else those of `KUBECONFIG`, else `~/.kube/config`, else in a pod its service
    /// account), runs its credential plugin if it has one, and makes a client for its server. Nothing is dialled yet.
    ///
    /// # Errors
    /// [`KubeconfigError`] with the file and the path in it.
    pub async fn connect(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        clock: Clock,
    ) -> Result<Self, KubeconfigError> {
        let sources = Sources::of_process(kubeconfig);
        let Loaded { mut config, files, origin, warnings } = kubeconfig::load(&sources, context, &clock).await?;
        // Every retry is ours: a 429 of a disruption budget would vanish in the client, and a 504 of a patch would be
        // sent again blindly.
        config.default_retry = false;
        config.connect_timeout = Some(connection::CONNECT_TIMEOUT);
        let client = connection::client(&config)
            .map_err(|source| KubeconfigError::Client { files, source: Box::new(source) })?;
        let server = host_and_port(&config.cluster_url);
        let name = format!("{}:{}", server.0, server.1);
        let first = Address { name, ip: address_of(&server.0), client };
        Ok(Self::new(clock, Some(config), server, first, (origin, warnings)))
    }

    /// A set of one ready-made client, for tests with in-memory transports.
    #[must_use]
    pub fn single(client: Client, clock: Clock) -> Self {
        let first = Address { name: "in-memory".to_owned(), ip: None, client };
        Self::new(clock, None, ("in-memory".to_owned(), 443), first, (Origin::default(), Vec::new()))
    }

    fn new(
        clock: Clock,
        config: Option<Config>,
        server: (String, u16),
        first: Address,
        (origin, warnings): (Origin, Vec<String>),
    ) -> Self {
        let addresses = RwLock::new(vec![first]);
        Self(Arc::new(Inner {
            clock,
            config,
            server,
            origin,
            warnings,
            addresses,
            out_of_reach: RwLock::default(),
            good: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            outages: Outages::default(),
            write_timeout_millis: AtomicU64::new(8_000),
            evictions: Lanes::default(),
        }))
    }

    /// Host and port of the kubeconfig's server.
    #[must_use]
    pub fn server(&self) -> (String, u16) {
        self.0.server.clone()
    }

    /// The names in the certificates that so many connections to the kubeconfig's server are answered with; none where
    /// connections go through a proxy, whose stack is another.
    ///
    /// # Errors
    /// Why no connection tells.
    pub async fn serving(&self, connections: usize) -> Result<Vec<Serving>, String> {
        match &self.0.config {
            Some(config) if config.proxy_url.is_none() => serving::look(config, connections, &self.0.clock).await,
            _ => Ok(Vec::new()),
        }
    }

    /// Where the kubeconfig came from, and as whom we log in.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.0.origin
    }

    /// What of the kubeconfig works but should not stay so, each with its file and path.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Whose turn it is to ask for an eviction.
    pub(super) fn evictions(&self) -> &Lanes {
        &self.0.evictions
    }

    /// The clock that deadlines are counted on.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Requests sent so far, each attempt at each address.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }

    /// When which server did not do its work, as far as requests have told.
    #[must_use]
    pub fn outages(&self) -> Vec<Outage> {
        self.0.outages.all()
    }

    /// How long one mutating call may take; 8 s until a lease of a shorter duration bounds it.
    #[must_use]
    pub fn write_timeout(&self) -> Duration {
        Duration::from_millis(self.0.write_timeout_millis.load(Ordering::Relaxed))
    }

    /// Bounds mutating calls by the lease's timing, without which no permit would cover them.
    pub(super) fn set_write_timeout(&self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        self.0.write_timeout_millis.store(millis, Ordering::Relaxed);
    }

    /// The addresses of the set, the kubeconfig's first.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.snapshot().into_iter().map(|address| address.name).collect()
    }

    fn snapshot(&self) -> Vec<Address> {
        self.0.addresses.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds an address, unless it is there.
    fn add(&self, address: Address) {
        let mut addresses = self.0.addresses.write().unwrap_or_else(PoisonError::into_inner);
        if !addresses.iter().any(|known| known.name == address.name) {
            addresses.push(address);
        }
    }

    /// Adds a further ready-made client, for tests with in-memory transports.
    #[cfg(test)]
    pub fn and(self, name: &str, client: Client) -> Self {
        self.add(Address { name: name.to_owned(), ip: None, client });
        self
    }

    /// Reads: `request` is tried at each address until one answers.
    ///
    /// # Errors
    /// [`ReadError`]: the server's refusal, or no answer anywhere.
    pub async fn read<T, F, Fut>(&self, request: F) -> Result<T, ReadError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, kube::Error>>,
    {
        self.read_within(READ_TIMEOUT, request).await
    }

    /// As [`ApiServers::read`] with another deadline for each address.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read_within<T, F, Fut>(&self, timeout: Duration, request: F) -> Result<T, ReadError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, kube::Error>>,
    {
        let mut tried = String::new();
        let mut untrusted = true;
        for (index, address) in self.in_order() {
            self.0.requests.fetch_add(1, Ordering::Relaxed);
            let mut tls = false;
            let failed = match self.0.clock.timeout(timeout, request(address.client)).await {
                Ok(Ok(value)) => {
                    self.answered(index, &address.name);
                    return Ok(value);
                }
                Ok(Err(error)) => match connection::classify(error) {
                    Failure::Answer(status) => {
                        self.go_on_after(index, &address.name, &status);
                        return Err(ReadError::Refused(status));
                    }
                    Failure::NotSent(reason) | Failure::Broken(reason) => reason,
                    Failure::Untrusted(reason) => {
                        tls = true;
                        reason
                    }
                    Failure::Local(error) => return Err(ReadError::Other(error)),
                },
                Err(late) => late.to_string(),
            };
            untrusted &= tls;
            self.did_not_answer(&mut tried, &address.name, &failed);
        }
        self.none_answered(&tried);
        Err(if untrusted { ReadError::Untrusted { tried } } else { ReadError::Unreachable { tried } })
    }

    /// Changes something: `request` goes to the next address only where no connection was made at all. `timeout` is
    /// also for the request's own `?timeout=`. The permit is asked for anew before each attempt and spent last.
    ///
    /// # Errors
    /// [`WriteError`]; after [`WriteError::Ambiguous`] the caller reads.
    pub async fn write<T, F, Fut>(
        &self,
        authority: Authority<'_>,
        timeout: Duration,
        request: F,
    ) -> Result<T, WriteError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, kube::Error>>,
    {
        let mut tried = String::new();
        for (index, address) in self.in_order() {
            let attempt = request(address.client);
            authority.spend(timeout)?;
            self.0.requests.fetch_add(1, Ordering::Relaxed);
            match self.0.clock.timeout(timeout, attempt).await {
                Ok(Ok(value)) => {
                    self.answered(index, &address.name);
                    return Ok(value);
                }
                Ok(Err(error)) => match connection::classify(error) {
                    Failure::Answer(status) if status.code >= 500 => {
                        self.go_on_after(index, &address.name, &status);
                        let reason = format!("{} answered {}: {}", address.name, status.code, status.message);
                        return Err(WriteError::Ambiguous { reason, answer: Some(status) });
                    }
                    Failure::Answer(status) => {
                        self.answered(index, &address.name);
                        return Err(WriteError::Refused(status));
                    }
                    Failure::NotSent(reason) | Failure::Untrusted(reason) => {
                        self.did_not_answer(&mut tried, &address.name, &reason);
                    }
                    Failure::Broken(reason) => {
                        self.go_on_from(index, &address.name, &reason);
                        let reason = format!("{}: {reason}", address.name);
                        return Err(WriteError::Ambiguous { reason, answer: None });
                    }
                    Failure::Local(error) => return Err(WriteError::Other(error)),
                },
                Err(late) => {
                    self.go_on_from(index, &address.name, &late.to_string());
                    let reason = format!("{}: {late}", address.name);
                    return Err(WriteError::Ambiguous { reason, answer: None });
                }
            }
        }
        self.none_answered(&tried);
        Err(WriteError::Unreachable { tried })
    }

    fn answered(&self, index: usize, name: &str) {
        self.0.good.store(index, Ordering::Relaxed);
        self.0.outages.answered(name, self.0.clock.now());
    }

    fn did_not_answer(&self, tried: &mut String, name: &str, failed: &str) {
        self.0.outages.failed(Some(name), self.0.clock.now(), failed);
        let separator = if tried.is_empty() { "" } else { "; " };
        // Writing to a String cannot fail.
        let _ = write!(tried, "{separator}{name}: {failed}");
    }

    /// Of a set of one its own outage says it.
    fn none_answered(&self, tried: &str) {
        if self.names().len() > 1 {
            self.0.outages.failed(None, self.0.clock.now(), tried);
        }
    }

    /// An answer is not asked for elsewhere, but a server that could not do its work is not the first to be asked next:
    /// each may have an etcd of its own, and that may be what hangs.
    fn go_on_after(&self, answered: usize, name: &str, status: &Status) {
        if status.code >= 500 {
            self.go_on_from(answered, name, &format!("answered {}: {}", status.code, status.message));
        } else {
            self.answered(answered, name);
        }
    }

    /// The next request begins behind the address that has just failed.
    fn go_on_from(&self, failed: usize, name: &str, why: &str) {
        self.0.outages.failed(Some(name), self.0.clock.now(), why);
        let count = self.snapshot().len().max(1);
        self.0.good.store((failed + 1) % count, Ordering::Relaxed);
    }

    fn in_order(&self) -> Vec<(usize, Address)> {
        let mut addresses: Vec<_> = self.snapshot().into_iter().enumerate().collect();
        let first = self.0.good.load(Ordering::Relaxed).min(addresses.len().saturating_sub(1));
        addresses.rotate_left(first);
        addresses
    }
}

fn host_and_port(url: &Uri) -> (String, u16) {
    let default = if url.scheme_str() == Some("http") { 80 } else { 443 };
    (url.host().unwrap_or_default().to_owned(), url.port_u16().unwrap_or(default))
}

#[cfg(test)]
mod tests;
