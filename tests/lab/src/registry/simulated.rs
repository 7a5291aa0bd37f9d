//! What the simulated registry knows of its images and tokens.

use uuid::Uuid;

use super::State;
use super::faults::Tokens;
use super::image::Manifest;

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
