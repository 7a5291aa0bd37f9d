//! One channel per endpoint, and which endpoint a call takes.
//!
//! No keepalive pings: apid's grpc-go closes a connection that pings more often than every five minutes
//! (`ENHANCE_YOUR_CALM`); TCP keepalive and a deadline on every call do their work.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use tokio::sync::Semaphore;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint as Target};

use crate::clock::{Clock, Moment};
use crate::config::{APID_PORT, Endpoint};
use crate::identity::{Identity, address_of};
use crate::node::Node;

/// How long a TCP and TLS handshake may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that nobody acknowledges for that long end the connection (TCP_USER_TIMEOUT).
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// An endpoint that could not be reached is tried last for that long.
const BENCH: Duration = Duration::from_secs(10);
/// Calls in flight at once: apid serves them all, but a small control plane should not feel an inventory.
const IN_FLIGHT: usize = 16;

/// A configuration that cannot become a channel.
#[derive(Debug, thiserror::Error)]
#[error("endpoint {endpoint} cannot be used")]
pub struct ChannelError {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Why.
    #[source]
    pub source: tonic::transport::Error,
}

/// Which way calls take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// Through the endpoints; a node that comes back from a reboot also at its own address.
    #[default]
    Auto,
    /// Always through the endpoints: the nodes' own addresses cannot be reached from here.
    Proxy,
    /// Always at the nodes' own addresses.
    Direct,
}

/// The Talos API of one cluster, through the endpoints of a talosconfig.
#[derive(Clone)]
pub struct Talos {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    routing: Routing,
    tls: ClientTlsConfig,
    endpoints: Vec<Route>,
    direct: Mutex<HashMap<IpAddr, Route>>,
    /// When an endpoint failed to connect.
    benched: Mutex<HashMap<Endpoint, Moment>>,
    /// Nodes that are being rebooted: nothing is proxied through them.
    avoided: Mutex<HashSet<IpAddr>>,
    in_flight: Semaphore,
    calls: AtomicU64,
}

impl Inner {
    fn new(clock: Clock, routing: Routing, tls: ClientTlsConfig, endpoints: Vec<Route>) -> Self {
        Self {
            clock,
            routing,
            tls,
            endpoints,
            direct: Mutex::default(),
            benched: Mutex::default(),
            avoided: Mutex::default(),
            in_flight: Semaphore::new(IN_FLIGHT),
            calls: AtomicU64::new(0),
        }
    }
}

/// A channel and where it leads.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) endpoint: Endpoint,
    pub(crate) channel: Channel,
    /// A direct route carries no `node` metadata: the node answers for itself.
    pub(crate) direct: bool,
}

impl std::fmt::Debug for Talos {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Talos").field("endpoints", &self.endpoints()).finish_non_exhaustive()
    }
}

