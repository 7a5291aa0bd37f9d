//! The nodes: whether each answers, which versions they run, and what the number of control planes means.

use agent::claims::Verdict;
use talos_proto::version::TalosVersion;

use super::{Check, Cluster, Health, plural};
use crate::fleet::{Fencing, Talk};
use crate::gates::{Closed, PLANES_FOR_QUORUM};
use crate::inventory::{Inventory, foreign_record};
use crate::kube::nodes::NodeView;
use crate::settings::Settings;

/// The first minor version of Talos that this tool does not know.
const UNKNOWN: (u64, u64) = (1, 15);

/// What follows from an inventory. Pure.
pub(super) fn checks(cluster: &Cluster, settings: &Settings, talos_answers: bool) -> Vec<Check> {
    let mut checks = match &cluster.inventory {
        Ok(inventory) => answers(inventory),
        // Without Talos or Kubernetes the reason is another check's.
        Err(why) if why.starts_with(super::NOT_LOOKED_AT) => vec![Check::warning("nodes", why.clone())],
        Err(why) if [super::NO_SERVER, super::NO_KUBECONFIG].contains(&why.as_str()) => {
            vec![Check::not_looked_at("nodes", why)]
        }
        Err(_) if cluster.listed.is_ok() && !talos_answers => {
            vec![Check::not_looked_at("nodes", "no Talos endpoint answers")]
        }
        Err(why) => vec![Check::fault("nodes", why.clone())],
    };
    // Without Talos nobody but this has noticed.
    if let (Err(why), None) = (&cluster.listed, checks.iter().find(|check| check.health == Health::Fault))
        && cluster.kubernetes.answers()
    {
        checks.push(Check::fault("nodes", format!("the Kubernetes Nodes could not be listed: {why}")));
    }
    if let Ok(nodes) = &cluster.listed {
        let by_talos = |name: &str| {
            let inventory = cluster.inventory.as_ref().ok()?;
            Some(inventory.snapshot.node(name)?.facts()?.version.clone())
        };
        let known = |node: &NodeView| by_talos(&node.name).or_else(|| version_of(&node.os_image));
        checks.extend(versions(nodes.iter().filter_map(|node| Some((node.name.as_str(), known(node)?)))));
        checks.extend(control_planes(nodes, settings));
        checks.push(etcd(cluster.etcd.as_ref(), nodes));
    }
    checks
}

/// Pure.
fn etcd(seen: Option<&Result<(), Closed>>, nodes: &[NodeView]) -> Check {
    const NAME: &str = "etcd";
    match seen {
        None => Check::not_looked_at(NAME, "no control plane could be asked"),
        Some(Ok(())) => Check::ok(NAME, "each voter answers; no learner, no alarm, one leader"),
        Some(Err(closed)) => {
            let planes = nodes.iter().filter(|node| node.control_plane).filter_map(|node| node.internal_ip);
            let planes = planes.map(|ip| ip.to_string()).collect::<Vec<_>>().join(",");
            let words = format!("{closed}; no control plane is rebooted before that is well");
            Check::fault(NAME, words)
                .next(format!("talosctl -n {planes} etcd status; talosctl -n {planes} etcd alarm list"))
        }
    }
}

fn answers(inventory: &Inventory) -> Vec<Check> {
    const NAME: &str = "nodes";
    let nodes = &inventory.snapshot.nodes;
    let mut checks = Vec::new();
    let mut answered = 0;
    for node in nodes {
        let name = node.name();
        match (&node.talk, node.verdict()) {
            (Talk::NotTalos(why), _) => {
                checks.push(Check::warning(NAME, format!("{name} is left alone: {why}")));
            }
            (Talk::Unreachable(why), _) if node.left_out => {
                checks.push(Check::warning(NAME, format!("{name} (left out): {why}")));
            }
            (Talk::Unreachable(why), _) if node.fencing != Fencing::Free => {
                let words = format!("{name} carries a fence and may be rebooting now: {why}");
                checks.push(
                    Check::warning(NAME, words).next("see the fence below; type the same command again in a while"),
                );
            }
            (Talk::Unreachable(why), _) => {
                let address = node.address().map_or_else(|| "ADDRESS".to_owned(), |address| address.to_string());
                let next = format!("talosctl -n {address} version; or leave it out: --exclude {name}");
                checks.push(Check::fault(NAME, format!("{name}: {why}")).next(next));
            }
            (Talk::Facts(_), Verdict::Blocked(blocked)) => {
                checks.push(Check::fault(NAME, format!("{name}: {blocked}")));
                answered += 1;
            }
            (Talk::Facts(_), _) => answered += 1,
        }
    }
    let odd = nodes.iter().filter_map(foreign_record);
    checks.extend(odd.map(|odd| Check::warning(NAME, odd)));
    let all = format!("{answered} of {} answer", nodes.len());
    checks.insert(0, Check::ok(NAME, all));
    checks
}

