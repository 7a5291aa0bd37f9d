//! The lease against an API server in memory, on a paused clock.

mod acquiring;
mod holding;
mod releasing;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::super::testing::{FakeApi, Seen};
use super::*;
use crate::holder::{Evidence, Holder};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/talos-ghcr";

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A holder of whose process nothing is known.
fn holder(identity: &str) -> Holder {
    Holder { identity: identity.to_owned(), evidence: Evidence::default() }
}

fn options(identity: &str) -> LeaseOptions {
    LeaseOptions::new(holder(identity))
}

async fn take(api: &FakeApi, identity: &str) -> HeldLease {
    acquire(&api.servers(), options(identity)).await.unwrap()
}

#[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
fn put(api: &FakeApi, spec: Value) {
    api.put(LEASE, json!({ "kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {}, "spec": spec }));
}

fn spec(api: &FakeApi) -> Value {
    api.get(LEASE).unwrap()["spec"].clone()
}

fn on_lease(method: &'static Method) -> impl Fn(&Seen) -> bool + Send + Sync {
    move |seen| seen.method == *method && seen.path == LEASE
}

/// A patch that renews: it sets no holder.
fn is_renewal(seen: &Seen) -> bool {
    let sets = |path: &str| {
        seen.body.as_array().is_some_and(|all| all.iter().any(|op| op["op"] == "add" && op["path"] == path))
    };
    seen.method == Method::PATCH && sets("/spec/renewTime") && !sets("/spec/holderIdentity")
}

/// A patch that releases.
fn is_release(seen: &Seen) -> bool {
    let empty = json!({ "op": "add", "path": "/spec/holderIdentity", "value": "" });
    seen.method == Method::PATCH && seen.body.as_array().is_some_and(|all| all.contains(&empty))
}

fn renewals(api: &FakeApi) -> Vec<Duration> {
    let origin = talos_proto::clock::Moment::from_origin(Duration::ZERO);
    api.log().iter().filter(|seen| is_renewal(seen)).map(|seen| seen.at.since(origin)).collect()
}

type Told = Arc<Mutex<Vec<LeaseProgress>>>;

type Sink = Arc<dyn Fn(&LeaseProgress) + Send + Sync>;

fn recorded() -> (Told, Sink) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    (told, Arc::new(move |progress: &LeaseProgress| sink.lock().unwrap().push(progress.clone())))
}
