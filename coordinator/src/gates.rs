//! The gates before each disruption, read again in the same second. What they judge by is pure.
//!
//! A dead etcd member is invisible in the member list and in the others' status, so every voter is asked itself, and no
//! answer is a closed gate (talos-captures, point 18).

pub mod managers;

use std::collections::BTreeSet;
use std::net::IpAddr;

use agent::facts::{Look, read_machine};
use talos_proto::proto::machine::{EtcdMember, EtcdMemberStatus};
use talos_proto::{CallError, Talos, chain};

use crate::decide::MaxUnavailable;
use crate::kube::api_servers::{ApiServers, ReadError};
use crate::kube::fence;
use crate::kube::nodes::{self, NodeView};

/// With fewer control planes than that the API or etcd's quorum is away while one reboots.
pub const PLANES_FOR_QUORUM: usize = 3;

/// How far a voter may lag behind the leader's applied index and still count as caught up.
const LAG: u64 = 1_000;

/// Why a node may not be disrupted now, and so what would open the gate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The Node is another one, or gone.
    #[error("the Node was replaced or is gone")]
    Replaced,
    /// As many as may be are disrupted already.
    #[error("not available of the {class}: {names} ({disrupted}, and {allowed} may be, the one to come included)")]
    Budget {
        /// How many.
        disrupted: usize,
        /// `workers` or `control planes`.
        class: &'static str,
        /// Which.
        names: String,
        /// How many may be, this one included.
        allowed: usize,
    },
    /// A reboot takes the API or the quorum away.
    #[error(
        "the cluster has {0} control plane(s): its API or etcd's quorum is away during the reboot; allow that with --allow-control-plane-outage"
    )]
    Outage(usize),
    /// etcd is not well enough to lose this member for a while.
    #[error("etcd: {0}")]
    Etcd(String),
    /// Another control plane is not back, or not well.
    #[error("the machine of {name}: {problem}")]
    Machine {
        /// The control plane.
        name: String,
        /// What it says of itself.
        problem: String,
    },
    /// Another tool takes a node away now.
    #[error("{0}")]
    Manager(managers::AtWork),
    /// `--gate-command` says so.
    #[error("{0}")]
    Command(String),
    /// Kubernetes did not answer.
    #[error("Kubernetes did not answer: {0}")]
    Kubernetes(String),
}

impl Closed {
    /// Whether waiting can open it.
    #[must_use]
    pub fn may_open(&self) -> bool {
        !matches!(self, Closed::Outage(_) | Closed::Replaced)
    }
}

/// What the gates are told about the fleet's rules.
#[derive(Clone, Debug)]
pub struct GateRules {
    /// Workers at once.
    pub max_unavailable: MaxUnavailable,
    /// `--allow-control-plane-outage`.
    pub allow_outage: bool,
    /// Nodes whose CRI this run has set out to restart; they carry no fence.
    pub restarting: BTreeSet<String>,
}

/// Looks at everything that must hold before `node` is disrupted; answers the Node as it is in this moment.
///
/// # Errors
/// [`Closed`], the first gate that is.
pub async fn look(servers: &ApiServers, talos: &Talos, node: &NodeView, rules: &GateRules) -> Result<NodeView, Closed> {
    let (all, pods) = futures::join!(nodes::list(servers), managers::upgrade_pods(servers));
    let unread = |error: ReadError| Closed::Kubernetes(chain(&error));
    let all = all.map_err(unread)?;
    let now = budget(&all, node, rules)?.clone();
    if let Some(manager) = managers::at_work(&all, &pods.map_err(unread)?) {
        return Err(Closed::Manager(manager));
    }
    if node.control_plane {
        let (etcd, machines) = futures::join!(etcd(talos, &all, node), machines(talos, &all, node));
        etcd.and(machines)?;
    }
    Ok(now)
}

/// The other control planes as their machines see themselves: one that has booted is RUNNING, ready and its Node Ready
/// some 20 s before its static pods are, and not ready once more in between (talos-captures, point 20).
async fn machines(talos: &Talos, all: &[NodeView], node: &NodeView) -> Result<(), Closed> {
    let others = all.iter().filter(|other| other.control_plane && other.talos && other.name != node.name);
    let asked = others
        .filter_map(|other| Some((other.name.as_str(), talos.node(other.internal_ip?))))
        .map(|(name, other)| async move { (name, read_machine(&other).await) });
    for (name, machine) in futures::future::join_all(asked).await {
        let problem = match machine {
            Look::Seen(machine) if machine.is_up() => continue,
            Look::Seen(machine) => machine.to_string(),
            other => other.reason().to_owned(),
        };
        return Err(Closed::Machine { name: name.to_owned(), problem });
    }
    Ok(())
}

/// The budget and the other control planes, from the Nodes as they are now. Pure.
///
/// # Errors
/// [`Closed`].
pub fn budget<'a>(all: &'a [NodeView], node: &NodeView, rules: &GateRules) -> Result<&'a NodeView, Closed> {
    let Some(now) = all.iter().find(|other| other.name == node.name && other.uid == node.uid) else {
        return Err(Closed::Replaced);
    };
    let class: Vec<_> = all.iter().filter(|other| other.control_plane == node.control_plane && other.talos).collect();
    if node.control_plane && class.len() < PLANES_FOR_QUORUM && !rules.allow_outage {
        return Err(Closed::Outage(class.len()));
    }
    let allowed = if node.control_plane { 1 } else { rules.max_unavailable.of(class.len()) };
    let away: Vec<_> = class
        .iter()
        .filter(|other| other.name != node.name)
        .filter(|other| {
            !other.ready || other.annotations.contains_key(fence::ANNOTATION) || rules.restarting.contains(&other.name)
        })
        .map(|other| other.name.as_str())
        .collect();
    if away.len() + 1 > allowed {
        return Err(Closed::Budget {
            disrupted: away.len(),
            class: if node.control_plane { "control planes" } else { "workers" },
            names: away.join(", "),
            allowed,
        });
    }
    Ok(now)
}

