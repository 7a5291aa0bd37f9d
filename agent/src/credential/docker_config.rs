//! Reading a docker config. Nothing of a value may reach an error: serde's own texts quote values, so that only
//! their positions are kept.

use std::collections::BTreeMap;
use std::fmt;

use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use zeroize::ZeroizeOnDrop;

use super::{Credential, HostError, RegistryHost, Unusable};

/// Why a docker config gives no credential for a host that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// Not JSON, or a field has another type than docker writes.
    #[error(
        "the docker config is not JSON of the expected shape (line {line}, column {column}): \
         {{\"auths\": {{\"ghcr.io\": {{\"auth\": \"…\"}}}}}}"
    )]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// The host is not among `auths`.
    #[error("the docker config has no entry for {host}; it has {}", list(present))]
    Missing {
        /// The wanted host.
        host: RegistryHost,
        /// The hosts that are there.
        present: Vec<String>,
    },
    /// The host's password is kept by a helper program outside of the file.
    #[error(
        "the docker config keeps the credential of {host} in the helper docker-credential-{helper}, not in the file; \
         run `echo {host} | docker-credential-{helper} get` and put its Username and Secret into a file of the form \
         {{\"auths\": {{\"{host}\": {{\"username\": \"…\", \"password\": \"…\"}}}}}}"
    )]
    InHelper {
        /// The wanted host.
        host: RegistryHost,
        /// The name of `credsStore` or of the host's `credHelpers`.
        helper: String,
    },
    /// The entry has none of the fields.
    #[error("the docker config's entry for {host} has no credential (auth, username and password, or identitytoken)")]
    Empty {
        /// The wanted host.
        host: RegistryHost,
    },
    /// `registrytoken` is a bearer token of docker's own daemon, of minutes; Talos has no field for it.
    #[error("the docker config's entry for {host} has only a registrytoken, which Talos cannot use")]
    RegistryToken {
        /// The wanted host.
        host: RegistryHost,
    },
    /// The fields of the entry give no credential.
    #[error("the docker config's entry for {host}: {cause}")]
    Unusable {
        /// The wanted host.
        host: RegistryHost,
        /// Which field and why.
        #[source]
        cause: Unusable,
    },
    /// The user before the colon is empty.
    #[error("the docker config's entry for {host} has an empty username")]
    NoUsername {
        /// The wanted host.
        host: RegistryHost,
    },
    /// The password after the colon is empty, or there is a username alone.
    #[error("the docker config's entry for {host} has an empty password")]
    NoPassword {
        /// The wanted host.
        host: RegistryHost,
    },
    /// `auth` says one thing, `username` and `password` another.
    #[error("the docker config's entry for {host} disagrees with itself: auth and username/password differ; keep one")]
    Disagrees {
        /// The wanted host.
        host: RegistryHost,
    },
    /// Two keys that mean the same host (`ghcr.io` and `https://ghcr.io`) with different credentials.
    #[error("the docker config has {count} entries for {host} with different credentials; keep one")]
    Ambiguous {
        /// The wanted host.
        host: RegistryHost,
        /// How many.
        count: usize,
    },
}

fn list(present: &[String]) -> String {
    if present.is_empty() { "none at all".to_owned() } else { present.join(", ") }
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: Option<Entries>,
    #[serde(rename = "credsStore")]
    creds_store: Option<String>,
    #[serde(rename = "credHelpers")]
    cred_helpers: Option<BTreeMap<String, String>>,
}

/// As a list: JSON allows a key twice, and the one that a map would drop may be the one that was meant.
struct Entries(Vec<(String, Entry)>);

#[derive(Deserialize, ZeroizeOnDrop)]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of registry hosts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// The credentials of `wanted`.
pub(super) fn read(
    bytes: &[u8],
    wanted: &[RegistryHost],
) -> Result<BTreeMap<RegistryHost, Credential>, CredentialError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let config: DockerConfig = serde_json::from_slice(bytes)
        .map_err(|error| CredentialError::Json { line: error.line(), column: error.column() })?;
    wanted.iter().map(|host| Ok((host.clone(), config.credential(host)?))).collect()
}

