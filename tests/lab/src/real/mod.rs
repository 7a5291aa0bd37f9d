//! A real Kubernetes behind a lab: etcd, a kube-apiserver for each control plane, kube-controller-manager. What a cluster
//! has besides is played by the lab: kubelets, a scheduler, and a listener before each API server that counts requests
//! and holds them at crash points, and otherwise passes them on as they are.

pub mod api;
pub mod cluster;
mod files;
pub mod forward;
pub mod https;
mod kubelet;
mod member;
mod mirror;
mod objects;
pub mod plane;
pub mod process;
pub mod programs;
mod rights;
mod scheduler;
pub mod servers;
mod workload;

pub use cluster::Cluster;
pub use plane::ControlPlane;
pub use programs::Programs;
