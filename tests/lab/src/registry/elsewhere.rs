//! Another host that a registry may send its clients to, as GHCR sends them to its store of blobs.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::flow::{errors, found};
use super::simulated::Lookup;
use super::{Registry, StartError};
use crate::net::{self, Body, REGISTRY_PORT};
use crate::pki::open_server_config;

/// A request that it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its method.
    pub method: String,
    /// Its path and query.
    pub target: String,
    /// All of its headers.
    pub headers: Vec<(String, String)>,
}

impl Seen {
    /// Whether it had that header.
    #[must_use]
    pub fn has(&self, header: &str) -> bool {
        self.headers.iter().any(|(name, _)| name == header)
    }
}

/// The other host; gone when this is dropped.
pub struct Elsewhere {
    address: Ipv4Addr,
    seen: Arc<Mutex<Vec<Seen>>>,
    _stop: DropGuard,
}

impl Elsewhere {
    pub(super) fn start(registry: Arc<Registry>) -> Result<Self, StartError> {
        let address = net::elsewhere(registry.address);
        let tls = open_server_config(&registry.ca.server(&[address.to_string()]), &[b"h2", b"http/1.1"])?;
        let listener = net::bind(address, REGISTRY_PORT).map_err(|error| StartError::Listen(address, error))?;
        let (stop, seen) = (CancellationToken::new(), Arc::<Mutex<Vec<Seen>>>::default());
        let noted = Arc::clone(&seen);
        let handler = move |_, request: Request<Incoming>| {
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(note(&request));
            let registry = Arc::clone(&registry);
            async move { registry.for_everybody(request).await }
        };
        tokio::spawn(net::serve(listener, tls, stop.clone(), handler));
        Ok(Self { address, seen, _stop: stop.drop_guard() })
    }

    /// `address:5000`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}:{REGISTRY_PORT}", self.address)
    }

    /// What it was sent so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn note(request: &Request<Incoming>) -> Seen {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Seen {
        method: request.method().to_string(),
        target: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers: request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
    }
}

impl Registry {
    /// The answer without any question of who asks.
    async fn for_everybody(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let inner = path.trim_start_matches("/v2/");
        let split = inner.rsplit_once("/manifests/").or_else(|| inner.rsplit_once("/blobs/"));
        let Some((repository, reference)) = split else { return errors(404, "NAME_UNKNOWN", "nothing of that name") };
        if let Some(real) = &self.real {
            let request = request.map(|body| body.map_err(io::Error::other).boxed_unsync());
            let answer = real.forward_as_owner(request, repository).await;
            return answer.unwrap_or_else(|error| errors(502, "UNAVAILABLE", &error.to_string()));
        }
        let state = self.state();
        let image = state.images.get(repository);
        match image.filter(|image| image.tag == reference || image.manifest.digest == reference) {
            Some(image) => found(Lookup::Found(&image.manifest)),
            None => errors(404, "MANIFEST_UNKNOWN", "manifest unknown"),
        }
    }
}
