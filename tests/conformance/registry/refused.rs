//! What the registry, or something before it, answers so that nothing may be written.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab::cluster::USER;
use lab::registry::{Auth, Fault, Tokens};
use serde_json::json;

use super::{assert_silent, bed, doctor};
use crate::harness::Bed;
use crate::scene::assert_untouched;

/// What is said of a credential that the registry had something to say about.
const JUDGED: [&str; 2] = ["refuses the credential", "takes the credential"];
/// What is said where it had not.
const SILENT: &str = "says nothing about the credential";

/// A run that ends before any write, says all of `says`, and nothing of the credential that it cannot know.
async fn refused(bed: &Bed, replaced: &[(&str, &str)], more: &[&str], says: &[&str]) -> String {
    let ended = bed.product_with("run", replaced, more).await.expect(1);
    assert_silent(bed, &ended);
    let said = ended.stderr;
    for words in says {
        assert!(said.contains(words), "it says {words:?}: {said}");
    }
    assert!(said.contains(&bed.lab.registry().host()), "the registry is named: {said}");
    let judges = JUDGED.iter().any(|words| said.contains(words));
    let judged = says.iter().any(|words| JUDGED.iter().any(|judged| words.contains(judged)));
    assert_eq!(judges, judged, "what is known of the credential: {said}");
    assert_untouched(bed);
    said
}

/// A file with another password.
fn wrong(bed: &Bed) -> String {
    let auth = STANDARD.encode(format!("{USER}:wrong-by-one-letter"));
    bed.write("wrong.json", &json!({"auths": {bed.lab.registry().host(): {"auth": auth}}}).to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k04_a_wrong_and_a_revoked_credential_are_refused_with_tokens_and_with_basic() {
    for (auth, status) in [(Auth::Token, "HTTP 403"), (Auth::Basic, "HTTP 401")] {
        let bed = bed(auth).await;
        let said =
            refused(&bed, &[("--credential-file", &wrong(&bed))], &[], &["refuses the credential", status]).await;
        assert!(!said.contains("wrong-by"), "no part of it is shown: {said}");
        bed.lab.registry().revoke(USER, bed.lab.new_password());
        refused(&bed, &[], &[], &["refuses the credential", status]).await;
        // It is the same bed, and the same credential, when it is accepted again.
        bed.lab.registry().accept(USER, bed.lab.new_password());
        doctor(&bed, &[&bed.lab.image()]).await.expect(0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k05_an_image_that_may_not_be_read_is_named_and_no_other() {
    let bed = bed(Auth::Token).await;
    let (registry, host, image) = (bed.lab.registry(), bed.lab.registry().host(), bed.lab.image());
    let takes = "takes the credential, but not for every image";
    // A token without the scope: the registry itself says so.
    registry.deny(USER, true);
    refused(&bed, &[], &[], &[takes, &format!("{image}: the credential may not read it (HTTP 401)")]).await;
    registry.deny(USER, false);
    registry.give(Tokens::WrongScope);
    refused(&bed, &[], &[], &[takes, &format!("{image}: the credential may not read it (HTTP 401)")]).await;
    registry.give(Tokens::Good);
    // One of two, by the manifest and by the token.
    let other = format!("{host}/lab/other:1");
    registry.add_image("lab/other", "1", false);
    for path in
        ["/v2/lab/other/", &format!("/token?service={}&scope=repository%3Alab%2Fother", host.replace(':', "%3A"))]
    {
        registry.fault(path, Some(Fault::Answer(403)));
        let says = format!("{takes}: {other}: the credential may not read it (HTTP 403)");
        let said = refused(&bed, &[], &["--image", &other], &[&says]).await;
        assert!(!said.contains(&format!("{image}: the")), "{said}");
        registry.fault(path, None);
    }
    // No such image, no such tag, no such digest.
    let absent = format!("sha256:{}", "0".repeat(64));
    for missing in ["lab/nothing:1", "lab/app:2", &format!("lab/app@{absent}")] {
        let missing = format!("{host}/{missing}");
        let said = refused(&bed, &[("--image", &missing)], &[], &[takes, &missing, "HTTP 404"]).await;
        assert!(!said.contains(&format!("{image}: the")), "{said}");
    }
    doctor(&bed, &[&image, &other]).await.expect(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k06_a_token_that_has_run_out_is_not_taken_for_a_credential_that_may_not_read() {
    let bed = bed(Auth::Token).await;
    bed.lab.registry().give(Tokens::Expired);
    let image = bed.lab.image();
    let said = refused(&bed, &[], &[], &["invalid_token", &image, "is not known", "clocks"]).await;
    assert!(!said.contains("may not read"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k06_an_answer_that_is_none_says_nothing_about_the_credential() {
    let bed = bed(Auth::Token).await;
    let (registry, image) = (bed.lab.registry(), format!("the manifest of {}", bed.lab.image()));
    let requests = [("/v2/?", "GET /v2/"), ("/token", "the login at 127."), ("/v2/lab/app/manifests/", &image)];
    for (path, request) in requests {
        let path = path.trim_end_matches('?');
        let faults = [
            (Fault::Answer(429), "with a rate limit (HTTP 429); try again in 7 s"),
            (Fault::Answer(500), "with HTTP 500; this says nothing about the credential"),
            (Fault::Answer(503), "with HTTP 503; this says nothing about the credential"),
            (Fault::Cut, SILENT),
            (Fault::CutShort, SILENT),
        ];
        for (fault, says) in faults {
            registry.fault(path, Some(fault));
            refused(&bed, &[], &[], &[request, says]).await;
        }
        registry.fault(path, None);
    }
    // Not there at all.
    registry.stop();
    refused(&bed, &[], &[], &["GET /v2/", SILENT]).await;
}

/// The limit of 10 s itself is proved beside the preflight, with a clock that a test moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k06_a_slow_registry_is_waited_for() {
    let bed = bed(Auth::Token).await;
    for path in ["/token", "/v2/lab/app/manifests/"] {
        bed.lab.registry().fault(path, Some(Fault::Slow(Duration::from_millis(1500))));
    }
    doctor(&bed, &[&bed.lab.image()]).await.expect(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k06_a_certificate_of_an_authority_that_is_not_trusted_is_told_as_that() {
    let bed = bed(Auth::Token).await;
    let other = bed.write("another-ca.pem", lab::pki::Ca::new("another", "lab").cert_pem());
    let mut run = bed.command("run", &[]);
    run.env("SSL_CERT_FILE", other);
    let ended = crate::harness::finish(run).await.expect(1);
    assert_silent(&bed, &ended);
    let host = bed.lab.registry().host();
    for words in [&*host, "GET /v2/", SILENT, "authority", "SSL_CERT_FILE"] {
        assert!(ended.stderr.contains(words), "it says {words:?}: {}", ended.stderr);
    }
    assert_untouched(&bed);
    assert_eq!(bed.lab.truth().total("registry").reads, 0, "no request came through");
}
