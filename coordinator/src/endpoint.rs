//! Which node serves the kubeconfig's address: the one that must go last.

use std::net::IpAddr;

use agent::facts::Look;
use talos_proto::identity::address_of;

use crate::fleet::{Endpoint, FleetNode};

/// The addresses behind a host name or address; empty when it does not resolve now.
pub async fn resolve(host: &str, port: u16) -> Vec<IpAddr> {
    if let Some(address) = address_of(host) {
        return vec![address];
    }
    match tokio::net::lookup_host((host, port)).await {
        Ok(found) => found.map(|socket| socket.ip().to_canonical()).collect(),
        Err(error) => {
            tracing::debug!(host, %error, "the API server's name does not resolve");
            Vec::new()
        }
    }
}

/// Finds the endpoint node from what each control plane says about its addresses. `NodeAddresses current` comes first
/// because it holds a VIP while the node has it; Members do not tell, they list a VIP under a dead node for over a
/// minute (talos-captures, point 19).
#[must_use]
pub fn find(server: (&str, u16), resolved: &[IpAddr], nodes: &[FleetNode]) -> Endpoint {
    let (host, port) = server;
    let server = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let answer = |node: Option<&FleetNode>, rule: String| Endpoint {
        server: server.clone(),
        node: node.map(|node| node.name().to_owned()),
        rule,
        known: true,
    };
    if resolved.is_empty() {
        return Endpoint { known: false, ..answer(None, format!("{host} does not resolve now")) };
    }
    let control_planes = || nodes.iter().filter(|node| node.kube.control_plane);
    let talos_has = |node: &FleetNode, address: &IpAddr| {
        let addresses = node.facts().map(|facts| &facts.addresses);
        matches!(addresses, Some(Look::Seen(list)) if list.contains(address))
    };
    let kubernetes_has = |node: &FleetNode, address: &IpAddr| node.kube.internal_ip == Some(*address);
    let mut holders: Vec<(&FleetNode, &str)> = Vec::new();
    for address in resolved {
        let by_talos = control_planes().find(|node| talos_has(node, address)).map(|node| (node, "Talos"));
        let by_node = || control_planes().find(|node| kubernetes_has(node, address)).map(|node| (node, "its Node"));
        if let Some(found) = by_talos.or_else(by_node)
            && !holders.iter().any(|(node, _)| node.name() == found.0.name())
        {
            holders.push(found);
        }
    }
    match holders.as_slice() {
        // Not every control plane said its addresses: the one that did not may be it.
        [] if control_planes().any(|node| !matches!(node.facts().map(|f| &f.addresses), Some(Look::Seen(_)))) => {
            Endpoint {
                known: false,
                ..answer(None, format!("{host} is none of the addresses that were seen, and not all were"))
            }
        }
        [] => answer(None, format!("{host} is no control plane's address (a load balancer?): no single node")),
        [(node, by)] if resolved.len() == 1 => {
            let vip = node.kube.internal_ip != resolved.first().copied();
            let kind = if vip { "a further address (a VIP?)" } else { "the address" };
            answer(Some(node), format!("{host} is {kind} of {} by {by}", node.name()))
        }
        [(node, _)] => answer(Some(node), format!("of the addresses of {host} only {} has one", node.name())),
        several => {
            let names: Vec<_> = several.iter().map(|(node, _)| node.name()).collect();
            answer(None, format!("{host} resolves to {}: no single node", names.join(", ")))
        }
    }
}

