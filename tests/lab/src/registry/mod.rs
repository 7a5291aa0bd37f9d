//! A private registry with GHCR's token flow, over TLS, for the product and (in process) for the simulated nodes.

mod flow;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::net::{self, REGISTRY_PORT};
use crate::pki::{Ca, TlsError, open_server_config};
use crate::talos::log::Log;
use crate::talos::outside::{PullAnswer, Registry as Outside};

/// The name of the registry in the log and in the counters.
pub const SERVER: &str = "registry";

/// Why the registry cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No TLS.
    #[error("the registry's TLS configuration")]
    Tls(#[from] TlsError),
    /// No listener.
    #[error("cannot listen on {0}:{REGISTRY_PORT}")]
    Listen(Ipv4Addr, #[source] std::io::Error),
}

/// An image of the registry.
#[derive(Clone, Debug)]
struct Image {
    manifest: String,
    digest: String,
    tag: String,
    public: bool,
}

/// What a bearer token is good for.
#[derive(Clone, Debug)]
struct Grant {
    /// Nobody: an anonymous token.
    user: Option<(String, String)>,
    /// The repositories that it may pull.
    repositories: Vec<String>,
}

#[derive(Default)]
struct State {
    accepted: BTreeSet<(String, String)>,
    /// Users that get a token and are then denied the manifest.
    denied: BTreeSet<String>,
    tokens: BTreeMap<String, Grant>,
    images: BTreeMap<String, Image>,
    unreachable_for_nodes: bool,
    /// Answers every request of a client with this code.
    failing: Option<u16>,
}

/// The registry of a lab.
pub struct Registry {
    address: Ipv4Addr,
    ca: Ca,
    log: Arc<Log>,
    state: Mutex<State>,
    stop: CancellationToken,
}

impl Registry {
    /// Starts it on `address`, accepting these users.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(address: Ipv4Addr, users: &[(&str, &str)], log: Arc<Log>) -> Result<Arc<Self>, StartError> {
        let ca = Ca::new("lab registry", "lab");
        let tls = open_server_config(&ca.server(&[address.to_string()]), &[b"h2", b"http/1.1"])?;
        let listener = net::bind(address, REGISTRY_PORT).map_err(|error| StartError::Listen(address, error))?;
        let accepted = users.iter().map(|(user, password)| ((*user).to_owned(), (*password).to_owned())).collect();
        let state = Mutex::new(State { accepted, ..State::default() });
        let registry = Arc::new(Self { address, ca, log, state, stop: CancellationToken::new() });
        registry.add_image("lab/app", "1", false);
        let server = Arc::clone(&registry);
        let handler = move |_, request| {
            let server = Arc::clone(&server);
            async move { server.handle(request).await }
        };
        tokio::spawn(net::serve(listener, tls, registry.stop.clone(), handler));
        Ok(registry)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `address:5000`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}:{REGISTRY_PORT}", self.address)
    }

    /// The authority of its certificate.
    #[must_use]
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// Adds an image; what it was under that name is replaced. Gives its digest.
    pub fn add_image(&self, repository: &str, tag: &str, public: bool) -> String {
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": flow::MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "size": 2, "digest": digest(b"{}")},
            "layers": [],
            "annotations": {"org.opencontainers.image.ref.name": format!("{repository}:{tag}")},
        });
        let manifest = manifest.to_string();
        let digest = digest(manifest.as_bytes());
        let image = Image { manifest, digest: digest.clone(), tag: tag.to_owned(), public };
        self.state().images.insert(repository.to_owned(), image);
        digest
    }

    /// Accepts this credential from now on.
    pub fn accept(&self, user: &str, password: &str) {
        self.state().accepted.insert((user.to_owned(), password.to_owned()));
    }

    /// Accepts this credential no longer, nor any token that was given for it.
    pub fn revoke(&self, user: &str, password: &str) {
        self.state().accepted.remove(&(user.to_owned(), password.to_owned()));
    }

    /// Denies a user all manifests although its credential is good (or no longer).
    pub fn deny(&self, user: &str, deny: bool) {
        let mut state = self.state();
        if deny {
            state.denied.insert(user.to_owned());
        } else {
            state.denied.remove(user);
        }
    }

    /// Makes it unreachable for the nodes, though not for the product.
    pub fn cut_off_nodes(&self, cut_off: bool) {
        self.state().unreachable_for_nodes = cut_off;
    }

    /// Answers every request with this code, pulls of nodes too (a 5xx or 429 is no answer to a pull).
    pub fn fail(&self, code: Option<u16>) {
        self.state().failing = code;
    }

    /// Closes the listener and all connections.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// What a manifest request comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lookup {
    Found {
        digest: String,
        manifest: String,
    },
    /// No credential that is good for this.
    Unauthorized,
    Denied,
    Unknown,
}

impl State {
    fn is_accepted(&self, user: &(String, String)) -> bool {
        self.accepted.contains(user)
    }

    /// Looks a manifest up for a user whose credential was good when the token was made, or for nobody.
    fn lookup(&self, user: Option<&(String, String)>, repository: &str, reference: &str) -> Lookup {
        if user.is_some_and(|user| !self.is_accepted(user)) {
            return Lookup::Unauthorized;
        }
        let image = self.images.get(repository);
        let public = image.is_some_and(|image| image.public);
        match user {
            // Whoever may not see a repository does not learn whether it exists.
            None if !public => return Lookup::Unauthorized,
            Some((name, _)) if self.denied.contains(name) && !public => return Lookup::Denied,
            _ => {}
        }
        match image.filter(|image| image.tag == reference || image.digest == reference) {
            Some(image) => Lookup::Found { digest: image.digest.clone(), manifest: image.manifest.clone() },
            None => Lookup::Unknown,
        }
    }

    fn issue(&mut self, user: Option<(String, String)>, repositories: Vec<String>) -> String {
        let token = Uuid::new_v4().simple().to_string();
        self.tokens.insert(token.clone(), Grant { user, repositories });
        token
    }
}

impl Outside for Registry {
    fn pull(&self, host: &str, repository: &str, reference: &str, user: Option<(&str, &str)>) -> PullAnswer {
        let state = self.state();
        if host != self.host() || state.unreachable_for_nodes || self.stop.is_cancelled() {
            return PullAnswer::Unreachable;
        }
        self.log.note(SERVER, "PULL manifests", &format!("{repository}:{reference}"), false);
        match state.failing {
            Some(401 | 403) => return PullAnswer::Denied,
            Some(404) => return PullAnswer::NotFound,
            Some(_) => return PullAnswer::Unreachable,
            None => {}
        }
        let user = user.map(|(user, password)| (user.to_owned(), password.to_owned()));
        match state.lookup(user.as_ref(), repository, reference) {
            Lookup::Found { digest, .. } => PullAnswer::Ok(digest),
            Lookup::Unauthorized | Lookup::Denied => PullAnswer::Denied,
            Lookup::Unknown => PullAnswer::NotFound,
        }
    }
}
