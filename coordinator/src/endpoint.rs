//! Which node serves the kubeconfig's address: the one that must go last.
//!
//! First by the addresses that control planes have. Where none has it (a load balancer, a tunnel), by the certificate that
//! answers there: that of a control plane carries the node's own addresses and host name, besides what all have in
//! common (Talos `secrets/kubernetes_cert_sans.go`: the cluster endpoint's host, `cluster.apiServer.certSANs`, the
//! service's names and addresses, and every address that the node had since its boot, so also a VIP that has moved on).
//! It decides nothing but the order.

use std::net::IpAddr;

use agent::facts::Look;
use talos_proto::identity::address_of;

use crate::fleet::{Endpoint, FleetNode};
use crate::kube::serving::Serving;

/// What the addresses tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByAddress {
    /// The answer.
    Told(Endpoint),
    /// No control plane is seen to have the address: so it is answered unless a certificate tells.
    Nobody(Endpoint),
}

impl ByAddress {
    /// The answer where no certificate is looked at.
    #[must_use]
    pub fn alone(self) -> Endpoint {
        match self {
            ByAddress::Told(endpoint) | ByAddress::Nobody(endpoint) => endpoint,
        }
    }
}

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
pub fn by_address(server: (&str, u16), resolved: &[IpAddr], nodes: &[FleetNode]) -> ByAddress {
    let (host, port) = server;
    let server = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let answer = |node: Option<&FleetNode>, rule: String| Endpoint {
        server: server.clone(),
        node: node.map(|node| node.name().to_owned()),
        rule,
        known: true,
    };
    if resolved.is_empty() {
        return ByAddress::Told(Endpoint { known: false, ..answer(None, format!("{host} does not resolve now")) });
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
    ByAddress::Told(match holders.as_slice() {
        // Not every control plane said its addresses: the one that did not may be it.
        [] if control_planes().any(|node| !matches!(node.facts().map(|f| &f.addresses), Some(Look::Seen(_)))) => {
            return ByAddress::Nobody(Endpoint {
                known: false,
                ..answer(None, format!("{host} is none of the addresses that were seen, and not all were"))
            });
        }
        [] => {
            let rule = format!("{host} is no control plane's address (a load balancer?): no single node");
            return ByAddress::Nobody(answer(None, rule));
        }
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
    })
}

/// Finds the endpoint node, of which the addresses did not tell, from the certificates that several connections to the
/// server were answered with, or why none was seen.
#[must_use]
pub fn by_certificate(nobody: Endpoint, seen: Result<Vec<Serving>, String>, nodes: &[FleetNode]) -> Endpoint {
    let server = nobody.server.clone();
    let seen = match seen {
        Ok(seen) => seen,
        // It may be any of them: what was known before stands.
        Err(why) => {
            let rule = format!("{}, and its certificate cannot be read ({why})", nobody.rule);
            return Endpoint { known: false, rule, ..nobody };
        }
    };
    let mut singled: Vec<Option<(&FleetNode, String)>> = Vec::new();
    for serving in &seen {
        let found = single(serving, nodes);
        let name = |found: &Option<(&FleetNode, String)>| found.as_ref().map(|(node, _)| node.name().to_owned());
        if !singled.iter().any(|known| name(known) == name(&found)) {
            singled.push(found);
        }
    }
    match singled.as_slice() {
        [Some((node, by))] => Endpoint {
            node: Some(node.name().to_owned()),
            rule: format!("the certificate that answers at {server} is that of {} ({by})", node.name()),
            known: true,
            ..nobody
        },
        [] | [None] => Endpoint { rule: format!("{}; its certificate singles out none", nobody.rule), ..nobody },
        several => {
            let names: Vec<_> =
                several.iter().map(|it| it.as_ref().map_or("another server", |(node, _)| node.name())).collect();
            let rule = format!("{server} is answered by {} (a load balancer): no single node", names.join(" and by "));
            Endpoint { rule, known: true, ..nobody }
        }
    }
}

/// The one control plane that a certificate singles out, and by what. An address or a name alone may be one that all
/// certificates carry; so the node that has both counts first, and one that has either only if no other has.
fn single<'a>(serving: &Serving, nodes: &'a [FleetNode]) -> Option<(&'a FleetNode, String)> {
    let found: Vec<_> = nodes
        .iter()
        .filter(|node| node.kube.control_plane)
        .map(|node| {
            let own =
                |address: &&IpAddr| node.kube.internal_ip == Some(**address) || node.kube.addresses.contains(address);
            let name = node.name().to_ascii_lowercase();
            (node, serving.addresses.iter().find(own), serving.names.contains(&name))
        })
        .filter(|(_, address, name)| address.is_some() || *name)
        .collect();
    let both: Vec<_> = found.iter().filter(|(_, address, name)| address.is_some() && *name).collect();
    let (node, address, name) = match (both.as_slice(), found.as_slice()) {
        ([one], _) => *one,
        ([], [one]) => one,
        _ => return None,
    };
    let by = match (address, name) {
        (Some(address), true) => format!("it names {} and {address}", node.name()),
        (Some(address), false) => format!("it names {address}"),
        (None, _) => format!("it names {}", node.name()),
    };
    Some((node, by))
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
        let endpoint = by_address((host, 6443), &resolved, nodes).alone();
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

    /// What a certificate with these SANs says of a load balancer in front of three control planes.
    fn certified(seen: &[&[&str]], nodes: &[FleetNode]) -> Endpoint {
        let ByAddress::Nobody(nobody) = by_address(("lb.example.com", 443), &["192.0.2.7".parse().unwrap()], nodes)
        else {
            panic!("no control plane has that address")
        };
        let serving = |sans: &&[&str]| {
            // What every certificate carries besides (Talos `secrets/kubernetes_cert_sans.go`).
            let shared =
                ["lb.example.com", "kubernetes", "kubernetes.default.svc", "localhost", "10.96.0.1", "127.0.0.1"];
            let mut serving = Serving::default();
            for san in shared.iter().chain(*sans) {
                match san.parse() {
                    Ok(address) => serving.addresses.push(address),
                    Err(_) => serving.names.push((*san).to_owned()),
                }
            }
            serving
        };
        by_certificate(nobody, Ok(seen.iter().map(serving).collect()), nodes)
    }

    #[test]
    fn o03_a_certificate_singles_out_the_node_whose_address_and_name_it_has() {
        let nodes = planes(Some("cp-3"));
        let node = |seen: &[&[&str]]| certified(seen, &nodes).node;
        let plain = certified(&[&["10.0.0.2", "cp-2"]], &nodes);
        assert_eq!((plain.node.as_deref(), plain.known), (Some("cp-2"), true));
        let rule = "the certificate that answers at lb.example.com:443 is that of cp-2 (it names cp-2 and 10.0.0.2)";
        assert_eq!(plain.rule, rule);
        // The cluster endpoint is another control plane's address, and a VIP that was here once is elsewhere now.
        assert_eq!(node(&[&["10.0.0.2", "cp-2", "10.0.0.1", "10.0.0.50"]]).as_deref(), Some("cp-2"));
        // certSANs lists all addresses, or all names.
        assert_eq!(node(&[&["10.0.0.1", "10.0.0.2", "10.0.0.3", "cp-2"]]).as_deref(), Some("cp-2"));
        assert_eq!(node(&[&["10.0.0.2", "cp-1", "cp-2", "cp-3"]]).as_deref(), Some("cp-2"));
        // The Node has another name than the host.
        assert_eq!(node(&[&["10.0.0.2", "host-b"]]).as_deref(), Some("cp-2"));
        assert_eq!(node(&[&["192.168.0.2", "cp-2"]]).as_deref(), Some("cp-2"));
        assert_eq!(node(&[&["10.0.0.1", "10.0.0.2", "host-b"]]), None);
    }

    #[test]
    fn o03_a_certificate_that_singles_out_none_or_several_is_no_single_node() {
        let mut nodes = planes(None);
        let balancer = certified(&[&["10.0.0.1", "cp-1"], &["10.0.0.2", "cp-2"], &["10.0.0.1", "cp-1"]], &nodes);
        assert!(balancer.node.is_none() && balancer.known, "{balancer:?}");
        assert!(balancer.rule.contains("cp-1 and by cp-2 (a load balancer): no single node"), "{}", balancer.rule);
        let shared = certified(&[&["10.0.0.1", "cp-1", "10.0.0.2", "cp-2"]], &nodes);
        assert!(shared.node.is_none() && shared.known && shared.rule.contains("singles out none"), "{shared:?}");
        assert!(certified(&[&[], &["10.0.0.1", "cp-1"]], &nodes).node.is_none());
        assert!(certified(&[], &nodes).node.is_none(), "not looked at, behind a proxy");
        // A control plane that does not say its addresses may be it, unless the certificate tells.
        nodes[0] = nodes[0].clone().dead();
        assert!(!certified(&[&[]], &nodes).known);
        let told = certified(&[&["10.0.0.3", "cp-3"]], &nodes);
        assert_eq!((told.node.as_deref(), told.known), (Some("cp-3"), true));
    }

    #[test]
    fn o03_a_certificate_that_cannot_be_read_leaves_open_which_node_it_is() {
        let nodes = planes(None);
        let ByAddress::Nobody(nobody) = by_address(("lb", 443), &["192.0.2.7".parse().unwrap()], &nodes) else {
            panic!()
        };
        let open = by_certificate(nobody, Err("connection refused".into()), &nodes);
        assert!(
            !open.known && open.node.is_none() && open.rule.ends_with("cannot be read (connection refused)"),
            "{open:?}"
        );
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
