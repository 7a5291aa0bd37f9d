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
    let boot = facts.kernel_boot()?;
    if node.boot_id.is_empty() || boot == node.boot_id {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::facts;
    use agent::record::CriProcess;
    use jiff::Timestamp;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Talos runs `boot-1`, its CRI since second 100.
    fn seen(nodename: &str) -> Facts {
        let mut facts = facts("v1.13.9");
        facts.nodename = Look::Seen(nodename.into());
        facts.cri = Look::Seen(CriProcess { pid: 1, started: at(100) });
        facts
    }

    fn reported(boot: &str, heartbeat: i64) -> NodeView {
        NodeView {
            name: "w".into(),
            boot_id: boot.into(),
            ready: true,
            ready_heartbeat: Some(at(heartbeat)),
            ..NodeView::default()
        }
    }

    #[test]
    fn n14_another_machine_at_the_address_is_blocked() {
        assert!(matches!(
            mismatch(&reported("boot-1", 200), &seen("other")),
            Some(Verdict::Blocked(Blocked::Identity(_)))
        ));
    }

    #[test]
    fn n13_the_host_name_is_not_asked_only_the_node_name() {
        assert_eq!(mismatch(&reported("boot-1", 200), &seen("w")), None);
        assert_eq!(mismatch(&reported("", 200), &seen("w")), None, "kubelet has reported no boot id");
    }

    #[test]
    fn r15_a_boot_that_kubelet_has_not_reported_yet_is_waited_for() {
        assert!(matches!(mismatch(&reported("boot-0", 50), &seen("w")), Some(Verdict::Unknown(_))));
    }

    #[test]
    fn o14_a_kubelet_that_reports_another_boot_after_this_one_began_is_of_another_machine() {
        assert!(matches!(mismatch(&reported("boot-x", 200), &seen("w")), Some(Verdict::Blocked(Blocked::Identity(_)))));
    }
}
