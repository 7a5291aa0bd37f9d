//! A laboratory for `talos-ghcr`: simulated Talos nodes, a Kubernetes API and a private registry over real sockets, each
//! lab in a loopback network of its own. It answers what real servers were recorded to answer and knows only the
//! requests that the product makes; anything else is noted as unexpected and fails a test. It shares the wire's messages
//! with the product and none of its rules.

mod backend;
pub mod cli;
pub mod cluster;
pub mod conformance;
mod control;
pub mod demo;
pub mod faults;
mod files;
pub mod front;
pub mod github;
pub mod kube;
pub mod net;
pub mod objects;
pub mod options;
pub mod pki;
pub mod real;
pub mod registry;
pub mod replay;
pub mod talos;
pub mod truth;

#[cfg(test)]
mod lab_test;
#[cfg(test)]
mod testing;

pub use cluster::{Lab, StartError};
pub use options::{Options, Share};
pub use truth::{Held, Truth};
