//! One client for one address, and whose failure an error is.

use std::io;
use std::time::Duration;

use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::core::Status;
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

/// How long a connection may take to come about; short, because the next address is waiting.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long sent bytes may stay unacknowledged before the kernel gives the socket up, so that a request which the
/// network holds back does not land long after its deadline.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// What an error of the client means for the request.
pub enum Failure {
    /// The server answered; the address is fine.
    Answer(Box<Status>),
    /// No connection was made, so nothing was sent.
    NotSent(String),
    /// TLS failed: another authority, a refused client certificate. Nothing was sent, and it will not pass by itself.
    Untrusted(String),
    /// The connection broke, or the answer could not be read: the request may have been carried out.
    Broken(String),
    /// The request could not be built or authorised here.
    Local(Box<kube::Error>),
}

fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error only says that another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// What connects, and trusts what the kubeconfig trusts: without a proxy, and with sockets that carry
/// `TCP_USER_TIMEOUT`.
pub fn connector(config: &Config) -> Result<HttpsConnector<HttpConnector>, kube::Error> {
    install_provider();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
    config.rustls_https_connector_with_connector(connector)
}

/// A client for the config's address. Behind a proxy kube's own stack is used; else one whose sockets also carry
/// `TCP_USER_TIMEOUT`.
pub fn client(config: &Config) -> Result<Client, kube::Error> {
    install_provider();
    if config.proxy_url.is_some() {
        return Ok(ClientBuilder::try_from(config.clone())?.build());
    }
    let http = legacy::Builder::new(TokioExecutor::new()).build::<_, Body>(connector(config)?);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Sorts an error by whose it is.
pub fn classify(error: kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => Failure::Answer(status),
        error @ (kube::Error::Auth(_)
        | kube::Error::BuildRequest(_)
        | kube::Error::HttpError(_)
        | kube::Error::InferConfig(_)
        | kube::Error::InferKubeconfig(_)
        | kube::Error::TlsRequired
        | kube::Error::RustlsTls(_)) => Failure::Local(Box::new(error)),
        error if talos_proto::error::tls_problem(&error).is_some() => Failure::Untrusted(talos_proto::chain(&error)),
        error if not_sent(&error) => Failure::NotSent(talos_proto::chain(&error)),
        error => Failure::Broken(talos_proto::chain(&error)),
    }
}

/// Only an error of connecting proves that nothing was sent.
fn not_sent(error: &kube::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect) {
            return true;
        }
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        next = error.source();
    }
    false
}
