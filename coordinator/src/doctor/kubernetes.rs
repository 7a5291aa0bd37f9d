//! The API servers, each by itself, which node is behind the kubeconfig's, and what its user may do.

use std::net::IpAddr;

use talos_proto::chain;

use super::{Check, Cluster, plural};
use crate::kube::access::{self, Permission};
use crate::kube::api_servers::{ApiServers, Dropped, Greeting, NoGreeting};
use crate::kube::nodes::NodeView;
use crate::settings::Settings;

/// What the API servers answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Each of the set, the kubeconfig's first.
    pub(super) servers: Vec<Result<Greeting, NoGreeting>>,
    /// Those that did not join it.
    pub(super) dropped: Vec<Dropped>,
    /// What the user may not do; `None` when it was not asked.
    pub(super) rights: Option<Result<Vec<Permission>, String>>,
}

impl Seen {
    /// Whether any of them answers us.
    pub(super) fn answers(&self) -> bool {
        self.servers.iter().any(Result::is_ok)
    }

    /// Those that joined later.
    pub(super) fn take(&mut self, (servers, dropped): (Vec<Result<Greeting, NoGreeting>>, Vec<Dropped>)) {
        self.dropped.extend(dropped);
        for greeting in servers {
            let known = |it: &Result<Greeting, NoGreeting>| address(it) == address(&greeting);
            if !self.servers.iter().any(known) {
                self.servers.push(greeting);
            }
        }
    }
}

fn address(greeting: &Result<Greeting, NoGreeting>) -> &str {
    match greeting {
        Ok(greeting) => &greeting.address,
        Err(none) => &none.address,
    }
}

/// Asks the kubeconfig's server and those of `--kube-server`: while the first is down the others tell the Nodes.
pub(super) async fn greet(servers: &ApiServers, settings: &Settings) -> Seen {
    let dropped = servers.extend(Vec::new(), &settings.kube_servers).await;
    Seen { servers: servers.greet().await, dropped, rights: None }
}

/// Takes in the control planes' own addresses, as a run does before its first write.
pub(super) async fn join(
    servers: &ApiServers,
    nodes: &[NodeView],
) -> (Vec<Result<Greeting, NoGreeting>>, Vec<Dropped>) {
    let own: Vec<IpAddr> = nodes.iter().filter(|node| node.control_plane).filter_map(|node| node.internal_ip).collect();
    let before = servers.names().len();
    let dropped = servers.extend(own, &[]).await;
    (servers.greet_from(before).await, dropped)
}

/// What the user may not do of what a roll does.
pub(super) async fn rights(servers: &ApiServers, settings: &Settings) -> Result<Vec<Permission>, String> {
    let lease = &settings.lease;
    let needed = access::needed(&lease.namespace, &lease.name, settings.drain.disable_eviction);
    access::missing(servers, needed).await.map_err(|error| chain(&error))
}

/// What follows.
pub(super) fn checks(seen: &Seen, servers: &ApiServers, cluster: &Cluster) -> Vec<Check> {
    let (host, port) = servers.server();
    let mut checks = of_servers(seen, &format!("{host}:{port}"), cluster.nodes());
    checks.push(match &cluster.inventory {
        Ok(inventory) => {
            let endpoint = &inventory.snapshot.endpoint;
            let words = format!("{}: {}", endpoint.server, endpoint.rule);
            let goes = endpoint.node.as_ref().map(|name| format!("; {name} goes last")).unwrap_or_default();
            if endpoint.known { Check::ok("endpoint", words + &goes) } else { Check::warning("endpoint", words) }
        }
        Err(_) => {
            let why = cluster.without().unwrap_or("Talos does not tell the control planes' addresses");
            Check::not_looked_at("endpoint", why)
        }
    });
    checks.push(of_rights(seen.rights.as_ref()));
    checks
}

