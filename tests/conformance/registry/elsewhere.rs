//! K10: a registry that sends its clients on to another host.

use lab::registry::{Auth, Elsewhere, Fault};

use super::{asked, assert_silent, bed, doctor};

/// It was sent these requests, and no authorization with any.
#[track_caller]
fn assert_no_credential(elsewhere: &Elsewhere, requests: usize) {
    let seen = elsewhere.seen();
    assert_eq!(seen.len(), requests, "{seen:?}");
    assert!(seen.iter().all(|seen| !seen.has("authorization")), "{seen:?}");
    // Nor by another name, or in the URL.
    let secret = |text: &str| text.contains("eyJ") || text.contains("Basic ") || text.contains("Bearer ");
    let spoken =
        |seen: &lab::registry::Seen| seen.headers.iter().any(|(_, value)| secret(value)) || secret(&seen.target);
    assert!(!seen.iter().any(spoken), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k10_the_credential_stays_behind_when_the_registry_sends_its_clients_elsewhere() {
    for auth in [Auth::Token, Auth::Basic] {
        let bed = bed(auth).await;
        let registry = bed.lab.registry();
        let elsewhere = registry.elsewhere().expect("another host");
        let all = "/v2/lab/app/manifests/";
        registry.fault(all, Some(Fault::Redirect(elsewhere.host())));
        // The other host has the manifest for everybody, so that the preflight passes without having shown anything.
        doctor(&bed, &[&bed.lab.image()]).await.expect(0);
        assert_no_credential(&elsewhere, 1);
        registry.fault(all, None);
        // A node logs in only when it is told to, which the tag's manifest does; then it is sent on for the rest:
        // manifest, configuration and layer.
        for path in ["/v2/lab/app/manifests/sha256:", "/v2/lab/app/blobs/"] {
            registry.fault(path, Some(Fault::Redirect(elsewhere.host())));
        }
        let done = bed.run(&["-n", "worker-1"]).await.expect(0);
        assert_silent(&bed, &done);
        assert_eq!(bed.truth_of("worker-1").record.expect("a record")["pull"], "proved");
        assert_no_credential(&elsewhere, 1 + 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k10_a_login_is_sent_nowhere_else() {
    for (auth, path) in [(Auth::Token, "/token"), (Auth::Basic, "/v2/"), (Auth::Token, "/v2/")] {
        let bed = bed(auth).await;
        let registry = bed.lab.registry();
        let elsewhere = registry.elsewhere().expect("another host");
        registry.fault(path, Some(Fault::Redirect(elsewhere.host())));
        let failed = doctor(&bed, &[&bed.lab.image()]).await.expect(1);
        assert!(failed.stdout.contains("HTTP 307"), "{}", failed.stdout);
        assert_no_credential(&elsewhere, 0);
        assert_eq!(asked(&bed, "HEAD manifests"), 0);
    }
}
