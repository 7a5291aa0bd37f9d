//! The inventory: Kubernetes Nodes joined with the Talos nodes behind them, read fresh.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent::claims::{Verdict, judge};
use agent::credential::Desired;
use agent::facts::{Facts, Want};
use agent::record;
use agent::step::Memory;
use futures::StreamExt;
use talos_proto::chain;
use talos_proto::identity::{ADMIN, Identity};
use talos_proto::{CallError, Talos, Why};

use crate::ci::Ci;
use crate::decide::canary_has_passed;
use crate::endpoint::{self, ByAddress};
use crate::fleet::{Endpoint, Fencing, FleetNode, Snapshot, Talk};
use crate::gates;
use crate::holder::Life;
use crate::identity::mismatch;
use crate::kube::api_servers::{ApiServers, ReadError};
use crate::kube::fence::Fence;
use crate::kube::fence::script::ScriptFence;
use crate::kube::lease::{self, LeaseRecord};
use crate::kube::nodes::{self, NodeView};
use crate::settings::{LeaseName, LeaseNames, Settings};

/// Nodes that are asked at once.
pub const AT_ONCE: usize = 16;
/// Connections at once to a server whose certificate is looked at.
const MOST_CONNECTIONS: usize = 5;

/// Everything a command works with.
pub struct Context {
    /// The Kubernetes API servers.
    pub servers: ApiServers,
    /// The Talos API.
    pub talos: Talos,
    /// Who asks for the CI jobs of holders.
    pub ci: Arc<Ci>,
    /// Who we are for Talos.
    pub identity: Identity,
    /// The credentials that the nodes should have; empty when none was given.
    pub desired: Desired,
    /// What the flags say.
    pub settings: Settings,
    /// What is odd about talosconfig and kubeconfig without being wrong.
    pub warnings: Vec<String>,
}

/// Why there is no inventory.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// The Nodes could not be listed.
    #[error("the Kubernetes Nodes could not be listed")]
    Nodes(#[source] ReadError),
    /// The Lease could not be read: a failed read is never "nothing held".
    #[error("the Lease {name} could not be read")]
    Lease {
        /// Its `namespace/name`.
        name: String,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// No Node of Kubernetes could be joined with a Talos node.
    #[error("none of the {nodes} Kubernetes Nodes could be joined with a Talos node: {first}")]
    NothingJoined {
        /// How many Nodes there are.
        nodes: usize,
        /// The first node's reason.
        first: String,
    },
    /// Without a kubeconfig: no node that Talos or the talosconfig names has answered.
    #[error("none of the {nodes} nodes that Talos and the talosconfig name has answered: {first}")]
    NobodyAnswered {
        /// How many they name.
        nodes: usize,
        /// The first node's reason.
        first: String,
    },
    /// A flag names a node that is not there.
    #[error("there is no node {name} in the cluster (named by --{flag}); it has: {known}")]
    NoSuchNode {
        /// The flag.
        flag: &'static str,
        /// The name.
        name: String,
        /// The names of the Nodes.
        known: String,
    },
}

impl InventoryError {
    /// Asking again may help.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            InventoryError::Nodes(source) | InventoryError::Lease { source, .. } => source.may_pass(),
            _ => false,
        }
    }
}

/// The Nodes, our Lease and the old script's.
type KubernetesRead =
    (Result<Vec<NodeView>, ReadError>, Result<Option<LeaseRecord>, ReadError>, Result<Option<LeaseRecord>, ReadError>);

/// One look at everything.
#[derive(Debug)]
pub struct Inventory {
    /// The fleet.
    pub snapshot: Snapshot,
    /// The Lease, if there is one.
    pub lease: Option<LeaseRecord>,
    /// The old script's Lease, if there is one.
    pub legacy: Option<LeaseRecord>,
}

impl Inventory {
    /// What says that a run was here before, and so that the Lease was: the Lease itself, a fence or a record.
    #[must_use]
    pub fn was_here_before(&self) -> Option<String> {
        if self.lease.is_some() {
            return Some("it was there when this run began".to_owned());
        }
        let nodes = &self.snapshot.nodes;
        let fenced = nodes.iter().find(|node| matches!(node.fencing, Fencing::Residue { .. } | Fencing::Ours { .. }));
        if let Some(node) = fenced {
            return Some(format!("a fence stands on {}", node.name()));
        }
        let recorded = nodes.iter().find(|node| node.judgement.as_ref().is_some_and(|it| it.record.is_some()));
        recorded.map(|node| format!("{} carries a record", node.name()))
    }
}

/// Whose fences are ours, and what is known beyond the cluster.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Our identity in the Lease, once it is held.
    pub holder: Option<String>,
    /// Nodes that this run claimed in their turn.
    pub claimed: BTreeSet<String>,
    /// By Node UID: a node of the same name is another node.
    pub memory: BTreeMap<String, Memory>,
    /// A node of ours did not come back.
    pub halted: bool,
}

