//! An HTTP client that trusts the registry's authority: for what the lab itself asks, and for its nodes.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderMap};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::net::Body;
use crate::pki::{Ca, client_config};

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// A header as text; none that is not ASCII.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Clones share it.
#[derive(Clone)]
pub(super) struct Client(Pool<HttpsConnector<HttpConnector>, Body>);

impl Client {
    /// Trusts `ca` and nobody else.
    pub(super) fn new(ca: &Ca) -> io::Result<Self> {
        let tls = client_config(ca.cert_pem(), None).map_err(io::Error::other)?;
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        // Connections that a test cuts must not be met again.
        Ok(Self(Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector)))
    }

    /// Sends a request; the answer's body is still to be read.
    pub(super) async fn send(&self, request: Request<Body>) -> io::Result<Response<Incoming>> {
        self.0.request(request).await.map_err(io::Error::other)
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn ask(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        authorization: Option<&str>,
        body: &str,
    ) -> io::Result<Answer> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(full(body.to_owned())).map_err(io::Error::other)?;
        let (head, body) = self.send(request).await?.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}

/// User and password as `Authorization` has them.
pub(super) fn basic_of(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// These bytes as a body.
pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}
