//! K: the credential that is given, and what the registry says of it before anything is written.

use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab::cluster::USER;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::harness::{Bed, Ended, ended, finish};
use crate::scene::assert_untouched;

/// Runs a command that reads from stdin.
async fn fed(mut command: Command, input: &str) -> Ended {
    let mut child = command.stdin(Stdio::piped()).kill_on_drop(true).spawn().expect("the product starts");
    let mut stdin = child.stdin.take().expect("its stdin is a pipe");
    stdin.write_all(input.as_bytes()).await.expect("it reads");
    drop(stdin);
    ended(child).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k04_k06_what_the_registry_does_not_take_is_never_written() {
    let bed = Bed::default().await;
    let (host, registry) = (bed.lab.registry().host(), bed.lab.registry());
    // A wrong password in the file.
    let auth = STANDARD.encode(format!("{USER}:wrong-by-one-letter"));
    let wrong = bed.write("wrong.json", &json!({"auths": {&host: {"auth": auth}}}).to_string());
    let refused = bed.product_with("run", &[("--credential-file", &wrong)], &["-o", "json"]).await.expect(1);
    assert!(refused.stderr.contains("refuses the credential") && refused.stderr.contains(&host), "{}", refused.stderr);
    assert!(refused.stderr.contains("written"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("wrong-by") && !refused.stdout.contains("wrong-by"), "no part of it is shown");
    assert_eq!((&refused.json()["exitCode"], &refused.json()["changed"]), (&1.into(), &false.into()));
    assert_untouched(&bed);
    // The token is given, the manifest is not.
    registry.deny(USER, true);
    let refused = bed.run(&[]).await.expect(1);
    assert!(refused.stderr.contains("takes the credential, but not"), "{}", refused.stderr);
    assert!(refused.stderr.contains(&bed.lab.image()), "the image is named: {}", refused.stderr);
    registry.deny(USER, false);
    // There is no such image.
    let missing = format!("{host}/lab/nothing:1");
    let refused = bed.product_with("run", &[("--image", &missing)], &[]).await.expect(1);
    assert!(refused.stderr.contains(&missing) && refused.stderr.contains("404"), "{}", refused.stderr);
    // One of two.
    let refused = bed.run(&["--image", &missing]).await.expect(1);
    assert!(refused.stderr.contains(&missing) && !refused.stderr.contains("lab/app:1:"), "{}", refused.stderr);
    assert_untouched(&bed);
    // The registry is ill, or limits: nothing is said of the credential.
    for (code, says) in [(503, "503"), (429, "rate limit")] {
        registry.fail(Some(code));
        let failed = bed.run(&[]).await.expect(1);
        assert!(failed.stderr.contains(says) && !failed.stderr.contains("refuses"), "{}", failed.stderr);
    }
    registry.fail(None);
    // Refused by the registry of late.
    registry.revoke(USER, bed.lab.new_password());
    let refused = bed.run(&[]).await.expect(1);
    assert!(refused.stderr.contains("refuses the credential"), "{}", refused.stderr);
    registry.accept(USER, bed.lab.new_password());
    // Not there at all.
    registry.stop();
    let failed = bed.run(&[]).await.expect(1);
    assert!(failed.stderr.contains("says nothing about the credential"), "{}", failed.stderr);
    assert!(failed.stderr.contains(&host) && !failed.stderr.contains("refuses the credential"), "{}", failed.stderr);
    assert_untouched(&bed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k01_a_docker_config_that_cannot_be_used_is_named_and_nothing_is_asked() {
    let bed = Bed::default().await;
    let host = bed.lab.registry().host();
    let auth = STANDARD.encode(format!("{USER}:hidden-one"));
    let cases = [
        (
            "missing",
            json!({"auths": {"ghcr.io": {"auth": auth}, "quay.io": {"auth": auth}}}),
            "it has ghcr.io, quay.io",
        ),
        (
            "different",
            json!({"auths": {&host: {"auth": auth, "username": USER, "password": "hidden-two"}}}),
            "disagrees",
        ),
        ("no-user", json!({"auths": {&host: {"password": "hidden-one"}}}), "username"),
        ("nothing", json!({"auths": {&host: {}}}), "no credential"),
        ("helper", json!({"auths": {&host: {}}, "credsStore": "desktop"}), "docker-credential-desktop"),
        ("shape", json!({"auths": {&host: "hidden-one"}}), "not JSON of the expected shape"),
    ];
    for (name, content, says) in cases {
        let file = bed.write(name, &content.to_string());
        let failed = bed.product_with("run", &[("--credential-file", &file)], &[]).await.expect(1);
        assert!(failed.stderr.contains(says), "{name} says {says:?}: {}", failed.stderr);
        assert!(name == "shape" || failed.stderr.contains(&host), "{name} names {host}: {}", failed.stderr);
        assert!(!failed.stderr.contains("hidden"), "{name} shows no secret: {}", failed.stderr);
    }
    assert_eq!(bed.requests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k01_k02_the_same_credential_in_every_form_and_from_every_source_is_the_same() {
    let bed = Bed::proved(|options| (options.control_planes, options.workers) = (1, 1)).await;
    let host = bed.lab.registry().host();
    let password = bed.lab.old_password();
    let auth = STANDARD.encode(format!("{USER}:{password}"));
    let other = STANDARD.encode("somebody:else");
    let forms = [
        json!({"auths": {&host: {"auth": auth}}}),
        json!({"auths": {&host: {"username": USER, "password": password}}}),
        json!({"auths": {&host: {"auth": auth, "username": USER, "password": password}}}),
        json!({"auths": {"ghcr.io": {"auth": other}, &host: {"auth": auth}}}),
    ];
    for form in &forms {
        let form = form.to_string();
        let file = bed.write("form.json", &form);
        bed.product_with("verify", &[("--credential-file", &file)], &[]).await.expect(0);
        fed(bed.command_with("verify", &[("--credential-file", "-")], &[]), &form).await.expect(0);
        let mut by_environment = bed.command_with("verify", &[("--credential-file", "")], &[]);
        by_environment.env("TALOS_GHCR_CREDENTIAL", &form);
        finish(by_environment).await.expect(0);
    }
    // `run` takes it from there as well, and finds the same: nothing to do.
    bed.lab.reset_counters();
    let run = fed(bed.command_with("run", &[("--credential-file", "-")], &["-o", "json"]), &forms[0].to_string()).await;
    assert_eq!(run.expect(0).json()["result"], "nothing-to-do");
    assert_eq!(bed.writes(), 0);
    // An empty stdin is no credential.
    let failed = fed(bed.command_with("run", &[("--credential-file", "-")], &[]), "").await.expect(1);
    assert!(failed.stderr.contains("it is empty"), "{}", failed.stderr);
}