impl Context {
    /// Whether the identity may read and write machine configs.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.identity.has_role(ADMIN)
    }

    /// Reads Nodes and Leases, then every Talos node.
    ///
    /// # Errors
    /// [`InventoryError`]. A node that does not answer is a row, not an error.
    pub async fn inventory(&self, known: &Known) -> Result<Inventory, InventoryError> {
        let settings = &self.settings;
        let mut read = Box::pin(self.read_kubernetes()).await;
        if let (Err(error), ..) = &read
            && error.may_pass()
            && Box::pin(self.join_given()).await
        {
            read = Box::pin(self.read_kubernetes()).await;
        }
        let (nodes, held, legacy) = read;
        let nodes = nodes.map_err(InventoryError::Nodes)?;
        let lease = held.map_err(|source| InventoryError::Lease { name: settings.lease.to_string(), source })?;
        let legacy = legacy.map_err(|source| InventoryError::Lease {
            name: settings.legacy_lease.as_ref().map(ToString::to_string).unwrap_or_default(),
            source,
        })?;
        // Once the roll is under way, a node that is gone is weather.
        if known.holder.is_none() {
            let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
            check_names(settings, &names)?;
        }
        let mut fleet: Vec<FleetNode> = futures::stream::iter(nodes)
            .map(|node| self.look_at(node, known))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        fleet.sort_by(|a, b| a.kube.name.cmp(&b.kube.name));
        if settings.rolls && !settings.allow_control_plane_outage {
            forbid_outage(&mut fleet);
        }
        self.judge_foreign_fences(&mut fleet, known.holder.is_some()).await;
        if !fleet.iter().any(|node| node.facts().is_some()) {
            let reason = |node: &FleetNode| match &node.talk {
                Talk::Unreachable(why) | Talk::NotTalos(why) => format!("{}: {why}", node.name()),
                Talk::Facts(_) => String::new(),
            };
            let first = fleet.first().map_or_else(|| "the cluster has no Nodes".into(), reason);
            return Err(InventoryError::NothingJoined { nodes: fleet.len(), first });
        }
        let snapshot = Snapshot {
            canary_passed: canary_has_passed(&fleet),
            endpoint: self.find_endpoint(&fleet).await,
            leader: self.find_leader(&fleet).await,
            halted: known.halted,
            warnings: self.warnings(&fleet),
            nodes: fleet,
        };
        Ok(Inventory { snapshot, lease, legacy })
    }

    async fn read_kubernetes(&self) -> KubernetesRead {
        let settings = &self.settings;
        futures::join!(
            nodes::list(&self.servers),
            lease::look(&self.servers, &settings.lease.namespace, &settings.lease.name),
            async {
                match settings.legacy_lease.as_ref().filter(|legacy| **legacy != settings.lease) {
                    Some(legacy) => lease::look(&self.servers, &legacy.namespace, &legacy.name).await,
                    None => Ok(None),
                }
            },
        )
    }

    /// Where the kubeconfig's server does not answer at the first contact, those of `--kube-server` are asked to prove
    /// themselves; whether one has joined.
    async fn join_given(&self) -> bool {
        let before = self.servers.names().len();
        self.servers.extend(Vec::new(), &self.settings.kube_servers).await;
        self.servers.names().len() > before
    }

    /// Which of these nodes serves the kubeconfig's endpoint, its name resolved anew.
    pub async fn find_endpoint(&self, fleet: &[FleetNode]) -> Endpoint {
        let (host, port) = self.servers.server();
        let resolved = endpoint::resolve(&host, port).await;
        match endpoint::by_address((&host, port), &resolved, fleet) {
            ByAddress::Told(endpoint) => endpoint,
            ByAddress::Nobody(nobody) => {
                // As many connections as there are control planes: a balancer in front of them shows itself.
                let planes = fleet.iter().filter(|node| node.kube.control_plane).count().min(MOST_CONNECTIONS);
                endpoint::by_certificate(nobody, self.servers.serving(planes).await, fleet)
            }
        }
    }

    /// Who leads etcd, asked only where the order of turns may depend on it: with two control planes or more that have to
    /// be changed. A plan shows the order that a run begins with; the run asks again before each control plane.
    async fn find_leader(&self, fleet: &[FleetNode]) -> Option<String> {
        let planes: Vec<_> = fleet.iter().filter(|node| node.kube.control_plane).collect();
        let changed = planes.iter().filter(|node| matches!(node.verdict(), Verdict::Stale | Verdict::Drifted)).count();
        if changed < 2 {
            return None;
        }
        let planes: Vec<_> = planes.iter().filter_map(|node| Some((node.name().to_owned(), node.address()?))).collect();
        gates::leader(&self.talos, &planes).await
    }

    /// Looks only at the Node and the fence on it, keeping what Talos said before: for what must be undone at once.
    ///
    /// # Errors
    /// [`ReadError`] when Kubernetes does not answer.
    pub async fn look_at_fence(&self, before: &FleetNode, known: &Known) -> Result<Option<FleetNode>, ReadError> {
        let Some(kube) = nodes::get(&self.servers, before.name()).await? else { return Ok(None) };
        let fencing = fencing(&kube, before.boot(), known, self.settings.leases());
        Ok(Some(FleetNode { fencing, busy: None, kube, ..before.clone() }))
    }

    /// Looks at one node again; `None` when it is gone from Kubernetes.
    ///
    /// # Errors
    /// [`ReadError`] when Kubernetes does not answer.
    pub async fn look_again(&self, name: &str, known: &Known) -> Result<Option<FleetNode>, ReadError> {
        match nodes::get(&self.servers, name).await? {
            Some(node) => Ok(Some(self.look_at(node, known).await)),
            None => Ok(None),
        }
    }

    /// A fence that names another Lease: that one is read. Free, gone, or held by who is dead makes it residue; once we
    /// may act on it, only if that is sure.
    async fn judge_foreign_fences(&self, fleet: &mut [FleetNode], sure: bool) {
        let mut dead: BTreeMap<String, bool> = BTreeMap::new();
        for node in fleet {
            let Fencing::Foreign { fence, .. } = &node.fencing else { continue };
            let of_lease = match dead.get(&fence.lease) {
                Some(known) => *known,
                None => {
                    let judged = self.nobody_holds(&fence.lease, sure).await;
                    dead.insert(fence.lease.clone(), judged);
                    judged
                }
            };
            node.fencing = judged(node.fencing.clone(), of_lease);
        }
    }

    /// Whether a Lease is free, gone, or its holder dead. One that cannot be read blocks only the nodes whose fences name
    /// it.
    async fn nobody_holds(&self, lease: &str, sure: bool) -> bool {
        let Ok(named) = lease.parse::<LeaseName>() else { return false };
        let Ok(record) = lease::look(&self.servers, &named.namespace, &named.name).await else { return false };
        let Some(held) = record.filter(|record| record.holder.is_some()) else { return true };
        let judged = self.life_of_holder(&held).await;
        matches!(judged.life, Life::Dead(_)) && (!sure || self.is_sure(&held, &judged))
    }

    async fn look_at(&self, kube: NodeView, known: &Known) -> FleetNode {
        let memory = known.memory.get(&kube.uid).cloned().unwrap_or_default();
        let talk = self.ask(&kube).await;
        let facts = if let Talk::Facts(facts) = &talk { Some(facts) } else { None };
        let judgement = facts.map(|facts| judge(facts, &self.desired, &memory.pull, self.talos.clock().utc()));
        FleetNode {
            mismatch: facts.and_then(|facts| mismatch(&kube, facts)),
            fencing: fencing(
                &kube,
                facts.and_then(|facts| facts.boot.seen()).map(String::as_str),
                known,
                self.settings.leases(),
            ),
            left_out: self.settings.leaves_out(&kube.name),
            reboot_again: self.settings.reboot_again.contains(&kube.name),
            reboot_mode: self.settings.reboot_modes.of(&kube.name),
            outage: None,
            talk,
            judgement,
            memory,
            busy: None,
            kube,
        }
    }

    async fn ask(&self, kube: &NodeView) -> Talk {
        if !kube.talos {
            return Talk::NotTalos(format!("osImage is {:?}", kube.os_image));
        }
        let Some(address) = kube.internal_ip else {
            return Talk::Unreachable("the Node has no InternalIP".into());
        };
        let want = Want { admin: self.is_admin(), addresses: kube.control_plane };
        match Facts::read(&self.talos.node(address), want).await {
            Ok(facts) => Talk::Facts(Box::new(facts)),
            Err(error) => Talk::Unreachable(say(&error)),
        }
    }

    fn warnings(&self, fleet: &[FleetNode]) -> BTreeSet<String> {
        let mut warnings: BTreeSet<String> = endpoint::warnings(&self.talos.endpoints(), fleet)
            .into_iter()
            .chain(self.warnings.iter().cloned())
            .collect();
        warnings.extend(fleet.iter().filter_map(foreign_record));
        warnings.extend(lesser_role(&self.identity));
        warnings
    }
}