/// Pure.
fn of_servers(seen: &Seen, kubeconfigs: &str, nodes: &[NodeView]) -> Vec<Check> {
    const NAME: &str = "api server";
    let answers = seen.answers();
    let mut checks: Vec<_> = seen
        .servers
        .iter()
        .enumerate()
        .map(|(index, greeting)| match greeting {
            Ok(Greeting { address, ip, version, took, .. }) => {
                let of = nodes.iter().find(|node| ip.is_some() && node.internal_ip == *ip);
                let of = of.map(|node| format!(" of {}", node.name)).unwrap_or_default();
                let version = version.as_ref().map_or_else(
                    || "it does not tell us its version".to_owned(),
                    |version| format!("Kubernetes {version}"),
                );
                let how = if index == 0 { "the kubeconfig's" } else { "joined: it proved itself" };
                Check::ok(NAME, format!("{address}{of}: {version}, {} ms ({how})", took.as_millis()))
            }
            Err(NoGreeting { address, reason, unknown_to_it }) => {
                let words = format!("{address}: {reason}");
                if *unknown_to_it {
                    return Check::fault(NAME, words).next("talosctl --nodes CONTROL_PLANE kubeconfig FILE");
                }
                if answers {
                    return Check::warning(NAME, format!("{words}; others answer"));
                }
                let next = "reach it from this machine, or give another: --kube-server HOST[:PORT]";
                Check::fault(NAME, words).next(next)
            }
        })
        .collect();
    checks.extend(seen.dropped.iter().map(|Dropped { address, reason }| {
        Check::warning(NAME, format!("{address} would not be used while {kubeconfigs} is away: {reason}"))
    }));
    checks
}

/// Pure.
fn of_rights(rights: Option<&Result<Vec<Permission>, String>>) -> Check {
    const NAME: &str = "kubernetes rights";
    match rights {
        None => Check::not_looked_at(NAME, super::NO_SERVER),
        Some(Err(why)) => Check::fault(NAME, why.clone()),
        Some(Ok(missing)) if missing.is_empty() => Check::ok(NAME, "all that a roll asks for is allowed"),
        Some(Ok(missing)) => {
            let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
            let words = format!("{} not allowed: {}", plural(list.len(), "verb"), list.join(", "));
            if missing.iter().all(|it| (it.resource, it.verb) == ("pods", "delete")) {
                let next = "deploy/rbac/clusterrole.yaml does not grant it; leave --disable-eviction out, or grant delete of pods";
                return Check::fault(NAME, words).next(next);
            }
            Check::fault(NAME, words).next("deploy/rbac/clusterrole.yaml grants it; as an administrator: kubectl apply -f deploy/rbac/clusterrole.yaml && kubectl create clusterrolebinding talos-ghcr --clusterrole=talos-ghcr --user=NAME")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::doctor::Health;

    fn greeting(address: &str) -> Result<Greeting, NoGreeting> {
        Ok(Greeting {
            address: address.into(),
            ip: address.split(':').next().and_then(|ip| ip.parse().ok()),
            version: Some("v1.36.3".into()),
            date: None,
            asked: Timestamp::UNIX_EPOCH,
            took: Duration::from_millis(4),
        })
    }

    fn silent(address: &str, unknown_to_it: bool) -> Result<Greeting, NoGreeting> {
        Err(NoGreeting { address: address.into(), reason: "refused".into(), unknown_to_it })
    }

    #[test]
    fn a_server_that_is_down_is_a_fault_only_when_no_other_answers() {
        let of = |servers: Vec<_>| {
            let seen = Seen { servers, ..Seen::default() };
            of_servers(&seen, "10.0.0.1:6443", &[]).iter().map(|check| check.health).collect::<Vec<_>>()
        };
        assert_eq!(of(vec![greeting("10.0.0.1:6443"), greeting("10.0.0.2:6443")]), [Health::Ok, Health::Ok]);
        assert_eq!(of(vec![silent("10.0.0.1:6443", false), greeting("10.0.0.2:6443")]), [Health::Warning, Health::Ok]);
        assert_eq!(of(vec![silent("10.0.0.1:6443", false)]), [Health::Fault]);
        assert_eq!(of(vec![silent("10.0.0.1:6443", true), greeting("10.0.0.2:6443")]), [Health::Fault, Health::Ok]);
    }

    #[test]
    fn each_missing_verb_is_named() {
        let needed = access::needed("kube-system", "talos-ghcr", true);
        let all = of_rights(Some(&Ok(needed.clone())));
        assert!(all.health == Health::Fault && all.detail.starts_with("12 verbs not allowed: get nodes"), "{all:?}");
        let delete: Vec<_> = needed.into_iter().filter(|it| it.verb == "delete").collect();
        let delete = of_rights(Some(&Ok(delete)));
        assert_eq!(delete.detail, "1 verb not allowed: delete pods");
        assert!(delete.next.is_some_and(|next| next.contains("--disable-eviction")));
        assert_eq!(of_rights(Some(&Ok(Vec::new()))).health, Health::Ok);
    }
}
