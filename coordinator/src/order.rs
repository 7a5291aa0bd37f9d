//! The order in which nodes are disrupted. Pure.
//!
//! Workers, then control planes, the etcd leader late, the endpoint node last: its reboot takes away the API server that
//! the tool speaks to, and by then nothing else is left to do (incident of 2026-08-10: the endpoint node was rebooted in
//! the middle, and the lease was lost there).

use crate::fleet::{FleetNode, Snapshot};

/// Where a node stands; smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A worker.
    Worker,
    /// A control plane that is neither of the following.
    ControlPlane,
    /// The etcd leader: an election is saved when it comes late.
    Leader,
    /// The node behind the kubeconfig's address.
    Endpoint,
}

impl Rank {
    /// Why the node stands there, for the plan.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Rank::Worker => "worker",
            Rank::ControlPlane => "control plane, after the workers",
            Rank::Leader => "etcd leader, late among the control planes",
            Rank::Endpoint => "serves the kubeconfig's address, last",
        }
    }
}

/// The rank of a node in this fleet.
#[must_use]
pub fn rank(snapshot: &Snapshot, node: &FleetNode) -> Rank {
    if snapshot.is_endpoint(node) {
        Rank::Endpoint
    } else if !node.kube.control_plane {
        Rank::Worker
    } else if snapshot.leader.as_deref() == Some(node.name()) {
        Rank::Leader
    } else {
        Rank::ControlPlane
    }
}

/// All nodes in the order of their turns; within a rank by name, with numbers in names compared as numbers.
#[must_use]
pub fn turns(snapshot: &Snapshot) -> Vec<&FleetNode> {
    let mut nodes: Vec<_> = snapshot.nodes.iter().collect();
    nodes.sort_by_cached_key(|node| (rank(snapshot, node), natural(node.name())));
    nodes
}

/// A key that puts `worker-9` before `worker-10`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - text);
        let (word, after) = rest.split_at(text);
        let (number, after) = after.split_at(digits);
        key.push((word.to_owned(), number.parse().unwrap_or(0)));
        rest = after;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_compare_as_numbers() {
        let mut names = ["worker-10", "worker-9", "a", "worker-9b"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["a", "worker-9", "worker-9b", "worker-10"]);
    }
}
