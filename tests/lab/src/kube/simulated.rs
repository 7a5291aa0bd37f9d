//! The lab's own API server behind a listener: who may ask, and the answer from the store.

use std::sync::Arc;

use futures::StreamExt as _;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Bytes;
use serde_json::{Value, json};
use talos_proto::clock::Clock;

use super::api::{Answer, Refusal, answer};
use super::authz::{Rbac, User};
use super::kind::Kind;
use super::route::{Asked, Route};
use super::server::Answered;
use super::status::Failure;
use super::store::Store;
use crate::net::Body;

/// The objects and the rights that all simulated API servers of a lab share.
pub struct Simulated {
    /// The objects.
    pub store: Arc<Store>,
    /// What clients may do that are no masters.
    pub rbac: Rbac,
    /// The clock of the lab.
    pub clock: Clock,
}

impl Simulated {
    /// Answers a request that may be answered.
    pub(super) fn answer(&self, user: &User, asked: &Asked, head: &http::request::Parts, body: &[u8]) -> Answered {
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content_type = content_type.split(';').next().unwrap_or_default().trim();
        Answered::Known(match answer(&self.store, asked, content_type, body) {
            Ok(Answer::Json { code, body, warnings }) if asked.route == Route::AccessReview => {
                respond_json(code, &self.review(user, body), &warnings)
            }
            Ok(Answer::Json { code, body, warnings }) => respond_json(code, &body, &warnings),
            Ok(Answer::Text(text)) => respond(200, "text/plain; charset=utf-8", text.into()),
            Ok(Answer::Watch(watch)) => {
                let events = watch.stream(Arc::clone(&self.store), self.clock.clone());
                let mut response = Response::new(StreamBody::new(events.boxed()).boxed_unsync());
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Err(Refusal::Failure(failure)) => respond_failure(&failure),
            Err(Refusal::Unexpected) => {
                let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
                let failure = Failure::unexpected(&format!("{} {target} ({content_type})", head.method));
                return Answered::Unexpected(respond_failure(&failure));
            }
        })
    }

    /// 401 or 403, when the request is not for this user.
    pub(super) fn refuse(&self, user: &User, asked: &Asked, token: bool) -> Option<Failure> {
        // Tokens are no credential here: whoever sends one instead of a certificate is nobody.
        if token && user.is_anonymous() {
            return Some(Failure::unauthorized());
        }
        let (kind, subresource, namespace, name) = match &asked.route {
            Route::Health { .. } | Route::Version | Route::Unknown => return None,
            Route::AccessReview if !user.is_anonymous() => return None,
            Route::AccessReview => return Some(Failure::unauthorized()),
            Route::Collection(kind, namespace) => (*kind, "", namespace.as_str(), ""),
            Route::Object(kind, namespace, name) => (*kind, "", namespace.as_str(), name.as_str()),
            Route::Eviction(namespace, name) => (Kind::Pod, "eviction", namespace.as_str(), name.as_str()),
        };
        let resource =
            if subresource.is_empty() { kind.plural().into() } else { format!("{}/{subresource}", kind.plural()) };
        let allowed = self.rbac.allows(user, asked.verb(), kind.group(), &resource);
        (!allowed).then(|| Failure::forbidden(&user.name, asked.verb(), kind, subresource, namespace, name))
    }

    /// A SelfSubjectAccessReview with its status filled in.
    fn review(&self, user: &User, mut review: Value) -> Value {
        let asked = &review["spec"]["resourceAttributes"];
        let text = |field: &str| asked[field].as_str().unwrap_or_default();
        let subresource = text("subresource");
        let resource = if subresource.is_empty() {
            text("resource").into()
        } else {
            format!("{}/{subresource}", text("resource"))
        };
        let allowed = self.rbac.allows(user, text("verb"), text("group"), &resource);
        review["kind"] = json!("SelfSubjectAccessReview");
        review["apiVersion"] = json!("authorization.k8s.io/v1");
        review["metadata"] = json!({});
        review["status"] = json!({"allowed": allowed});
        review
    }
}

fn respond(code: u16, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn respond_json(code: u16, body: &Value, warnings: &[String]) -> Response<Body> {
    // The real server ends a body with a newline.
    let mut response = respond(code, "application/json", format!("{body}\n").into());
    for warning in warnings {
        if let Ok(value) = HeaderValue::from_str(warning) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

pub(super) fn respond_failure(failure: &Failure) -> Response<Body> {
    let mut response = respond_json(failure.code, &failure.body(), &[]);
    if let Some(seconds) = failure.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