/// Whether etcd can be without the member of `node` for a while: every voter is asked itself.
///
/// # Errors
/// [`Closed::Etcd`].
pub async fn etcd(talos: &Talos, all: &[NodeView], node: &NodeView) -> Result<(), Closed> {
    let planes: Vec<(String, IpAddr)> = all
        .iter()
        .filter(|other| other.control_plane && other.talos)
        .filter_map(|other| Some((other.name.clone(), other.internal_ip?)))
        .collect();
    let asked = node.internal_ip.ok_or_else(|| Closed::Etcd("the node has no address".into()))?;
    let target = talos.node(asked);
    let (members, alarms, statuses) = futures::join!(
        target.etcd_members(),
        target.etcd_alarms(),
        futures::future::join_all(
            planes
                .iter()
                .map(|(name, address)| async move { (name.clone(), talos.node(*address).etcd_status().await) })
        ),
    );
    let said = |error: CallError| Closed::Etcd(chain(&error));
    let members = members.map_err(said)?;
    let alarms = alarms.map_err(said)?;
    if let Some(alarm) = alarms.iter().find(|alarm| alarm.alarm != 0) {
        return Err(Closed::Etcd(format!("member {:x} has the alarm {:?}", alarm.member_id, alarm.alarm())));
    }
    let mut answers = Vec::new();
    for (name, status) in statuses {
        answers.push((name.clone(), status.map_err(|error| Closed::Etcd(format!("{name}: {}", chain(&error))))?));
    }
    quorum(&members, &answers).map_err(Closed::Etcd)
}

/// Whether the cluster keeps its quorum without one more voter.
fn quorum(members: &[EtcdMember], statuses: &[(String, EtcdMemberStatus)]) -> Result<(), String> {
    if let Some(learner) = members.iter().find(|member| member.is_learner) {
        return Err(format!("{} is still a learner", learner.hostname));
    }
    for member in members {
        if !statuses.iter().any(|(_, status)| status.member_id == member.id) {
            return Err(format!("the voter {} was not heard of from any control plane", member.hostname));
        }
    }
    for (name, status) in statuses {
        if !status.errors.is_empty() {
            return Err(format!("{name} says: {}", status.errors.join("; ")));
        }
        if status.leader == 0 {
            return Err(format!("{name} knows no leader"));
        }
    }
    let leader = statuses.first().map(|(_, status)| status.leader);
    if statuses.iter().any(|(_, status)| Some(status.leader) != leader) {
        return Err("the members do not agree on a leader".into());
    }
    let newest = statuses.iter().map(|(_, status)| status.raft_applied_index).max().unwrap_or(0);
    if let Some((name, _)) = statuses.iter().find(|(_, status)| newest - status.raft_applied_index > LAG) {
        return Err(format!("{name} lags behind the others"));
    }
    // One or two members lose it with the first: that was allowed by flag, or it would not have come here.
    let voters = members.len();
    if voters > 2 && voters - 1 < voters / 2 + 1 {
        return Err(format!("{voters} voters do not keep a quorum without one"));
    }
    Ok(())
}

/// The name of the control plane that leads etcd now, `None` when it cannot be told.
pub async fn leader(talos: &Talos, planes: &[(String, IpAddr)]) -> Option<String> {
    let asked = planes.iter().map(|(name, address)| async move { (name, talos.node(*address).etcd_status().await) });
    let statuses = futures::future::join_all(asked).await;
    statuses.into_iter().find_map(|(name, status)| {
        let status = status.ok()?;
        (status.leader != 0 && status.leader == status.member_id).then(|| name.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64) -> EtcdMember {
        EtcdMember { id, hostname: format!("cp-{id}"), ..EtcdMember::default() }
    }

    fn status(id: u64) -> (String, EtcdMemberStatus) {
        let status = EtcdMemberStatus { member_id: id, leader: 1, raft_applied_index: 100, ..Default::default() };
        (format!("cp-{id}"), status)
    }

    fn trio() -> (Vec<EtcdMember>, Vec<(String, EtcdMemberStatus)>) {
        ((1..=3).map(member).collect(), (1..=3).map(status).collect())
    }

    #[test]
    fn r08_three_healthy_voters_may_lose_one() {
        let (members, statuses) = trio();
        assert_eq!(quorum(&members, &statuses), Ok(()));
    }

    #[test]
    fn r08_each_fault_of_etcd_closes_the_gate() {
        type Fault = fn(&mut Vec<EtcdMember>, &mut Vec<(String, EtcdMemberStatus)>);
        let faults: [(&str, Fault); 6] = [
            ("learner", |members, _| members[2].is_learner = true),
            ("not heard of", |_, statuses| drop(statuses.pop())),
            ("says", |_, statuses| statuses[1].1.errors.push("NOSPACE".into())),
            ("knows no leader", |_, statuses| statuses[1].1.leader = 0),
            ("do not agree", |_, statuses| statuses[1].1.leader = 2),
            ("lags", |_, statuses| statuses[0].1.raft_applied_index = 1_000_000),
        ];
        for (word, fault) in faults {
            let (mut members, mut statuses) = trio();
            fault(&mut members, &mut statuses);
            let closed = quorum(&members, &statuses).unwrap_err();
            assert!(closed.contains(word), "{closed} should say {word}");
        }
    }
}
