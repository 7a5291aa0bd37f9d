//! Simulated Talos nodes: the machine API over real sockets and mTLS, with the answers of real servers.
//!
//! Behaviour, texts and codes are those that real Talos v1.13.9 and v1.14.0-rc.1 were recorded with; comments name
//! the recording ("talos-captures point 20", "read.jsonl") or the page of facts ("talos.md 2.3"). Times that a human
//! would wait for are scaled ([`TalosOptions`]); their order is the real one.

pub mod config;
pub(crate) mod cosi;
mod etcd;
mod fleet;
pub mod log;
mod node;
pub mod outside;
mod serve;
pub mod version;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use talos_proto::clock::Clock;
use tokio_util::sync::CancellationToken;

pub use node::Node;
pub use node::images::Namespace;
pub use node::shutdown::Asked;
pub use talos_proto::proto::machine::etcd_member_alarm::AlarmType;
pub use talos_proto::proto::machine::reboot_request::Mode as RebootMode;

use crate::faults::Faults;
use crate::pki::{self, Ca, TlsError};
use config::{Effective, Refused};
use fleet::{BackOff, Fleet, Timing};
use log::Log;
use outside::{Kubernetes, Registry};
use version::{BadVersion, Version};

/// What a node is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs etcd and an API server; its apid forwards to other nodes.
    ControlPlane,
    /// Everything else; its apid forwards nowhere.
    Worker,
}

/// A node to be.
#[derive(Clone)]
pub struct NodeSpec {
    /// Its Kubernetes name.
    pub name: String,
    /// A loopback address of its own.
    pub address: Ipv4Addr,
    /// Control plane or worker.
    pub role: Role,
    /// For instance `1.13.9`.
    pub version: String,
    /// The machine config that it booted with.
    pub config: Vec<u8>,
}

/// How far the nodes of a lab have come when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// A node boots for the first time, its machine config given to it in maintenance mode: it is persisted in this
    /// boot, and Talos >= 1.14 has no BootIDs yet (read.jsonl of both beds).
    pub first_boot: bool,
    /// The kubelet runs.
    pub kubelet: bool,
    /// etcd was bootstrapped, so there is a Kubernetes API as well.
    pub etcd: bool,
}

impl Default for Beginning {
    /// An ordinary boot of a whole cluster.
    fn default() -> Self {
        Self { first_boot: false, kubelet: true, etcd: true }
    }
}

/// What a simulated cluster is made of.
#[derive(Clone)]
pub struct TalosOptions {
    /// Signs serving certificates and verifies clients: [`Ca::talos`].
    pub ca: Arc<Ca>,
    /// The nodes.
    pub nodes: Vec<NodeSpec>,
    /// From the call of Reboot until the new boot id.
    pub reboot_time: Duration,
    /// From the start of a CRI process until it is healthy; about 1 s in real nodes.
    pub cri_health: Duration,
    /// Crash points, shared with the other servers of the lab.
    pub faults: Arc<Faults>,
    /// How far they have come.
    pub beginning: Beginning,
}

impl TalosOptions {
    /// Two seconds for a reboot, 300 ms for the CRI, no crash points.
    #[must_use]
    pub fn new(ca: Arc<Ca>, nodes: Vec<NodeSpec>) -> Self {
        let (reboot_time, cri_health) = (Duration::from_secs(2), Duration::from_millis(300));
        Self { ca, nodes, reboot_time, cri_health, faults: Arc::default(), beginning: Beginning::default() }
    }
}

/// Why a simulated cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A version that is none.
    #[error("node {node}")]
    Version {
        /// The node.
        node: String,
        /// The reason.
        #[source]
        source: BadVersion,
    },
    /// A machine config that a node of that version does not take.
    #[error("node {node}: its machine config is refused")]
    Config {
        /// The node.
        node: String,
        /// The reason; may hold secrets of the lab.
        #[source]
        source: Refused,
    },
    /// The serving certificate.
    #[error("node {node}")]
    Certificate {
        /// The node.
        node: String,
        /// The reason.
        #[source]
        source: TlsError,
    },
    /// The address cannot be bound.
    #[error("node {node}: cannot listen on {address}:50000")]
    Listen {
        /// The node.
        node: String,
        /// Its address.
        address: Ipv4Addr,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
}

