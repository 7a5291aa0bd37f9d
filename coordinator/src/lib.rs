//! Floor 3: the fleet and its control. Owns the binary `talos-ghcr`.
#![warn(missing_docs)]

pub mod holder;
pub mod kube;
pub mod registry;
