//! A private registry with GHCR's token flow, over TLS, for the product and for the simulated nodes. Behind its front
//! stands a simulated one, whose images the nodes look up in process, or a real one, which the nodes pull from over HTTP.

mod client;
mod elsewhere;
mod faults;
mod flow;
mod front;
mod image;
mod nodes;
mod pull;
mod real;
mod simulated;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;

pub use client::Answer;
pub use elsewhere::{Elsewhere, Seen};
pub use faults::{Fault, Tokens};
pub use image::{INDEX, MANIFEST};
pub use real::{Auth, INNER_PORT, RealError};

use client::Client;
use faults::Faults;
use image::Parts;
use real::Real;
use simulated::{Grant, Image};

use crate::net::{self, REGISTRY_PORT};
use crate::pki::{Ca, TlsError, open_server_config};
use crate::talos::log::Log;

/// The name of the registry in the log and in the counters.
pub const SERVER: &str = "registry";

/// What answers behind the front.
#[derive(Clone, Debug, Default)]
pub enum Backend {
    /// The lab itself.
    #[default]
    Simulated,
    /// The real registry; a lab with it needs a runtime of several threads, for its nodes wait for its answers.
    Real {
        /// How clients log in.
        auth: Auth,
        /// What `tests/conformance/registry` builds.
        binary: PathBuf,
    },
}

