//! The client identity: certificate, key, and what the certificate says about itself.

mod certificate;
mod key;
mod pem;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use zeroize::Zeroizing;

use crate::config::{Context, Finding};

/// The role that may do everything (Talos `pkg/machinery/role/role.go`).
pub const ADMIN: &str = "os:admin";
/// The role that may reboot and pull images.
pub const OPERATOR: &str = "os:operator";

/// A certificate that runs out sooner is worth a word, while there is time.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Why the certificates of a talosconfig cannot be used, and what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A PEM value does not hold what it should.
    #[error("{path}: {problem}")]
    Value {
        /// Where in the talosconfig.
        path: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The certificate ran out.
    #[error("{path}: the client certificate expired at {at}; make a new one with `talosctl config new`")]
    Expired {
        /// Where in the talosconfig.
        path: String,
        /// Its end.
        at: Timestamp,
    },
    /// The certificate's time has not come; usually a clock is wrong.
    #[error("{path}: the client certificate is not valid before {at}; is this machine's clock right?")]
    NotYetValid {
        /// Where in the talosconfig.
        path: String,
        /// Its beginning.
        at: Timestamp,
    },
}

/// What connects to apid.
#[derive(Clone)]
pub struct Identity {
    pub(crate) ca: Vec<u8>,
    pub(crate) crt: Vec<u8>,
    pub(crate) key: Zeroizing<Vec<u8>>,
    /// The Talos roles in the certificate's subject: each `O` is one.
    pub roles: BTreeSet<String>,
    /// When the certificate's time begins.
    pub not_before: Timestamp,
    /// When the certificate runs out.
    pub not_after: Timestamp,
    /// When the last of the CA's certificates runs out, if all could be read: from then on no node is trusted.
    pub ca_not_after: Option<Timestamp>,
    /// The CA of the talosconfig issued the client certificate; else the two are of two clusters, unless Talos's CA is
    /// being rotated.
    pub issued_by_ca: bool,
    findings: Vec<Finding>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("roles", &self.roles)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Where the values of a context stand in the file.
struct Paths(String);

impl Paths {
    fn of(&self, key: &str) -> String {
        format!("contexts.{}.{key}", self.0)
    }
}

impl Identity {
    /// Checks the context's certificates before anything is dialled: over the wire an expired certificate looks the
    /// same as a node that is down, and a wrong one is a bare TLS alert.
    ///
    /// # Errors
    /// [`IdentityError`], naming the path in the talosconfig.
    pub fn from_context(context: &Context, now: Timestamp) -> Result<Self, IdentityError> {
        let paths = Paths(context.name.clone());
        let authorities = certificate::authorities(&paths, &context.ca)?;
        let leaf = certificate::client(&paths, &context.crt, now)?;
        let key = key::check(&paths, &context.key, &leaf.chain)?;
        let mut findings = Vec::new();
        let mut find = |problem: String| findings.push(Finding { path: paths.of("crt"), problem });
        let (left, life) = (leaf.not_after.duration_since(now), leaf.not_after.duration_since(leaf.not_before));
        // A pod's certificate lives six hours and is renewed in its last: short-lived ones are meant to be short.
        if left < SOON.min(life / 6) {
            let left = match left.as_mins() {
                minutes @ ..120 => format!("{minutes} minutes"),
                minutes @ ..2880 => format!("{} hours", minutes / 60),
                minutes => format!("{} days", minutes / 1440),
            };
            find(format!(
                "the client certificate expires in {left} ({}): make a new one with `talosctl config new`",
                leaf.not_after
            ));
        }
        if !leaf.roles.iter().any(|role| role.starts_with("os:")) {
            find(
                "the client certificate names no Talos role (an O such as os:admin), so that Talos lets it do nothing"
                    .into(),
            );
        }
        let issued_by_ca = certificate::is_issued_by(&authorities, &leaf, now);
        if !issued_by_ca {
            let ca = paths.of("ca");
            find(format!(
                "the client certificate was not issued by {ca}: unless Talos's CA is being rotated, they are of two clusters"
            ));
        }
        Ok(Self {
            ca: context.ca.clone(),
            crt: context.crt.clone(),
            key,
            roles: leaf.roles,
            not_before: leaf.not_before,
            not_after: leaf.not_after,
            ca_not_after: certificate::last_end(&authorities),
            issued_by_ca,
            findings,
        })
    }

    /// What is odd about the certificates without being wrong, as of when they were checked.
    #[must_use]
    pub fn warnings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether the certificate has that role, for instance [`ADMIN`].
    #[must_use]
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains(role)
    }

    /// Its roles for people: `os:reader`, or `no role`.
    #[must_use]
    pub fn role_words(&self) -> String {
        let roles: Vec<_> = self.roles.iter().map(String::as_str).collect();
        if roles.is_empty() { "no role".to_owned() } else { roles.join(", ") }
    }
}

/// The address that a host is, if it is one; an IPv4-mapped IPv6 address counts as its IPv4 one.
#[must_use]
pub fn address_of(host: &str) -> Option<IpAddr> {
    IpAddr::from_str(host.trim_start_matches('[').trim_end_matches(']')).ok().map(|address| address.to_canonical())
}
