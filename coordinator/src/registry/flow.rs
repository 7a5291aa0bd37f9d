//! The requests, over any HTTP service: challenge, login, manifests.

use std::time::Duration;

use agent::credential::{Credential, RegistryHost};
use agent::image::ImageRef;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER, USER_AGENT, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body, Bytes};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use talos_proto::clock::Clock;
use tower::{Service, ServiceExt as _};

use super::challenge::{self, Challenge, RealmFault};
use super::error::{ImageFault, ImageProblem, PreflightError, Request, TransportError};
use super::{Checked, Login};

/// Of each request, connection and body included.
const LIMIT: Duration = Duration::from_secs(10);

/// A token is some kilobytes; nothing else is read.
const MAX_BODY: usize = 1 << 20;

/// A manifest's request may be sent on this often.
const MAX_HOPS: usize = 3;

/// Every form of a manifest; a registry answers 404 for one that was not asked for.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// An HTTP client, or what stands in for one in a test.
pub(super) trait Http: Clone + Send + Sync {
    /// Sends one request and reads the whole answer.
    fn send(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<(StatusCode, HeaderMap, Bytes), TransportError>> + Send;
}

/// Any tower service is one.
#[derive(Clone)]
pub(super) struct Tower<S>(pub(super) S);

impl<S, B> Http for Tower<S>
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<B>> + Clone + Send + Sync,
    S::Error: Into<TransportError>,
    S::Future: Send,
    B: Body<Data = Bytes> + Send,
    B::Error: Into<TransportError>,
{
    async fn send(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), TransportError> {
        let response = self.0.clone().oneshot(request).await.map_err(Into::into)?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await?.to_bytes();
        Ok((parts.status, parts.headers, body))
    }
}

/// The check of one registry.
pub(super) struct Check<'c, H> {
    pub(super) http: &'c H,
    pub(super) clock: &'c Clock,
    pub(super) host: &'c RegistryHost,
    pub(super) credential: &'c Credential,
}

/// What a manifest is asked for with.
enum Access {
    Open,
    With(HeaderValue),
    /// The login for this image was refused, with this status.
    Refused(u16),
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl<H: Http> Check<'_, H> {
    pub(super) async fn run(&self, images: &[&ImageRef]) -> Result<Checked, PreflightError> {
        if matches!(self.credential, Credential::None) {
            return Err(PreflightError::NoCredential { host: self.host.clone() });
        }
        let base = format!("https://{}/v2/", self.host);
        // Without the credential: only the challenge says where it may go.
        let answer = self.send(&Request::Challenge, Method::GET, &base, &[], Bytes::new()).await?;
        match answer.status {
            StatusCode::OK => {
                let problems = self.images(images, |_| async { Ok(Access::Open) }).await?;
                self.checked(Login::NotAsked, images, problems)
            }
            StatusCode::UNAUTHORIZED => match challenge::parse(www_authenticate(&answer.headers)) {
                Some(Challenge::Bearer { realm, service }) => self.bearer(&realm, service.as_deref(), images).await,
                Some(Challenge::Basic) => self.basic(&base, images).await,
                None => Err(PreflightError::Challenge { host: self.host.clone() }),
            },
            _ => Err(self.unexpected(Request::Challenge, &answer)),
        }
    }

