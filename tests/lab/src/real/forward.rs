//! Passes a request on to a real API server, as the user who asks.
//!
//! The listener has verified the client's certificate, so it tells the server who that was, as any authenticating proxy
//! does (kube-apiserver `--requestheader-*`). Who shows no certificate is passed on without one: tokens and anonymous
//! requests are judged by the server itself.

use std::net::Ipv4Addr;

use http::header::{CONNECTION, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;

use super::https::{self, Https};
use super::servers::REAL_PORT;
use crate::kube::authz::User;
use crate::kube::server::Answered;
use crate::pki::{Pair, TlsError};

/// The headers that name the user.
pub(super) const USER_HEADER: &str = "X-Remote-User";
pub(super) const GROUP_HEADER: &str = "X-Remote-Group";

/// The way to one API server.
pub struct Forward {
    authority: String,
    trusted: Https,
    anonymous: Https,
}

impl Forward {
    /// To the server at that address. `identity` is the proxy's certificate, which the server believes.
    ///
    /// # Errors
    /// When a certificate cannot be used.
    pub fn new(address: Ipv4Addr, ca_pem: &str, identity: &Pair) -> Result<Self, TlsError> {
        let (trusted, anonymous) = (https::client(ca_pem, Some(identity))?, https::client(ca_pem, None)?);
        Ok(Self { authority: format!("{address}:{REAL_PORT}"), trusted, anonymous })
    }

    /// Asks, and gives the answer's body as it comes. A server that is gone has no answer.
    pub(crate) async fn answer(&self, user: &User, mut head: Parts, body: Bytes) -> Answered {
        head.headers.remove(CONNECTION);
        let theirs: Vec<HeaderName> =
            head.headers.keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
        for name in theirs {
            head.headers.remove(name);
        }
        let client = if user.is_anonymous() {
            &self.anonymous
        } else {
            let names = [(USER_HEADER, &user.name)].into_iter();
            for (header, value) in names.chain(user.groups.iter().map(|group| (GROUP_HEADER, group))) {
                // A certificate's names are ASCII here: the lab has made it.
                let Ok(value) = HeaderValue::from_str(value) else { continue };
                head.headers.append(header, value);
            }
            &self.trusted
        };
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = Uri::try_from(format!("https://{}{path}", self.authority)) else { return Answered::Cut };
        head.uri = uri;
        head.version = http::Version::HTTP_11;
        match client.request(Request::from_parts(head, Full::new(body))).await {
            Ok(mut response) => {
                response.headers_mut().remove(CONNECTION);
                *response.version_mut() = http::Version::default();
                Answered::Known(response.map(|body| body.map_err(std::io::Error::other).boxed_unsync()))
            }
            Err(_) => Answered::Cut,
        }
    }
}
