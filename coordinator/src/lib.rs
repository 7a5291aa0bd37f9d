//! Floor 3: the fleet and its control. Owns the binary `talos-ghcr`.
//!
//! One level-triggered loop: [`inventory`] observes, [`decide`](mod@decide) decides (pure). State lives in the cluster, never in the process.
//!
//! - [`fleet`], [`order`], [`decide`](mod@decide), [`plan`], [`identity`], [`endpoint`]: pure, but for one name lookup.
//! - [`kube`], [`registry`], [`holder`]: what is asked of etcd, Kubernetes, the registry, and this process.
//! - [`report`], [`cli`]: what people see and type.
#![warn(missing_docs)]

pub mod cli;
pub mod decide;
pub mod endpoint;
pub mod fleet;
pub mod holder;
pub mod identity;
pub mod inventory;
pub mod kube;
pub mod order;
pub mod plan;
pub mod registry;
pub mod report;
pub mod settings;
