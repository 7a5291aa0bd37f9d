//! The simulated registry against the real one: the same requests, and all that the product reads of the answers.
//!
//! What is not alike, because GHCR is not distribution there, and the simulated registry is GHCR's:
//! - a challenge at `/v2/` names the scope `repository:user/image:pull` (distribution: none); the product asks for
//!   scopes of its own;
//! - a user that may not read an image is answered 403 DENIED (distribution: 401 with `insufficient_scope`, for its
//!   token says so); the product takes both for the same;
//! - a token endpoint answers a wrong credential with 403 DENIED; the lab's is the same for both registries.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab::cluster::USER;
use lab::registry::{Answer, Auth, Tokens};
use serde_json::Value;

use super::small;
use crate::harness::Bed;

/// What the product, or a person, reads of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    status: u16,
    /// Without the host, which is another for each lab, and without the scope at `/v2/`.
    challenge: Option<String>,
    digest: Option<String>,
    media_type: Option<String>,
    length: Option<String>,
    error: Option<String>,
}

fn read(bed: &Bed, method: &str, target: &str, answer: &Answer) -> Read {
    let text = |name: &str| answer.header(name).map(str::to_owned);
    let challenge = text("www-authenticate").map(|it| it.replace(&bed.lab.registry().host(), "HOST"));
    let challenge = challenge.map(|it| it.replace(",scope=\"repository:user/image:pull\"", ""));
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let success = answer.status == 200 && target.contains("/manifests/");
    let media_type = text("content-type").filter(|_| success);
    // The length of an error is that of its message.
    let length = text("content-length").filter(|_| success);
    assert!(method == "HEAD" || answer.body.len() > 1, "{method} {target}");
    Read {
        status: answer.status.as_u16(),
        challenge,
        digest: text("docker-content-digest"),
        media_type,
        length,
        error: body["errors"][0]["code"].as_str().map(str::to_owned),
    }
}

/// A token, or why there is none.
async fn token(bed: &Bed, password: Option<&str>, scope: &str) -> Result<String, (u16, String)> {
    let basic = password.map(|password| format!("Basic {}", STANDARD.encode(format!("{USER}:{password}"))));
    let target = format!("/token?service={}{scope}", bed.lab.registry().host());
    let answer = bed.lab.registry().ask("GET", &target, basic.as_deref()).await.expect("an answer");
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    match body["token"].as_str() {
        Some(token) => Ok(format!("Bearer {token}")),
        None => Err((answer.status.as_u16(), body["errors"][0]["code"].as_str().unwrap_or_default().to_owned())),
    }
}

/// Every request of the flow and what is read of its answer, each with a name.
async fn flow(bed: &Bed) -> Vec<(String, Read)> {
    const SCOPE: &str = "&scope=repository%3Alab%2Fapp%3Apull";
    let registry = bed.lab.registry();
    let digest = registry.add_image("lab/app", "1", false);
    let index = registry.add_index("lab/several", "1", false);
    registry.add_image("lab/public", "1", true);
    let new = Some(bed.lab.new_password());
    assert_eq!(token(bed, Some("wrong"), SCOPE).await, Err((403, "DENIED".to_owned())));
    let good = token(bed, new, SCOPE).await.expect("a token");
    let no_scope = token(bed, new, "").await.expect("a token");
    let anonymous = token(bed, None, SCOPE).await.expect("a token for nobody");
    let open = token(bed, None, "&scope=repository%3Alab%2Fpublic%3Apull").await.expect("a token for nobody");
    let several = token(bed, new, "&scope=repository%3Alab%2Fseveral%3Apull").await.expect("a token");
    let nothing = token(bed, new, "&scope=repository%3Alab%2Fnothing%3Apull").await.expect("a token");
    registry.give(Tokens::WrongScope);
    let another = token(bed, new, SCOPE).await.expect("a token");
    registry.give(Tokens::Expired);
    let expired = token(bed, new, SCOPE).await.expect("a token");
    registry.give(Tokens::Good);

    let app = "/v2/lab/app/manifests/1".to_owned();
    let by_digest = format!("/v2/lab/app/manifests/{digest}");
    let no_digest = format!("/v2/lab/app/manifests/sha256:{}", "0".repeat(64));
    let bad = "Bearer of-no-registry".to_owned();
    let cases: [(&str, &str, Option<&String>); 20] = [
        ("no token", "/v2/", None),
        ("a good token", "/v2/", Some(&good)),
        ("a token without a scope", "/v2/", Some(&no_scope)),
        ("a bad token", "/v2/", Some(&bad)),
        ("an expired token", "/v2/", Some(&expired)),
        ("no token", &app, None),
        ("a good token", &app, Some(&good)),
        ("a good token, by digest", &by_digest, Some(&good)),
        ("a bad token", &app, Some(&bad)),
        ("an expired token", &app, Some(&expired)),
        ("a token without a scope", &app, Some(&no_scope)),
        ("a token of another scope", &app, Some(&another)),
        ("a token of nobody", &app, Some(&anonymous)),
        ("no such tag", "/v2/lab/app/manifests/2", Some(&good)),
        ("no such digest", &no_digest, Some(&good)),
        ("no such repository", "/v2/lab/nothing/manifests/1", Some(&nothing)),
        ("a public image of nobody", "/v2/lab/public/manifests/1", Some(&open)),
        ("an index", "/v2/lab/several/manifests/1", Some(&several)),
        ("an index by digest", &format!("/v2/lab/several/manifests/{index}"), Some(&several)),
        ("Basic where tokens are asked for", &app, Some(&format!("Basic {}", STANDARD.encode("a:b")))),
    ];
    let mut read_of = Vec::new();
    for (name, target, authorization) in cases {
        for method in ["HEAD", "GET"] {
            let answer = registry.ask(method, target, authorization.map(String::as_str)).await.expect("an answer");
            read_of.push((format!("{method} {target} with {name}"), read(bed, method, target, &answer)));
        }
    }
    read_of
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w07_k04_the_simulated_registry_answers_as_the_real_one() {
    let simulated = flow(&Bed::new(|options| (options.control_planes, options.workers) = (1, 0)).await).await;
    let real = flow(&Bed::new(small(Auth::Token)).await).await;
    let differing: Vec<String> = std::iter::zip(&simulated, &real)
        .filter(|((_, simulated), (_, real))| simulated != real)
        .map(|((name, simulated), (_, real))| format!("{name}\n  simulated {simulated:?}\n  real      {real:?}"))
        .collect();
    assert!(differing.is_empty(), "{} of {} differ:\n{}", differing.len(), real.len(), differing.join("\n"));
    // Not because nothing was read.
    assert!(real.iter().any(|(_, read)| read.digest.is_some() && read.media_type.is_some()));
    assert!(real.iter().any(|(_, read)| read.challenge.is_some() && read.error.is_some()));
}