/// The flags that name nodes name these.
///
/// # Errors
/// [`InventoryError::NoSuchNode`].
pub fn check_names(settings: &Settings, known: &[&str]) -> Result<(), InventoryError> {
    // An excluded node that is gone is what its operator wanted; a selected one that is gone is a mistake.
    let modes = settings.reboot_modes.names().cloned().collect();
    for (flag, names) in [("nodes", &settings.nodes), ("reboot-again", &settings.reboot_again), ("reboot-mode", &modes)]
    {
        if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(InventoryError::NoSuchNode { flag, name: name.clone(), known: known.join(", ") });
        }
    }
    Ok(())
}

/// What an identity without os:admin does not show; `None` with it.
#[must_use]
pub fn lesser_role(identity: &Identity) -> Option<String> {
    if identity.has_role(ADMIN) {
        return None;
    }
    let roles = identity.role_words();
    Some(format!(
        "the Talos identity has {roles}, not {ADMIN}: \"configured\" cannot be looked at and nothing be written"
    ))
}

/// The chain of a call's error, but for what everybody would read twice.
#[must_use]
pub fn say(error: &CallError) -> String {
    match &error.why {
        Why::Connect { .. } => format!("no Talos endpoint could be reached ({})", chain(error)),
        _ => chain(error),
    }
}

