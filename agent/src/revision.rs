//! The revision: a public name for a set of credentials.
//!
//! A plain hash of a credential could be searched for (tokens are short, their form is known), so it is an HMAC under
//! a key that only the cluster's machine configs hold. Equal credentials give equal revisions within a cluster, and
//! nothing can be learnt from one without that key.

use std::fmt;
use std::str::FromStr;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::credential::{Credential, Desired};

const INFO: &[u8] = b"talos-ghcr/revision/v1";

/// The key that revisions of one cluster are made with: derived from its `cluster.secret`, else its `machine.token`.
#[derive(Clone)]
pub struct ClusterKey(Zeroizing<[u8; 32]>);

impl ClusterKey {
    /// Derives the key by HKDF-SHA256 without salt. `secret` is the text as it stands in the machine config; it is
    /// not decoded.
    #[must_use]
    pub fn derive(secret: &str) -> Self {
        let mut key = Zeroizing::new([0_u8; 32]);
        Hkdf::<Sha256>::new(None, secret.as_bytes())
            .expand(INFO, key.as_mut_slice())
            .expect("32 bytes are far below HKDF-SHA256's limit of 8160");
        Self(key)
    }

    /// The revision of a set of credentials.
    #[must_use]
    pub fn revision(&self, desired: &Desired) -> Revision {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_slice()).expect("HMAC takes a key of any length");
        feed(&mut mac, desired);
        let mut revision = [0; 16];
        revision.copy_from_slice(&mac.finalize().into_bytes()[..16]);
        Revision(revision)
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// Feeds the set such that two sets give the same bytes exactly when they are equal: the number of hosts, then for
/// each (sorted) the host, the kind, and its fields; each of these after its length in 8 bytes big endian.
fn feed(mac: &mut Hmac<Sha256>, desired: &Desired) {
    let mut field = |text: &str| {
        mac.update(&(text.len() as u64).to_be_bytes());
        mac.update(text.as_bytes());
    };
    field(&desired.len().to_string());
    for (host, credential) in desired.iter() {
        field(host.as_str());
        match credential {
            Credential::Basic { username, password } => {
                field("basic");
                field(username);
                field(password.expose_secret());
            }
            Credential::Token(token) => {
                field("token");
                field(token.expose_secret());
            }
            Credential::None => field("none"),
        }
    }
}

/// The public name of a set of credentials within one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision([u8; 16]);

impl Revision {
    /// The first 16 hex digits, where 32 are too long: the lease holder, `previous` of a record.
    #[must_use]
    pub fn rev16(&self) -> String {
        self.to_string()[..16].to_owned()
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Revision({self})")
    }
}

/// Not 32 lower case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a revision is 32 lower case hex digits")]
pub struct RevisionError;

impl FromStr for Revision {
    type Err = RevisionError;

    fn from_str(text: &str) -> Result<Self, RevisionError> {
        if text.len() != 32 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(RevisionError);
        }
        let mut bytes = [0; 16];
        for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| RevisionError)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Revision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Revision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(entries: &[(&str, Credential)]) -> Desired {
        entries.iter().map(|(host, credential)| (host.parse().unwrap(), credential.clone())).collect()
    }

    /// Computed apart from this code, with Python's hmac and hashlib (RFC 5869 by hand):
    ///
    /// ```python
    /// prk = hmac.new(bytes(32), secret, sha256).digest()
    /// key = hmac.new(prk, b"talos-ghcr/revision/v1" + b"\x01", sha256).digest()
    /// f = lambda s: len(s).to_bytes(8, "big") + s
    /// hmac.new(key, f(b"1") + f(b"ghcr.io") + f(b"basic") + f(b"puller") + f(b"ghp_old"), sha256).hexdigest()[:32]
    /// ```
    #[test]
    fn golden_revisions() {
        let key = ClusterKey::derive("not-a-real-cluster-secret=");
        for (desired, revision) in [
            (set(&[("ghcr.io", Credential::basic("puller", "ghp_old"))]), "1b05280be475c681390cc9794313c0ae"),
            (
                set(&[("quay.io", Credential::token("t")), ("ghcr.io", Credential::basic("puller", "ghp_old"))]),
                "12b420cab32134b9b4c556a307c189cb",
            ),
        ] {
            assert_eq!(key.revision(&desired).to_string(), revision);
        }
    }

    #[test]
    fn n05_equal_credentials_have_one_revision_however_they_are_written() {
        let key = ClusterKey::derive("secret");
        let wanted = ["ghcr.io".parse().unwrap(), "quay.io".parse().unwrap()];
        let a = r#"{"auths":{"quay.io":{"auth":"YTpi"},"ghcr.io":{"auth":"YTpi"}}}"#;
        let b = r#"{"auths":{"https://ghcr.io/v2/":{"username":"a","password":"b"},
                             "quay.io":{"username":"a","password":"b","auth":"YTpi"}}}"#;
        let read = |json: &str| Desired::from_docker_config(json.as_bytes(), &wanted).unwrap();
        assert_eq!(key.revision(&read(a)), key.revision(&read(b)));
    }

    #[test]
    fn different_sets_and_other_clusters_have_other_revisions() {
        let key = ClusterKey::derive("secret");
        let sets = [
            set(&[]),
            set(&[("ghcr.io", Credential::basic("a", "b"))]),
            set(&[("ghcr.io", Credential::basic("ab", ""))]),
            set(&[("ghcr.io", Credential::basic("", "ab"))]),
            set(&[("ghcr.io", Credential::token("ab"))]),
            set(&[("ghcr.io", Credential::None)]),
            set(&[("quay.io", Credential::basic("a", "b"))]),
            set(&[("ghcr.io", Credential::basic("a", "b")), ("quay.io", Credential::None)]),
        ];
        let revisions: std::collections::BTreeSet<_> = sets.iter().map(|set| key.revision(set)).collect();
        assert_eq!(revisions.len(), sets.len());
        assert_ne!(ClusterKey::derive("other").revision(&sets[1]), key.revision(&sets[1]));
    }

    #[test]
    fn text_and_serde_round_trip_and_nonsense_is_refused() {
        let revision: Revision = "00ff102030405060708090a0b0c0d0e0".parse().unwrap();
        assert_eq!(revision.rev16(), "00ff102030405060");
        assert_eq!(serde_json::to_string(&revision).unwrap(), "\"00ff102030405060708090a0b0c0d0e0\"");
        assert_eq!(serde_json::from_str::<Revision>("\"00ff102030405060708090a0b0c0d0e0\"").unwrap(), revision);
        for text in ["", "00ff", "00FF102030405060708090a0b0c0d0e0", "+0ff102030405060708090a0b0c0d0e0", "é"] {
            assert_eq!(text.parse::<Revision>(), Err(RevisionError), "{text}");
        }
    }
}
