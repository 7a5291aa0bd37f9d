//! The fleet as it was observed: what the pure decisions are made from.

use std::collections::BTreeSet;
use std::net::IpAddr;

use agent::claims::{Adoption, Blocked, Judgement, Verdict};
use agent::facts::{Facts, Look};
use agent::step::{FenceSeen, Memory, Step, StepPolicy, is_adopting, next_step};
use talos_proto::node::RebootMode;

use crate::gates::Closed;
use crate::kube::fence;
use crate::kube::nodes::NodeView;

/// What stands on a Node of a fence, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Fencing {
    /// None.
    Free,
    /// Of this run.
    Ours {
        /// The annotation as it was read: every later write tests it.
        raw: String,
        /// What it says.
        fence: fence::Fence,
        /// Claimed by this run in the node's turn, not adopted from a dead one.
        in_turn: bool,
    },
    /// Of a run that is dead as soon as we hold the lease that it names.
    Residue {
        /// The annotation as it was read.
        raw: String,
        /// What it says.
        fence: fence::Fence,
    },
    /// It names another Node's UID: copied there, or left over from a node that had this name. It is dropped.
    Misplaced {
        /// The annotation as it was read.
        raw: String,
    },
    /// Of a run that may live, under another lease.
    Foreign {
        /// The annotation as it was read.
        raw: String,
        /// What it says.
        fence: fence::Fence,
    },
    /// Nobody can tell.
    Unreadable(String),
}

/// What Talos said of a node.
#[derive(Clone, Debug)]
pub enum Talk {
    /// It answered.
    Facts(Box<Facts>),
    /// It did not.
    Unreachable(String),
    /// The Node runs another system, or has no address: left alone.
    NotTalos(String),
}

/// One node.
#[derive(Clone, Debug)]
pub struct FleetNode {
    /// The Node.
    pub kube: NodeView,
    /// What Talos says.
    pub talk: Talk,
    /// What follows; `None` when there are no facts.
    pub judgement: Option<Judgement>,
    /// The fence on it.
    pub fencing: Fencing,
    /// What this run knows beyond that.
    pub memory: Memory,
    /// The step that is being performed on it now.
    pub busy: Option<Step>,
    /// Named by `--exclude`, or not named by `--nodes`.
    pub left_out: bool,
    /// Named by `--reboot-again`.
    pub reboot_again: bool,
    /// How it is rebooted.
    pub reboot_mode: RebootMode,
    /// A control plane of that many, with which its reboot takes the API or the quorum away, and nobody has allowed that.
    pub outage: Option<usize>,
    /// The machine says what contradicts Kubernetes, or not yet the same.
    pub mismatch: Option<Verdict>,
}

