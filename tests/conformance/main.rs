//! The product, and the lab that it is tested in, against real components: kube-apiserver with etcd and its controllers,
//! kubectl, client-go's leader election, an OCI registry. `make conformance` builds them and runs this; `make test` does
//! not, for it needs nothing but cargo.
#![allow(clippy::disallowed_methods, reason = "tests of real processes wait in real time")]

mod drain;
mod election;
#[allow(dead_code, reason = "shared with the acceptance tests, which use all of it")]
#[path = "../acceptance/harness.rs"]
mod harness;
mod kubectl;
mod operator;
mod registry;
mod replay;
mod rights;
#[allow(dead_code, reason = "shared with the acceptance tests, which use all of it")]
#[path = "../acceptance/scene.rs"]
mod scene;
mod talos;
mod traps;
