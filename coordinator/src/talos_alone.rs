//! A look at the cluster without a kubeconfig: Talos says which nodes there are, and each what it has. Nothing is asked of
//! Kubernetes, and nothing here can change anything.

use std::collections::BTreeSet;
use std::net::IpAddr;

use agent::claims::judge;
use agent::credential::Desired;
use agent::facts::{Facts, Look, Want};
use agent::step::Memory;
use futures::future::join_all;
use futures::{StreamExt as _, stream};
use talos_proto::config::APID_PORT;
use talos_proto::identity::{ADMIN, Identity, address_of};
use talos_proto::node::RebootMode;
use talos_proto::resources::{MACHINE_TYPE, MachineTypes, Members, NodeAddresses, Nodenames};
use talos_proto::{Node, Talos};

use crate::endpoint;
use crate::fleet::{Endpoint, Fencing, FleetNode, Snapshot, Talk};
use crate::inventory::{AT_ONCE, Inventory, InventoryError, check_names, foreign_record, lesser_role, say};
use crate::kube::nodes::NodeView;
use crate::members::{
    Candidate, Failure, NamedBy, Silent, Told, candidates, is_control_plane, own_addresses, unreached,
};
use crate::settings::Settings;

/// What was not looked at, and how it is.
const NO_KUBECONFIG: &str = "there is no kubeconfig, so Talos alone was asked: nobody looked whether Kubernetes has these nodes or others, nor at fences and the Lease; give one with --kubeconfig or KUBECONFIG";
/// The addresses of a machine but for those of pods and services, which nobody is asked at.
const ADDRESSES: &str = "current-no-k8s";

/// Everything that such a look works with.
pub struct TalosAlone {
    /// The Talos API.
    pub talos: Talos,
    /// Who we are for Talos.
    pub identity: Identity,
    /// The credentials that the nodes should have; empty when none was given.
    pub desired: Desired,
    /// What the flags say.
    pub settings: Settings,
    /// The talosconfig's `nodes`, addresses or host names.
    pub nodes: Vec<String>,
    /// What is odd about the talosconfig without being wrong.
    pub warnings: Vec<String>,
}

/// The nodes that there are, as far as Talos tells, and what has to be said of that.
pub struct Found {
    nodes: Vec<Candidate>,
    /// For people.
    pub warnings: BTreeSet<String>,
}

impl TalosAlone {
    /// Finds the nodes: by discovery, and by asking what the talosconfig names who it is.
    pub async fn find(&self) -> Found {
        let (members, (mut themselves, mut silent), (more, more_silent)) =
            futures::join!(self.members(), self.at_endpoints(), self.at_nodes());
        themselves.extend(more);
        // An entry of `nodes` that does not answer is a node; as an endpoint it may be a load balancer.
        silent.splice(0..0, more_silent);
        let mut warnings: BTreeSet<String> = self.warnings.iter().cloned().collect();
        warnings.insert(NO_KUBECONFIG.to_owned());
        warnings.extend(lesser_role(&self.identity));
        let unlisted = match &members {
            Ok(members) if !members.is_empty() => None,
            Ok(_) => Some("Talos lists no members of the cluster (discovery is off)".to_owned()),
            Err(why) => Some(format!("the members of the cluster could not be read ({why})")),
        };
        warnings.extend(unlisted.map(|why| only_the_talosconfig(&why)));
        let members = members.unwrap_or_default();
        let (nodes, more) = candidates(&members, &themselves, silent);
        warnings.extend(more);
        Found { nodes, warnings }
    }

