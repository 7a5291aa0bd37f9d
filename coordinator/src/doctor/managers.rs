//! Other tools that reboot nodes: which are installed, and which is at work now.

use k8s_openapi::api::core::v1::Pod;
use talos_proto::chain;

use super::{Check, plural};
use crate::gates::managers::{self, AtWork};
use crate::kube::api_servers::ApiServers;
use crate::kube::nodes::NodeView;

const NAME: &str = "reboot managers";

/// What was asked for.
pub(super) struct Pods {
    at_work: Vec<Pod>,
    installed: Vec<(&'static str, Vec<Pod>)>,
}

/// What was seen of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    at_work: Vec<AtWork>,
    installed: Vec<Installed>,
}

/// One that is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Installed {
    manager: &'static str,
    pods: usize,
    namespaces: Vec<String>,
    /// Its work cannot be seen as it is set up.
    hidden: bool,
}

pub(super) async fn pods(servers: &ApiServers) -> Result<Pods, String> {
    let (at_work, installed) = futures::join!(managers::upgrade_pods(servers), managers::installed(servers));
    let chain = |error| chain(&error);
    Ok(Pods { at_work: at_work.map_err(chain)?, installed: installed.map_err(chain)? })
}

pub(super) fn seen(nodes: &[NodeView], pods: &Pods) -> Seen {
    Seen {
        at_work: managers::each_at_work(nodes, &pods.at_work).collect(),
        installed: pods.installed.iter().map(|(manager, pods)| installed(manager, pods)).collect(),
    }
}

fn installed(manager: &'static str, pods: &[Pod]) -> Installed {
    let mut namespaces: Vec<_> = pods.iter().filter_map(|pod| pod.metadata.namespace.clone()).collect();
    namespaces.sort();
    namespaces.dedup();
    Installed { manager, pods: pods.len(), namespaces, hidden: manager == "kured" && !pods.iter().all(annotates) }
}

/// kured marks the Node that it works on only with this flag.
fn annotates(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut words = containers.flat_map(|it| it.command.iter().flatten().chain(it.args.iter().flatten()));
    words.any(|word| word.starts_with("--annotate-nodes") && !word.ends_with("=false"))
}

/// What follows. Pure.
pub(super) fn checks(seen: &Result<Seen, String>, without: Option<&str>) -> Vec<Check> {
    let seen = match (seen, without) {
        (_, Some(why)) => return vec![Check::not_looked_at(NAME, why)],
        (Err(why), None) => return vec![Check::not_looked_at(NAME, why)],
        (Ok(seen), None) => seen,
    };
    if seen.at_work.is_empty() && seen.installed.is_empty() {
        return vec![Check::ok(NAME, "neither kured, tuppr nor system-upgrade-controller is seen")];
    }
    let mut checks = Vec::new();
    for Installed { manager, pods, namespaces, hidden } in &seen.installed {
        let at = namespaces.join(", ");
        let words = format!("{manager} is installed ({} in {at})", plural(*pods, "pod"));
        checks.push(if *hidden {
            Check::warning(NAME, format!("{words} without --annotate-nodes, so that its work is not seen")).next(
                "give kured --annotate-nodes, or run when it does not: its --start-time, --end-time and --reboot-days",
            )
        } else {
            Check::warning(NAME, format!("{words}: a run waits while it is at work, and sees only what has begun"))
                .next("best do not let both work at the same hour")
        });
    }
    checks.extend(seen.at_work.iter().map(|at_work| {
        Check::warning(NAME, format!("{at_work}"))
            .next("a run disrupts nothing meanwhile, and ends with 4 after --gate-timeout")
    }));
    checks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kured(command: &[&str]) -> Pod {
        let pod = json!({
            "metadata": {"namespace": "kube-system", "name": "kured-x"},
            "spec": {"containers": [{"name": "kured", "command": command}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn kured_is_said_to_be_unseen_without_its_flag() {
        for (command, hidden) in [
            (&["/usr/bin/kured", "--annotate-nodes=true"][..], false),
            (&["/usr/bin/kured", "--annotate-nodes"], false),
            (&["/usr/bin/kured", "--annotate-nodes=false"], true),
            (&["/usr/bin/kured"], true),
        ] {
            let pods = [kured(&["/usr/bin/kured", "--annotate-nodes"]), kured(command)];
            assert_eq!(installed("kured", &pods).hidden, hidden, "{command:?}");
        }
        let pods = Pods { at_work: Vec::new(), installed: vec![("kured", vec![kured(&["kured"])])] };
        let said = checks(&Ok(seen(&[], &pods)), None);
        assert!(said[0].detail.starts_with("kured is installed (1 pod in kube-system) without"), "{said:?}");
        assert!(checks(&Ok(Seen::default()), None)[0].detail.contains("neither"));
    }
}
