//! What all nodes of a lab have in common.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use talos_proto::clock::Clock;
use tokio_util::sync::CancellationToken;

use super::Beginning;
use super::etcd::Etcd;
use super::log::Log;
use super::node::Node;
use super::outside::{Kubernetes, Registry};
use crate::faults::Faults;

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// From the call until the new boot id.
    pub reboot_time: Duration,
    /// From the start of the CRI process until it is healthy.
    pub cri_health: Duration,
}

pub(crate) struct Fleet {
    pub timing: Timing,
    pub beginning: Beginning,
    pub kubernetes: Arc<dyn Kubernetes>,
    pub registry: Arc<dyn Registry>,
    pub log: Arc<Log>,
    pub faults: Arc<Faults>,
    pub clock: Clock,
    /// The end of the lab.
    pub stop: CancellationToken,
    pub nodes: OnceLock<Vec<Weak<Node>>>,
    pub etcd: Mutex<Etcd>,
    pub boot_order: Mutex<Vec<String>>,
}

impl Fleet {
    pub fn etcd(&self) -> MutexGuard<'_, Etcd> {
        self.etcd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn boot_order(&self) -> MutexGuard<'_, Vec<String>> {
        self.boot_order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All nodes, up or down.
    pub fn members(&self) -> Vec<Arc<Node>> {
        self.nodes.get().into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    pub fn at(&self, address: Ipv4Addr) -> Option<Arc<Node>> {
        self.nodes.get()?.iter().filter_map(Weak::upgrade).find(|node| node.address() == address)
    }
}
