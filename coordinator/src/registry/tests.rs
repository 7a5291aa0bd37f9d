//! The flow against registries in memory that note who is shown which credential.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::credential::Credential;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;

use super::flow::Tower;
use super::*;

/// `METHOD https://host/path?query [Scheme]`, in order.
type Seen = Arc<Mutex<Vec<String>>>;

#[derive(Clone)]
struct Asked {
    method: Method,
    uri: String,
    authorization: Option<String>,
    body: String,
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    response
}

/// Runs the preflight against `registry`; what was asked comes with the outcome.
async fn run(
    desired: &Desired,
    images: &[&str],
    registry: impl Fn(&Asked) -> Option<Response<Full<Bytes>>> + Clone + Send + Sync,
) -> (Result<Preflight, PreflightError>, Vec<String>) {
    let seen = Seen::default();
    let service = tower::service_fn(|request: http::Request<Full<Bytes>>| {
        let (seen, registry) = (seen.clone(), registry.clone());
        async move {
            let (head, body) = request.into_parts();
            let authorization = head.headers.get("authorization");
            assert!(authorization.is_none_or(http::HeaderValue::is_sensitive), "a log could show the header");
            let asked = Asked {
                method: head.method,
                uri: head.uri.to_string(),
                authorization: authorization.map(|value| value.to_str().unwrap().to_owned()),
                body: String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap(),
            };
            let scheme = asked.authorization.as_deref().and_then(|value| value.split(' ').next());
            let scheme = scheme.map(|scheme| format!(" [{scheme}]")).unwrap_or_default();
            seen.lock().unwrap().push(format!("{} {}{scheme}", asked.method, asked.uri));
            match registry(&asked) {
                Some(response) => Ok(response),
                None => Err(TransportError::from("connection refused")),
            }
        }
    });
    let images: Vec<ImageRef> = images.iter().map(|image| image.parse().unwrap()).collect();
    let clock = Clock::paused(Timestamp::UNIX_EPOCH);
    let outcome = check_all(&Tower(service), desired, &images, &clock).await;
    if let Err(error) = &outcome {
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("canary") && !shown.contains(&STANDARD.encode("bot:canary")), "{shown}");
    }
    let seen = seen.lock().unwrap().clone();
    (outcome, seen)
}

fn desired(host: &str, credential: Credential) -> Desired {
    [(host.parse().unwrap(), credential)].into_iter().collect()
}

fn ghcr_credential() -> Desired {
    desired("ghcr.io", Credential::basic("bot", "canary"))
}

