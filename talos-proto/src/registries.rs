//! The effective registry configuration, whose layout moved between Talos versions.

use std::collections::BTreeMap;

use prost::Message as _;
use zeroize::Zeroizing;

use crate::proto::talos::resource::definitions::cri;
use crate::version::TalosVersion;

/// `RegistryConfigs` as it came over the wire: which message its bytes are depends on the version of the node.
#[derive(Clone)]
pub struct RawRegistries(Zeroizing<Vec<u8>>);

impl std::fmt::Debug for RawRegistries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawRegistries").finish_non_exhaustive()
    }
}

/// What a registry configuration says, as far as credentials go.
#[derive(Clone, Debug, Default)]
pub struct Registries {
    /// The four fields of each host's credential, any of them empty.
    pub auths: BTreeMap<String, cri::RegistryAuthConfig>,
    /// Hosts with a mirror, `*` for all.
    pub mirrored: Vec<String>,
}

impl RawRegistries {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Decodes by the version of the node: the layout of 1.12 puts the credentials where 1.11 had another message, and
    /// either decodes as the other without an error.
    ///
    /// # Errors
    /// That it does not decode; no part of it.
    pub fn decode(&self, version: &TalosVersion) -> Result<Registries, String> {
        let wrong = |_| "the registry configuration does not decode".to_owned();
        if version.at_least(1, 12) {
            let spec = cri::RegistriesConfigSpec::decode(self.0.as_slice()).map_err(wrong)?;
            return Ok(Registries {
                auths: spec.registry_auths.into_iter().collect(),
                mirrored: spec.registry_mirrors.into_keys().collect(),
            });
        }
        let spec = cri::v1_11::RegistriesConfigSpec::decode(self.0.as_slice()).map_err(wrong)?;
        let auths = spec.registry_config.into_iter().filter_map(|(host, config)| Some((host, config.registry_auth?)));
        Ok(Registries { auths: auths.collect(), mirrored: spec.registry_mirrors.into_keys().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth() -> cri::RegistryAuthConfig {
        cri::RegistryAuthConfig {
            registry_username: "u".into(),
            registry_password: "secret".into(),
            ..Default::default()
        }
    }

    fn read(bytes: Vec<u8>, version: &str) -> Option<String> {
        let registries = RawRegistries::new(bytes).decode(&version.parse().unwrap()).ok()?;
        registries.auths.get("ghcr.io").map(|auth| auth.registry_password.clone())
    }

    #[test]
    fn w01_each_layout_is_read_by_the_version_that_has_it() {
        let newer =
            cri::RegistriesConfigSpec { registry_auths: [("ghcr.io".to_owned(), auth())].into(), ..Default::default() };
        let older = cri::v1_11::RegistriesConfigSpec {
            registry_config: [("ghcr.io".to_owned(), cri::v1_11::RegistryConfig { registry_auth: Some(auth()) })]
                .into(),
            ..Default::default()
        };
        for version in ["v1.9.6", "v1.10.9", "v1.11.6"] {
            assert_eq!(read(older.encode_to_vec(), version).as_deref(), Some("secret"), "{version}");
        }
        for version in ["v1.12.0", "v1.13.9", "v1.14.0-rc.1"] {
            assert_eq!(read(newer.encode_to_vec(), version).as_deref(), Some("secret"), "{version}");
        }
        // The trap that this is for: no error, and a password that holds the real one.
        let garbage = read(older.encode_to_vec(), "v1.13.9").unwrap();
        assert!(garbage != "secret" && garbage.contains("secret"));
    }

    #[test]
    fn mirrors_of_1_9_are_strings_and_only_their_hosts_count() {
        // field 1: map entry { key "ghcr.io", value { field 1: "http://m" } }, as v1.9 writes it.
        let value = [&[0x0a, 8][..], b"http://m"].concat();
        let entry = [&[0x0a, 7][..], b"ghcr.io", &[0x12, u8::try_from(value.len()).unwrap()], &value].concat();
        let bytes = [&[0x0a, u8::try_from(entry.len()).unwrap()][..], &entry].concat();
        let registries = RawRegistries::new(bytes).decode(&"v1.9.6".parse().unwrap()).unwrap();
        assert_eq!(registries.mirrored, ["ghcr.io"]);
    }
}
