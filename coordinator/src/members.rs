//! Which nodes there are, where no Kubernetes says it: from what discovery lists, and what machines say of themselves. Pure.
//!
//! Discovery is only a hint of where to ask. It may be off; it lists a dead node for a while, and a VIP under its former
//! holder for over a minute (talos-captures, point 19). So who a machine is, only itself can say, and a node that does not
//! answer as itself is not judged by what another one answered at its address.

use std::net::IpAddr;

use agent::facts::address;
use talos_proto::proto::common::NetIpPrefix;
use talos_proto::proto::resource::config;
use talos_proto::proto::talos::resource::definitions::cluster::MemberSpec;
use talos_proto::proto::talos::resource::definitions::enums::MachineType;
use talos_proto::resources::Typed;

/// What is known of a node before its facts are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The node name of Kubernetes.
    pub name: String,
    /// Where it may be asked, best first.
    pub addresses: Vec<IpAddr>,
    /// A control plane; `None` when that was not said.
    pub control_plane: Option<bool>,
    /// The system, for instance `Talos (v1.13.9)`; empty when that was not said.
    pub system: String,
}

impl Told {
    /// Of a member that discovery lists.
    #[must_use]
    pub fn of_member(member: Typed<MemberSpec>) -> Self {
        let control_plane = match member.spec.machine_type() {
            MachineType::TypeUnknown => None,
            MachineType::TypeInit | MachineType::TypeControlPlane => Some(true),
            MachineType::TypeWorker => Some(false),
        };
        Self {
            name: member.id,
            addresses: member.spec.addresses.iter().filter_map(|it| address(&it.ip)).collect(),
            control_plane,
            system: member.spec.operating_system,
        }
    }
}

/// Whether a machine of that type is a control plane.
#[must_use]
pub fn is_control_plane(of: config::MachineType) -> Option<bool> {
    match of {
        config::MachineType::Unknown => None,
        config::MachineType::Init | config::MachineType::ControlPlane => Some(true),
        config::MachineType::Worker => Some(false),
    }
}

/// Where a machine that was asked at `asked` has its addresses, best first: the one that it answered at, its further ones,
/// and last those of a single host, which a VIP is and may move on.
#[must_use]
pub fn own_addresses(asked: Option<IpAddr>, current: &[NetIpPrefix]) -> Vec<IpAddr> {
    let is_single = |it: &&NetIpPrefix| usize::try_from(it.prefix_length).is_ok_and(|length| length == it.ip.len() * 8);
    let of = |single: bool| {
        current.iter().filter(move |it| is_single(it) == single).filter_map(|it| address(&it.ip)).collect::<Vec<_>>()
    };
    let lasting = of(false);
    let first = asked.filter(|asked| lasting.contains(asked));
    // Something stands before the machine when it does not know the address that it answers at.
    each_once(first.into_iter().chain(lasting.iter().copied()).chain(of(true)).chain(asked))
}

/// What named a machine that does not say who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The talosconfig's `endpoints`, or `--endpoints`.
    Endpoints,
    /// The talosconfig's `nodes`.
    Nodes,
}

/// A machine that the talosconfig names and that does not say who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// As the talosconfig names it.
    pub place: String,
    /// Its address, where it is known.
    pub address: Option<IpAddr>,
    /// What named it.
    pub named_by: NamedBy,
    /// Why it is not known who it is.
    pub why: String,
}

/// A node to be asked for its facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What is known of it; the name of a silent one is its place.
    pub told: Told,
    /// Why there is no use in asking it.
    pub silent: Option<String>,
}

/// One candidate for each name, by name, and what has to be said besides. A machine's own word comes before that of
/// discovery. A silent one that is known under its name is asked under that; another one is a node by itself, for a node
/// must not go missing because it is dead. Only where discovery lists the nodes, an endpoint that is none of them may be a
/// load balancer or a name.
#[must_use]
pub fn candidates(members: &[Told], themselves: &[Told], silent: Vec<Silent>) -> (Vec<Candidate>, Vec<String>) {
    let mut all: Vec<Told> = Vec::new();
    for told in themselves.iter().chain(members) {
        match all.iter_mut().find(|known| known.name == told.name) {
            None => all.push(Told { addresses: each_once(told.addresses.iter().copied()), ..told.clone() }),
            Some(known) => {
                known.addresses = each_once(known.addresses.iter().chain(&told.addresses).copied());
                known.control_plane = known.control_plane.or(told.control_plane);
                if known.system.is_empty() {
                    known.system.clone_from(&told.system);
                }
            }
        }
    }
    let is_known = |silent: &Silent| {
        let has = |told: &Told| silent.address.is_some_and(|address| told.addresses.contains(&address));
        all.iter().any(|told| told.name == silent.place || has(told))
    };
    let mut warnings = Vec::new();
    let mut unknown: Vec<Candidate> = Vec::new();
    for silent in silent {
        let Silent { place, address, named_by, why } = &silent;
        if is_known(&silent) || unknown.iter().any(|it| it.told.name == *place) {
            continue;
        }
        if *named_by == NamedBy::Endpoints && !members.is_empty() {
            warnings.push(format!("the Talos endpoint {place} does not say which node it is: {why}"));
            continue;
        }
        let plane = *named_by == NamedBy::Endpoints;
        unknown.push(Candidate {
            told: Told {
                name: place.clone(),
                addresses: address.iter().copied().collect(),
                control_plane: plane.then_some(true),
                system: String::new(),
            },
            silent: Some(why.clone()),
        });
    }
    let mut candidates: Vec<_> = all.into_iter().map(|told| Candidate { told, silent: None }).chain(unknown).collect();
    candidates.sort_by(|a, b| a.told.name.cmp(&b.told.name));
    (candidates, warnings)
}

/// What came of asking a node at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Another machine answered, which says that name.
    Other(String),
    /// It had no answer.
    Unanswered(String),
}

/// At which address a node should have been, and why it was not reached: of its own address rather than of one that
/// another machine has by now.
#[must_use]
pub fn unreached(failures: &[(IpAddr, Failure)]) -> (Option<IpAddr>, String) {
    let unanswered = failures.iter().find(|(_, failure)| matches!(failure, Failure::Unanswered(_)));
    match unanswered.or_else(|| failures.first()) {
        Some((address, Failure::Unanswered(why))) => (Some(*address), why.clone()),
        Some((address, Failure::Other(name))) => (Some(*address), format!("{address} answers as {name}")),
        None => (None, "Talos knows no address of it".into()),
    }
}

fn each_once(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut seen = Vec::new();
    for address in addresses {
        if !seen.contains(&address) {
            seen.push(address);
        }
    }
    seen
}

#[cfg(test)]
mod tests;
