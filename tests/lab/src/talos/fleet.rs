//! What all nodes of a lab have in common.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use talos_proto::clock::{Clock, Moment};
use tokio_util::sync::CancellationToken;

use super::etcd::Etcd;
use super::log::Log;
use super::node::Node;
use super::outside::{Kubernetes, Registry};
use super::{Beginning, Role};
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
    pub back_off: BackOff,
}

/// The apids' connections to other nodes that failed: each is tried anew only after a while.
#[derive(Default)]
pub(crate) struct BackOff {
    length: Mutex<Duration>,
    /// Until when, by the addresses of the apid and of the node behind it.
    until: Mutex<HashMap<(Ipv4Addr, Ipv4Addr), Moment>>,
}

impl BackOff {
    pub fn set(&self, length: Duration) {
        *self.length.lock().unwrap_or_else(PoisonError::into_inner) = length;
    }

    /// The apid at `from` could not reach the node at `to`.
    pub fn failed(&self, from: Ipv4Addr, to: Ipv4Addr, now: Moment) {
        let until = now + *self.length.lock().unwrap_or_else(PoisonError::into_inner);
        // What arrives during a back-off does not lengthen it.
        self.until.lock().unwrap_or_else(PoisonError::into_inner).entry((from, to)).or_insert(until);
    }

    /// Whether `from` does not even try to reach `to` now.
    pub fn lasts(&self, from: Ipv4Addr, to: Ipv4Addr, now: Moment) -> bool {
        let mut all = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, until| *until > now);
        all.contains_key(&(from, to))
    }
}

impl Fleet {
    pub fn etcd(&self) -> MutexGuard<'_, Etcd> {
        self.etcd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn boot_order(&self) -> MutexGuard<'_, Vec<String>> {
        self.boot_order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a worker that boots now gets a certificate for its apid; where there is no control plane at all it has one.
    pub fn gives_certificates(&self) -> bool {
        let nodes = self.members();
        let mut planes = nodes.iter().filter(|node| node.role() == Role::ControlPlane).peekable();
        planes.peek().is_none() || planes.any(|node| node.serves_certificates())
    }

    /// All nodes, up or down.
    pub fn members(&self) -> Vec<Arc<Node>> {
        self.nodes.get().into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// The node with that address, its own or a virtual one that it holds now.
    pub fn at(&self, address: Ipv4Addr) -> Option<Arc<Node>> {
        let nodes = self.members();
        nodes.into_iter().find(|node| node.address() == address || node.holds(address))
    }
}