/// Why the registry cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No TLS.
    #[error("the registry's TLS configuration")]
    Tls(#[from] TlsError),
    /// No listener.
    #[error("cannot listen on {0}:{REGISTRY_PORT}")]
    Listen(Ipv4Addr, #[source] io::Error),
    /// The client that trusts its authority.
    #[error("the client of the registry")]
    Client(#[source] io::Error),
    /// The real registry.
    #[error(transparent)]
    Real(#[from] RealError),
}

#[derive(Default)]
struct State {
    /// The one accepted last at the end.
    accepted: Vec<(String, String)>,
    /// Users that get a token and are then denied the manifest.
    denied: BTreeSet<String>,
    /// Tokens of the simulated registry.
    issued: BTreeMap<String, Grant>,
    tokens: Tokens,
    images: BTreeMap<String, Image>,
    unreachable_for_nodes: bool,
    faults: Faults,
}

/// The registry of a lab.
pub struct Registry {
    pub(crate) address: Ipv4Addr,
    ca: Ca,
    client: Client,
    log: Arc<Log>,
    state: Mutex<State>,
    /// None: the lab answers itself.
    real: Option<Real>,
    stop: CancellationToken,
}

impl Registry {
    /// Starts a simulated one on `address`, accepting these users and passwords.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(address: Ipv4Addr, users: &[(&str, &str)], log: Arc<Log>) -> Result<Arc<Self>, StartError> {
        let registry = Self::new(address, users, log)?.serve()?;
        registry.add_image("lab/app", "1", false);
        Ok(registry)
    }

    /// Starts one with this backend, whose files go into `folder`.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start_with(
        backend: &Backend,
        address: Ipv4Addr,
        users: &[(&str, &str)],
        log: Arc<Log>,
        folder: &Path,
    ) -> Result<Arc<Self>, StartError> {
        let Backend::Real { auth, binary } = backend else { return Self::start(address, users, log) };
        let mut registry = Self::new(address, users, log)?;
        let real = Real::start(binary, *auth, address, registry.client.clone(), folder).await?;
        registry.real = Some(real);
        registry.write_passwords()?;
        let registry = registry.serve()?;
        registry.push("lab/app", "1", false, Parts::of_one_platform("lab/app", "1")).await?;
        Ok(registry)
    }

    fn new(address: Ipv4Addr, users: &[(&str, &str)], log: Arc<Log>) -> Result<Self, StartError> {
        let ca = Ca::new("lab registry", "lab");
        let client = Client::new(&ca).map_err(StartError::Client)?;
        let accepted = users.iter().map(|(user, password)| ((*user).to_owned(), (*password).to_owned())).collect();
        let state = Mutex::new(State { accepted, ..State::default() });
        Ok(Self { address, ca, client, log, state, real: None, stop: CancellationToken::new() })
    }

    fn serve(self) -> Result<Arc<Self>, StartError> {
        let tls = open_server_config(&self.ca.server(&[self.address.to_string()]), &[b"h2", b"http/1.1"])?;
        let address = self.address;
        let listener = net::bind(address, REGISTRY_PORT).map_err(|error| StartError::Listen(address, error))?;
        let registry = Arc::new(self);
        let server = Arc::clone(&registry);
        let handler = move |peer, request| {
            let server = Arc::clone(&server);
            async move { server.handle(peer, request).await }
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

    /// Adds an image of one platform; what it was under that name is replaced. Gives its digest.
    ///
    /// # Panics
    /// When the real registry does not take it.
    pub fn add_image(&self, repository: &str, tag: &str, public: bool) -> String {
        self.add(repository, tag, public, Parts::of_one_platform(repository, tag))
    }

    /// Adds an image of two platforms, which the tag names by an index. Gives the digest of that.
    ///
    /// # Panics
    /// When the real registry does not take it.
    pub fn add_index(&self, repository: &str, tag: &str, public: bool) -> String {
        self.add(repository, tag, public, Parts::of_all_platforms(repository, tag))
    }

    fn add(&self, repository: &str, tag: &str, public: bool, parts: Parts) -> String {
        let pushed = match self.real {
            // Nothing to wait for.
            None => Ok(self.keep(repository, tag, public, parts)),
            Some(_) => block_in_place(|| Handle::current().block_on(self.push(repository, tag, public, parts))),
        };
        pushed.unwrap_or_else(|error| panic!("{repository}:{tag}: {}", talos_proto::chain(&error)))
    }

    async fn push(&self, repository: &str, tag: &str, public: bool, parts: Parts) -> Result<String, RealError> {
        if let Some(real) = &self.real {
            real.push(repository, tag, &parts).await?;
        }
        Ok(self.keep(repository, tag, public, parts))
    }

    fn keep(&self, repository: &str, tag: &str, public: bool, parts: Parts) -> String {
        let digest = parts.top.digest.clone();
        self.state().images.insert(repository.to_owned(), Image { tag: tag.to_owned(), public, manifest: parts.top });
        digest
    }

    /// Accepts this credential from now on. A real registry with Basic accepts only that of a user that came last.
    ///
    /// # Panics
    /// When the real registry's htpasswd file cannot be written.
    pub fn accept(&self, user: &str, password: &str) {
        self.set_accepted(user, password, true);
    }

    /// Accepts this credential no longer. The simulated registry refuses every token that was given for it as well; the
    /// real one takes a token until it ends, as a token says all that it looks at.
    ///
    /// # Panics
    /// When the real registry's htpasswd file cannot be written.
    pub fn revoke(&self, user: &str, password: &str) {
        self.set_accepted(user, password, false);
    }

    fn set_accepted(&self, user: &str, password: &str, accepted: bool) {
        let credential = (user.to_owned(), password.to_owned());
        let mut state = self.state();
        state.accepted.retain(|other| *other != credential);
        state.accepted.extend(accepted.then_some(credential));
        drop(state);
        self.write_passwords().unwrap_or_else(|error| panic!("{}", talos_proto::chain(&error)));
    }

    /// Tells a real registry with Basic who is accepted.
    fn write_passwords(&self) -> Result<(), RealError> {
        match &self.real {
            Some(real) if real.auth == Auth::Basic => {
                let accepted = self.state().accepted.clone();
                real.set_passwords(&accepted)
            }
            _ => Ok(()),
        }
    }

    /// Denies a user all manifests although its credential is good (or no longer). A real registry with Basic knows no
    /// such thing.
    pub fn deny(&self, user: &str, deny: bool) {
        let mut state = self.state();
        if deny {
            state.denied.insert(user.to_owned());
        } else {
            state.denied.remove(user);
        }
    }

    /// What kind of tokens a good credential is given from now on.
    pub fn give(&self, tokens: Tokens) {
        self.state().tokens = tokens;
    }

    /// Makes it unreachable for the nodes, though not for the product.
    pub fn cut_off_nodes(&self, cut_off: bool) {
        self.state().unreachable_for_nodes = cut_off;
    }

    /// Answers every request with this code, pulls of nodes too (a 5xx or 429 is no answer to a pull).
    pub fn fail(&self, code: Option<u16>) {
        self.state().faults.everywhere = code.map(Fault::Answer);
    }

    /// What becomes of requests whose path and query begin so, until it is said otherwise. Pulls of nodes from a
    /// simulated registry meet none of it.
    pub fn fault(&self, prefix: &str, fault: Option<Fault>) {
        self.state().faults.set(prefix, fault);
    }

    /// Another host beside it, with a certificate of the same authority, which has the same manifests and blobs for
    /// everybody and keeps what it was sent.
    ///
    /// # Errors
    /// [`StartError`], for instance when it is there already.
    pub fn elsewhere(self: &Arc<Self>) -> Result<Elsewhere, StartError> {
        Elsewhere::start(Arc::clone(self))
    }

    /// Asks the registry something over its front and reads the whole answer.
    ///
    /// # Errors
    /// When there is none.
    pub async fn ask(&self, method: &str, target: &str, authorization: Option<&str>) -> io::Result<Answer> {
        let accept = format!("{MANIFEST}, {INDEX}");
        let url = format!("https://{}{target}", self.host());
        self.client.ask(method, &url, &[("accept", accept.as_str())], authorization, "").await
    }

    /// Closes the listener and all connections, and ends the real registry.
    pub fn stop(&self) {
        self.stop.cancel();
        if let Some(real) = &self.real {
            real.stop();
        }
    }
}