    /// Login and images by tokens. The first token is asked for without any image, so that a refused credential and
    /// an image that it may not read are told apart: GHCR answers both with the same 403.
    async fn bearer(
        &self,
        realm: &str,
        service: Option<&str>,
        images: &[&ImageRef],
    ) -> Result<Checked, PreflightError> {
        let realm = challenge::safe_realm(realm).map_err(|fault| match fault {
            RealmFault::NotHttps => {
                PreflightError::InsecureRealm { host: self.host.clone(), realm: without_query(realm) }
            }
            RealmFault::NotAUrl => PreflightError::Challenge { host: self.host.clone() },
        })?;
        let login = Request::Login { realm: realm.host().unwrap_or_default().to_owned() };
        let answer = self.ask_token(&login, &realm, service, None).await?;
        self.accept_login(&login, &answer)?;
        self.token(&login, &answer)?;
        let problems = self
            .images(images, |image| {
                let (realm, login) = (&realm, &login);
                async move {
                    let answer = self.ask_token(login, realm, service, Some(image)).await?;
                    match answer.status.as_u16() {
                        200 => Ok(Access::With(bearer_header(&self.token(login, &answer)?))),
                        status @ (401 | 403) => Ok(Access::Refused(status)),
                        _ => Err(self.unexpected(login.clone(), &answer)),
                    }
                }
            })
            .await?;
        self.checked(Login::Token, images, problems)
    }

    /// Login and images with user and password at the registry itself.
    async fn basic(&self, base: &str, images: &[&ImageRef]) -> Result<Checked, PreflightError> {
        let header = self.basic_header().ok_or_else(|| PreflightError::TokenForBasic { host: self.host.clone() })?;
        let login = Request::Login { realm: self.host.to_string() };
        let answer = self.send(&login, Method::GET, base, &[(AUTHORIZATION, header.clone())], Bytes::new()).await?;
        self.accept_login(&login, &answer)?;
        let problems = self.images(images, |_| async { Ok(Access::With(header.clone())) }).await?;
        self.checked(Login::Basic, images, problems)
    }

