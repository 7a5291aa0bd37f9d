//! The three requests of a pull: challenge, token, manifest. GHCR's peculiarity is kept: a token request without a
//! credential is answered with a token (good for public images only), one with a wrong credential with 403 DENIED. All
//! else is as distribution answers it, which `tests/conformance/registry.rs` compares.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::client::full;
use super::faults::Tokens;
use super::simulated::Lookup;
use super::tokens::Access;
use super::{Registry, State};
use crate::kube::query_of;
use crate::net::Body;

/// Why a token is not taken, as RFC 6750 names it.
#[derive(Clone, Copy)]
enum Refused {
    /// There is none.
    Absent,
    Invalid,
    Insufficient,
}

impl Registry {
    pub(super) fn base(&self, headers: &HeaderMap) -> Response<Body> {
        let state = self.state();
        let Some(token) = bearer(headers) else { return self.challenge("user/image", Refused::Absent) };
        match state.issued.get(token) {
            Some(grant) if grant.user.as_ref().is_none_or(|user| state.is_accepted(user)) => {
                json_response(200, &json!({}))
            }
            _ => self.challenge("user/image", Refused::Invalid),
        }
    }

    fn challenge(&self, repository: &str, refused: Refused) -> Response<Body> {
        let host = self.host();
        let error = match refused {
            Refused::Absent => "",
            Refused::Invalid => ",error=\"invalid_token\"",
            Refused::Insufficient => ",error=\"insufficient_scope\"",
        };
        let challenge = format!(
            "Bearer realm=\"https://{host}/token\",service=\"{host}\",scope=\"repository:{repository}:pull\"{error}"
        );
        let mut response = errors(401, "UNAUTHORIZED", "authentication required");
        if let Ok(value) = HeaderValue::from_str(&challenge) {
            response.headers_mut().insert(WWW_AUTHENTICATE, value);
        }
        response
    }

    pub(super) fn token(&self, headers: &HeaderMap, query: &str) -> Response<Body> {
        let scopes = query_of(query).remove("scope").unwrap_or_default();
        let repositories = scopes.split(' ').filter_map(|scope| {
            let mut parts = scope.split(':');
            let repository = (parts.next() == Some("repository")).then(|| parts.next())??;
            parts.next()?.split(',').any(|action| action == "pull").then(|| repository.to_owned())
        });
        let mut repositories: Vec<String> = repositories.collect();
        let mut state = self.state();
        let user = match headers.get(AUTHORIZATION) {
            None => None,
            Some(value) => match basic(value).filter(|user| state.is_accepted(user)) {
                Some(user) => Some(user),
                None => return errors(403, "DENIED", "denied"),
            },
        };
        if state.tokens == Tokens::WrongScope {
            repositories = vec!["another/repository".to_owned()];
        }
        let token = match &self.real {
            None => state.issue(user, repositories),
            Some(real) => {
                let (access, expired) = (state.access(user.as_ref(), repositories), state.tokens == Tokens::Expired);
                real.token(user.as_ref().map_or("", |(name, _)| name), &access, expired)
            }
        };
        json_response(200, &json!({"token": token}))
    }

    pub(super) fn manifest(&self, headers: &HeaderMap, repository: &str, reference: &str) -> Response<Body> {
        let state = self.state();
        let Some(token) = bearer(headers) else { return self.challenge(repository, Refused::Absent) };
        let Some(grant) = state.issued.get(token) else { return self.challenge(repository, Refused::Invalid) };
        if grant.user.as_ref().is_some_and(|user| !state.is_accepted(user)) {
            return self.challenge(repository, Refused::Invalid);
        }
        if !grant.repositories.iter().any(|scope| scope == repository) {
            return self.challenge(repository, Refused::Insufficient);
        }
        match state.lookup(grant.user.as_ref(), repository, reference) {
            Lookup::Unauthorized => self.challenge(repository, Refused::Insufficient),
            other => found(other),
        }
    }
}

impl State {
    /// What a token of the real registry says: it looks at nothing else.
    fn access(&self, user: Option<&(String, String)>, repositories: Vec<String>) -> Vec<Access> {
        let reads_private = user.is_some_and(|(name, _)| !self.denied.contains(name));
        let readable =
            |repository: &String| reads_private || self.images.get(repository).is_some_and(|image| image.public);
        let readable = repositories.into_iter().filter(readable);
        readable.map(|repository| Access { repository, actions: &["pull"] }).collect()
    }
}

