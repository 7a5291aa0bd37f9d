//! Addresses and connections: each lab has a loopback network of its own, so that labs with the standard ports run
//! side by side in many processes.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The port of Talos's API.
pub const APID_PORT: u16 = 50000;
/// The port of the Kubernetes API.
pub const KUBE_PORT: u16 = 6443;
/// The port of the registry.
pub const REGISTRY_PORT: u16 = 5000;

/// Most control planes and workers that fit into one network.
pub const MAX_CONTROL_PLANES: usize = 20;
/// See [`MAX_CONTROL_PLANES`].
pub const MAX_WORKERS: usize = 220;

/// Where the workers are, row by row: what lies between belongs to control planes and to the lab itself.
const WORKERS: [std::ops::Range<usize>; 3] = [50..200, 206..254, 24..46];

/// A free 127.a.b.0/24, held for as long as this lives.
#[derive(Debug)]
pub struct Network {
    a: u8,
    b: u8,
    /// Listens on 127.a.b.254: whoever cannot bind it takes another network.
    _guard: StdListener,
}

impl Network {
    /// Takes a free network.
    ///
    /// # Errors
    /// When no address of 127.64.0.0 - 127.127.255.0 can be bound (not Linux, or 16384 labs are running).
    pub fn take() -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        const NETWORKS: u64 = 64 * 256;
        let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..NETWORKS {
            // Processes begin far apart, so that parallel tests do not race along the same row of numbers.
            let turn = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = (u64::from(std::process::id()).wrapping_mul(4099).wrapping_add(turn)) % NETWORKS;
            let a = 64 + u8::try_from(number / 256).unwrap_or(0);
            let b = u8::try_from(number % 256).unwrap_or(0);
            match StdListener::bind(SocketAddrV4::new(Ipv4Addr::new(127, a, b, 254), KUBE_PORT)) {
                Ok(guard) => return Ok(Self { a, b, _guard: guard }),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn host(&self, last: usize) -> Ipv4Addr {
        Ipv4Addr::new(127, self.a, self.b, u8::try_from(last).unwrap_or(u8::MAX))
    }

    /// The address of the control plane with this index (from 0).
    #[must_use]
    pub fn control_plane(&self, index: usize) -> Ipv4Addr {
        self.host(2 + index)
    }

    /// The address of the worker with this index (from 0).
    #[must_use]
    pub fn worker(&self, index: usize) -> Ipv4Addr {
        self.host(WORKERS.into_iter().flatten().nth(index).unwrap_or(usize::MAX))
    }

    /// The address of a real cluster's etcd, which only its API servers know.
    #[must_use]
    pub fn etcd(&self) -> Ipv4Addr {
        self.host(201)
    }

    /// The address of the API server that the lab keeps for itself.
    #[must_use]
    pub fn own_api_server(&self) -> Ipv4Addr {
        self.host(202)
    }

    /// The address of what may stand before the API servers: a load balancer, a tunnel, a virtual address.
    #[must_use]
    pub fn front(&self) -> Ipv4Addr {
        self.host(206)
    }

    /// The address of the registry.
    #[must_use]
    pub fn registry(&self) -> Ipv4Addr {
        self.host(200)
    }
}

/// The addresses of GitHub's API in the network of a registry, and of another host that has one.
pub(crate) fn github(registry: Ipv4Addr) -> [Ipv4Addr; 2] {
    let [a, b, c, _] = registry.octets();
    [Ipv4Addr::new(a, b, c, 204), Ipv4Addr::new(a, b, c, 205)]
}

/// The address of another host in the network of a registry, which that may send its clients to.
pub(crate) fn elsewhere(registry: Ipv4Addr) -> Ipv4Addr {
    let [a, b, c, _] = registry.octets();
    Ipv4Addr::new(a, b, c, 203)
}

/// The body of an answer: bytes, or a stream that ends when the watch ends.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Who is at the other end of a connection.
#[derive(Clone)]
pub struct Peer {
    /// Where the connection comes from.
    pub address: IpAddr,
    /// The client's certificate, when it showed one that the server accepts.
    pub certificate: Option<CertificateDer<'static>>,
    /// Cancelling this closes the connection without an answer.
    pub connection: CancellationToken,
}

/// Binds a listener; a port whose last connections are still in TIME_WAIT is free again.
///
/// # Errors
/// As bind(2).
pub fn bind(address: Ipv4Addr, port: u16) -> io::Result<TcpListener> {
    let listener = StdListener::bind(SocketAddrV4::new(address, port))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Serves HTTP/1.1 and HTTP/2 over TLS until `stop`; then the listener closes and every connection is cut.
pub async fn serve<H, F>(listener: TcpListener, tls: Arc<ServerConfig>, stop: CancellationToken, handler: H)
where
    H: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let acceptor = TlsAcceptor::from(tls);
    loop {
        let (stream, from) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // A connection that broke before it was accepted; the listener itself is well.
                Err(_) => continue,
            },
        };
        // Answers are small and in pieces: without this each waits for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let acceptor = acceptor.clone();
        let connection = stop.child_token();
        let handler = handler.clone();
        tokio::spawn(async move {
            let serving = async {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let certificate = stream
                    .get_ref()
                    .1
                    .peer_certificates()
                    .and_then(|chain| chain.first())
                    .map(|c| c.clone().into_owned());
                let peer = Peer { address: from.ip(), certificate, connection: connection.clone() };
                let service = service_fn(move |request| {
                    let answer = handler(peer.clone(), request);
                    async move { Ok::<_, io::Error>(answer.await) }
                });
                // An error here is the client's: it hung up or spoke nonsense.
                let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            };
            tokio::select! {
                () = connection.cancelled() => {}
                () = serving => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_labs_of_one_process_have_different_networks() {
        let (one, two) = (Network::take().unwrap(), Network::take().unwrap());
        assert_ne!((one.a, one.b), (two.a, two.b));
        assert!(StdListener::bind(SocketAddrV4::new(one.host(254), KUBE_PORT)).is_err(), "the guard holds it");
        let planes = (0..MAX_CONTROL_PLANES).map(|index| one.control_plane(index));
        let workers = (0..MAX_WORKERS).map(|index| one.worker(index));
        let own = [one.registry(), one.etcd(), one.own_api_server(), elsewhere(one.registry()), one.host(254)];
        let all: Vec<_> = planes.chain(workers).chain(own).chain(github(one.registry())).collect();
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "two that have one address: {all:?}");
    }
}
