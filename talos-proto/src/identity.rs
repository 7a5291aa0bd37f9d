//! The client identity: certificate, key, and what the certificate says about itself.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;

use jiff::Timestamp;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::config::Context;

/// The role that may do everything (Talos `pkg/machinery/role/role.go`).
pub const ADMIN: &str = "os:admin";
/// The role that may reboot and pull images.
pub const OPERATOR: &str = "os:operator";

/// Why the certificates of a talosconfig cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A PEM value does not hold what it should.
    #[error("{path}: {problem}")]
    Value {
        /// Where in the talosconfig.
        path: String,
        /// What is wrong.
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
pub struct Identity {
    pub(crate) ca: Vec<u8>,
    pub(crate) crt: Vec<u8>,
    pub(crate) key: Zeroizing<Vec<u8>>,
    /// The Talos roles in the certificate's subject: each `O` is one.
    pub roles: BTreeSet<String>,
    /// When the certificate runs out.
    pub not_after: Timestamp,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("roles", &self.roles)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Checks the context's certificates before anything is dialled: over the wire an expired certificate looks the
    /// same as a node that is down.
    ///
    /// # Errors
    /// [`IdentityError`], naming the path in the talosconfig.
    pub fn from_context(context: &Context, now: Timestamp) -> Result<Self, IdentityError> {
        let at = |key: &str| format!("contexts.{}.{key}", context.name);
        let value = |key: &str, problem: &str| IdentityError::Value { path: at(key), problem: problem.into() };
        CertificateDer::from_pem_slice(&context.ca).map_err(|_| value("ca", "is not a PEM certificate"))?;
        let leaf =
            CertificateDer::from_pem_slice(&context.crt).map_err(|_| value("crt", "is not a PEM certificate"))?;
        let (_, leaf) = X509Certificate::from_der(&leaf).map_err(|_| value("crt", "is not an X.509 certificate"))?;
        let key = relabelled(&context.key);
        PrivateKeyDer::from_pem_slice(&key)
            .map_err(|_| value("key", "is not a PEM private key (PRIVATE KEY, ED25519, EC or RSA PRIVATE KEY)"))?;
        let time = |time: x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp()).map_err(|_| value("crt", "has a validity out of range"))
        };
        let (not_before, not_after) = (time(leaf.validity().not_before)?, time(leaf.validity().not_after)?);
        if now > not_after {
            return Err(IdentityError::Expired { path: at("crt"), at: not_after });
        }
        if now < not_before {
            return Err(IdentityError::NotYetValid { path: at("crt"), at: not_before });
        }
        if let Ok(Some(usage)) = leaf.extended_key_usage()
            && !usage.value.client_auth
        {
            return Err(value("crt", "is not a client certificate (extended key usage lacks clientAuth)"));
        }
        let roles = leaf.subject().iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
        Ok(Self { ca: context.ca.clone(), crt: context.crt.clone(), key, roles, not_after })
    }

    /// Whether the certificate has that role, for instance [`ADMIN`].
    #[must_use]
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains(role)
    }
}

/// Talos labels its client key `ED25519 PRIVATE KEY` (siderolabs/crypto `x509/constants.go`), which no PEM reader of
/// the Rust world knows; the body is plain PKCS#8, so only the label is changed, and only that exact one.
fn relabelled(pem: &[u8]) -> Zeroizing<Vec<u8>> {
    const LABEL: &[u8] = b"ED25519 PRIVATE KEY-----";
    let mut out = Zeroizing::new(Vec::with_capacity(pem.len()));
    let mut rest = pem;
    while let Some(at) = rest.windows(LABEL.len()).position(|window| window == LABEL) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(b"PRIVATE KEY-----");
        rest = &rest[at + LABEL.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// The address that a host is, if it is one; an IPv4-mapped IPv6 address counts as its IPv4 one.
#[must_use]
pub fn address_of(host: &str) -> Option<IpAddr> {
    IpAddr::from_str(host.trim_start_matches('[').trim_end_matches(']')).ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w02_the_label_of_a_talos_key_is_understood() {
        let pem = b"-----BEGIN ED25519 PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n-----END ED25519 PRIVATE KEY-----\n";
        assert!(PrivateKeyDer::from_pem_slice(pem).is_err(), "the reader learnt the label: the rewrite can go");
        assert!(matches!(PrivateKeyDer::from_pem_slice(&relabelled(pem)), Ok(PrivateKeyDer::Pkcs8(_))));
    }

    #[test]
    fn other_labels_are_left_alone() {
        let pem = b"-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n";
        assert_eq!(relabelled(pem).as_slice(), pem);
    }
}
