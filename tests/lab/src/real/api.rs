//! The lab's own requests to a real API server, as an administrator.

use std::io;
use std::time::Duration;

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{CONTENT_TYPE, HeaderMap};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use serde_json::{Value, json};
use talos_proto::clock::Clock;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

use super::https::Https;
use crate::kube::kind::Kind;

/// No answer takes longer: etcd may be frozen, and a server then gives up after 34 s or 60 s (talos-ghcr's recordings 302
/// to 309).
const LONGEST: Duration = Duration::from_secs(90);

/// JSON.
pub const JSON: &str = "application/json";
/// RFC 6902.
pub const JSON_PATCH: &str = "application/json-patch+json";
/// RFC 7386.
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// Kubernetes' own.
pub const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";

/// An answer with its whole body.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub code: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub text: String,
}

impl Reply {
    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Whether it is a 2xx.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

/// A way to one API server with one identity.
#[derive(Clone)]
pub struct Api {
    client: Https,
    server: String,
}

/// The path of a kind's objects, in a namespace where the kind has them.
#[must_use]
pub fn collection(kind: Kind, namespace: &str) -> String {
    let group = if kind.group().is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}/v1", kind.group()) };
    match kind.namespaced() && !namespace.is_empty() {
        true => format!("{group}/namespaces/{namespace}/{}", kind.plural()),
        false => format!("{group}/{}", kind.plural()),
    }
}

/// The path of an object.
#[must_use]
pub fn object(kind: Kind, namespace: &str, name: &str) -> String {
    format!("{}/{name}", collection(kind, namespace))
}

impl Api {
    /// To `https://address:port`.
    #[must_use]
    pub fn new(client: Https, server: String) -> Self {
        Self { client, server }
    }

    /// Where it is: `https://address:port`.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: String,
    ) -> io::Result<http::Response<hyper::body::Incoming>> {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.server));
        let request = request.header(CONTENT_TYPE, content_type).header("accept", JSON);
        let request = request.body(Full::new(Bytes::from(body))).map_err(io::Error::other)?;
        self.client.request(request).await.map_err(io::Error::other)
    }

    /// Asks anything.
    ///
    /// # Errors
    /// When there is no answer, or it breaks off.
    pub async fn ask(&self, method: Method, path: &str, content_type: &str, body: String) -> io::Result<Reply> {
        let whole = async {
            let (head, body) = self.send(method, path, content_type, body).await?.into_parts();
            Ok::<_, io::Error>((head, body.collect().await.map_err(io::Error::other)?.to_bytes()))
        };
        let (head, bytes) = Clock::system().timeout(LONGEST, whole).await.map_err(io::Error::other)??;
        let text = String::from_utf8(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(Reply { code: head.status.as_u16(), headers: head.headers, text })
    }

    /// GET.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub async fn get(&self, path: &str) -> io::Result<Reply> {
        self.ask(Method::GET, path, JSON, String::new()).await
    }

    /// POST of an object.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub async fn post(&self, path: &str, object: &Value) -> io::Result<Reply> {
        self.ask(Method::POST, path, JSON, object.to_string()).await
    }

    /// PUT of an object.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub async fn put(&self, path: &str, object: &Value) -> io::Result<Reply> {
        self.ask(Method::PUT, path, JSON, object.to_string()).await
    }

    /// PATCH, of the kind that the content type says.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub async fn patch(&self, path: &str, content_type: &str, patch: &Value) -> io::Result<Reply> {
        self.ask(Method::PATCH, path, content_type, patch.to_string()).await
    }

    /// DELETE at once; with a UID only that very object.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub async fn delete(&self, path: &str, uid: Option<&str>) -> io::Result<Reply> {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
        if let Some(uid) = uid {
            options["preconditions"] = json!({"uid": uid});
        }
        self.ask(Method::DELETE, path, JSON, options.to_string()).await
    }

    /// The events of a watch: what is not a line of JSON ends it.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn watch(&self, path: &str) -> io::Result<impl Stream<Item = io::Result<Value>> + use<>> {
        let response = self.send(Method::GET, path, JSON, String::new()).await?;
        let bytes = response.into_body().into_data_stream().map_err(io::Error::other);
        let lines = FramedRead::new(StreamReader::new(bytes), LinesCodec::new());
        Ok(lines.map(|line| serde_json::from_str(&line.map_err(io::Error::other)?).map_err(io::Error::other)))
    }
}
