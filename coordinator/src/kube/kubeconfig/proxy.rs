//! Proxies: the kubeconfig's, else the environment's, read as Go's `net/http` reads them and so kubectl
//! (`golang.org/x/net/http/httpproxy`).

use std::net::IpAddr;

use http::Uri;

use super::{KubeconfigError, Sources};

/// A proxy's address; its text may hold a password and is not repeated.
pub(super) fn parse(text: &str) -> Result<Uri, String> {
    const RIGHT: &str = "write http://HOST:PORT or socks5://HOST:PORT";
    let uri: Uri = text.parse().map_err(|_| format!("is not a URL; {RIGHT}"))?;
    let user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    match uri.scheme_str() {
        Some("socks5") if user => return Err("has a user, which is not supported for socks5".to_owned()),
        Some("http" | "socks5") => {}
        Some("https") => return Err(format!("is https, which is not supported for a proxy; {RIGHT}")),
        Some("socks5h") => return Err("is socks5h; write socks5://, where the proxy resolves names as well".to_owned()),
        Some(_) => return Err(format!("has a scheme that is not supported; {RIGHT}")),
        None => return Err(format!("has no scheme; {RIGHT}")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(format!("has no host; {RIGHT}"));
    }
    Ok(uri)
}

/// The proxy of the environment, unless it says that this server is reached without.
pub(super) fn of_environment(server: &Uri, sources: &Sources) -> Result<Option<Uri>, KubeconfigError> {
    let names =
        if server.scheme_str() == Some("http") { ["HTTP_PROXY", "http_proxy"] } else { ["HTTPS_PROXY", "https_proxy"] };
    let found = names.into_iter().find_map(|name| Some((name, sources.variable(name)?.trim())));
    let Some((variable, text)) = found.filter(|(_, text)| !text.is_empty()) else { return Ok(None) };
    let except = sources.variable("NO_PROXY").or_else(|| sources.variable("no_proxy")).unwrap_or_default();
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
    if is_loopback(&host) || except.split(',').any(|rule| matches(rule.trim(), &host, port)) {
        return Ok(None);
    }
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    parse(&text).map(Some).map_err(|problem| KubeconfigError::Environment { variable, problem })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// One rule of `NO_PROXY`: `*`, an address, a network, a domain with its subdomains, or with a leading dot these
/// alone; all but networks with an optional port.
fn matches(rule: &str, host: &str, port: u16) -> bool {
    if rule.is_empty() {
        return false;
    }
    if rule == "*" {
        return true;
    }
    let ip = host.parse::<IpAddr>().ok();
    if let Some((network, length)) = rule.split_once('/') {
        let (Ok(network), Ok(length), Some(ip)) = (network.parse(), length.parse(), ip) else { return false };
        return contains(network, length, ip);
    }
    let (rule, only) = match rule.rsplit_once(':') {
        Some((name, digits)) if !name.contains(':') || name.ends_with(']') => (name, digits.parse::<u16>().ok()),
        _ => (rule, None),
    };
    if only.is_some_and(|only| only != port) {
        return false;
    }
    let rule = rule.trim_matches(['[', ']']).to_ascii_lowercase();
    if let Ok(address) = rule.parse::<IpAddr>() {
        return ip == Some(address);
    }
    let domain = rule.strip_prefix('*').unwrap_or(&rule);
    match domain.strip_prefix('.') {
        Some(_) => host.ends_with(domain),
        None => host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
    }
}

fn contains(network: IpAddr, length: u32, ip: IpAddr) -> bool {
    let same = |a: u128, b: u128, bits: u32| length <= bits && (length == 0 || (a ^ b) >> (bits - length) == 0);
    match (network, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_no_proxy_match_as_in_go() {
        for (rule, host, port, expected) in [
            ("*", "example.com", 443, true),
            ("example.com", "example.com", 443, true),
            ("example.com", "api.example.com", 443, true),
            ("example.com", "badexample.com", 443, false),
            (".example.com", "example.com", 443, false),
            (".example.com", "api.example.com", 443, true),
            ("*.example.com", "api.example.com", 443, true),
            ("example.com:6443", "example.com", 6443, true),
            ("example.com:6443", "example.com", 443, false),
            ("10.0.0.1", "10.0.0.1", 6443, true),
            ("10.0.0.1:443", "10.0.0.1", 6443, false),
            ("10.0.0.0/8", "10.200.0.1", 6443, true),
            ("10.0.0.0/8", "11.0.0.1", 6443, false),
            ("0.0.0.0/0", "11.0.0.1", 6443, true),
            ("10.0.0.0/8", "host", 6443, false),
            ("10.0.0.0/99", "10.0.0.1", 6443, false),
            ("fd00::/16", "fd00::1", 6443, true),
            ("fd00::1", "fd00::1", 6443, true),
            ("[fd00::1]:6443", "fd00::1", 6443, true),
            ("", "example.com", 443, false),
        ] {
            assert_eq!(matches(rule, host, port), expected, "{rule} {host}:{port}");
        }
    }
}
