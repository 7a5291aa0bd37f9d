//! What every request meets first: it is noted, it may have a fault, and then it is answered by the token endpoint, by
//! the simulated registry, or by the real one, which is handed the request as it is.

use std::io;

use futures::stream;
use http::header::{CONTENT_LENGTH, HeaderValue, LOCATION, RETRY_AFTER};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use talos_proto::clock::Clock;

use super::client::full;
use super::faults::Fault;
use super::flow::{errors, respond};
use super::real::Auth;
use super::{Registry, SERVER};
use crate::net::{Body, Peer};

/// What is asked.
enum Route<'p> {
    Base,
    Token,
    Manifest {
        repository: String,
        reference: &'p str,
    },
    /// Of the real registry only: nodes of a simulated one fetch no blobs.
    Blob,
}

impl Route<'_> {
    fn label(&self) -> &'static str {
        match self {
            Self::Base => "v2",
            Self::Token => "token",
            Self::Manifest { .. } => "manifests",
            Self::Blob => "blobs",
        }
    }
}

impl Registry {
    fn route<'p>(&self, method: &Method, path: &'p str) -> Option<Route<'p>> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let readable = matches!(*method, Method::GET | Method::HEAD);
        let has_tokens = self.real.as_ref().is_none_or(|real| real.auth == Auth::Token);
        match parts.as_slice() {
            ["v2"] if readable => Some(Route::Base),
            ["token"] if *method == Method::GET && has_tokens => Some(Route::Token),
            ["v2", repository @ .., "manifests", reference] if readable && !repository.is_empty() => {
                Some(Route::Manifest { repository: repository.join("/"), reference })
            }
            ["v2", .., "blobs", _] if readable && self.real.is_some() => Some(Route::Blob),
            _ => None,
        }
    }

    pub(super) async fn handle(&self, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let (route, fault) = (self.route(&method, &path), self.state().faults.of(&target));
        match (&fault, &route) {
            (Some(Fault::Answer(_)), _) => _ = self.log.note(SERVER, &format!("{method} failing"), &target, false),
            (_, Some(route)) => _ = self.log.note(SERVER, &format!("{method} {}", route.label()), &target, false),
            (_, None) => _ = self.log.unexpected(SERVER, &format!("{method} {path}"), &target),
        }
        match fault {
            Some(Fault::Answer(code)) => return failing(code),
            Some(Fault::Slow(time)) => Clock::system().sleep(time).await,
            Some(Fault::Cut) => return cut(&peer).await,
            Some(Fault::CutShort) if method == Method::HEAD => return cut(&peer).await,
            Some(Fault::Redirect(host)) => return redirect(&host, &target),
            Some(Fault::CutShort) | None => {}
        }
        let answer = self.answer(route, request).await;
        if fault == Some(Fault::CutShort) { cut_short(answer).await } else { answer }
    }

    async fn answer(&self, route: Option<Route<'_>>, request: Request<Incoming>) -> Response<Body> {
        match (route, &self.real) {
            (Some(Route::Token), _) => self.token(request.headers(), request.uri().query().unwrap_or_default()),
            (_, Some(real)) => {
                let request = request.map(|body| body.map_err(io::Error::other).boxed_unsync());
                real.forward(request).await.unwrap_or_else(|error| errors(502, "UNAVAILABLE", &error.to_string()))
            }
            (Some(Route::Base), None) => self.base(request.headers()),
            (Some(Route::Manifest { repository, reference }), None) => {
                let answer = self.manifest(request.headers(), &repository, reference);
                if *request.method() == Method::HEAD { without_body(answer) } else { answer }
            }
            (None | Some(Route::Blob), None) => errors(501, "UNSUPPORTED", "the lab does not know this request"),
        }
    }
}

fn failing(code: u16) -> Response<Body> {
    let error = match code {
        401 => "UNAUTHORIZED",
        403 => "DENIED",
        404 => "MANIFEST_UNKNOWN",
        429 => "TOOMANYREQUESTS",
        _ => "UNAVAILABLE",
    };
    let mut response = errors(code, error, "the lab was asked to answer this");
    if code == 429 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("7"));
    }
    response
}

fn redirect(host: &str, target: &str) -> Response<Body> {
    let mut response = respond(307, "text/plain", Bytes::new());
    if let Ok(value) = HeaderValue::from_str(&format!("https://{host}{target}")) {
        response.headers_mut().insert(LOCATION, value);
    }
    response
}

/// Ends the connection; there is nothing that could be answered after that.
async fn cut(peer: &Peer) -> Response<Body> {
    peer.connection.cancel();
    std::future::pending().await
}

/// The same answer, whose body ends in the middle with the connection.
async fn cut_short(answer: Response<Body>) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    let half = Frame::data(bytes.slice(..bytes.len() / 2));
    let frames = stream::iter([Ok(half), Err(io::Error::from(io::ErrorKind::ConnectionReset))]);
    Response::from_parts(head, StreamBody::new(frames).boxed_unsync())
}

/// An answer to HEAD: the same headers and no body.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Some(length) = hyper::body::Body::size_hint(&body).exact() {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(head, full(Bytes::new()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::net::Network;

    #[tokio::test]
    async fn each_fault_is_met_where_it_was_asked_for_and_nowhere_else() {
        let network = Network::take().unwrap();
        let registry = Registry::start(network.registry(), &[], Arc::default()).unwrap();
        registry.add_image("lab/app", "1", true);
        let token = registry.ask("GET", "/token?scope=repository:lab/app:pull", None).await.unwrap();
        let token: serde_json::Value = serde_json::from_slice(&token.body).unwrap();
        let bearer = format!("Bearer {}", token["token"].as_str().unwrap());
        let (manifest, registry) = ("/v2/lab/app/manifests/1", &registry);
        let ask = async |fault: Option<Fault>| {
            registry.fault("/v2/lab/", fault);
            registry.ask("GET", manifest, Some(&bearer)).await
        };
        assert_eq!(ask(None).await.unwrap().status, 200);
        let limited = ask(Some(Fault::Answer(429))).await.unwrap();
        assert_eq!((limited.status.as_u16(), limited.header("retry-after")), (429, Some("7")));
        assert!(ask(Some(Fault::Cut)).await.is_err() && ask(Some(Fault::CutShort)).await.is_err());
        assert_eq!(registry.ask("GET", "/v2/", None).await.unwrap().status, 401, "no fault of this request");
        let (clock, slow) = (Clock::system(), Duration::from_millis(50));
        let before = clock.now();
        assert_eq!(ask(Some(Fault::Slow(slow))).await.unwrap().status, 200);
        assert!(clock.now().since(before) >= slow);
        let elsewhere = registry.elsewhere().unwrap();
        let moved = ask(Some(Fault::Redirect(elsewhere.host()))).await.unwrap();
        let location = format!("https://{}{manifest}", elsewhere.host());
        assert_eq!((moved.status.as_u16(), moved.header("location")), (307, Some(location.as_str())));
        let there = registry.client.ask("GET", &location, &[], Some("Bearer anything"), "").await.unwrap();
        assert_eq!((there.status.as_u16(), elsewhere.seen()[0].has("authorization")), (200, true), "it would be seen");
        assert_eq!(ask(None).await.unwrap().status, 200);
    }
}
