//! The credential: what Talos would send to one registry, and the set that a run was given.

mod docker_config;
mod documents;
mod error;
mod host;
mod registry_auth;
mod secret;
#[cfg(test)]
mod testing;

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

pub use documents::kind_of;
pub use error::{CredentialError, EntryFault, Format};
pub use host::{HostError, RegistryHost};

/// What Talos and containerd would log in to one registry with. The secret part is wiped from memory on drop and
/// shown by neither `Debug` nor any error.
#[derive(Clone)]
pub enum Credential {
    /// User and password; GHCR's personal access tokens are such a password.
    Basic {
        /// The user; not secret.
        username: String,
        /// The password or access token.
        password: SecretString,
    },
    /// An OAuth refresh token (`identityToken`).
    Token(SecretString),
    /// Anonymous.
    None,
}

impl Credential {
    /// User and password.
    #[must_use]
    pub fn basic(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self::Basic { username: username.into(), password: SecretString::from(password.into()) }
    }

    /// An identity token.
    #[must_use]
    pub fn token(token: impl Into<String>) -> Self {
        Self::Token(SecretString::from(token.into()))
    }

    /// The credential that Talos would use when a registry's auth has these four fields (empty = not set), by
    /// containerd's precedence, which Talos shares: `username` before `identityToken` before `auth`.
    ///
    /// # Errors
    /// [`Unusable`] when the fields look like a credential but give none: an image pull then goes out anonymously or
    /// fails at the node.
    pub fn effective(username: &str, password: &str, auth: &str, identity_token: &str) -> Result<Self, Unusable> {
        if !username.is_empty() {
            Ok(Self::basic(username, password))
        } else if !identity_token.is_empty() {
            Ok(Self::token(identity_token))
        } else if !auth.is_empty() {
            let (username, password) = decode_auth(auth)?;
            Ok(Self::Basic { username, password })
        } else if !password.is_empty() {
            Err(Unusable::PasswordWithoutUsername)
        } else {
            Ok(Self::None)
        }
    }

    /// Whether both log in as the same. Written as `auth` or as user and password makes no difference.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Basic { username: a, password: x }, Self::Basic { username: b, password: y }) => {
                a == b && x.expose_secret() == y.expose_secret()
            }
            (Self::Token(x), Self::Token(y)) => x.expose_secret() == y.expose_secret(),
            (Self::None, Self::None) => true,
            _ => false,
        }
    }

    /// The kind, as a report names it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Basic { .. } => "user and password",
            Self::Token(_) => "identity token",
            Self::None => "none",
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The user is left out as well: a token pasted into the wrong field must not reach a log.
            Self::Basic { .. } => f.write_str("Credential::Basic(..)"),
            Self::Token(_) => f.write_str("Credential::Token(..)"),
            Self::None => f.write_str("Credential::None"),
        }
    }
}

/// Fields of a registry's auth that give no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Talos accepts such a config, and nothing ever uses the password.
    #[error("a password without a username is never used by Talos")]
    PasswordWithoutUsername,
    /// `auth` is not base64.
    #[error("auth is not base64 (standard alphabet, padded)")]
    AuthNotBase64,
    /// `auth` decodes to bytes that are no text.
    #[error("auth does not decode to text")]
    AuthNotText,
    /// `auth` decodes to something without a colon.
    #[error("auth does not decode to user:password")]
    AuthWithoutColon,
}

/// Decodes `auth` as containerd does: base64 of `user:password`, NUL padding of the password trimmed.
fn decode_auth(auth: &str) -> Result<(String, SecretString), Unusable> {
    // Go's decoder, which reads it on the node, skips line breaks.
    let compact: Zeroizing<String> = Zeroizing::new(auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect());
    let bytes = Zeroizing::new(STANDARD.decode(compact.as_bytes()).map_err(|_| Unusable::AuthNotBase64)?);
    let text = std::str::from_utf8(&bytes).map_err(|_| Unusable::AuthNotText)?;
    let (username, password) = text.split_once(':').ok_or(Unusable::AuthWithoutColon)?;
    Ok((username.to_owned(), SecretString::from(password.trim_matches('\0'))))
}

/// The set of credentials that a run was given, one for each registry.
#[derive(Clone, Debug, Default)]
pub struct Desired(BTreeMap<RegistryHost, Credential>);

/// Refuses a credential of which a half is missing, or which is still encrypted: Talos would take both, and every pull
/// would then fail.
fn complete(credential: Credential) -> Result<Credential, EntryFault> {
    let sealed = |text: &str| text.starts_with("ENC[AES256_GCM,");
    match &credential {
        Credential::Basic { username, .. } if username.is_empty() => Err(EntryFault::NoUsername),
        Credential::Basic { password, .. } if password.expose_secret().is_empty() => Err(EntryFault::NoPassword),
        Credential::Basic { password: secret, .. } | Credential::Token(secret) if sealed(secret.expose_secret()) => {
            Err(EntryFault::Encrypted)
        }
        _ => Ok(credential),
    }
}