/// The nodes of a running lab. Dropping it stops them.
pub struct Talos {
    nodes: Vec<Arc<Node>>,
    fleet: Arc<Fleet>,
}

impl Talos {
    /// Starts the nodes; they are up, and have been for an hour, when this returns. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`StartError`]
    #[allow(clippy::needless_pass_by_value, reason = "a cluster consumes its description")]
    pub async fn start(
        options: TalosOptions,
        kubernetes: Arc<dyn Kubernetes>,
        registry: Arc<dyn Registry>,
        log: Arc<Log>,
    ) -> Result<Self, StartError> {
        let fleet = Arc::new(Fleet {
            timing: Timing { reboot_time: options.reboot_time, cri_health: options.cri_health },
            beginning: options.beginning,
            kubernetes,
            registry,
            log,
            faults: Arc::clone(&options.faults),
            clock: Clock::system(),
            stop: CancellationToken::new(),
            nodes: OnceLock::new(),
            etcd: Mutex::default(),
            boot_order: Mutex::default(),
            back_off: BackOff::default(),
        });
        let mut nodes = Vec::new();
        for spec in &options.nodes {
            nodes.push(Arc::new(make(spec, &options.ca, &fleet)?));
            if spec.role == Role::ControlPlane {
                fleet.etcd().join(&spec.name, &spec.address.to_string());
            }
        }
        // Nobody else can have set it.
        let _ = fleet.nodes.set(nodes.iter().map(Arc::downgrade).collect());
        let talos = Self { nodes, fleet };
        for node in &talos.nodes {
            node.begin().map_err(|source| StartError::Listen {
                node: node.name().to_owned(),
                address: node.address(),
                source,
            })?;
        }
        Ok(talos)
    }

    /// The node of that name.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn node(&self, name: &str) -> &Arc<Node> {
        self.nodes.iter().find(|node| node.name() == name).expect("a test names a node of its lab")
    }

    /// All nodes, in the order of the options.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// The names of the nodes in the order of their boots after the first.
    #[must_use]
    pub fn boot_order(&self) -> Vec<String> {
        self.fleet.boot_order().clone()
    }

    /// The name of the control plane whose etcd leads.
    #[must_use]
    pub fn etcd_leader(&self) -> Option<String> {
        self.fleet.etcd().leader().map(str::to_owned)
    }

    /// Makes the etcd of that control plane lead, if it runs.
    pub fn set_etcd_leader(&self, name: &str) {
        self.fleet.etcd().set_leader(name);
    }

    /// Raises an alarm of a member, or clears all that it has.
    pub fn set_etcd_alarm(&self, name: &str, alarm: Option<AlarmType>) {
        self.fleet.etcd().set_alarm(name, alarm);
    }

    /// Stops or starts the etcd of a control plane, its node living on.
    pub fn set_etcd_running(&self, name: &str, runs: bool) {
        self.fleet.etcd().set_running(name, runs);
    }

    /// An apid that could not reach a node refuses requests for it that long, although the node is back: its proxy backs
    /// off, for up to 15 s in real ones (talos-captures point 11). None at first.
    pub fn set_proxy_back_off(&self, length: Duration) {
        self.fleet.back_off.set(length);
    }

    /// Closes every listener and cuts every connection, for good.
    pub fn stop(&self) {
        self.fleet.stop.cancel();
    }
}

impl Drop for Talos {
    fn drop(&mut self) {
        self.stop();
    }
}

fn make(spec: &NodeSpec, ca: &Ca, fleet: &Arc<Fleet>) -> Result<Node, StartError> {
    let node = || spec.name.clone();
    let version: Version = spec.version.parse().map_err(|source| StartError::Version { node: node(), source })?;
    Effective::parse(&spec.config, &version).map_err(|source| StartError::Config { node: node(), source })?;
    // apid's own names: the node's addresses, 127.0.0.1 and the host name (talos.md 2.1).
    let pair = ca.server(&[spec.address.to_string(), "127.0.0.1".to_owned(), spec.name.clone()]);
    let tls = pki::server_config(&pair, ca, &[b"h2"], true)
        .map_err(|source| StartError::Certificate { node: node(), source })?;
    Ok(Node::new(spec, version, tls, Arc::clone(fleet)))
}

#[cfg(test)]
mod tests;
