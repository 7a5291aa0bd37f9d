//! Reading a docker config (`~/.docker/config.json`).

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::error::{CredentialError, EntryFault, Format};
use super::{Credential, HostError, RegistryHost, complete};

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
        let of_host: Vec<_> = entries.filter(|(key, _)| key.parse::<RegistryHost>().as_ref() == Ok(host)).collect();
        let Some((first, others)) = of_host.split_first() else {
            return Err(match self.helper(host) {
                Some(helper) => CredentialError::InHelper { host: host.clone(), helper },
                None => {
                    let present = self.present();
                    CredentialError::Missing { format: Format::DockerConfig, host: host.clone(), present }
                }
            });
        };
        let of = |(key, entry): &(String, Entry)| {
            entry.credential().map_err(|fault| CredentialError::Entry {
                format: Format::DockerConfig,
                path: format!("auths[\"{}\"]", shown(key, host)),
                host: host.clone(),
                fault,
            })
        };
        let credential = match of(first) {
            Err(CredentialError::Entry { fault: EntryFault::Empty, .. })
                if others.is_empty() && self.helper(host).is_some() =>
            {
                let helper = self.helper(host).unwrap_or_default();
                return Err(CredentialError::InHelper { host: host.clone(), helper });
            }
            other => other?,
        };
        for other in others {
            if !of(other)?.same_as(&credential) {
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

/// The key as it stands in the file; what stands before `://` is free text and is not repeated unless it is a scheme.
fn shown<'a>(key: &'a str, host: &'a RegistryHost) -> &'a str {
    match key.split_once("://") {
        None | Some(("http" | "https", _)) => key,
        Some(_) => host.as_str(),
    }
}

impl Entry {
    fn credential(&self) -> Result<Credential, EntryFault> {
        let of = |field: &Option<String>| Zeroizing::new(field.clone().unwrap_or_default());
        let (username, password, auth) = (of(&self.username), of(&self.password), of(&self.auth));

        // Docker itself lets the identity token win; `auth` then only repeats the user.
        if let Some(token) = self.identitytoken.as_ref().filter(|token| !token.is_empty()) {
            return complete(Credential::token(token.clone()));
        }
        if auth.starts_with("ENC[") {
            return Err(EntryFault::Encrypted);
        }
        let from_auth = if auth.is_empty() { None } else { Some(Credential::effective("", "", &auth, "")?) };
        let from_fields = if username.is_empty() && password.is_empty() {
            None
        } else {
            Some(Credential::effective(&username, &password, "", "")?)
        };
        match (from_auth, from_fields) {
            (Some(auth), Some(fields)) if !auth.same_as(&fields) => Err(EntryFault::Disagrees),
            (Some(credential), _) | (None, Some(credential)) => complete(credential),
            (None, None) if self.registrytoken.as_ref().is_some_and(|token| !token.is_empty()) => {
                Err(EntryFault::RegistryToken)
            }
            (None, None) => Err(EntryFault::Empty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{auth, host, one};
    use super::super::{Desired, Unusable};
    use super::*;

    fn entry(path: &str, fault: EntryFault) -> CredentialError {
        let (format, path) = (Format::DockerConfig, path.to_owned());
        CredentialError::Entry { format, path, host: host("ghcr.io"), fault }
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
        assert_eq!(one(&json).err(), Some(entry(r#"auths["ghcr.io"]"#, EntryFault::Disagrees)));
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
        let all = Desired::read(json.as_bytes(), &wanted).unwrap();
        assert_eq!(
            all.hosts().map(RegistryHost::as_str).collect::<Vec<_>>(),
            ["127.0.0.1:5000", "ghcr.io", "registry-1.docker.io"]
        );
        assert!(all.get(&host("docker.io")).unwrap().same_as(&Credential::basic("d", "1")));
        assert!(all.get(&host("ghcr.io")).unwrap().same_as(&Credential::token("t")));
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
        let fault = |fault| entry(r#"auths["ghcr.io"]"#, fault);
        let unusable = |cause| fault(EntryFault::Unusable(cause));
        for (entry, expected) in [
            (r#"{"auth":"canary!"}"#.to_owned(), unusable(Unusable::AuthNotBase64)),
            (format!(r#"{{"auth":"{}"}}"#, auth("canary")), unusable(Unusable::AuthWithoutColon)),
            (r#"{"password":"canary"}"#.to_owned(), unusable(Unusable::PasswordWithoutUsername)),
            (format!(r#"{{"auth":"{}"}}"#, auth("canary:")), fault(EntryFault::NoPassword)),
            (format!(r#"{{"auth":"{}"}}"#, auth(":canary")), fault(EntryFault::NoUsername)),
            (r#"{"username":"canary"}"#.to_owned(), fault(EntryFault::NoPassword)),
            (r#"{"registrytoken":"canary"}"#.to_owned(), fault(EntryFault::RegistryToken)),
            (r#"{"email":"canary"}"#.to_owned(), fault(EntryFault::Empty)),
            (r#"{"auth":"ENC[AES256_GCM,data:canary]"}"#.to_owned(), fault(EntryFault::Encrypted)),
            (r#"{"identitytoken":"ENC[AES256_GCM,data:canary]"}"#.to_owned(), fault(EntryFault::Encrypted)),
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

    #[test]
    fn k01_a_fault_has_its_key_as_it_is_written() {
        let error = one(r#"{"auths":{"https://ghcr.io/v2/":{"username":"canary"}}}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"the docker config: auths["https://ghcr.io/v2/"] (for ghcr.io): an empty password"#
        );
        let error = one(r#"{"auths":{"canary://ghcr.io":{}}}"#).unwrap_err();
        assert_eq!(error, entry(r#"auths["ghcr.io"]"#, EntryFault::Empty));
    }
}
