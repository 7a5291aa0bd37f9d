//! Kubernetes Nodes, as far as this tool looks at them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, Taint};
use serde::Deserialize;
use talos_proto::clock::Moment;

use super::api_servers::{ApiServers, ReadError};
use super::watch::{self, Change, Follow, Query, Versioned};

/// The label that kubeadm and Talos put on control planes.
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// The cluster autoscaler has decided to delete the node: it is leaving. (Its `DeletionCandidate…` taint is only a
/// thought and comes and goes every few seconds.)
pub const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The collection of Nodes.
pub(super) const PATH: &str = "/api/v1/nodes";

/// One Node.
///
/// Made while an answer is parsed: a Node that lists its images is tens of kilobytes, and a fleet has hundreds.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Node")]
pub struct NodeView {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`: another node under the same name has another.
    pub uid: String,
    /// `metadata.resourceVersion`, opaque.
    pub resource_version: String,
    /// The first `InternalIP` of `status.addresses`.
    pub internal_ip: Option<IpAddr>,
    /// Every IP address of `status.addresses`.
    pub addresses: Vec<IpAddr>,
    /// It has the control plane's label.
    pub control_plane: bool,
    /// `status.nodeInfo.osImage`.
    pub os_image: String,
    /// The image is Talos.
    pub talos: bool,
    /// `spec.unschedulable`: it is cordoned.
    pub unschedulable: bool,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// The condition `Ready` is `True`.
    pub ready: bool,
    /// `lastHeartbeatTime` of the condition `Ready`, on the kubelet's clock; refreshed at least every 5 minutes.
    pub ready_heartbeat: Option<Timestamp>,
    /// `status.nodeInfo.bootID` as the kubelet reported it at its last start; lags behind Talos.
    pub boot_id: String,
    /// `metadata.annotations`; empty when there is no map.
    pub annotations: BTreeMap<String, String>,
    /// The object has an annotations map at all, without which a JSON patch cannot add a key.
    pub has_annotations: bool,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// It has the taint [`LEAVING_TAINT`].
    pub leaving: bool,
}

impl From<Node> for NodeView {
    fn from(node: Node) -> Self {
        let metadata = node.metadata;
        let spec = node.spec.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let info = status.node_info.unwrap_or_default();
        let ready = status.conditions.unwrap_or_default().into_iter().find(|condition| condition.type_ == "Ready");
        let labels = metadata.labels.unwrap_or_default();
        let taints = spec.taints.unwrap_or_default();
        let addresses = status.addresses.unwrap_or_default();
        let parsed = |address: &NodeAddress| address.address.parse().ok().map(|ip: IpAddr| ip.to_canonical());
        let has_annotations = metadata.annotations.as_ref().is_some_and(|map| !map.is_empty());
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            internal_ip: addresses.iter().find(|address| address.type_ == "InternalIP").and_then(parsed),
            addresses: addresses.iter().filter_map(parsed).collect(),
            control_plane: labels.contains_key(CONTROL_PLANE_LABEL),
            talos: info.os_image.contains("Talos"),
            os_image: info.os_image,
            unschedulable: spec.unschedulable.unwrap_or(false),
            leaving: taints.iter().any(|taint| taint.key == LEAVING_TAINT),
            taints,
            ready: ready.as_ref().is_some_and(|condition| condition.status == "True"),
            ready_heartbeat: ready.and_then(|condition| condition.last_heartbeat_time).map(|time| time.0),
            boot_id: info.boot_id,
            annotations: metadata.annotations.unwrap_or_default(),
            has_annotations,
            labels,
            deleting: metadata.deletion_timestamp.is_some(),
        }
    }
}

impl Versioned for NodeView {
    fn version(&self) -> Option<String> {
        Some(self.resource_version.clone())
    }
}

/// All Nodes.
///
/// # Errors
/// [`ReadError`].
pub async fn list(servers: &ApiServers) -> Result<Vec<NodeView>, ReadError> {
    Ok(watch::list(servers, &Query::all(PATH)).await?.0)
}

/// One Node, or `None` when there is none of that name.
///
/// # Errors
/// [`ReadError`].
pub async fn get(servers: &ApiServers, name: &str) -> Result<Option<NodeView>, ReadError> {
    let read = servers.read(|client| {
        let request = Request::get(format!("{PATH}/{name}")).body(Vec::new()).map_err(kube::Error::HttpError);
        async move { client.request(request?).await }
    });
    match read.await {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why a wait for a Node ended without what was waited for.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// There is no such Node (any more).
    #[error("the node {0} is gone from Kubernetes")]
    Gone(String),
    /// The deadline passed; the Node as it was seen last, if it was.
    #[error("the deadline passed")]
    Deadline(Option<Box<NodeView>>),
    /// The API refused.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Waits until `predicate` holds of the Node, by a watch; rides out API servers that do not answer.
///
/// # Errors
/// [`WaitError`].
pub async fn wait_until(
    servers: &ApiServers,
    name: &str,
    mut predicate: impl FnMut(&NodeView) -> bool,
    deadline: Moment,
) -> Result<NodeView, WaitError> {
    let query = Query::field(PATH, format!("metadata.name={name}"));
    let mut follow = Follow::<NodeView>::new(servers.clone(), query);
    let mut last = None;
    loop {
        let left = deadline.since(servers.clock().now());
        let Ok(change) = servers.clock().timeout(left, follow.next()).await else {
            return Err(WaitError::Deadline(last));
        };
        let node = match change? {
            Change::Listed(nodes) => nodes.into_iter().next(),
            Change::Applied(node) => Some(node),
            Change::Deleted(_) => None,
        };
        let view = node.ok_or_else(|| WaitError::Gone(name.to_owned()))?;
        if predicate(&view) {
            return Ok(view);
        }
        last = Some(Box::new(view));
    }
}

#[cfg(test)]
mod tests;