impl Talos {
    /// Prepares the channels; nothing is dialled before the first call.
    ///
    /// # Errors
    /// [`ChannelError`] when an endpoint is no authority or the certificates do not load.
    pub fn new(
        identity: &Identity,
        endpoints: &[Endpoint],
        routing: Routing,
        clock: Clock,
    ) -> Result<Self, ChannelError> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&identity.ca))
            .identity(tonic::transport::Identity::from_pem(&identity.crt, identity.key.as_slice()))
            .timeout(CONNECT_TIMEOUT);
        let endpoints = endpoints.iter().map(|endpoint| open(&tls, endpoint, false)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { inner: Arc::new(Inner::new(clock, routing, tls, endpoints)) })
    }

    /// The node with that address.
    #[must_use]
    pub fn node(&self, address: IpAddr) -> Node {
        Node::new(self.clone(), address.to_canonical(), self.inner.routing == Routing::Direct)
    }

    /// The machine that answers at one endpoint, whichever it is, asked there and nowhere else: whether the endpoint works
    /// shows only so, for a call about a node takes whichever endpoint answers. `None` when it is no endpoint of ours.
    #[must_use]
    pub fn at(&self, endpoint: &Endpoint) -> Option<Node> {
        let route = self.inner.endpoints.iter().find(|route| route.endpoint == *endpoint)?;
        Some(Node::only_at(self.clone(), Route { direct: true, ..route.clone() }))
    }

    /// The endpoints, in the order of the talosconfig.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.inner.endpoints.iter().map(|route| route.endpoint.clone()).collect()
    }

    /// Which way calls take.
    #[must_use]
    pub fn routing(&self) -> Routing {
        self.inner.routing
    }

    /// How many requests were sent.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.inner.calls.load(Ordering::Relaxed)
    }

    /// The clock that deadlines are counted on.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Proxies nothing through that node until the guard is dropped: it is about to be rebooted.
    #[must_use]
    pub fn avoid(&self, address: IpAddr) -> Avoided {
        lock(&self.inner.avoided).insert(address);
        Avoided { talos: self.clone(), address }
    }

    pub(crate) fn in_flight(&self) -> &Semaphore {
        &self.inner.in_flight
    }

    pub(crate) fn count(&self) {
        self.inner.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn bench(&self, endpoint: &Endpoint) {
        lock(&self.inner.benched).insert(endpoint.clone(), self.inner.clock.now());
    }

    /// The routes to try for a node, best first: the node's own endpoint when it is one, else the endpoints from a
    /// place that depends on the node (so that a fleet spreads over them); those that failed lately last; none that is
    /// being rebooted unless there is no other.
    pub(crate) fn routes(&self, node: IpAddr) -> Vec<Route> {
        let inner = &self.inner;
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        let count = inner.endpoints.len();
        let start = usize::try_from(hasher.finish() % count.max(1) as u64).unwrap_or(0);
        let now = inner.clock.now();
        let benched = lock(&inner.benched);
        let avoided = lock(&inner.avoided);
        let mut routes: Vec<(u8, &Route)> = (0..count)
            .map(|offset| &inner.endpoints[(start + offset) % count])
            .map(|route| {
                let address = address_of(&route.endpoint.host);
                let failed = benched.get(&route.endpoint).is_some_and(|at| now.since(*at) < BENCH);
                let rank = if address.is_some_and(|address| avoided.contains(&address)) {
                    3
                } else if failed {
                    2
                } else {
                    u8::from(address != Some(node))
                };
                (rank, route)
            })
            .collect();
        routes.sort_by_key(|(rank, _)| *rank);
        if routes.iter().any(|(rank, _)| *rank < 3) {
            routes.retain(|(rank, _)| *rank < 3);
        }
        routes.into_iter().map(|(_, route)| route.clone()).collect()
    }

    pub(crate) fn direct(&self, node: IpAddr) -> Result<Route, ChannelError> {
        let mut direct = lock(&self.inner.direct);
        if let Some(route) = direct.get(&node) {
            return Ok(route.clone());
        }
        let endpoint = Endpoint { host: node.to_string(), port: APID_PORT };
        let route = open(&self.inner.tls, &endpoint, true)?;
        direct.insert(node, route.clone());
        Ok(route)
    }
}

/// While it lives nothing is proxied through the node.
#[derive(Debug)]
pub struct Avoided {
    talos: Talos,
    address: IpAddr,
}

impl Drop for Avoided {
    fn drop(&mut self) {
        lock(&self.talos.inner.avoided).remove(&self.address);
    }
}

fn open(tls: &ClientTlsConfig, endpoint: &Endpoint, direct: bool) -> Result<Route, ChannelError> {
    let wrong = |source| ChannelError { endpoint: endpoint.clone(), source };
    let target = Target::from_shared(format!("https://{endpoint}"))
        .and_then(|target| target.tls_config(tls.clone()))
        .map_err(wrong)?;
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(Duration::from_secs(15)));
    // Keepalive does not notice a peer that stopped acknowledging what was sent; without this the kernel would send a
    // request again for a quarter of an hour, and it could land long after a takeover.
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let channel = tuned(target).connect_with_connector_lazy(connector);
    Ok(Route { endpoint: endpoint.clone(), channel, direct })
}

/// What every connection is set to, whatever it runs over; no HTTP/2 keepalive among it.
fn tuned(target: Target) -> Target {
    target
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Some(Duration::from_secs(15)))
        // As apid's own proxy (Talos `internal/app/apid/pkg/backend/apid.go`).
        .initial_stream_window_size(65_535 * 32)
        .initial_connection_window_size(65_535 * 16)
}

#[cfg(test)]
impl Talos {
    /// Over transports that `connector` makes, with the settings of a real connection but for what `adjust` changes.
    pub(crate) fn over<C>(connector: C, clock: Clock, adjust: impl FnOnce(Target) -> Target) -> Self
    where
        C: tower::Service<http::Uri> + Send + 'static,
        C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin,
        C::Future: Send,
        Box<dyn std::error::Error + Send + Sync>: From<C::Error> + Send,
    {
        let channel =
            adjust(tuned(Target::from_static("http://10.0.0.2:50000"))).connect_with_connector_lazy(connector);
        let endpoint = Endpoint { host: "10.0.0.2".into(), port: APID_PORT };
        let route = Route { endpoint, channel, direct: false };
        Self { inner: Arc::new(Inner::new(clock, Routing::Proxy, ClientTlsConfig::new(), vec![route])) }
    }
}

/// A poisoned lock means a panic elsewhere; the maps stay true all the same.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
