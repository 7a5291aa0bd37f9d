//! HTTP/1.1 over TLS to the real components, each client with one identity.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::pki::{Pair, TlsError, problem};

/// A client with a pool of connections.
pub type Https = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client that trusts one authority and shows that certificate, or none.
///
/// # Errors
/// When a certificate or key cannot be used.
pub fn client(ca_pem: &str, identity: Option<&Pair>) -> Result<Https, TlsError> {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).map_err(problem);
    let mut roots = RootCertStore::empty();
    roots.add(der(ca_pem)?).map_err(problem)?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(problem)?
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(pair) => {
            let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).map_err(problem)?;
            config.with_client_auth_cert(vec![der(&pair.cert_pem)?], key).map_err(problem)?
        }
    };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1();
    Ok(Client::builder(TokioExecutor::new()).build(connector.wrap_connector(tcp)))
}