impl FleetNode {
    /// The Node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.kube.name
    }

    /// The address that Talos is asked at.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.kube.internal_ip
    }

    /// The facts, if it answered.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        if let Talk::Facts(facts) = &self.talk { Some(facts) } else { None }
    }

    /// The boot id that Talos reads.
    #[must_use]
    pub fn boot(&self) -> Option<&str> {
        self.facts().and_then(|facts| facts.boot.seen()).map(String::as_str)
    }

    /// The verdict, from Kubernetes and Talos together.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.kube.deleting || self.kube.leaving {
            return Verdict::Leaving;
        }
        match (&self.talk, &self.mismatch, &self.judgement) {
            (Talk::Unreachable(why), ..) => Verdict::Blocked(Blocked::Unreachable(why.clone())),
            (_, Some(mismatch), _) => mismatch.clone(),
            (Talk::Facts(_), None, Some(judgement)) => match &self.fencing {
                Fencing::Foreign { fence, .. } => Verdict::Blocked(Blocked::Fence(format!(
                    "{} holds it under the lease {}, and may be alive",
                    fence.holder, fence.lease
                ))),
                Fencing::Unreadable(why) => Verdict::Blocked(Blocked::Fence(why.clone())),
                Fencing::Free => self.forbidden(judgement).map_or_else(|| judgement.verdict.clone(), Verdict::Blocked),
                _ => judgement.verdict.clone(),
            },
            (Talk::NotTalos(why), ..) => Verdict::Unknown(format!("not Talos: {why}")),
            (Talk::Facts(_), None, None) => Verdict::Unknown("not judged".into()),
        }
    }

    /// Why a node that does not hold the credential is left as it is, by what the flags say: they are for a human to change
    /// before anything is written to it.
    fn forbidden(&self, judgement: &Judgement) -> Option<Blocked> {
        if !matches!(judgement.verdict, Verdict::Drifted | Verdict::Stale) {
            return None;
        }
        if let Some(planes) = self.outage {
            return Some(Blocked::Step(Closed::Outage(planes).to_string()));
        }
        // An older Talos would take the mode for another.
        let known = self.facts().is_none_or(|facts| self.reboot_mode.is_known_to(&facts.version));
        (judgement.adoption == Adoption::Reboot && !known).then(|| {
            Blocked::Step(format!(
                "it cannot be rebooted with the mode {}, which Talos 1.12 and newer know; give --reboot-mode {}=default or powercycle",
                self.reboot_mode,
                self.name()
            ))
        })
    }

    /// Whether the node is none of our business: another system, or left out, and without a fence of ours.
    #[must_use]
    pub fn is_ignored(&self) -> bool {
        // One that is left out and dead keeps its fence: nobody can give it back, and the others go on.
        matches!(self.talk, Talk::NotTalos(_))
            || (self.left_out && (!self.is_fenced_by_us() || matches!(self.talk, Talk::Unreachable(_))))
    }

    /// Whether a fence of this run or of a dead one stands on it.
    #[must_use]
    pub fn is_fenced_by_us(&self) -> bool {
        matches!(self.fencing, Fencing::Ours { .. } | Fencing::Residue { .. })
    }

    /// The node's own next step.
    #[must_use]
    pub fn next_step(&self, policy: StepPolicy) -> Step {
        let policy = StepPolicy { reboot_again: self.reboot_again, ..policy };
        if self.is_ignored() {
            return Step::Nothing;
        }
        let (fence, boot) = match &self.fencing {
            Fencing::Ours { fence, in_turn, .. } => (self.fence_seen(fence, *in_turn), self.boot_beside(fence)),
            Fencing::Residue { fence, .. } => (self.fence_seen(fence, false), self.boot_beside(fence)),
            _ => (FenceSeen::None, self.boot()),
        };
        let verdict = self.verdict();
        let Some(judgement) = &self.judgement else {
            // No facts: a fenced node is waited for, another one is what it is.
            return match (fence, verdict) {
                (FenceSeen::Rebooting { .. }, _) if self.memory.stuck => {
                    self.memory.failed.clone().map_or(Step::Nothing, Step::Blocked)
                }
                (FenceSeen::Rebooting { .. }, _) => Step::AwaitBoot,
                (FenceSeen::Claimed { .. }, Verdict::Blocked(_)) => Step::Release,
                (_, Verdict::Blocked(blocked)) => Step::Blocked(blocked),
                _ => Step::Nothing,
            };
        };
        let judgement = Judgement { verdict, ..judgement.clone() };
        next_step(&judgement, boot, &fence, &self.memory, policy)
    }

    /// The node's boot, to be compared with the one that a fence names. With less than os:admin the boot id may not be
    /// read; then Kubernetes tells of another boot, though never of the same one, for a kubelet lags, and the node's own
    /// marker tells whether the boot is younger than the fence.
    fn boot_beside<'a>(&'a self, fence: &'a fence::Fence) -> Option<&'a str> {
        let facts = self.facts()?;
        if facts.kernel_boot().is_some() {
            return facts.kernel_boot();
        }
        let reported = self.kube.boot_id.as_str();
        if !reported.is_empty() && reported != fence.boot {
            return Some(reported);
        }
        if facts.booted_at()? > fence.step_since { self.boot() } else { Some(&fence.boot) }
    }

    fn fence_seen(&self, fence: &fence::Fence, in_turn: bool) -> FenceSeen {
        match fence.step {
            fence::Step::Claimed => FenceSeen::Claimed { in_turn },
            fence::Step::Rebooting => FenceSeen::Rebooting {
                boot: Some(fence.boot.clone()).filter(|boot| !boot.is_empty()),
                settled: self.memory.settled,
            },
        }
    }

    /// Whether the node does not serve: counted against the budget, whoever caused it.
    #[must_use]
    pub fn is_disrupted(&self) -> bool {
        let cri_down = self.facts().is_some_and(|facts| facts.cri == Look::Absent);
        let disrupting = self.busy.as_ref().is_some_and(|step| {
            self.judgement.as_ref().is_some_and(|judgement| step.disrupts(judgement.adoption))
                || *step == Step::AwaitAdopted
        });
        let fenced = !matches!(self.fencing, Fencing::Free | Fencing::Misplaced { .. });
        let restarting = self.judgement.as_ref().is_some_and(|judgement| is_adopting(judgement, &self.memory));
        !self.kube.ready || matches!(self.talk, Talk::Unreachable(_)) || cri_down || fenced || disrupting || restarting
    }
}

/// How the endpoint node was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The kubeconfig's host and port.
    pub server: String,
    /// The node that serves it, if it is one node.
    pub node: Option<String>,
    /// The rule that found it, or why there is no single node.
    pub rule: String,
    /// It was found out; otherwise the name did not resolve or the certificate could not be read, and it may be any of
    /// them.
    pub known: bool,
}

/// Everything that a decision is made from.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// All nodes, by name.
    pub nodes: Vec<FleetNode>,
    /// The endpoint node.
    pub endpoint: Endpoint,
    /// The node that is the etcd leader, when it was looked at.
    pub leader: Option<String>,
    /// The revision was seen to work on a node: a canary has passed in this run or an earlier one.
    pub canary_passed: bool,
    /// A node of ours did not come back: nothing else is disrupted.
    pub halted: bool,
    /// Warnings that are not about one node.
    pub warnings: BTreeSet<String>,
}

impl Snapshot {
    /// The node of that name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&FleetNode> {
        self.nodes.iter().find(|node| node.kube.name == name)
    }

    /// As [`Snapshot::node`], to change it.
    pub fn node_mut(&mut self, name: &str) -> Option<&mut FleetNode> {
        self.nodes.iter_mut().find(|node| node.kube.name == name)
    }

    /// Whether that node serves the kubeconfig's address.
    #[must_use]
    pub fn is_endpoint(&self, node: &FleetNode) -> bool {
        self.endpoint.node.as_deref() == Some(node.name())
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