    /// Asks for every image's manifest, so that all that are refused can be named.
    async fn images<'i, F, A>(&self, images: &[&'i ImageRef], access: F) -> Result<Vec<ImageProblem>, PreflightError>
    where
        F: Fn(&'i ImageRef) -> A,
        A: Future<Output = Result<Access, PreflightError>>,
    {
        let mut problems = Vec::new();
        for image in images.iter().copied() {
            let fault = match access(image).await? {
                Access::Open => self.manifest(image, None).await?,
                Access::With(header) => self.manifest(image, Some(header)).await?,
                Access::Refused(status) => Some(ImageFault::Denied { status }),
            };
            problems.extend(fault.map(|what| ImageProblem { image: image.clone(), what }));
        }
        Ok(problems)
    }

    async fn manifest(
        &self,
        image: &ImageRef,
        authorization: Option<HeaderValue>,
    ) -> Result<Option<ImageFault>, PreflightError> {
        let request = Request::Manifest(Box::new(image.clone()));
        let own = format!("https://{}", self.host);
        let mut target = format!("{own}/v2/{}/manifests/{}", image.repository(), image.reference());
        let mut hops = 0;
        loop {
            let mut headers = vec![(ACCEPT, HeaderValue::from_static(MANIFESTS))];
            // Where a redirect leads is the registry's choice; whom the credential is shown is not.
            if let Some(value) = authorization.as_ref().filter(|_| same_origin(&target, &own)) {
                headers.push((AUTHORIZATION, value.clone()));
            }
            let answer = self.send(&request, Method::HEAD, &target, &headers, Bytes::new()).await?;
            match answer.status.as_u16() {
                200 => return Ok(None),
                401 if challenge::refuses_token(www_authenticate(&answer.headers)) => {
                    return Err(PreflightError::TokenNotTaken {
                        host: self.host.clone(),
                        image: Box::new(image.clone()),
                    });
                }
                status @ (401 | 403) => return Ok(Some(ImageFault::Denied { status })),
                404 => return Ok(Some(ImageFault::NotFound)),
                301 | 302 | 303 | 307 | 308 if hops < MAX_HOPS => match redirect(&target, &answer.headers) {
                    Some(next) => (target, hops) = (next, hops + 1),
                    None => return Err(self.unexpected(request, &answer)),
                },
                _ => return Err(self.unexpected(request, &answer)),
            }
        }
    }

    async fn ask_token(
        &self,
        request: &Request,
        realm: &Uri,
        service: Option<&str>,
        image: Option<&ImageRef>,
    ) -> Result<Answer, PreflightError> {
        let scope = image.map(|image| challenge::pull_scope(image.repository()));
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        pairs.extend(service.map(|service| ("service", service)));
        pairs.extend(scope.as_deref().map(|scope| ("scope", scope)));
        if let Credential::Token(token) = self.credential {
            // OAuth 2, as containerd does it with an identity token.
            pairs.extend([("grant_type", "refresh_token"), ("client_id", "talos-ghcr")]);
            pairs.push(("refresh_token", token.expose_secret()));
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            let body = Bytes::from(challenge::form(&pairs));
            return self.send(request, Method::POST, &realm.to_string(), &[(CONTENT_TYPE, form)], body).await;
        }
        let target = challenge::with_query(realm, &challenge::form(&pairs));
        let headers: Vec<_> = self.basic_header().map(|header| (AUTHORIZATION, header)).into_iter().collect();
        self.send(request, Method::GET, &target, &headers, Bytes::new()).await
    }

    fn accept_login(&self, request: &Request, answer: &Answer) -> Result<(), PreflightError> {
        match (answer.status.as_u16(), request) {
            (200, _) => Ok(()),
            (status @ (401 | 403), Request::Login { realm }) => {
                Err(PreflightError::BadCredential { host: self.host.clone(), status, realm: realm.clone() })
            }
            // OAuth 2 answers a refused refresh token with 400 invalid_grant.
            (400, Request::Login { realm }) if matches!(self.credential, Credential::Token(_)) => {
                Err(PreflightError::BadCredential { host: self.host.clone(), status: 400, realm: realm.clone() })
            }
            _ => Err(self.unexpected(request.clone(), answer)),
        }
    }

    fn token(&self, request: &Request, answer: &Answer) -> Result<SecretString, PreflightError> {
        let Request::Login { realm } = request else { return Err(self.unexpected(request.clone(), answer)) };
        parse_token(&answer.body)
            .ok_or_else(|| PreflightError::NoToken { host: self.host.clone(), realm: realm.clone() })
    }

    fn checked(
        &self,
        login: Login,
        images: &[&ImageRef],
        problems: Vec<ImageProblem>,
    ) -> Result<Checked, PreflightError> {
        if !problems.is_empty() {
            return Err(PreflightError::Images { host: self.host.clone(), problems });
        }
        Ok(Checked { host: self.host.clone(), login, images: images.iter().copied().cloned().collect() })
    }

    fn unexpected(&self, request: Request, answer: &Answer) -> PreflightError {
        let host = self.host.clone();
        match answer.status.as_u16() {
            429 => PreflightError::RateLimited { host, request, retry_after: retry_after(&answer.headers) },
            status => PreflightError::Unexpected { host, request, status },
        }
    }

    fn basic_header(&self) -> Option<HeaderValue> {
        let Credential::Basic { username, password } = self.credential else { return None };
        let pair = SecretString::from(format!("{username}:{}", password.expose_secret()));
        Some(sensitive(&format!("Basic {}", STANDARD.encode(pair.expose_secret()))))
    }

    async fn send(
        &self,
        request: &Request,
        method: Method,
        target: &str,
        headers: &[(http::HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Answer, PreflightError> {
        let unreachable =
            |source| PreflightError::Unreachable { host: self.host.clone(), request: request.clone(), source };
        let mut message = http::Request::builder()
            .method(method)
            .uri(target)
            .header(USER_AGENT, concat!("talos-ghcr/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .map_err(|error| unreachable(error.into()))?;
        message.headers_mut().extend(headers.iter().cloned());
        let answer = self.clock.timeout(LIMIT, self.http.send(message)).await;
        let answer = answer.map_err(|_| PreflightError::TimedOut {
            host: self.host.clone(),
            request: request.clone(),
            after: LIMIT,
        })?;
        let (status, headers, body) = answer.map_err(unreachable)?;
        Ok(Answer { status, headers, body })
    }
}

fn bearer_header(token: &SecretString) -> HeaderValue {
    sensitive(&format!("Bearer {}", token.expose_secret()))
}

/// A header that no log shows. A value that cannot be a header is one that no registry can have issued.
fn sensitive(text: &str) -> HeaderValue {
    let mut value = HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("invalid"));
    value.set_sensitive(true);
    value
}

fn parse_token(body: &[u8]) -> Option<SecretString> {
    #[derive(Deserialize)]
    struct Granted {
        token: Option<String>,
        access_token: Option<String>,
    }
    let granted: Granted = serde_json::from_slice(body).ok()?;
    let token = granted.token.filter(|token| !token.is_empty()).or(granted.access_token);
    token.filter(|token| !token.is_empty()).map(SecretString::from)
}

fn www_authenticate(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok())
}

/// Seconds only: a date would be compared with our own clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Where an answer sends us on to, if that is https.
fn redirect(from: &str, headers: &HeaderMap) -> Option<String> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let next = if location.starts_with('/') && !location.starts_with("//") {
        let from: Uri = from.parse().ok()?;
        format!("https://{}{location}", from.authority()?)
    } else {
        location.to_owned()
    };
    let uri: Uri = next.parse().ok()?;
    (uri.scheme_str() == Some("https") && uri.authority().is_some()).then_some(next)
}

fn same_origin(target: &str, own: &str) -> bool {
    let authority = |text: &str| {
        let uri: Uri = text.parse().ok()?;
        let port = uri.port_u16().unwrap_or(443);
        Some((uri.scheme_str()?.to_owned(), uri.host()?.to_ascii_lowercase(), port))
    };
    authority(target).is_some_and(|target| Some(target) == authority(own))
}

/// A realm as an error shows it.
fn without_query(realm: &str) -> String {
    realm.split(['?', '#']).next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: http::HeaderName, value: &str) -> HeaderMap {
        [(name, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn tokens_of_both_names_are_read_and_nothing_is_no_token() {
        let token = |body: &str| parse_token(body.as_bytes()).map(|token| token.expose_secret().to_owned());
        assert_eq!(token(r#"{"token":"a"}"#).as_deref(), Some("a"));
        assert_eq!(token(r#"{"access_token":"b","expires_in":300}"#).as_deref(), Some("b"));
        assert_eq!(token(r#"{"token":"","access_token":"b"}"#).as_deref(), Some("b"));
        for body in ["", "{}", r#"{"token":""}"#, r#"{"token":7}"#, "<html>"] {
            assert_eq!(token(body), None, "{body}");
        }
    }

    #[test]
    fn k10_a_redirect_is_followed_to_https_only_and_its_origin_compared() {
        let to = |location: &str| redirect("https://r.example.com:5000/v2/a", &headers(LOCATION, location));
        assert_eq!(to("/b?c").as_deref(), Some("https://r.example.com:5000/b?c"));
        assert_eq!(to("https://cdn.example.com/b").as_deref(), Some("https://cdn.example.com/b"));
        assert_eq!((to("http://r.example.com:5000/b"), to("//cdn.example.com/b"), to("b")), (None, None, None));
        let own = "https://r.example.com";
        assert!(same_origin("https://R.example.com:443/b", own));
        for other in ["https://r.example.com:444/b", "https://cdn.example.com/b", "http://r.example.com/b"] {
            assert!(!same_origin(other, own), "{other}");
        }
    }

    #[test]
    fn retry_after_is_read_in_seconds() {
        assert_eq!(retry_after(&headers(RETRY_AFTER, "17")), Some(Duration::from_secs(17)));
        assert_eq!(retry_after(&headers(RETRY_AFTER, "Wed, 21 Oct 2026 07:28:00 GMT")), None);
    }
}
