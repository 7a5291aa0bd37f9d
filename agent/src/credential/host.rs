//! The name of a registry, spelled as Talos's machine config spells it.

use std::fmt;
use std::str::FromStr;

/// The host that serves Docker Hub's API. Talos's image pull looks its credential up under this name, not under
/// `docker.io` (siderolabs/talos#10617).
const DOCKER_HUB: &str = "registry-1.docker.io";

/// A registry host with an optional port: `ghcr.io`, `127.0.0.1:5000`, `[fd00::1]:5000`.
///
/// Every spelling that a docker config uses is read (`https://ghcr.io`, `ghcr.io/v2/`,
/// `https://index.docker.io/v1/`); what is kept is lower case, without scheme and path, and Docker Hub's names all
/// become `registry-1.docker.io`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegistryHost(String);

/// A text that names no registry. The text itself is not repeated: a URL may carry a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing is left when scheme and path are taken away.
    #[error("a registry host is empty; write it like ghcr.io or registry.example.com:5000")]
    Empty,
    /// `user:password@host`.
    #[error("a registry host must not carry a user or password; write it like ghcr.io")]
    UserInfo,
    /// A path that is more than the API's own `/v1/` or `/v2/`.
    #[error("a registry host has no path; credentials of a single repository path cannot be given to Talos")]
    Path,
    /// A character that no host has.
    #[error(
        "a registry host has only letters, digits, dots, dashes and a port; write it like registry.example.com:5000"
    )]
    Character,
    /// The port is no number from 1 to 65535.
    #[error("the port of a registry host must be a number from 1 to 65535")]
    Port,
}

impl RegistryHost {
    /// The host as it is written in the machine config.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RegistryHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RegistryHost {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let text = text.trim();
        let text = text.split_once("://").map_or(text, |(_, rest)| rest);
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        if host.contains('@') {
            return Err(HostError::UserInfo);
        }
        if host.is_empty() {
            return Err(HostError::Empty);
        }
        if !matches!(path.trim_end_matches('/'), "" | "v1" | "v2") {
            return Err(HostError::Path);
        }
        let host = host.to_ascii_lowercase();
        check(&host)?;
        Ok(Self(match host.as_str() {
            "docker.io" | "index.docker.io" | DOCKER_HUB => DOCKER_HUB.to_owned(),
            _ => host,
        }))
    }
}

fn check(host: &str) -> Result<(), HostError> {
    let (name, port) = if let Some(v6) = host.strip_prefix('[') {
        let (address, rest) = v6.split_once(']').ok_or(HostError::Character)?;
        address.parse::<std::net::Ipv6Addr>().map_err(|_| HostError::Character)?;
        (None, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or(HostError::Character)?) })
    } else {
        match host.split_once(':') {
            Some((name, port)) => (Some(name), Some(port)),
            None => (Some(host), None),
        }
    };
    if let Some(name) = name {
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !name.chars().all(plain) || name.starts_with(['.', '-']) {
            return Err(HostError::Character);
        }
    }
    match port {
        None => Ok(()),
        Some(port) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            port.parse::<u16>().ok().filter(|port| *port != 0).map(|_| ()).ok_or(HostError::Port)
        }
        Some(_) => Err(HostError::Port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_docker_config_becomes_the_one_of_talos() {
        for (text, host) in [
            ("ghcr.io", "ghcr.io"),
            ("https://ghcr.io", "ghcr.io"),
            ("https://GHCR.io/", "ghcr.io"),
            ("ghcr.io/v2/", "ghcr.io"),
            ("https://index.docker.io/v1/", "registry-1.docker.io"),
            ("docker.io", "registry-1.docker.io"),
            ("127.0.0.1:5000", "127.0.0.1:5000"),
            ("http://registry.example.com:5443/v2", "registry.example.com:5443"),
            ("[fd00::1]:5000", "[fd00::1]:5000"),
            ("[fd00::1]", "[fd00::1]"),
        ] {
            assert_eq!(text.parse::<RegistryHost>().map(|h| h.to_string()), Ok(host.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused_by_kind() {
        for (text, error) in [
            ("", HostError::Empty),
            ("https://", HostError::Empty),
            (":5000", HostError::Empty),
            ("https://me:pw@ghcr.io", HostError::UserInfo),
            ("ghcr.io/owner/app", HostError::Path),
            ("*", HostError::Character),
            ("gh cr.io", HostError::Character),
            ("[fd00", HostError::Character),
            ("ghcr.io:0", HostError::Port),
            ("ghcr.io:70000", HostError::Port),
            ("ghcr.io:", HostError::Port),
        ] {
            assert_eq!(text.parse::<RegistryHost>(), Err(error), "{text}");
        }
    }
}