impl DockerConfig {
    fn credential(&self, host: &RegistryHost) -> Result<Credential, CredentialError> {
        let entries = self.auths.iter().flat_map(|entries| &entries.0);
        let of_host: Vec<&Entry> =
            entries.filter(|(key, _)| key.parse::<RegistryHost>().as_ref() == Ok(host)).map(|(_, e)| e).collect();
        let Some((first, others)) = of_host.split_first() else {
            return Err(match self.helper(host) {
                Some(helper) => CredentialError::InHelper { host: host.clone(), helper },
                None => CredentialError::Missing { host: host.clone(), present: self.present() },
            });
        };
        let credential = match first.credential(host) {
            Err(CredentialError::Empty { .. }) if others.is_empty() && self.helper(host).is_some() => {
                let helper = self.helper(host).unwrap_or_default();
                return Err(CredentialError::InHelper { host: host.clone(), helper });
            }
            other => other?,
        };
        for other in others {
            if !other.credential(host)?.same_as(&credential) {
                return Err(CredentialError::Ambiguous { host: host.clone(), count: of_host.len() });
            }
        }
        Ok(credential)
    }

    fn helper(&self, host: &RegistryHost) -> Option<String> {
        let helpers = self.cred_helpers.iter().flatten();
        let of_host = helpers.filter(|(key, _)| key.parse::<RegistryHost>().as_ref() == Ok(host));
        of_host.map(|(_, helper)| helper.clone()).next().or_else(|| self.creds_store.clone())
    }

    /// What to show when a host is missing: normal names, for a key that is a URL may carry a password.
    fn present(&self) -> Vec<String> {
        let keys = self.auths.iter().flat_map(|entries| &entries.0).map(|(key, _)| key);
        let mut present: Vec<String> = keys
            .map(|key| match key.parse::<RegistryHost>() {
                Ok(host) => host.to_string(),
                Err(HostError::Path) => format!("{key} (a path: not usable)"),
                Err(_) => "an entry that is no host".to_owned(),
            })
            .collect();
        present.sort();
        present.dedup();
        present
    }
}

