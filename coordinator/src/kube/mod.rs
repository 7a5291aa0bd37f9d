//! Control over Kubernetes: the set of API servers, the nodes, the lease, the fence and the drain.
//!
//! Kubernetes is used only to quiet a node (cordon, drain, uncordon) and for one Lease. Requests that this room makes,
//! and the rights that they need: `nodes` get, list, watch, patch; `leases` get, create, patch (one namespace); `pods`
//! list, watch; `pods/eviction` create; `daemonsets` and `poddisruptionbudgets` get; `/readyz`.

pub mod access;
pub mod api_servers;
mod connection;
pub mod drain;
pub mod fence;
pub mod kubeconfig;
#[cfg(test)]
mod lab_test;
mod lanes;
pub mod lease;
pub mod nodes;
pub mod outages;
pub(crate) mod patch;
pub mod serving;
#[cfg(test)]
mod testing;
pub(crate) mod watch;
