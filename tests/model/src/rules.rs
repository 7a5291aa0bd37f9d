//! The functions of the product that decide. The model calls nothing else for a decision, so that a mutant is one of them
//! replaced.

use std::time::Duration;

use agent::claims::{Judgement, Pull, judge};
use agent::credential::Desired;
use agent::facts::Facts;
use agent::record::CriProcess;
use coordinator::decide::{Action, FleetPolicy, decide, left_over};
use coordinator::endpoint::by_address;
use coordinator::fleet::{Endpoint, Fencing, FleetNode, Snapshot};
use coordinator::gates::{Closed, GateRules, budget};
use coordinator::holder::Life;
use coordinator::inventory::{Known, fencing};
use coordinator::kube::fence::{Fence, FenceError, Next, Released, look_for_claim, look_for_release, look_for_update};
use coordinator::kube::lease::{
    Asked, Evaluation, LeaseRecord, ReleaseNext, Standing, Takeover, Timing, Watched, creation_waits, evaluate, grant,
    release_next, release_patch, renew_patch,
};
use coordinator::kube::nodes::NodeView;
use coordinator::rollout::{came_to_nothing, is_another, still_ours};
use coordinator::settings::LeaseNames;
use jiff::Timestamp;
use serde_json::Value;
use std::net::IpAddr;
use talos_proto::CallError;
use talos_proto::clock::Moment;
use talos_proto::permit::NoPermit;

/// What a run knows when it judges whether it may take a lease.
pub struct Sight<'a> {
    /// The record as it was read.
    pub record: &'a LeaseRecord,
    /// Our identity.
    pub me: &'a str,
    /// For how long it was seen unchanged.
    pub unchanged: Duration,
    /// What is known of its holder.
    pub life: &'a Life,
    /// Our wall clock, which the product does not look at.
    pub wall: Timestamp,
}

/// One function for each decision. The defaults are the product's.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Claims and verdict of a node.
    pub judge: fn(&Facts, &Desired, &Pull, Timestamp) -> Judgement,
    /// Whose fence stands on a node; the epoch is that of our lease, which the product does not look at here.
    pub fencing: fn(&NodeView, &Known, LeaseNames<'_>, Option<i64>) -> Fencing,
    /// Which node serves the kubeconfig's address.
    pub endpoint: fn((&str, u16), &[IpAddr], &[FleetNode]) -> Endpoint,
    /// What may be begun.
    pub decide: fn(&Snapshot, &FleetPolicy) -> Vec<Action>,
    /// What keeps a run from exit 0.
    pub left_over: fn(&Snapshot, &FleetPolicy) -> Vec<(String, String)>,
    /// The gate of the budget.
    pub budget: for<'a> fn(&'a [NodeView], &NodeView, &GateRules) -> Result<&'a NodeView, Closed>,
    /// Whether our fence and cordon still stand.
    pub still_ours: fn(&NodeView, &str) -> Result<(), String>,
    /// Whether another CRI process runs than the one that a record is to name.
    pub is_another: fn(Option<&CriProcess>, Option<&CriProcess>) -> bool,
    /// A claim.
    pub claim: fn(&NodeView, &Fence, &NodeView) -> Result<Next<NodeView>, FenceError>,
    /// A change of a fence.
    pub update: fn(&str, &str, &Fence, &NodeView) -> Result<Next<NodeView>, FenceError>,
    /// The removal of a fence.
    pub release: fn(&str, &str, &Fence, &NodeView) -> Result<Next<Released>, FenceError>,
    /// Whether a reboot call that failed was certainly not carried out.
    pub came_to_nothing: fn(&CallError) -> bool,
    /// Whether a lease may be taken.
    pub evaluate: fn(&Sight<'_>, Takeover, &Timing) -> Evaluation,
    /// How long an absent lease is waited for before it is created.
    pub creation_waits: fn(bool, Duration, &Timing) -> Duration,
    /// A watched record.
    pub watch: fn(&mut Option<Watched>, &LeaseRecord, (Moment, Moment), &Timing) -> Option<String>,
    /// How long a holder that is known to be dead is waited for before it is taken over.
    pub dead_wait: fn(&Timing) -> Duration,
    /// Whether a call may be made now.
    pub grant: fn(Standing<'_>, &Timing, Moment, Asked) -> Result<Moment, NoPermit>,
    /// A renewal.
    pub renew: fn(&str, &str, i64, &str) -> Vec<Value>,
    /// A release of the lease.
    pub free: fn(&LeaseRecord, &str, &str) -> Vec<Value>,
    /// What a release does about the record that it reads.
    pub release_next: fn(Option<&LeaseRecord>, &str, bool) -> ReleaseNext,
}

impl Rules {
    /// The product's own.
    #[must_use]
    pub fn product() -> Self {
        Self {
            judge,
            fencing: |node, known, leases, _| fencing(node, None, known, leases),
            endpoint: |server, resolved, nodes| by_address(server, resolved, nodes).alone(),
            decide,
            left_over,
            budget,
            still_ours,
            is_another,
            claim: look_for_claim,
            update: look_for_update,
            release: look_for_release,
            came_to_nothing,
            evaluate: |sight, policy, timing| {
                evaluate(sight.record, sight.me, sight.unchanged, sight.life, policy, timing)
            },
            creation_waits,
            watch: Watched::next,
            dead_wait: Timing::dead_wait,
            grant,
            renew: renew_patch,
            free: release_patch,
            release_next,
        }
    }
}