impl Entry {
    fn credential(&self, host: &RegistryHost) -> Result<Credential, CredentialError> {
        let of = |field: &Option<String>| field.clone().unwrap_or_default();
        let (username, password, auth) = (of(&self.username), of(&self.password), of(&self.auth));
        let host = || host.clone();
        let unusable = |cause| CredentialError::Unusable { host: host(), cause };

        // Docker itself lets the identity token win; `auth` then only repeats the user.
        if let Some(token) = self.identitytoken.as_ref().filter(|token| !token.is_empty()) {
            return Ok(Credential::token(token.clone()));
        }
        let from_auth =
            if auth.is_empty() { None } else { Some(Credential::effective("", "", &auth, "").map_err(unusable)?) };
        let from_fields = if username.is_empty() && password.is_empty() {
            None
        } else {
            Some(Credential::effective(&username, &password, "", "").map_err(unusable)?)
        };
        let credential = match (from_auth, from_fields) {
            (Some(auth), Some(fields)) if !auth.same_as(&fields) => {
                return Err(CredentialError::Disagrees { host: host() });
            }
            (Some(credential), _) | (None, Some(credential)) => credential,
            (None, None) if self.registrytoken.as_ref().is_some_and(|token| !token.is_empty()) => {
                return Err(CredentialError::RegistryToken { host: host() });
            }
            (None, None) => return Err(CredentialError::Empty { host: host() }),
        };
        match &credential {
            Credential::Basic { username, .. } if username.is_empty() => {
                Err(CredentialError::NoUsername { host: host() })
            }
            Credential::Basic { password, .. } if password.expose_secret().is_empty() => {
                Err(CredentialError::NoPassword { host: host() })
            }
            _ => Ok(credential),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    fn host(text: &str) -> RegistryHost {
        text.parse().unwrap()
    }

    fn one(json: &str) -> Result<Credential, CredentialError> {
        let ghcr = host("ghcr.io");
        read(json.as_bytes(), std::slice::from_ref(&ghcr)).map(|mut all| all.remove(&ghcr).unwrap())
    }

    fn auth(text: &str) -> String {
        STANDARD.encode(text)
    }

    #[test]
    fn k01_auth_only_fields_only_and_both_equal_give_the_same() {
        let auth = auth("puller:s3cret");
        for json in [
            format!(r#"{{"auths":{{"ghcr.io":{{"auth":"{auth}"}}}}}}"#),
            r#"{"auths":{"https://ghcr.io":{"username":"puller","password":"s3cret"}}}"#.to_owned(),
            format!(
                r#"{{"auths":{{"ghcr.io/v2/":{{"username":"puller","password":"s3cret","auth":"{auth}","email":"a"}}}}}}"#
            ),
            format!(r#"{{"auths":{{"ghcr.io":{{"auth":"{auth}"}},"https://ghcr.io":{{"auth":"{auth}"}}}}}}"#),
            format!("\u{feff}{{\"auths\":{{\"ghcr.io\":{{\"auth\":\"{auth}\"}}}},\"credsStore\":\"desktop\"}}"),
        ] {
            assert!(one(&json).unwrap().same_as(&Credential::basic("puller", "s3cret")), "{json}");
        }
    }

    #[test]
    fn k01_both_different_is_refused() {
        let json = format!(
            r#"{{"auths":{{"ghcr.io":{{"username":"puller","password":"canary","auth":"{}"}}}}}}"#,
            auth("puller:canary2")
        );
        assert_eq!(one(&json).err(), Some(CredentialError::Disagrees { host: host("ghcr.io") }));
        let json = r#"{"auths":{"ghcr.io":{"username":"u","password":"a"},"ghcr.io":{"username":"u","password":"b"}}}"#;
        assert_eq!(one(json).err(), Some(CredentialError::Ambiguous { host: host("ghcr.io"), count: 2 }));
    }

    #[test]
    fn k01_several_hosts_are_read_and_others_left_alone() {
        let json = r#"{"auths":{
            "https://index.docker.io/v1/":{"username":"d","password":"1"},
            "127.0.0.1:5000":{"username":"l","password":"2"},
            "broken.example.com":{"auth":"%%%"},
            "ghcr.io":{"identitytoken":"t","auth":"MDA6"}}}"#;
        let wanted = [host("docker.io"), host("127.0.0.1:5000"), host("ghcr.io")];
        let all = read(json.as_bytes(), &wanted).unwrap();
        assert_eq!(
            all.keys().map(RegistryHost::as_str).collect::<Vec<_>>(),
            ["127.0.0.1:5000", "ghcr.io", "registry-1.docker.io"]
        );
        assert!(all[&host("docker.io")].same_as(&Credential::basic("d", "1")));
        assert!(all[&host("ghcr.io")].same_as(&Credential::token("t")));
    }

    #[test]
    fn k01_a_missing_host_is_named_with_the_hosts_that_are_there() {
        let json = r#"{"auths":{"quay.io":{"auth":"YTpi"},"https://u:canary@x":{},"ghcr.io/owner":{"auth":"YTpi"}}}"#;
        let error = one(json).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the docker config has no entry for ghcr.io; it has an entry that is no host, \
             ghcr.io/owner (a path: not usable), quay.io"
        );
        assert!(one("{}").unwrap_err().to_string().ends_with("it has none at all"));
    }

    #[test]
    fn k01_a_credential_in_a_helper_is_named_with_what_to_do() {
        for (json, helper) in [
            (r#"{"auths":{"ghcr.io":{}},"credsStore":"desktop"}"#, "desktop"),
            (r#"{"credHelpers":{"ghcr.io":"gh"},"credsStore":"desktop"}"#, "gh"),
        ] {
            let error = one(json).unwrap_err();
            assert_eq!(error, CredentialError::InHelper { host: host("ghcr.io"), helper: helper.to_owned() });
            assert!(error.to_string().contains(&format!("echo ghcr.io | docker-credential-{helper} get")), "{error}");
        }
    }

    #[test]
    fn k01_unusable_entries_are_told_apart_and_no_error_repeats_a_value() {
        let ghcr = || host("ghcr.io");
        let unusable = |cause| CredentialError::Unusable { host: ghcr(), cause };
        for (entry, expected) in [
            (r#"{"auth":"canary!"}"#.to_owned(), unusable(Unusable::AuthNotBase64)),
            (format!(r#"{{"auth":"{}"}}"#, auth("canary")), unusable(Unusable::AuthWithoutColon)),
            (r#"{"password":"canary"}"#.to_owned(), unusable(Unusable::PasswordWithoutUsername)),
            (format!(r#"{{"auth":"{}"}}"#, auth("canary:")), CredentialError::NoPassword { host: ghcr() }),
            (format!(r#"{{"auth":"{}"}}"#, auth(":canary")), CredentialError::NoUsername { host: ghcr() }),
            (r#"{"username":"canary"}"#.to_owned(), CredentialError::NoPassword { host: ghcr() }),
            (r#"{"registrytoken":"canary"}"#.to_owned(), CredentialError::RegistryToken { host: ghcr() }),
            (r#"{"email":"canary"}"#.to_owned(), CredentialError::Empty { host: ghcr() }),
            (r#"{"auth":["canary"]}"#.to_owned(), CredentialError::Json { line: 1, column: 30 }),
            (r#""canary""#.to_owned(), CredentialError::Json { line: 1, column: 30 }),
        ] {
            let error = one(&format!(r#"{{"auths":{{"ghcr.io":{entry}}}}}"#)).unwrap_err();
            match (&error, &expected) {
                (CredentialError::Json { line: 1, .. }, CredentialError::Json { .. }) => {}
                _ => assert_eq!(error, expected, "{entry}"),
            }
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }
}