    /// Reads every node that was found.
    ///
    /// # Errors
    /// [`InventoryError::NobodyAnswered`], [`InventoryError::NoSuchNode`]. A node that does not answer is a row, not an
    /// error.
    pub async fn inventory(&self, found: Found) -> Result<Inventory, InventoryError> {
        let Found { nodes, mut warnings } = found;
        let count = nodes.len();
        let mut fleet: Vec<FleetNode> =
            stream::iter(nodes).map(|node| self.look_at(node)).buffer_unordered(AT_ONCE).collect().await;
        fleet.sort_by(|a, b| a.kube.name.cmp(&b.kube.name));
        if !fleet.iter().any(|node| node.facts().is_some()) {
            let reason = fleet.iter().find_map(|node| match &node.talk {
                Talk::Unreachable(why) => Some(format!("{}: {why}", node.name())),
                _ => None,
            });
            return Err(InventoryError::NobodyAnswered { nodes: count, first: reason.unwrap_or_default() });
        }
        let names: Vec<_> = fleet.iter().map(FleetNode::name).collect();
        check_names(&self.settings, &names)?;
        warnings.extend(fleet.iter().filter_map(foreign_record));
        let endpoint =
            Endpoint { server: "none".into(), node: None, rule: "there is no kubeconfig".into(), known: false };
        let snapshot = Snapshot { nodes: fleet, endpoint, leader: None, canary_passed: false, halted: false, warnings };
        Ok(Inventory { snapshot, lease: None, legacy: None })
    }

    /// What discovery has at each endpoint, together: each sees the cluster for itself.
    async fn members(&self) -> Result<Vec<Told>, String> {
        let endpoints = self.talos.endpoints();
        let asked = endpoints.iter().filter_map(|endpoint| self.talos.at(endpoint));
        let answers = join_all(asked.map(|node| async move { node.list::<Members>().await })).await;
        let mut why = "there is no endpoint".to_owned();
        let (mut members, mut answered) = (Vec::new(), false);
        for answer in answers {
            match answer {
                Ok(listed) => {
                    answered = true;
                    members.extend(listed.into_iter().map(Told::of_member));
                }
                Err(error) => why = say(&error),
            }
        }
        if answered { Ok(members) } else { Err(why) }
    }

    /// Who answers at each endpoint.
    async fn at_endpoints(&self) -> (Vec<Told>, Vec<Silent>) {
        let asked = self.talos.endpoints().into_iter().filter_map(|endpoint| {
            let node = self.talos.at(&endpoint)?;
            let address = address_of(&endpoint.host);
            // The port is a port of apid unless it says otherwise, and then the place of a node is its address.
            let place = if endpoint.port == APID_PORT { endpoint.host } else { endpoint.to_string() };
            Some(self.introduce(place, Ok(node), address, NamedBy::Endpoints))
        });
        apart(join_all(asked).await)
    }

    /// Who answers at each entry of the talosconfig's `nodes`.
    async fn at_nodes(&self) -> (Vec<Told>, Vec<Silent>) {
        let asked = self.nodes.iter().map(|place| async move {
            let address = endpoint::resolve(place, APID_PORT).await.first().copied();
            let node = address.map(|address| self.talos.node(address)).ok_or("the name does not resolve now");
            self.introduce(place.clone(), node, address, NamedBy::Nodes).await
        });
        apart(stream::iter(asked).buffered(AT_ONCE).collect().await)
    }

    async fn introduce(
        &self,
        place: String,
        node: Result<Node, &str>,
        address: Option<IpAddr>,
        named_by: NamedBy,
    ) -> Result<Told, Silent> {
        let said = match node {
            Ok(node) => who(&node, address).await,
            Err(why) => Err(why.to_owned()),
        };
        said.map_err(|why| Silent { place, address, named_by, why })
    }

