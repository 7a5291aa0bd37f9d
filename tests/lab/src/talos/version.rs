//! Talos versions, as far as the API differs between them.

use std::fmt;
use std::str::FromStr;

/// A Talos version such as `1.13.9` or `v1.14.0-rc.1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    major: u16,
    minor: u16,
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
        Ok(Self { major, minor, text: plain.to_owned() })
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

    /// There are ServicePIDs and the ImageService.
    #[must_use]
    pub fn has_service_pids(&self) -> bool {
        self.at_least(13)
    }

    /// The document RegistryAuthConfig is known.
    #[must_use]
    pub fn has_registry_documents(&self) -> bool {
        self.at_least(12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_differ_by_their_minor() {
        let parse = |text: &str| text.parse::<Version>().unwrap();
        assert!(!parse("1.13.9").adopts_live());
        assert!(parse("v1.14.0-rc.1").adopts_live());
        assert!(!parse("1.12.11").has_service_pids());
        assert_eq!(parse("v1.14.0-rc.1").to_string(), "1.14.0-rc.1");
        assert!("1".parse::<Version>().is_err());
    }
}