/// The answer to a manifest request that was let in.
pub(super) fn found(lookup: Lookup<'_>) -> Response<Body> {
    match lookup {
        Lookup::Unauthorized | Lookup::Denied => errors(403, "DENIED", "requested access to the resource is denied"),
        Lookup::Unknown => errors(404, "MANIFEST_UNKNOWN", "manifest unknown"),
        Lookup::Found(manifest) => {
            let mut response = respond(200, manifest.media_type, manifest.text.clone().into());
            if let Ok(value) = HeaderValue::from_str(&manifest.digest) {
                response.headers_mut().insert(HeaderName::from_static("docker-content-digest"), value);
            }
            response
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

fn basic(value: &HeaderValue) -> Option<(String, String)> {
    let decoded = STANDARD.decode(value.to_str().ok()?.strip_prefix("Basic ")?).ok()?;
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

pub(super) fn respond(code: u16, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn json_response(code: u16, body: &Value) -> Response<Body> {
    respond(code, "application/json", body.to_string().into())
}

pub(super) fn errors(code: u16, error: &str, message: &str) -> Response<Body> {
    json_response(code, &json!({"errors": [{"code": error, "message": message}]}))
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::Full;

    use super::*;
    use crate::net::{Network, REGISTRY_PORT};
    use crate::talos::outside::{PullAnswer, Registry as _};
    use crate::testing::{Client, text};

    struct Flow {
        _network: Network,
        registry: std::sync::Arc<Registry>,
        client: Client,
    }

    impl Flow {
        async fn start() -> Self {
            let network = Network::take().unwrap();
            let address = network.registry();
            let users = [("puller", "old"), ("puller", "new")];
            let registry = Registry::start(address, &users, std::sync::Arc::default()).unwrap();
            let client = Client::connect((address, REGISTRY_PORT), registry.ca().cert_pem(), None).await.unwrap();
            Self { _network: network, registry, client }
        }

        async fn get(&mut self, path: &str, authorization: &str) -> (u16, HeaderMap, Value) {
            let mut request = Request::builder().uri(path).header("host", "registry");
            if !authorization.is_empty() {
                request = request.header(AUTHORIZATION, authorization);
            }
            let response = self.client.send(request.body(Full::default()).unwrap()).await.unwrap();
            let (code, headers) = (response.status().as_u16(), response.headers().clone());
            (code, headers, serde_json::from_str(&text(response).await).unwrap())
        }

        async fn manifest_as(&mut self, password: Option<&str>, path: &str) -> (u16, HeaderMap, Value) {
            let authorization = password.map(|p| format!("Basic {}", STANDARD.encode(format!("puller:{p}"))));
            let scope = "/token?service=x&scope=repository%3Alab%2Fapp%3Apull";
            let (code, _, answer) = self.get(scope, &authorization.unwrap_or_default()).await;
            assert_eq!(code, 200, "{answer}");
            self.get(path, &format!("Bearer {}", answer["token"].as_str().unwrap())).await
        }
    }

    #[tokio::test]
    async fn a_good_credential_comes_to_the_digest_by_way_of_the_challenge() {
        let mut flow = Flow::start().await;
        let (code, headers, _) = flow.get("/v2/", "").await;
        let host = flow.registry.host();
        assert_eq!(code, 401);
        let challenge = headers[WWW_AUTHENTICATE].to_str().unwrap();
        assert!(challenge.starts_with(&format!("Bearer realm=\"https://{host}/token\",service=\"{host}\",scope=")));
        for password in ["old", "new"] {
            let (code, headers, _) = flow.manifest_as(Some(password), "/v2/lab/app/manifests/1").await;
            assert_eq!(code, 200);
            let digest = headers["docker-content-digest"].to_str().unwrap().to_owned();
            let pulled = flow.registry.pull(&host, "lab/app", "1", Some(("puller", password)));
            assert_eq!(pulled, PullAnswer::Ok(digest.clone()));
            assert_eq!(flow.registry.pull(&host, "lab/app", &digest, Some(("puller", password))), pulled);
        }
        let (code, _, answer) = flow.manifest_as(Some("new"), "/v2/lab/app/manifests/2").await;
        assert_eq!((code, &answer["errors"][0]["code"]), (404, &json!("MANIFEST_UNKNOWN")));
        let (code, ..) = flow.manifest_as(Some("new"), "/v2/other/app/manifests/1").await;
        assert_eq!(code, 401, "a token is good for its scope only");
    }

    #[tokio::test]
    async fn wrong_absent_and_revoked_credentials_come_to_nothing() {
        let mut flow = Flow::start().await;
        let wrong = format!("Basic {}", STANDARD.encode("puller:wrong"));
        let (code, _, answer) = flow.get("/token?scope=repository:lab/app:pull", &wrong).await;
        assert_eq!((code, &answer["errors"][0]["code"]), (403, &json!("DENIED")));
        let path = "/v2/lab/app/manifests/1";
        assert_eq!(flow.manifest_as(None, path).await.0, 401, "an anonymous token sees no private image");
        flow.registry.add_image("lab/app", "1", true);
        assert_eq!(flow.manifest_as(None, path).await.0, 200);
        flow.registry.add_image("lab/app", "1", false);
        flow.registry.deny("puller", true);
        let (code, _, answer) = flow.manifest_as(Some("new"), path).await;
        assert_eq!((code, &answer["errors"][0]["code"]), (403, &json!("DENIED")));
        flow.registry.deny("puller", false);
        flow.registry.revoke("puller", "old");
        let host = flow.registry.host();
        let pull = |password| flow.registry.pull(&host, "lab/app", "1", Some(("puller", password)));
        assert_eq!(pull("old"), PullAnswer::Denied);
        assert!(matches!(pull("new"), PullAnswer::Ok(_)));
        assert_eq!(flow.registry.pull("ghcr.io", "lab/app", "1", None), PullAnswer::Unreachable);
    }
}
