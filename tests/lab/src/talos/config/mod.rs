//! Machine configs: what a node makes of the bytes that it was given.

mod diff;
mod documents;
mod generate;
mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub(crate) use diff::diff;
pub use generate::{Form, Generated, machine_config_for};
pub use parse::Refused;

/// The credential of one registry host, as it stands in the machine config.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Auth {
    /// `username`.
    pub username: String,
    /// `password`.
    pub password: String,
    /// `auth`: base64 of `username:password`.
    pub auth: String,
    /// `identityToken`.
    pub identity_token: String,
}

impl Auth {
    /// Name and password, also from `auth`; `None` when there are none.
    #[must_use]
    pub fn basic(&self) -> Option<(String, String)> {
        if !self.username.is_empty() || !self.password.is_empty() {
            return Some((self.username.clone(), self.password.clone()));
        }
        let decoded = String::from_utf8(STANDARD.decode(&self.auth).ok()?).ok()?;
        decoded.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").finish_non_exhaustive()
    }
}

/// One mirror of a registry host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// `(url, overridePath)`.
    pub endpoints: Vec<(String, bool)>,
    /// `skipFallback`.
    pub skip_fallback: bool,
}

/// What a machine config comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effective {
    /// Credential by registry host; a document beats the legacy block (variant 03).
    pub auths: BTreeMap<String, Auth>,
    /// Mirrors by registry host.
    pub mirrors: BTreeMap<String, Mirror>,
    /// Hosts with settings for TLS, whose content means nothing to the lab.
    pub(crate) tls_hosts: BTreeSet<String>,
    /// The registries are not rendered any more: a RegistryTLSConfig without a clientIdentity, on the releases that
    /// fail on it (Talos issue 12571, fixed in 1.12.2).
    pub(crate) stops_rendering: bool,
    /// The annotations that Talos puts on its Node.
    pub annotations: BTreeMap<String, String>,
    /// The v1alpha1 document without everything that can change while the node runs (talos.md 4.3).
    pub(crate) fixed: serde_yaml::Value,
}

impl Effective {
    /// Reads a machine config as a node of that version does.
    ///
    /// # Errors
    /// [`Refused`], with the text that the node answers.
    pub fn parse(bytes: &[u8], version: &super::version::Version) -> Result<Self, Refused> {
        parse::parse(bytes, version)
    }

    /// Hosts with a credential or settings for TLS.
    pub(crate) fn configured_hosts(&self) -> BTreeSet<&String> {
        self.auths.keys().chain(&self.tls_hosts).collect()
    }
}
