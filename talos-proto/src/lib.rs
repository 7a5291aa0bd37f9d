//! Floor 1: the wire. The Talos machine API over gRPC and mTLS as `talos-ghcr` uses it: protos, talosconfig, client
//! identity, one channel per endpoint, typed calls. Knows no Kubernetes and decides nothing.
#![warn(missing_docs)]

pub mod channel;
pub mod clock;
pub mod config;
pub mod cosi;
pub mod error;
pub mod identity;
pub mod image;
pub mod node;
pub mod permit;
pub mod proto;
pub mod registries;
pub mod resources;
pub mod version;

#[cfg(test)]
mod tests;

pub use channel::Talos;
pub use error::{CallError, Why, chain};
pub use node::{Apply, Node};
pub use tonic::Code;
