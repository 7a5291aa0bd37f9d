//! Is the machine that answers the one that Kubernetes means? Pure.
//!
//! A talosconfig of one cluster with the kubeconfig of another must disrupt nothing; a node that has just booted must not
//! be taken for a stranger because its kubelet has not reported yet.

use agent::claims::{Blocked, Verdict};
use agent::facts::{Facts, Look};

use crate::kube::nodes::NodeView;

/// What contradicts, or is not yet the same; `None` when name and boot agree as far as both can be seen.
#[must_use]
pub fn mismatch(node: &NodeView, facts: &Facts) -> Option<Verdict> {
    if let Look::Seen(name) = &facts.nodename
        && *name != node.name
    {
        let problem = format!("{} answers as {name}, not as {}", address(node), node.name);
        return Some(Verdict::Blocked(Blocked::Identity(problem)));
    }
    let boot = facts.boot.seen()?;
    if node.boot_id.is_empty() || *boot == node.boot_id {
        return None;
    }
    // Both times are of the node's own clock: a kubelet that reported after the CRI of this boot had started would have
    // reported this boot. So it speaks of another machine.
    let reported_later = matches!(
        (node.ready_heartbeat, facts.cri.seen()),
        (Some(heartbeat), Some(cri)) if node.ready && heartbeat > cri.started
    );
    if reported_later {
        let problem = format!(
            "{} runs boot {boot} by Talos, but kubelet reports {}: are talosconfig and kubeconfig of the same cluster?",
            node.name, node.boot_id
        );
        return Some(Verdict::Blocked(Blocked::Identity(problem)));
    }
    Some(Verdict::Unknown("kubelet has not reported this boot yet".into()))
}

fn address(node: &NodeView) -> String {
    node.internal_ip.map_or_else(|| "its address".into(), |address| address.to_string())
}
