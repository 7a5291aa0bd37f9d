//! The selected cluster: where its API server is, and how it proves itself.

use http::Uri;
use rustls::pki_types::ServerName;
use serde_json::{Value as Json, json};

use super::fields::At;
use super::{KubeconfigError, Sources, pem, proxy};

/// What a client must know of the server.
pub(super) struct Cluster {
    pub(super) server: Uri,
    /// DER; nothing for the machine's own trust store.
    pub(super) authorities: Option<Vec<Vec<u8>>>,
    pub(super) insecure: bool,
    pub(super) tls_server_name: Option<String>,
    pub(super) proxy: Option<Uri>,
    /// What a plugin with `provideClusterInfo` gets: client-go `pkg/apis/clientauthentication/v1/types.go`, `Cluster`.
    pub(super) info: Json,
}

pub(super) fn read(at: &At<'_>, sources: &Sources, warnings: &mut Vec<String>) -> Result<Cluster, KubeconfigError> {
    let server = server(at)?;
    let insecure = at.flag("insecure-skip-tls-verify")?;
    let bundle = if insecure { None } else { pem::source(at, "certificate-authority", "certificate-authority-data")? };
    if server.scheme_str() == Some("http") {
        warnings.push(at.note("server", "is http: whoever is on the way reads the credentials; use https"));
    } else if insecure {
        warnings.push(at.note(
            "insecure-skip-tls-verify",
            "the API server is not verified: whoever is on the way can pose as it; \
             remove this and give certificate-authority-data",
        ));
    }
    let authorities = match &bundle {
        // Nothing is verified: no need of a trust store, which a small container may not have.
        None if insecure => Some(Vec::new()),
        bundle => bundle.as_ref().map(|bundle| bundle.certificates(at)).transpose()?,
    };
    let tls_server_name = at.text("tls-server-name")?.map(str::to_owned);
    if let Some(name) = &tls_server_name
        && ServerName::try_from(name.as_str()).is_err()
    {
        return Err(at.fault("tls-server-name", "is neither a host name nor an IP address (no port, no https://)"));
    }
    let proxy = match at.text("proxy-url")? {
        Some(url) => Some(proxy::parse(url).map_err(|problem| at.fault("proxy-url", problem))?),
        None => proxy::of_environment(&server, sources)?,
    };
    let mut info = json!({ "server": server.to_string() });
    let mut add = |key: &str, value: Json| drop(info.as_object_mut().and_then(|info| info.insert(key.into(), value)));
    if insecure {
        add("insecure-skip-tls-verify", true.into());
    }
    if let Some(bundle) = &bundle {
        add("certificate-authority-data", bundle.base64().into());
    }
    if let Some(name) = &tls_server_name {
        add("tls-server-name", name.clone().into());
    }
    if let Some(url) = at.text("proxy-url")? {
        add("proxy-url", url.into());
    }
    if at.flag("disable-compression")? {
        add("disable-compression", true.into());
    }
    for extension in at.mappings("extensions").unwrap_or_default() {
        if extension.text("name").ok().flatten() == Some("client.authentication.k8s.io/exec")
            && let Some(config) = extension.get("extension").and_then(|config| serde_json::to_value(config).ok())
        {
            add("config", config);
        }
    }
    Ok(Cluster { server, authorities, insecure, tls_server_name, proxy, info })
}

fn server(at: &At<'_>) -> Result<Uri, KubeconfigError> {
    let fault = |problem: &str| at.fault("server", problem);
    let text = at.text("server")?.ok_or_else(|| fault("is not set; write https://HOST:6443"))?;
    if !text.contains("://") {
        return Err(fault("has no scheme; write https://HOST:6443"));
    }
    let uri: Uri = text.parse().map_err(|_| fault("is not a URL; write https://HOST:6443, an IPv6 address in []"))?;
    if !matches!(uri.scheme_str(), Some("https" | "http")) {
        return Err(fault("has another scheme than https; write https://HOST:6443"));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(fault("has a user in it; credentials belong under users"));
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(fault("has no host; write https://HOST:6443"));
    }
    if uri.query().is_some() {
        return Err(fault("has a query (?…); write https://HOST:6443"));
    }
    Ok(uri)
}
