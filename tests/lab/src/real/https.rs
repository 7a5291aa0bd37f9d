//! HTTP/1.1 over TLS to the real components, each client with one identity.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::pki::{Pair, TlsError, client_config};

/// A client with a pool of connections.
pub type Https = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client that trusts one authority and shows that certificate, or none.
///
/// # Errors
/// When a certificate or key cannot be used.
pub fn client(ca_pem: &str, identity: Option<&Pair>) -> Result<Https, TlsError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(client_config(ca_pem, identity)?).https_only().enable_http1();
    Ok(Client::builder(TokioExecutor::new()).build(connector.wrap_connector(tcp)))
}