    async fn look_at(&self, candidate: Candidate) -> FleetNode {
        let (address, talk) = self.ask(&candidate).await;
        let Told { name, addresses, control_plane, system } = candidate.told;
        let facts = if let Talk::Facts(facts) = &talk { Some(facts) } else { None };
        let memory = Memory::default();
        let judgement = facts.map(|facts| judge(facts, &self.desired, &memory.pull, self.talos.clock().utc()));
        let seen = facts.and_then(|facts| facts.node.seen());
        FleetNode {
            kube: NodeView {
                name: name.clone(),
                internal_ip: address.or_else(|| addresses.first().copied()),
                control_plane: control_plane.unwrap_or(false),
                talos: true,
                os_image: if system.is_empty() { "Talos".into() } else { system },
                ready: seen.is_some_and(|node| node.ready),
                unschedulable: seen.is_some_and(|node| node.unschedulable),
                addresses,
                ..NodeView::default()
            },
            talk,
            judgement,
            fencing: Fencing::Free,
            memory,
            busy: None,
            left_out: self.settings.leaves_out(&name),
            reboot_again: false,
            reboot_mode: RebootMode::default(),
            outage: None,
            mismatch: None,
        }
    }

    /// Asks at one address after the other, until a machine answers that is the node.
    async fn ask(&self, candidate: &Candidate) -> (Option<IpAddr>, Talk) {
        let Candidate { told: Told { name, addresses, .. }, silent } = candidate;
        if let Some(why) = silent {
            return (None, Talk::Unreachable(why.clone()));
        }
        let mut failures = Vec::new();
        for address in addresses {
            let told = match who(&self.talos.node(*address), Some(*address)).await {
                Ok(told) if told.name == *name => told,
                Ok(other) => {
                    failures.push((*address, Failure::Other(other.name)));
                    continue;
                }
                Err(why) => {
                    failures.push((*address, Failure::Unanswered(why)));
                    continue;
                }
            };
            // Not at a VIP if it has another address: half of the facts could be of the next holder.
            let best = told.addresses.first().copied().unwrap_or(*address);
            match self.read(best, name).await {
                Ok(facts) => return (Some(best), Talk::Facts(facts)),
                Err(failure) => failures.push((best, failure)),
            }
        }
        let (address, why) = unreached(&failures);
        (address, Talk::Unreachable(why))
    }

    /// The facts of what answers there, if it is that node.
    async fn read(&self, address: IpAddr, name: &str) -> Result<Box<Facts>, Failure> {
        let want = Want { admin: self.identity.has_role(ADMIN), addresses: false };
        match Facts::read(&self.talos.node(address), want).await {
            Ok(facts) => match &facts.nodename {
                Look::Seen(said) if said == name => Ok(Box::new(facts)),
                Look::Seen(other) => Err(Failure::Other(other.clone())),
                unseen => Err(Failure::Unanswered(format!("it does not say its node name ({})", unseen.reason()))),
            },
            Err(error) => Err(Failure::Unanswered(say(&error))),
        }
    }
}

/// Who a machine says that it is, asked at that address if it is known.
async fn who(node: &Node, address: Option<IpAddr>) -> Result<Told, String> {
    let (name, of, addresses) = futures::join!(
        node.get::<Nodenames>("nodename"),
        node.get::<MachineTypes>(MACHINE_TYPE),
        node.get::<NodeAddresses>(ADDRESSES),
    );
    let name = name.map_err(|error| say(&error))?.ok_or("it does not say its node name (not there)")?.spec.nodename;
    let current = addresses.ok().flatten().map(|it| it.spec.addresses).unwrap_or_default();
    Ok(Told {
        name,
        addresses: own_addresses(address, &current),
        control_plane: of.ok().flatten().and_then(|of| is_control_plane(of.spec.machine_type())),
        system: String::new(),
    })
}

fn apart(said: Vec<Result<Told, Silent>>) -> (Vec<Told>, Vec<Silent>) {
    let (mut told, mut silent) = (Vec::new(), Vec::new());
    for one in said {
        match one {
            Ok(one) => told.push(one),
            Err(one) => silent.push(one),
        }
    }
    (told, silent)
}

fn only_the_talosconfig(why: &str) -> String {
    format!(
        "{why}: only the endpoints and `nodes` of the talosconfig were looked at; for all nodes give a kubeconfig, or write the nodes' addresses into the talosconfig's `nodes`"
    )
}
