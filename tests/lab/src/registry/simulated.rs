//! What the simulated registry knows of its images and tokens, and how it answers a node's pull.

use std::time::Duration;

use talos_proto::clock::Clock;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use uuid::Uuid;

use super::faults::{Fault, Tokens};
use super::image::Manifest;
use super::pull::Pull;
use super::{Registry, SERVER, State};
use crate::talos::outside::{PullAnswer, Registry as Outside};

/// A node of the lab waits no longer for a real registry; its own pull then tries again.
const PULL_LIMIT: Duration = Duration::from_secs(10);

/// An image of the registry.
pub(super) struct Image {
    pub tag: String,
    pub public: bool,
    pub manifest: Manifest,
}

/// What a bearer token is good for.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// Nobody: an anonymous token.
    pub user: Option<(String, String)>,
    /// The repositories that it may pull.
    pub repositories: Vec<String>,
}

/// What a manifest request comes to.
#[derive(Clone, Copy)]
pub(super) enum Lookup<'s> {
    Found(&'s Manifest),
    /// No credential that is good for this.
    Unauthorized,
    Denied,
    Unknown,
}

impl State {
    pub(super) fn is_accepted(&self, user: &(String, String)) -> bool {
        self.accepted.contains(user)
    }

    /// Looks a manifest up for a user whose credential was good when the token was made, or for nobody.
    pub(super) fn lookup(&self, user: Option<&(String, String)>, repository: &str, reference: &str) -> Lookup<'_> {
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
        match image.filter(|image| image.tag == reference || image.manifest.digest == reference) {
            Some(image) => Lookup::Found(&image.manifest),
            None => Lookup::Unknown,
        }
    }

    pub(super) fn issue(&mut self, user: Option<(String, String)>, repositories: Vec<String>) -> String {
        let token = Uuid::new_v4().simple().to_string();
        // An expired token is one that is not known any more.
        if self.tokens != Tokens::Expired {
            self.issued.insert(token.clone(), Grant { user, repositories });
        }
        token
    }
}

impl Outside for Registry {
    fn pull(&self, host: &str, repository: &str, reference: &str, user: Option<(&str, &str)>) -> PullAnswer {
        if host != self.host() || self.state().unreachable_for_nodes || self.stop.is_cancelled() {
            return PullAnswer::Unreachable;
        }
        self.log.note(SERVER, "PULL manifests", &format!("{repository}:{reference}"), false);
        if self.real.is_some() {
            let pull = Pull::new(&self.client, host, repository, user).run(reference);
            let in_time = async { Clock::system().timeout(PULL_LIMIT, pull).await };
            return block_in_place(|| Handle::current().block_on(in_time)).unwrap_or(PullAnswer::Unreachable);
        }
        let state = self.state();
        match state.faults.everywhere {
            Some(Fault::Answer(401 | 403)) => return PullAnswer::Denied,
            Some(Fault::Answer(404)) => return PullAnswer::NotFound,
            Some(_) => return PullAnswer::Unreachable,
            None => {}
        }
        let user = user.map(|(user, password)| (user.to_owned(), password.to_owned()));
        match state.lookup(user.as_ref(), repository, reference) {
            Lookup::Found(manifest) => PullAnswer::Ok(manifest.digest.clone()),
            Lookup::Unauthorized | Lookup::Denied => PullAnswer::Denied,
            Lookup::Unknown => PullAnswer::NotFound,
        }
    }
}
