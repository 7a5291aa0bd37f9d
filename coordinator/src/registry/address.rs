//! Why a registry cannot be reached although its name resolves: ghcr.io has no AAAA record, so that a machine with IPv6
//! alone never reaches it (siderolabs/talos#9372); or its certificate is of an authority of its own, which rustls calls
//! `UnknownIssuer`. That is no bad credential and no outage.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use agent::credential::RegistryHost;
use rustls::CertificateError;
use talos_proto::chain;

use super::PreflightError;

/// The error with its causes, and with what this machine's addresses and trusted certificates say about them.
pub async fn explain(error: &PreflightError) -> String {
    let text = chain(error);
    let (PreflightError::Unreachable { host, .. } | PreflightError::TimedOut { host, .. }) = error else { return text };
    if distrusts(error) {
        return format!("{text}; {UNTRUSTED}");
    }
    match hint(host, &resolve(host).await, has_route_for_ipv4) {
        Some(hint) => format!("{text}; {hint}"),
        None => text,
    }
}

/// What `UnknownIssuer` means, and what helps.
const UNTRUSTED: &str = "its certificate is of an authority that this machine does not trust: SSL_CERT_FILE names a \
     file of all authorities to trust";

/// Whether the cause of an error is a certificate of an unknown authority.
fn distrusts(error: &(dyn Error + 'static)) -> bool {
    let unknown = |error: &(dyn Error + 'static)| {
        let tls = error.downcast_ref::<rustls::Error>();
        matches!(tls, Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)))
    };
    // What an io::Error holds is not among its sources.
    let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    unknown(error) || held.is_some_and(|held| distrusts(held)) || error.source().is_some_and(distrusts)
}

async fn resolve(host: &RegistryHost) -> Vec<IpAddr> {
    let name = host.as_str();
    let with_port = if name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        name.to_owned()
    } else {
        format!("{name}:443")
    };
    match tokio::net::lookup_host(with_port).await {
        Ok(found) => found.map(|socket| socket.ip()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Pure but for the question whether this machine has a route, which is asked only where it matters.
fn hint(host: &RegistryHost, addresses: &[IpAddr], routed: impl Fn(IpAddr) -> bool) -> Option<String> {
    let first = *addresses.first()?;
    let only_ipv4 = addresses.iter().all(IpAddr::is_ipv4);
    (only_ipv4 && !routed(first)).then(|| {
        format!("{host} has only IPv4 addresses (no AAAA record), and this machine has no route for IPv4: use a mirror or NAT64")
    })
}

/// Connecting a datagram socket sends nothing; it only asks for a route.
fn has_route_for_ipv4(address: IpAddr) -> bool {
    let socket = UdpSocket::bind(("0.0.0.0", 0));
    socket.is_ok_and(|socket| socket.connect(SocketAddr::new(address, 443)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(addresses: &[&str], routed: bool) -> Option<String> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        hint(&"ghcr.io".parse().unwrap(), &addresses, |_| routed)
    }

    #[test]
    fn k06_a_machine_with_ipv6_alone_is_told_that_the_registry_has_no_aaaa_record() {
        assert!(said(&["140.82.121.33"], false).is_some_and(|hint| hint.contains("no AAAA record")));
    }

    #[test]
    fn k06_a_certificate_of_an_unknown_authority_is_found_among_the_causes() {
        let refused = |fault: CertificateError| {
            let source = io::Error::other(rustls::Error::InvalidCertificate(fault));
            let (host, request) = ("ghcr.io".parse().unwrap(), crate::registry::Request::Challenge);
            PreflightError::Unreachable { host, request, source: io::Error::other(source).into() }
        };
        assert!(distrusts(&refused(CertificateError::UnknownIssuer)));
        assert!(!distrusts(&refused(CertificateError::Expired)));
    }

    #[test]
    fn k06_nothing_is_said_where_another_cause_is_likelier() {
        assert_eq!(said(&["140.82.121.33"], true), None);
        assert_eq!(said(&["140.82.121.33", "2001:db8::1"], false), None);
        assert_eq!(said(&[], false), None);
    }
}