/// GHCR as it answers: 403 for a wrong login and for an image alike, a token for no login at all.
fn ghcr(password: &str) -> impl Fn(&Asked) -> Option<Response<Full<Bytes>>> + Clone + Send + Sync + use<> {
    let good = format!("Basic {}", STANDARD.encode(format!("bot:{password}")));
    move |asked| {
        let path = asked.uri.strip_prefix("https://ghcr.io").expect("only GHCR is asked");
        let challenge = r#"Bearer realm="https://ghcr.io/token",service="ghcr.io",scope="repository:user/image:pull""#;
        let denied = r#"{"errors":[{"code":"DENIED","message":"canary"}]}"#;
        Some(match (path, asked.authorization.as_deref()) {
            ("/v2/", None) => answer(401, &[("www-authenticate", challenge)], "{}"),
            (path, None) if path.starts_with("/token?") => answer(200, &[], r#"{"token":"anonymous"}"#),
            (path, Some(login)) if path.starts_with("/token?") && login != good => answer(403, &[], denied),
            (path, _) if path.contains("acme%2Fsecret") => answer(403, &[], denied),
            ("/token?service=ghcr.io", _) => answer(200, &[], r#"{"token":"login"}"#),
            (path, _) if path.starts_with("/token?") => answer(200, &[], r#"{"token":"scoped"}"#),
            ("/v2/acme/app/manifests/1", Some("Bearer scoped")) => answer(200, &[], ""),
            ("/v2/acme/hidden/manifests/1", Some("Bearer scoped")) => answer(403, &[], denied),
            (_, Some("Bearer scoped")) => answer(404, &[], "{}"),
            _ => answer(401, &[], "{}"),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn k04_a_good_credential_passes_with_four_requests() {
    let (outcome, seen) = run(&ghcr_credential(), &["ghcr.io/acme/app:1"], ghcr("canary")).await;
    let preflight = outcome.unwrap();
    assert_eq!(preflight.registries[0].login, Login::Token);
    assert_eq!(preflight.registries[0].images.len(), 1);
    assert!(preflight.warnings().is_empty());
    assert_eq!(
        seen,
        [
            "GET https://ghcr.io/v2/",
            "GET https://ghcr.io/token?service=ghcr.io [Basic]",
            "GET https://ghcr.io/token?service=ghcr.io&scope=repository%3Aacme%2Fapp%3Apull [Basic]",
            "HEAD https://ghcr.io/v2/acme/app/manifests/1 [Bearer]",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn k04_without_an_image_the_login_alone_is_tried_and_said_so() {
    let (outcome, seen) = run(&ghcr_credential(), &[], ghcr("canary")).await;
    assert_eq!(outcome.unwrap().warnings().len(), 1);
    assert_eq!(seen.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn k04_a_refused_login_is_a_bad_credential_and_no_anonymous_token_counts() {
    let (outcome, seen) = run(&ghcr_credential(), &["ghcr.io/acme/app:1"], ghcr("another")).await;
    let error = outcome.unwrap_err();
    assert!(
        matches!(&error, PreflightError::BadCredential { status: 403, realm, .. } if realm == "ghcr.io"),
        "{error}"
    );
    assert_eq!(seen.len(), 2);
    assert!(seen[1].ends_with("[Basic]"), "every token is asked for with the login: {seen:?}");
}

#[tokio::test(start_paused = true)]
async fn k05_every_image_that_is_refused_after_a_good_login_is_named() {
    let images =
        ["ghcr.io/acme/secret:1", "ghcr.io/acme/app:1", "ghcr.io/acme/hidden:1", "ghcr.io/acme/app:no-such-tag"];
    let (outcome, _) = run(&ghcr_credential(), &images, ghcr("canary")).await;
    let error = outcome.unwrap_err();
    let PreflightError::Images { problems, .. } = &error else { panic!("{error}") };
    let found: Vec<_> = problems.iter().map(|problem| (problem.image.to_string(), problem.what)).collect();
    let denied = ImageFault::Denied { status: 403 };
    assert_eq!(
        found,
        [(images[0].to_owned(), denied), (images[2].to_owned(), denied), (images[3].to_owned(), ImageFault::NotFound)]
    );
    assert!(error.to_string().contains("ghcr.io/acme/hidden:1: the credential may not read it"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn k06_what_says_nothing_about_the_credential_is_told_apart() {
    let (outcome, _) = run(&ghcr_credential(), &[], |_| None).await;
    let error = outcome.unwrap_err();
    assert!(matches!(&error, PreflightError::Unreachable { request: Request::Challenge, .. }), "{error}");
    assert_eq!(std::error::Error::source(&error).map(ToString::to_string).as_deref(), Some("connection refused"));

    let (outcome, _) = run(&ghcr_credential(), &[], |_| Some(answer(429, &[("retry-after", "30")], ""))).await;
    let error = outcome.unwrap_err();
    assert!(error.to_string().ends_with("with a rate limit (HTTP 429); try again in 30 s"), "{error}");

    let (outcome, _) = run(&ghcr_credential(), &[], |_| Some(answer(503, &[], "canary"))).await;
    assert!(matches!(outcome, Err(PreflightError::Unexpected { status: 503, .. })));

    let (outcome, _) = run(&ghcr_credential(), &[], |_| Some(answer(401, &[], ""))).await;
    assert!(matches!(outcome, Err(PreflightError::Challenge { .. })));

    let no_token = |asked: &Asked| {
        let path = asked.uri.trim_start_matches("https://ghcr.io");
        let challenge = [("www-authenticate", r#"Bearer realm="https://ghcr.io/token""#)];
        Some(if path == "/v2/" { answer(401, &challenge, "") } else { answer(200, &[], r#"{"token":""}"#) })
    };
    let (outcome, _) = run(&ghcr_credential(), &[], no_token).await;
    assert!(matches!(outcome, Err(PreflightError::NoToken { .. })));
}

#[tokio::test(start_paused = true)]
async fn k06_a_token_that_has_run_out_when_it_is_given_is_no_missing_permission() {
    let expired = |asked: &Asked| {
        let realm = r#"Bearer realm="https://ghcr.io/token",service="ghcr.io""#;
        let refused = format!("{realm},error=\"invalid_token\"");
        Some(match asked.method {
            Method::HEAD => answer(401, &[("www-authenticate", &refused)], ""),
            _ if asked.authorization.is_none() => answer(401, &[("www-authenticate", realm)], ""),
            _ => answer(200, &[], r#"{"token":"t"}"#),
        })
    };
    let (outcome, _) = run(&ghcr_credential(), &["ghcr.io/acme/app:1"], expired).await;
    let error = outcome.unwrap_err();
    assert!(matches!(&error, PreflightError::TokenNotTaken { .. }), "{error}");
    assert!(error.to_string().contains("ghcr.io/acme/app:1") && !error.to_string().contains("may not"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn k06_a_registry_that_never_answers_is_given_up_after_ten_seconds() {
    let service = tower::service_fn(|_| std::future::pending::<Result<Response<Full<Bytes>>, TransportError>>());
    let clock = Clock::paused(Timestamp::UNIX_EPOCH);
    let before = clock.now();
    let outcome = check_all(&Tower(service), &ghcr_credential(), &[], &clock).await;
    assert!(matches!(outcome, Err(PreflightError::TimedOut { .. })));
    assert_eq!(clock.now().since(before), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn k10_the_credential_goes_to_no_http_realm() {
    for realm in ["http://ghcr.io/token?x=canary", "http://evil.example.com/t"] {
        let challenge = format!("Bearer realm=\"{realm}\"");
        let registry = move |_: &Asked| Some(answer(401, &[("www-authenticate", &challenge)], ""));
        let (outcome, seen) = run(&ghcr_credential(), &["ghcr.io/acme/app:1"], registry).await;
        assert!(matches!(outcome, Err(PreflightError::InsecureRealm { .. })));
        assert_eq!(seen, ["GET https://ghcr.io/v2/"], "nothing else was asked");
    }
}

#[tokio::test(start_paused = true)]
async fn k10_the_login_goes_to_the_realm_only_and_the_token_to_the_registry_only() {
    let registry = |asked: &Asked| {
        let challenge = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io""#;
        Some(match asked.uri.as_str() {
            "https://registry-1.docker.io/v2/" => answer(401, &[("www-authenticate", challenge)], ""),
            uri if uri.starts_with("https://auth.docker.io/token?") => answer(200, &[], r#"{"access_token":"t"}"#),
            "https://registry-1.docker.io/v2/acme/app/manifests/1" => {
                answer(307, &[("location", "https://cdn.example.com/m/1")], "")
            }
            "https://cdn.example.com/m/1" => answer(302, &[("location", "https://registry-1.docker.io/v2/moved")], ""),
            "https://registry-1.docker.io/v2/moved" => answer(200, &[], ""),
            other => panic!("{other}"),
        })
    };
    let desired = desired("docker.io", Credential::basic("bot", "canary"));
    let (outcome, seen) = run(&desired, &["docker.io/acme/app:1"], registry).await;
    outcome.unwrap();
    let shown_to: Vec<_> = seen.iter().map(|line| line.split('?').next().unwrap().to_owned()).collect();
    assert_eq!(
        shown_to,
        [
            "GET https://registry-1.docker.io/v2/",
            "GET https://auth.docker.io/token",
            "GET https://auth.docker.io/token",
            "HEAD https://registry-1.docker.io/v2/acme/app/manifests/1 [Bearer]",
            "HEAD https://cdn.example.com/m/1",
            "HEAD https://registry-1.docker.io/v2/moved [Bearer]",
        ]
    );
    assert!(seen[1..3].iter().all(|line| line.ends_with("[Basic]")), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn k10_a_login_that_is_redirected_is_not_followed() {
    let registry = |asked: &Asked| {
        let challenge = [("www-authenticate", r#"Bearer realm="https://ghcr.io/token""#)];
        Some(match asked.uri.as_str() {
            "https://ghcr.io/v2/" => answer(401, &challenge, ""),
            _ => answer(307, &[("location", "https://evil.example.com/token")], ""),
        })
    };
    let (outcome, seen) = run(&ghcr_credential(), &[], registry).await;
    assert!(matches!(outcome, Err(PreflightError::Unexpected { status: 307, .. })));
    assert!(seen.iter().all(|line| line.contains("https://ghcr.io/")), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_redirect_loop_ends() {
    let registry = |asked: &Asked| {
        Some(match asked.method {
            Method::HEAD => answer(302, &[("location", "/v2/acme/app/manifests/1")], ""),
            _ => answer(200, &[], ""),
        })
    };
    let (outcome, seen) = run(&ghcr_credential(), &["ghcr.io/acme/app:1"], registry).await;
    assert!(matches!(outcome, Err(PreflightError::Unexpected { status: 302, .. })));
    assert_eq!(seen.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn k04_basic_registries_are_logged_in_to_directly() {
    let registry = |password: &str| {
        let good = format!("Basic {}", STANDARD.encode(format!("bot:{password}")));
        move |asked: &Asked| {
            Some(match asked.authorization.as_deref() {
                None => answer(401, &[("www-authenticate", "Basic realm=\"r\"")], ""),
                Some(login) if login == good => answer(200, &[], ""),
                Some(_) => answer(401, &[("www-authenticate", "Basic realm=\"r\"")], ""),
            })
        }
    };
    let host = "registry.example.com:5000";
    let basic = desired(host, Credential::basic("bot", "canary"));
    let (outcome, seen) = run(&basic, &["registry.example.com:5000/app:1"], registry("canary")).await;
    assert_eq!(outcome.unwrap().registries[0].login, Login::Basic);
    assert_eq!(seen.len(), 3);
    let (outcome, _) = run(&basic, &[], registry("another")).await;
    assert!(matches!(outcome, Err(PreflightError::BadCredential { status: 401, .. })));
    let (outcome, _) = run(&desired(host, Credential::token("canary")), &[], registry("canary")).await;
    assert!(matches!(outcome, Err(PreflightError::TokenForBasic { .. })));
}

#[tokio::test(start_paused = true)]
async fn k04_an_identity_token_is_exchanged_in_a_form_and_never_in_a_url() {
    let registry = |good: &'static str| {
        move |asked: &Asked| {
            let challenge = [("www-authenticate", r#"Bearer realm="https://ghcr.io/token",service="s""#)];
            Some(match asked.method {
                Method::POST if asked.body.contains(&format!("refresh_token={good}")) => {
                    assert!(asked.body.starts_with("service=s&") && asked.body.contains("grant_type=refresh_token"));
                    answer(200, &[], r#"{"access_token":"t"}"#)
                }
                Method::POST => answer(400, &[], r#"{"error":"invalid_grant"}"#),
                Method::HEAD => answer(200, &[], ""),
                _ => answer(401, &challenge, ""),
            })
        }
    };
    let token = desired("ghcr.io", Credential::token("canary"));
    let (outcome, seen) = run(&token, &["ghcr.io/acme/app:1"], registry("canary")).await;
    outcome.unwrap();
    assert!(seen.iter().all(|line| !line.contains("canary")), "{seen:?}");
    let (outcome, _) = run(&token, &[], registry("another")).await;
    assert!(matches!(outcome, Err(PreflightError::BadCredential { status: 400, .. })));
}

#[tokio::test(start_paused = true)]
async fn an_open_registry_proves_nothing_and_that_is_said() {
    let (outcome, seen) = run(&ghcr_credential(), &["ghcr.io/acme/app:1"], |_| Some(answer(200, &[], ""))).await;
    let preflight = outcome.unwrap();
    assert_eq!(preflight.registries[0].login, Login::NotAsked);
    assert!(preflight.warnings()[0].contains("was not tried"));
    assert!(seen.iter().all(|line| !line.contains('[')), "the credential was shown: {seen:?}");
}

#[tokio::test(start_paused = true)]
async fn an_image_of_another_registry_is_refused_before_anything_is_asked() {
    let (outcome, seen) = run(&ghcr_credential(), &["quay.io/acme/app:1"], |_| None).await;
    assert!(matches!(outcome, Err(PreflightError::ForeignImage { .. })));
    assert!(seen.is_empty());
    let (outcome, seen) = run(&desired("ghcr.io", Credential::None), &[], |_| None).await;
    assert!(matches!(outcome, Err(PreflightError::NoCredential { .. })) && seen.is_empty());
}

#[test]
fn the_preflight_can_run_on_any_thread() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    let (desired, clock) = (ghcr_credential(), Clock::system());
    drop(send(preflight(&desired, &[], &clock)));
}
