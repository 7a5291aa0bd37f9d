//! Talos versions, as far as the API differs between them.

use std::fmt;
use std::str::FromStr;

/// A Talos version such as `1.13.9` or `v1.14.0-rc.1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    major: u16,
    minor: u16,
    patch: u16,
    text: String,
}

/// The text is no Talos version.
#[derive(Debug, thiserror::Error)]
#[error("not a Talos version: {0:?}")]
pub struct BadVersion(String);

impl FromStr for Version {
    type Err = BadVersion;

    fn from_str(text: &str) -> Result<Self, BadVersion> {
        let bad = || BadVersion(text.to_owned());
        let plain = text.strip_prefix('v').unwrap_or(text);
        let mut parts = plain.splitn(3, '.');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).ok_or_else(bad);
        let (major, minor) = (number()?, number()?);
        // A patch of `0-rc.1` is newer than every alpha, which is all that is asked of it.
        let patch = parts.next().map_or(Some(0), |patch| patch.split(['-', '+']).next()?.parse().ok());
        Ok(Self { major, minor, patch: patch.ok_or_else(bad)?, text: plain.to_owned() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Version {
    pub(crate) fn at_least(&self, minor: u16) -> bool {
        (self.major, self.minor) >= (1, minor)
    }

    /// CRI is restarted by Talos itself when its configuration changed, `REBOOT` is no apply mode any more, every
    /// change is accepted without a reboot, there are BootIDs and the document KubeNodeConfig, and the part files of
    /// the CRI configuration are gone (talos-captures points 28, 29, 32, 33).
    #[must_use]
    pub fn adopts_live(&self) -> bool {
        self.at_least(14)
    }

    /// There is the ImageService (talos.md 1.1).
    #[must_use]
    pub fn has_image_service(&self) -> bool {
        self.at_least(13)
    }

    /// The documents RegistryAuthConfig, RegistryMirrorConfig and RegistryTLSConfig are known (talos.md 3.1), and
    /// RegistryConfigs has its later layout (3.2).
    #[must_use]
    pub fn has_registry_documents(&self) -> bool {
        self.at_least(12)
    }

    /// The endpoints of mirrors are messages and no strings (talos.md 3.2).
    pub(crate) fn has_mirror_endpoints(&self) -> bool {
        self.at_least(10)
    }

    /// MachineConfigs has the id `persistent` (talos.md 4.1).
    #[must_use]
    pub fn shows_persistent(&self) -> bool {
        self.at_least(10)
    }

    /// Reboot knows FORCE (talos.md 1.3).
    #[must_use]
    pub fn has_forced_reboot(&self) -> bool {
        self.at_least(12)
    }

    /// Only os:admin reads RegistryConfigs (talos.md 2.5).
    pub(crate) fn hides_registries(&self) -> bool {
        match (self.major, self.minor) {
            (1, 12) => self.patch >= 9,
            (1, 13) => self.patch >= 4,
            _ => self.at_least(14),
        }
    }

    /// A RegistryTLSConfig without a clientIdentity stops the rendering of RegistryConfigs (its controller fails each
    /// time), in the first two releases that know the document.
    pub(crate) fn fails_on_tls_without_identity(&self) -> bool {
        (self.major, self.minor) == (1, 12) && self.patch <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_differ_by_their_minor_and_some_by_their_patch() {
        let parse = |text: &str| text.parse::<Version>().unwrap();
        assert!(!parse("1.13.9").adopts_live());
        assert!(parse("v1.14.0-rc.1").adopts_live());
        assert!(!parse("1.12.11").has_image_service());
        assert!(parse("1.12.0").has_registry_documents() && !parse("1.11.6").has_registry_documents());
        assert!(parse("1.10.9").shows_persistent() && !parse("1.9.6").shows_persistent());
        for (version, hides) in [
            ("1.9.6", false),
            ("1.12.8", false),
            ("1.12.9", true),
            ("1.13.3", false),
            ("1.13.4", true),
            ("1.14.0", true),
        ] {
            assert_eq!(parse(version).hides_registries(), hides, "{version}");
        }
        assert!(parse("1.12.1").fails_on_tls_without_identity() && !parse("1.12.2").fails_on_tls_without_identity());
        assert_eq!(parse("v1.14.0-rc.1").to_string(), "1.14.0-rc.1");
        for bad in ["1", "1.9.x", "one.two"] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
    }
}
