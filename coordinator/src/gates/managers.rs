//! Other tools that reboot nodes, and what shows that one of them is at work now: no two may take a node away at once.
//!
//! All of it is read with the rights that a roll needs anyway. What a tool only leaves behind when it is done (kured's
//! `kured-most-recent-reboot-needed`, system-upgrade-controller's `plan.upgrade.cattle.io/NAME`) or says of what it would
//! like to do one day (tuppr's taint `outdated`) is no sign.

use k8s_openapi::api::core::v1::Pod;

use crate::kube::api_servers::{ApiServers, ReadError};
use crate::kube::nodes::NodeView;
use crate::kube::watch::{self, Query};

/// On a Node from the moment that kured wants to reboot it until it is back (kured `--annotate-nodes`; `rebootAsRequired`
/// of its main.go).
const KURED: &str = "weave.works/kured-reboot-in-progress";
/// `true` on a Node while tuppr upgrades its Talos (its internal/controller/talosupgrade/nodes.go).
const TUPPR: &str = "tuppr.home-operations.com/upgrading";
/// On the pod of a job of system-upgrade-controller, naming the Node that it drains and upgrades (its
/// pkg/upgrade/job/job.go). Nothing on the Node says so.
const UPGRADE_NODE: &str = "upgrade.cattle.io/node";

/// A tool that is at work on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtWork {
    /// The tool.
    pub manager: &'static str,
    /// The Node.
    pub node: String,
    /// What shows it.
    pub sign: String,
}

impl std::fmt::Display for AtWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { manager, node, sign } = self;
        write!(f, "{manager} is at work on {node} ({sign}); if that is left over from a dead one, remove it")
    }
}

/// The first that is at work, by its marks on the Nodes and its pods. Pure.
#[must_use]
pub fn at_work(nodes: &[NodeView], pods: &[Pod]) -> Option<AtWork> {
    each_at_work(nodes, pods).next()
}

/// Each that is at work. Pure.
pub fn each_at_work(nodes: &[NodeView], pods: &[Pod]) -> impl Iterator<Item = AtWork> {
    nodes.iter().filter_map(on_node).chain(pods.iter().filter_map(of_pod))
}

fn on_node(node: &NodeView) -> Option<AtWork> {
    let at_work = |manager, sign: String| Some(AtWork { manager, node: node.name.clone(), sign });
    if node.annotations.contains_key(KURED) {
        return at_work("kured", format!("the annotation {KURED}"));
    }
    if node.labels.get(TUPPR).is_some_and(|value| value == "true") {
        return at_work("tuppr", format!("the label {TUPPR}"));
    }
    None
}

fn of_pod(pod: &Pod) -> Option<AtWork> {
    let node = pod.metadata.labels.as_ref()?.get(UPGRADE_NODE)?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let sign = format!("the pod {}/{}", text(&pod.metadata.namespace), text(&pod.metadata.name));
    Some(AtWork { manager: "system-upgrade-controller", node: node.clone(), sign })
}

/// The pods of system-upgrade-controller's jobs, in all namespaces: a plan may be in any.
///
/// # Errors
/// [`ReadError`].
pub async fn upgrade_pods(servers: &ApiServers) -> Result<Vec<Pod>, ReadError> {
    let (pods, _) = watch::list::<Pod>(servers, &Query::label("/api/v1/pods", UPGRADE_NODE)).await?;
    Ok(pods)
}

/// The pods of the managers themselves, whether they are at work or not: each by the labels that its own manifests and its
/// Helm chart give it. Found as long as nobody has renamed them.
const INSTALLED: [(&str, &str); 4] = [
    ("kured", "name=kured"),
    ("kured", "app.kubernetes.io/name=kured"),
    ("tuppr", "app.kubernetes.io/name=tuppr"),
    ("system-upgrade-controller", "upgrade.cattle.io/controller"),
];

/// The pods of each manager that is installed, in all namespaces.
///
/// # Errors
/// [`ReadError`].
pub async fn installed(servers: &ApiServers) -> Result<Vec<(&'static str, Vec<Pod>)>, ReadError> {
    let asked = INSTALLED.map(|(manager, label)| async move {
        let (pods, _) = watch::list::<Pod>(servers, &Query::label("/api/v1/pods", label)).await?;
        Ok((manager, pods))
    });
    let mut installed: Vec<(&str, Vec<Pod>)> = Vec::new();
    for (manager, pods) in futures::future::try_join_all(asked).await? {
        match installed.iter_mut().find(|(known, _)| *known == manager) {
            Some((_, known)) => known.extend(pods),
            None => installed.push((manager, pods)),
        }
    }
    installed.retain(|(_, pods)| !pods.is_empty());
    Ok(installed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(annotations: &[(&str, &str)], labels: &[(&str, &str)]) -> NodeView {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        NodeView { name: "w1".into(), annotations: map(annotations), labels: map(labels), ..NodeView::default() }
    }

    fn pod(label: &str, phase: &str) -> Pod {
        let pod = json!({
            "metadata": {"namespace": "system-upgrade", "name": "apply-talos-on-w1", "labels": {label: "w1"}},
            "status": {"phase": phase},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn each_sign_of_work_is_seen_and_what_is_left_after_it_is_none() {
        let at = "2026-11-30T08:00:00Z";
        let busy = [
            (node(&[(KURED, at)], &[]), None, "kured"),
            (node(&[], &[(TUPPR, "true")]), None, "tuppr"),
            (node(&[], &[]), Some(pod(UPGRADE_NODE, "Pending")), "system-upgrade-controller"),
            (node(&[], &[]), Some(pod(UPGRADE_NODE, "Running")), "system-upgrade-controller"),
        ];
        for (node, pod, manager) in busy {
            let found = at_work(&[NodeView::default(), node], pod.as_slice()).unwrap();
            assert_eq!((found.manager, found.node.as_str()), (manager, "w1"), "{found}");
        }
        let idle = [
            (node(&[("weave.works/kured-most-recent-reboot-needed", at)], &[]), None),
            (node(&[], &[("plan.upgrade.cattle.io/talos", "0123abcd")]), None),
            (node(&[], &[(TUPPR, "false")]), None),
            (node(&[], &[]), Some(pod(UPGRADE_NODE, "Succeeded"))),
            (node(&[], &[]), Some(pod(UPGRADE_NODE, "Failed"))),
            (node(&[], &[]), Some(pod("upgrade.cattle.io/controller", "Running"))),
        ];
        for (node, pod) in idle {
            assert_eq!(at_work(&[node], pod.as_slice()), None);
        }
    }
}
