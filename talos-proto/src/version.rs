//! Talos versions, as the `tag` of `MachineService.Version` spells them.

use std::fmt;
use std::str::FromStr;

/// A Talos version such as `v1.13.9` or `v1.14.0-rc.1`; compared by its numbers, a pre-release before its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TalosVersion {
    /// Major, minor and patch.
    pub numbers: (u64, u64, u64),
    /// What follows a `-`, for instance `rc.1`; build metadata after a `+` is dropped.
    pub pre_release: Option<String>,
}

/// A tag that is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a Talos version (expected a tag such as v1.13.9)")]
pub struct NotAVersion(pub String);

impl TalosVersion {
    /// Whether this is at least `major.minor`, pre-releases of it included: a feature of 1.14 is there in 1.14.0-rc.1.
    #[must_use]
    pub fn at_least(&self, major: u64, minor: u64) -> bool {
        (self.numbers.0, self.numbers.1) >= (major, minor)
    }

    /// Talos 1.14 restarts CRI by itself when `cri.toml` changes (`cri.ServiceController`, siderolabs/talos#12725);
    /// before, the running containerd keeps the credential that it started with.
    #[must_use]
    pub fn adopts_live(&self) -> bool {
        self.at_least(1, 14)
    }

    /// Whether os:reader may read the effective registry credentials: Talos guards `RegistryConfigs` since 1.12.9,
    /// 1.13.4 and 1.14.0-alpha.2 (commits 4c288caf2, b8dfda7ee, 166854959), and answers "not authorized" from then on.
    /// The first pre-releases of 1.14 are not told apart.
    #[must_use]
    pub fn readers_see_credentials(&self) -> bool {
        match self.numbers {
            (1, 12, patch) => patch < 9,
            (1, 13, patch) => patch < 4,
            (major, minor, _) => (major, minor) < (1, 12),
        }
    }
}

impl FromStr for TalosVersion {
    type Err = NotAVersion;

    fn from_str(tag: &str) -> Result<Self, NotAVersion> {
        let wrong = || NotAVersion(tag.to_owned());
        let bare = tag.strip_prefix('v').unwrap_or(tag);
        let bare = bare.split_once('+').map_or(bare, |(version, _build)| version);
        let (numbers, pre_release) =
            bare.split_once('-').map_or((bare, None), |(numbers, pre)| (numbers, Some(pre.to_owned())));
        let mut parts = numbers.split('.').map(str::parse::<u64>);
        let mut next = || parts.next().and_then(Result::ok).ok_or_else(wrong);
        let numbers = (next()?, next()?, next()?);
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self { numbers, pre_release }) }
    }
}

impl fmt::Display for TalosVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.numbers;
        write!(f, "v{major}.{minor}.{patch}")?;
        self.pre_release.as_ref().map_or(Ok(()), |pre| write!(f, "-{pre}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_real_releases() {
        for (tag, live) in [("v1.13.9", false), ("v1.14.0-rc.1", true), ("1.14.0", true), ("v2.0.0+build", true)] {
            let version: TalosVersion = tag.parse().unwrap();
            assert_eq!(version.adopts_live(), live, "{tag}");
        }
        assert_eq!("v1.14.0-rc.1".parse::<TalosVersion>().unwrap().to_string(), "v1.14.0-rc.1");
        for broken in ["", "v1.13", "v1.13.x", "v1.2.3.4", "main"] {
            assert!(broken.parse::<TalosVersion>().is_err(), "{broken}");
        }
    }
}