impl Desired {
    /// Reads the credentials of `wanted` out of `bytes`, whose content tells the format: a docker config JSON, a Secret
    /// manifest of type `kubernetes.io/dockerconfigjson` (YAML or JSON, also in a `List` or among other documents), or
    /// Talos `RegistryAuthConfig` documents. Other hosts in it are left alone.
    ///
    /// # Errors
    /// [`CredentialError`] names the format that was recognised, the path in it and the host; no error repeats a value.
    pub fn read(bytes: &[u8], wanted: &[RegistryHost]) -> Result<Self, CredentialError> {
        documents::read(bytes, wanted).map(Self)
    }

    /// Reads the credentials of `wanted` out of a docker config (`~/.docker/config.json`, or the content of a
    /// `kubernetes.io/dockerconfigjson` Secret). Other hosts in it are left alone.
    ///
    /// # Errors
    /// [`CredentialError`] names the host and the field; no error repeats a value.
    pub fn from_docker_config(bytes: &[u8], wanted: &[RegistryHost]) -> Result<Self, CredentialError> {
        docker_config::read(bytes, wanted).map(Self)
    }

    /// The credential for `host`.
    #[must_use]
    pub fn get(&self, host: &RegistryHost) -> Option<&Credential> {
        self.0.get(host)
    }

    /// The credential for `host` and no other.
    #[must_use]
    pub fn only(&self, host: &RegistryHost) -> Self {
        Self(self.0.iter().filter(|(known, _)| *known == host).map(|(host, it)| (host.clone(), it.clone())).collect())
    }

    /// All of them, sorted by host.
    pub fn iter(&self) -> impl Iterator<Item = (&RegistryHost, &Credential)> {
        self.0.iter()
    }

    /// The hosts, sorted.
    pub fn hosts(&self) -> impl Iterator<Item = &RegistryHost> {
        self.0.keys()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every text that must not be shown: passwords and tokens, and docker's base64 of user and password.
    pub fn secrets(&self) -> impl Iterator<Item = Zeroizing<String>> {
        self.0.values().flat_map(|credential| match credential {
            Credential::Basic { username, password } => {
                let both = Zeroizing::new(format!("{username}:{}", password.expose_secret()));
                vec![Zeroizing::new(password.expose_secret().to_owned()), Zeroizing::new(STANDARD.encode(&*both))]
            }
            Credential::Token(token) => vec![Zeroizing::new(token.expose_secret().to_owned())],
            Credential::None => Vec::new(),
        })
    }

    /// Whether a text holds one of them.
    #[must_use]
    pub fn is_in(&self, text: &[u8]) -> bool {
        let holds = |part: &[u8]| !part.is_empty() && text.windows(part.len()).any(|window| window == part);
        self.secrets().any(|secret| holds(secret.as_bytes()))
    }

    /// How many registries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl FromIterator<(RegistryHost, Credential)> for Desired {
    fn from_iter<I: IntoIterator<Item = (RegistryHost, Credential)>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(left: Result<Credential, Unusable>, right: &Credential) -> bool {
        left.is_ok_and(|left| left.same_as(right))
    }

    #[test]
    fn k01_the_precedence_is_username_then_identity_token_then_auth() {
        let auth = STANDARD.encode("puller:from-auth");
        assert!(same(Credential::effective("u", "p", &auth, "t"), &Credential::basic("u", "p")));
        assert!(same(Credential::effective("", "p", &auth, "t"), &Credential::token("t")));
        assert!(same(Credential::effective("", "p", &auth, ""), &Credential::basic("puller", "from-auth")));
        assert!(same(Credential::effective("", "", "", ""), &Credential::None));
        assert_eq!(Credential::effective("", "p", "", "").err(), Some(Unusable::PasswordWithoutUsername));
    }

    #[test]
    fn auth_is_decoded_as_containerd_decodes_it() {
        for (raw, user, password) in
            [("u:p", "u", "p"), ("u:p:q", "u", "p:q"), ("u:p\0\0", "u", "p"), ("u: p ", "u", " p "), ("ü:ß", "ü", "ß")]
        {
            let auth = STANDARD.encode(raw);
            assert!(same(Credential::effective("", "", &auth, ""), &Credential::basic(user, password)), "{raw:?}");
            let broken = format!("{}\n{}", &auth[..2], &auth[2..]);
            assert!(same(Credential::effective("", "", &broken, ""), &Credential::basic(user, password)), "{raw:?}");
        }
        assert_eq!(Credential::effective("", "", "%%%", "").err(), Some(Unusable::AuthNotBase64));
        assert_eq!(Credential::effective("", "", "bm9jb2xvbg==", "").err(), Some(Unusable::AuthWithoutColon));
        assert_eq!(Credential::effective("", "", "/////w==", "").err(), Some(Unusable::AuthNotText));
    }

    #[test]
    fn debug_shows_no_part_of_a_credential() {
        let set: Desired = [
            ("ghcr.io".parse().unwrap(), Credential::basic("user-canary", "password-canary")),
            ("quay.io".parse().unwrap(), Credential::token("token-canary")),
        ]
        .into_iter()
        .collect();
        let shown = format!("{set:?}");
        assert!(shown.contains("ghcr.io") && !shown.contains("canary"), "{shown}");
    }
}
