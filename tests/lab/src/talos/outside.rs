//! What a simulated node sees of the world beside it: the Kubernetes API and the registry.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// A Kubernetes Node as its kubelet and Talos's node controllers see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// The condition `Ready` is `True`.
    pub ready: bool,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
}

/// What a node's kubelet and Talos's node controllers do to the Kubernetes side. None of these blocks.
pub trait Kubernetes: Send + Sync {
    /// The kubelet runs: registers the Node if it is absent, sets `status.nodeInfo.bootID`, Ready=True and a fresh
    /// heartbeat.
    fn kubelet_started(&self, node: &str, boot_id: &str);
    /// The kubelet was shut down gracefully: Ready=False.
    fn kubelet_stopped(&self, node: &str);
    /// The node lost its power: its kubelet falls silent without a word. An implementation without heartbeats has
    /// nothing to do here.
    fn power_lost(&self, node: &str) {
        let _ = node;
    }
    /// The node was rebooted by force: its kubelet is gone without a word, and is heard of again in the next boot.
    fn rebooted_by_force(&self, node: &str) {
        self.power_lost(node);
    }
    /// A control plane's API server answers from now on.
    fn api_server_started(&self, node: &str);
    /// A control plane's API server is gone.
    fn api_server_stopped(&self, node: &str);
    /// The Node now; `None` when it does not exist.
    fn node(&self, node: &str) -> Option<NodeSeen>;
    /// A value that moves on each real change of that Node (and only then); also of one that does not exist yet.
    fn watch_node(&self, node: &str) -> watch::Receiver<u64>;
    /// `set` is the whole set of annotations in the machine config. Talos's rules of ownership live in the
    /// implementation (`talos.dev/owned-annotations`): an absent key is set and owned, an owned one is set back, an
    /// owned one that left the config is removed, a foreign value is left alone. A call that changes nothing must not
    /// move [`Kubernetes::watch_node`].
    fn annotate_from_talos(&self, node: &str, set: BTreeMap<String, String>);
}

/// What the registry said to a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullAnswer {
    /// The manifest's digest, `sha256:` and 64 hex digits.
    Ok(String),
    /// 401 or 403.
    Denied,
    /// 404.
    NotFound,
    /// No connection.
    Unreachable,
}

/// The registry as a node's containerd reaches it.
pub trait Registry: Send + Sync {
    /// One pull of `reference` (a tag or a digest) of `repository` at `host`, with the credential of the machine
    /// config for that host.
    fn pull(&self, host: &str, repository: &str, reference: &str, user: Option<(&str, &str)>) -> PullAnswer;
}
