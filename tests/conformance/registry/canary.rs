//! K07: the preflight passes, and then a node's pull from the real registry does not.

use futures::FutureExt as _;
use lab::Held;
use lab::cluster::USER;
use lab::faults::When::Before;
use lab::registry::{Auth, Fault, Registry, Tokens};

use super::{asked, assert_silent, bed};
use crate::harness::{Bed, ended};
use crate::scene::{Gate, Story, lease_is_held, requests, side_by_side};

/// A run whose canary meets `change` at its pull: it has its old credential again, and no other node was touched.
async fn not_proven(auth: Auth, change: impl FnOnce(&Registry, &Bed) + Send + 'static) {
    let bed = bed(auth).await;
    let (before, story) = (bed.config("worker-1"), Story::begin(&bed));
    let mut gate = Gate::new(&bed);
    let child = bed.start(&["-n", "worker-1,worker-2"]);
    let held = gate.hold(Before, "Pull worker-1", 1).await;
    drop(gate);
    assert_eq!(asked(&bed, "HEAD manifests"), 1, "the preflight has passed, and no node has asked yet");
    change(bed.lab.registry(), &bed);
    held.release();
    let failed = ended(child).await.expect(1);
    assert_silent(&bed, &failed);
    for words in ["worker-1", "is refused", "cannot be reached from the node", "the old credential is back"] {
        assert!(failed.stderr.contains(words), "{words}: {}", failed.stderr);
    }
    assert_eq!(bed.config("worker-1"), before);
    for node in bed.lab.truth().nodes {
        assert_eq!((node.configured, node.cri_loaded, node.boots), (Held::Old, Held::Old, 0), "{}", node.name);
        assert!(story.fenced(&node.name).is_empty() && !node.cordoned && node.record.is_none(), "{}", node.name);
    }
    assert!(requests(&bed, "ApplyConfiguration", "worker-2").is_empty() && !lease_is_held(&bed));
    // A whole image has a configuration and a layer.
    let pulls = asked(&bed, "PULL manifests");
    assert!(pulls > 0 && asked(&bed, "GET blobs") <= pulls, "the node asked and got no image");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k07_a_pull_that_the_registry_does_not_answer_well_is_rolled_back() {
    const MANIFESTS: &str = "/v2/lab/app/manifests/";
    let revoked = |registry: &Registry, bed: &Bed| registry.revoke(USER, bed.lab.new_password());
    let fault = |path: &'static str, fault| move |registry: &Registry, _: &Bed| registry.fault(path, Some(fault));
    let cases = [
        ("revoked", not_proven(Auth::Token, revoked).boxed()),
        ("revoked, Basic", not_proven(Auth::Basic, revoked).boxed()),
        ("expired", not_proven(Auth::Token, |registry, _| registry.give(Tokens::Expired)).boxed()),
        ("no scope", not_proven(Auth::Token, |registry, _| registry.deny(USER, true)).boxed()),
        ("403", not_proven(Auth::Token, fault(MANIFESTS, Fault::Answer(403))).boxed()),
        ("429", not_proven(Auth::Token, fault(MANIFESTS, Fault::Answer(429))).boxed()),
        ("503", not_proven(Auth::Token, fault("/token", Fault::Answer(503))).boxed()),
        ("cut", not_proven(Auth::Token, fault(MANIFESTS, Fault::Cut)).boxed()),
        ("a layer cut short", not_proven(Auth::Token, fault("/v2/lab/app/blobs/", Fault::CutShort)).boxed()),
    ];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}
