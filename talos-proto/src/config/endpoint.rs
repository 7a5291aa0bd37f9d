//! One endpoint of a talosconfig, as people write it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use rustls_pki_types::ServerName;

/// apid's port (Talos `pkg/machinery/constants`, `ApidPort`).
pub const APID_PORT: u16 = 50000;

/// One endpoint: where apid listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Host name or address, IPv6 without brackets.
    pub host: String,
    /// Port, 50000 unless the endpoint names another.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// `host`, `host:port`, `10.0.0.2`, `fd00::2`, `[fd00::2]`, `[fd00::2]:port`; the error is what follows the name of
    /// the place, with what to write in its stead.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("is empty: name a control plane's address or remove the entry".into());
        }
        if let Some((_, rest)) = text.split_once("://") {
            // talosctl takes a URL, but then dials 443: more often than not that was not meant.
            let host = rest.split('/').next().unwrap_or_default();
            return Err(format!("{text:?} is a URL: write the host alone, {host:?} (the port is 50000 by default)"));
        }
        if text.contains(',') {
            return Err(format!("{text:?} holds a comma: give each endpoint its own list entry"));
        }
        if text.contains('%') {
            return Err(format!("{text:?} has a zone, which no certificate can hold: use an address without one"));
        }
        let port = |given: &str| match given.parse::<u16>() {
            Ok(0) | Err(_) => Err(format!("{text:?}: {given:?} is not a port (1 to 65535)")),
            Ok(port) => Ok(port),
        };
        if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(|| format!("{text:?} has no closing bracket"))?;
            if host.parse::<Ipv6Addr>().is_err() {
                return Err(format!("{text:?}: {host:?} is not an IPv6 address, and only those stand in brackets"));
            }
            let port = match rest.strip_prefix(':') {
                Some(given) => port(given)?,
                None if rest.is_empty() => APID_PORT,
                None => return Err(format!("{text:?}: only `:port` may follow the bracket")),
            };
            return Ok(Self { host: host.to_owned(), port });
        }
        if text.parse::<IpAddr>().is_ok() {
            return Ok(Self { host: text.to_owned(), port: APID_PORT });
        }
        let (host, port) = match text.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                return Err(format!(
                    "{text:?} has too many colons: write host:port, and an IPv6 address with a port as [fd00::2]:50000"
                ));
            }
            Some((host, given)) => (host, port(given)?),
            None => (text, APID_PORT),
        };
        // The name that TLS checks the certificate against: what is none cannot work.
        ServerName::try_from(host).map_err(|_| format!("{text:?}: {host:?} is neither an address nor a host name"))?;
        Ok(Self { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w02_every_way_to_write_an_endpoint() {
        for (text, expected) in [
            ("10.0.0.2", "10.0.0.2:50000"),
            ("  10.0.0.2 \t", "10.0.0.2:50000"),
            ("10.0.0.2:50001", "10.0.0.2:50001"),
            ("fd00::2", "[fd00::2]:50000"),
            ("[fd00::2]", "[fd00::2]:50000"),
            ("[fd00::3]:50001", "[fd00::3]:50001"),
            ("::ffff:10.0.0.2", "[::ffff:10.0.0.2]:50000"),
            ("talos.example.com", "talos.example.com:50000"),
            ("talos.example.com.", "talos.example.com.:50000"),
            ("cp_1", "cp_1:50000"),
            ("localhost:50000", "localhost:50000"),
        ] {
            assert_eq!(text.parse::<Endpoint>().map(|it| it.to_string()).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn w02_each_endpoint_that_cannot_be_is_named() {
        for (text, expected) in [
            (" ", "is empty"),
            ("https://10.0.0.2:50000", "is a URL: write the host alone, \"10.0.0.2:50000\""),
            ("https://talos.example.com/", "write the host alone, \"talos.example.com\""),
            ("10.0.0.2,10.0.0.3", "holds a comma"),
            ("10.0.0.2:", "\"\" is not a port"),
            ("10.0.0.2:0", "\"0\" is not a port"),
            ("10.0.0.2:65536", "\"65536\" is not a port"),
            ("10.0.0.2:50000:50000", "too many colons"),
            ("fd00::2:50000", "too many colons"),
            ("[fd00::2", "no closing bracket"),
            ("[fd00::2]50000", "only `:port` may follow"),
            ("[10.0.0.2]:50000", "is not an IPv6 address"),
            ("fe80::1%eth0", "has a zone"),
            ("10.0.0.256", "neither an address nor a host name"),
            ("10.0.0.2/24", "neither an address nor a host name"),
            ("10.0.0.2 10.0.0.3", "neither an address nor a host name"),
            ("user@10.0.0.2", "neither an address nor a host name"),
        ] {
            let problem = text.parse::<Endpoint>().unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