/// A fence under another Lease is residue when that one is gone, free, or its holder is dead by evidence. Pure.
#[must_use]
pub fn judged(fencing: Fencing, dead: bool) -> Fencing {
    match fencing {
        Fencing::Foreign { raw, fence } if dead => Fencing::Residue { raw, fence },
        other => other,
    }
}

/// Whose fence stands on the Node, which is in that boot if Talos says so. A fence under our lease is ours or residue: who
/// else could have written it is dead, or the lease will not be given to us. Pure.
#[must_use]
pub fn fencing(node: &NodeView, boot: Option<&str>, known: &Known, leases: LeaseNames<'_>) -> Fencing {
    let lease = leases.ours.to_string();
    match Fence::on(node) {
        None => script_fencing(node, boot, leases),
        Some((_, Err(error))) => Fencing::Unreadable(format!("the fence on {} cannot be read: {error}", node.name)),
        Some((raw, Ok(fence))) if fence.uid != node.uid => Fencing::Misplaced { raw: raw.to_owned() },
        Some((raw, Ok(fence))) if Some(&fence.holder) == known.holder.as_ref() => {
            Fencing::Ours { raw: raw.to_owned(), in_turn: known.claimed.contains(&node.uid), fence }
        }
        Some((raw, Ok(fence))) if fence.lease == lease => Fencing::Residue { raw: raw.to_owned(), fence },
        Some((raw, Ok(fence))) => Fencing::Foreign { raw: raw.to_owned(), fence },
    }
}

/// The same of the fence of the script that this tool replaces: it stands under the script's Lease.
fn script_fencing(node: &NodeView, boot: Option<&str>, leases: LeaseNames<'_>) -> Fencing {
    let script = match ScriptFence::on(node) {
        None => return Fencing::Free,
        Some(Err(error)) => return Fencing::Unreadable(format!("the fence on {} cannot be read: {error}", node.name)),
        Some(Ok(script)) => script,
    };
    let fence = script.as_fence(node, &leases.script.to_string(), boot.unwrap_or(&node.boot_id));
    let raw = script.owner;
    if leases.script == leases.ours { Fencing::Residue { raw, fence } } else { Fencing::Foreign { raw, fence } }
}

/// Where one or two control planes are all, none of them is changed: nobody has allowed what its reboot takes away.
fn forbid_outage(fleet: &mut [FleetNode]) {
    let is_plane = |node: &FleetNode| node.kube.control_plane && node.kube.talos;
    let count = fleet.iter().filter(|node| is_plane(node)).count();
    for plane in fleet.iter_mut().filter(|node| is_plane(node) && count < gates::PLANES_FOR_QUORUM) {
        plane.outage = Some(count);
    }
}

/// A context that the steps of a roll share.
pub type Shared = Arc<Context>;

/// A record on the Node that is not the one of the machine config, and that Talos does not own: it leaves a key alone that
/// somebody else has set, without a word (Talos `k8s/node_apply.go`). Others read it; we do not, and do not write again.
#[must_use]
pub fn foreign_record(node: &FleetNode) -> Option<String> {
    let facts = node.facts()?;
    let seen = facts.node.seen()?;
    let (ours, shown) = (facts.record_text()?, seen.annotations.get(record::ANNOTATION)?);
    let owned =
        seen.annotations.get("talos.dev/owned-annotations").is_some_and(|list| list.contains(record::ANNOTATION));
    (facts.configs.seen().is_some() && *shown != ours && !owned).then(|| {
        format!(
            "the annotation {} on {} was set by somebody else: who reads it there is misled",
            record::ANNOTATION,
            node.name()
        )
    })
}