/// What is wrong with the Talos endpoints, as far as the fleet shows it: a worker forwards nothing, and a VIP moves away
/// from under the very reboot that is tracked through it (siderolabs/talos#9441, #14041).
#[must_use]
pub fn warnings(endpoints: &[talos_proto::config::Endpoint], nodes: &[FleetNode]) -> Vec<String> {
    let mut warnings = Vec::new();
    for endpoint in endpoints {
        let Some(address) = address_of(&endpoint.host) else { continue };
        if let Some(node) = nodes.iter().find(|node| node.kube.addresses.contains(&address)) {
            if !node.kube.control_plane {
                warnings.push(format!(
                    "the Talos endpoint {endpoint} is the worker {}, which forwards nothing",
                    node.name()
                ));
            }
            continue;
        }
        let has = |node: &&FleetNode| {
            node.facts().is_some_and(|facts| facts.addresses.seen().is_some_and(|list| list.contains(&address)))
        };
        if let Some(holder) = nodes.iter().find(has) {
            warnings.push(format!(
                "the Talos endpoint {endpoint} is an address that {} has now but no Node reports: a VIP? Name the control planes' own addresses",
                holder.name()
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Talk;
    use crate::fleet::testing::{facts, node};
    use agent::claims::Verdict;

    /// Three control planes 10.0.0.1 to 10.0.0.3; `holder` also has the VIP 10.0.0.50.
    fn planes(holder: Option<&str>) -> Vec<FleetNode> {
        let plane = |name: &str| {
            let mut node = node(name, Verdict::Current);
            let vip = (holder == Some(name)).then(|| "10.0.0.50".parse().unwrap());
            let mut facts = facts("v1.13.9");
            facts.addresses = Look::Seen(node.kube.internal_ip.into_iter().chain(vip).collect());
            node.talk = Talk::Facts(Box::new(facts));
            node
        };
        ["cp-1", "cp-2", "cp-3"].map(plane).to_vec()
    }

    fn found(host: &str, resolved: &[&str], nodes: &[FleetNode]) -> (Option<String>, String) {
        let resolved: Vec<IpAddr> = resolved.iter().map(|address| address.parse().unwrap()).collect();
        let endpoint = find((host, 6443), &resolved, nodes);
        (endpoint.node, endpoint.rule)
    }

    #[test]
    fn o01_a_control_planes_own_address() {
        let (node, rule) = found("10.0.0.2", &["10.0.0.2"], &planes(None));
        assert_eq!((node.as_deref(), rule.as_str()), (Some("cp-2"), "10.0.0.2 is the address of cp-2 by Talos"));
    }

    #[test]
    fn o02_a_vip_is_found_where_it_is_now() {
        assert_eq!(found("10.0.0.50", &["10.0.0.50"], &planes(Some("cp-3"))).0.as_deref(), Some("cp-3"));
        assert_eq!(found("10.0.0.50", &["10.0.0.50"], &planes(Some("cp-2"))).0.as_deref(), Some("cp-2"));
        assert_eq!(found("10.0.0.50", &["10.0.0.50"], &planes(None)).0, None);
    }

    #[test]
    fn o03_names_balancers_and_what_does_not_resolve() {
        let nodes = planes(None);
        let (node, rule) = found("api.example.com", &["10.0.0.1", "10.0.0.2"], &nodes);
        assert!(node.is_none() && rule.contains("cp-1, cp-2"), "{rule}");
        assert!(found("lb.example.com", &["192.0.2.7"], &nodes).1.contains("load balancer"));
        assert!(found("nowhere", &[], &nodes).1.contains("does not resolve"));
        let (node, _) = found("api.example.com", &["10.0.0.1", "192.0.2.7"], &nodes);
        assert_eq!(node.as_deref(), Some("cp-1"));
    }

    #[test]
    fn endpoints_that_are_a_worker_or_a_vip_are_warned_about() {
        let mut nodes = planes(Some("cp-3"));
        nodes.push(node("worker-1", Verdict::Current));
        for node in &mut nodes {
            node.kube.addresses = node.kube.internal_ip.into_iter().collect();
        }
        let endpoints: Vec<talos_proto::config::Endpoint> =
            ["10.0.0.1", "10.0.1.1", "10.0.0.50", "lb.example.com"].map(|host| host.parse().unwrap()).to_vec();
        let said = warnings(&endpoints, &nodes);
        assert!(said.len() == 2 && said[0].contains("worker worker-1") && said[1].contains("a VIP?"), "{said:?}");
    }

    #[test]
    fn without_the_words_of_talos_the_node_tells() {
        let mut nodes = planes(None);
        nodes[0] = nodes[0].clone().dead();
        assert!(found("10.0.0.1", &["10.0.0.1"], &nodes).1.ends_with("by its Node"));
    }
}