/// The version that Talos tells, else that of the Node's `osImage`, for instance `Talos (v1.13.9)`.
fn version_of(os_image: &str) -> Option<TalosVersion> {
    os_image.strip_prefix("Talos (")?.strip_suffix(')')?.parse().ok()
}

fn versions<'a>(nodes: impl Iterator<Item = (&'a str, TalosVersion)>) -> Vec<Check> {
    const NAME: &str = "talos versions";
    let mut by_version: Vec<(TalosVersion, Vec<&str>)> = Vec::new();
    for (name, version) in nodes {
        match by_version.iter_mut().find(|(known, _)| *known == version) {
            Some((_, names)) => names.push(name),
            None => by_version.push((version, vec![name])),
        }
    }
    // A pre-release comes before its release.
    by_version.sort_by_key(|(version, _)| (version.numbers, version.pre_release.is_none(), version.to_string()));
    if by_version.is_empty() {
        return vec![Check::not_looked_at(NAME, "no node tells its version")];
    }
    let list: Vec<_> = by_version.iter().map(|(version, names)| format!("{version} on {}", names.len())).collect();
    let mixed = if list.len() > 1 { "; mixed, each node by its own version's rules" } else { "" };
    let mut checks = vec![Check::ok(NAME, format!("{}{mixed}", list.join(", ")))];
    for (version, names) in &by_version {
        let at = names.join(", ");
        if !version.at_least(1, 9) {
            let next = format!("upgrade Talos there, or leave them out: --exclude {}", names.join(","));
            let words = format!("{version} ({at}) is not supported, 1.9 and newer are");
            checks.push(Check::fault(NAME, words).next(next));
        } else if version.at_least(UNKNOWN.0, UNKNOWN.1) {
            let words = format!("{version} ({at}) is newer than what this version was made for (1.9 to 1.14)");
            checks.push(Check::warning(NAME, words).next("see whether there is a newer talos-ghcr"));
        }
    }
    checks
}

fn control_planes(nodes: &[NodeView], settings: &Settings) -> Vec<Check> {
    const NAME: &str = "control planes";
    let planes = nodes.iter().filter(|node| node.control_plane).count();
    if planes >= PLANES_FOR_QUORUM {
        return vec![Check::ok(NAME, format!("{planes}: one at a time may be away"))];
    }
    let words = format!("{}: their reboot takes the API or etcd's quorum away", plural(planes, "control plane"));
    vec![if settings.allow_control_plane_outage {
        Check::ok(NAME, format!("{words}; --allow-control-plane-outage allows it"))
    } else {
        Check::warning(NAME, format!("{words} and needs --allow-control-plane-outage")).next(
            "run --allow-control-plane-outage, when the API may be away for some minutes; until then only workers roll",
        )
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_counted_and_what_is_too_old_or_too_new_is_named() {
        let nodes = [
            ("cp-1", "Talos (v1.13.9)"),
            ("worker-1", "Talos (v1.14.0-rc.1)"),
            ("worker-2", "Talos (v1.8.3)"),
            ("worker-3", "Talos (v1.15.0)"),
            ("worker-4", "Ubuntu 24.04"),
        ];
        let told = |nodes: &[(&'static str, &str)]| {
            versions(
                nodes
                    .iter()
                    .filter_map(|(name, image)| Some((*name, version_of(image)?)))
                    .collect::<Vec<_>>()
                    .into_iter(),
            )
        };
        let checks = told(&nodes);
        let said: Vec<_> = checks.iter().map(|check| (check.health, check.detail.as_str())).collect();
        let all =
            "v1.8.3 on 1, v1.13.9 on 1, v1.14.0-rc.1 on 1, v1.15.0 on 1; mixed, each node by its own version's rules";
        assert_eq!(said[0], (Health::Ok, all));
        assert_eq!(said[1], (Health::Fault, "v1.8.3 (worker-2) is not supported, 1.9 and newer are"));
        assert!(said[2].0 == Health::Warning && said[2].1.starts_with("v1.15.0 (worker-3) is newer"), "{said:?}");
        assert_eq!(told(&nodes[..1])[0].detail, "v1.13.9 on 1");
        assert_eq!(told(&nodes[4..])[0].health, Health::Warning);
    }
}
