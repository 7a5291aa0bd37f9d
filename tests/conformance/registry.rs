//! K: the preflight and the nodes' pulls against the real registry, with tokens as GHCR gives them and with Basic.

mod alike;
mod canary;
mod elsewhere;
mod refused;

use std::path::PathBuf;

use lab::registry::{Auth, Backend};
use lab::{Held, Options};

use crate::harness::{Bed, Ended, bare, finish, leaks, lease_duration};

/// What `make conformance` builds.
const BINARY: &str = lab::conformance::REGISTRY_VARIABLE;

/// The real registry, with this login.
fn real(auth: Auth) -> Backend {
    let binary = std::env::var_os(BINARY).map(PathBuf::from).filter(|binary| binary.is_file());
    let binary =
        binary.unwrap_or_else(|| panic!("{BINARY} names no registry: run these tests with `make conformance`"));
    Backend::Real { auth, binary }
}

/// One control plane and two workers.
fn small(auth: Auth) -> impl FnOnce(&mut Options) {
    move |options| {
        (options.control_planes, options.workers) = (1, 2);
        options.registry = real(auth);
    }
}

/// A lab whose registry is the real one.
async fn bed(auth: Auth) -> Bed {
    Bed::new(small(auth)).await
}

/// `doctor --registry-only` with the new credential and these images; nothing of the credential is shown.
async fn doctor(bed: &Bed, images: &[&str]) -> Ended {
    let mut doctor = bare();
    let credential = bed.lab.credential_file(Held::New);
    doctor.args(["doctor", "--registry-only", "--registry", &bed.lab.registry().host(), "-o", "json"]);
    doctor.arg("--credential-file").arg(credential).envs(bed.lab.product_env());
    for image in images {
        doctor.args(["--image", image]);
    }
    let ended = finish(doctor).await;
    assert_silent(bed, &ended);
    ended
}

/// Neither a password nor a token of the registry is shown.
#[track_caller]
fn assert_silent(bed: &Bed, ended: &Ended) {
    for text in [&ended.stdout, &ended.stderr] {
        // A token of the lab begins as every JSON Web Token does.
        assert!(!leaks(&bed.lab, text) && !text.contains("eyJ"), "a secret is shown: {text}");
    }
}

/// The requests of the registry's log whose label is this.
fn asked(bed: &Bed, label: &str) -> usize {
    bed.lab.log().all().iter().filter(|entry| entry.server == lab::registry::SERVER && entry.method == label).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k04_k11_a_roll_with_tokens_in_which_every_node_pulls_from_the_registry() {
    let bed = bed(Auth::Token).await;
    doctor(&bed, &[&bed.lab.image()]).await.expect(0);
    let done = bed.run(&["-o", "json", "--allow-control-plane-outage"]).await.expect(0);
    assert_silent(&bed, &done);
    assert_eq!(done.json()["result"], "done");
    bed.assert_done();
    for node in bed.lab.truth().nodes {
        let record = node.record.expect("a record");
        assert_eq!((&record["state"], &record["pull"]), (&"proved".into(), &"proved".into()), "{record}");
    }
    // Each of them fetched the manifest, its configuration and its layer.
    assert_eq!((asked(&bed, "PULL manifests"), asked(&bed, "GET manifests"), asked(&bed, "GET blobs")), (3, 3, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k04_a_roll_with_basic_in_which_every_node_pulls_from_the_registry() {
    let bed = bed(Auth::Basic).await;
    doctor(&bed, &[&bed.lab.image()]).await.expect(0);
    let done = bed.run(&["--allow-control-plane-outage"]).await.expect(0);
    assert_silent(&bed, &done);
    bed.assert_done();
    assert_eq!((asked(&bed, "GET blobs"), asked(&bed, "GET token")), (6, 0));
    // Its htpasswd file has one password for a user, and that is the new one.
    let refused = bed.product_with_old("run", &["--allow-older"]).await.expect(1);
    assert!(refused.stderr.contains("refuses the credential (HTTP 401"), "{}", refused.stderr);
    assert_silent(&bed, &refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k04_images_of_one_platform_and_of_several_pass_by_tag_and_by_digest() {
    for auth in [Auth::Token, Auth::Basic] {
        let bed = bed(auth).await;
        let registry = bed.lab.registry();
        let host = registry.host();
        let digest = registry.add_image("lab/one", "2.0", false);
        let index = registry.add_index("lab/several", "2.0", false);
        let images = [
            format!("{host}/lab/one:2.0"),
            format!("{host}/lab/one@{digest}"),
            format!("{host}/lab/several:2.0"),
            format!("{host}/lab/several@{index}"),
        ];
        doctor(&bed, &images.each_ref().map(String::as_str)).await.expect(0);
        assert_eq!(asked(&bed, "HEAD manifests"), images.len());
        // A node takes the manifest of its own platform out of the index.
        let one = ["-n", "worker-1", "--lease-duration", lease_duration()];
        bed.product_with("run", &[("--image", &images[3])], &one).await.expect(0);
        assert_eq!(bed.truth_of("worker-1").record.expect("a record")["pull"], "proved");
        assert_eq!((asked(&bed, "GET manifests"), asked(&bed, "GET blobs")), (2, 2));
    }
}
