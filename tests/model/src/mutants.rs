//! Mistakes, most of them made once by the script that this product replaces. Each is one function of [`Rules`] replaced,
//! and each must be found.

use std::net::IpAddr;
use std::time::Duration;

use agent::claims::{Judgement, Pull};
use agent::credential::Desired;
use agent::facts::Facts;
use coordinator::fleet::{Endpoint, Fencing, FleetNode};
use coordinator::inventory::{Known, fencing};
use coordinator::kube::fence::{Fence, FenceError, Next, Released};
use coordinator::kube::lease::{Asked, Evaluation, LeaseRecord, Standing, Takeover, Timing};
use coordinator::kube::nodes::NodeView;
use coordinator::settings::LeaseNames;
use jiff::Timestamp;
use serde_json::{Value, json};
use talos_proto::clock::Moment;
use talos_proto::permit::NoPermit;

use crate::facts::without_record;
use crate::rules::{Rules, Sight};

/// A mistake.
pub struct Mutant {
    /// What is wrong.
    pub name: &'static str,
    /// The rules with it.
    pub rules: Rules,
}

/// All of them.
#[must_use]
pub fn all() -> Vec<Mutant> {
    let product = Rules::product();
    let mutant = |name, rules| Mutant { name, rules };
    vec![
        mutant("release tests resourceVersion", Rules { free: free_with_version, ..product }),
        mutant("a renewal outlives release", Rules { renew: renew_without_tests, ..product }),
        mutant("the endpoint node first", Rules { endpoint: endpoint_unknown_as_none, ..product }),
        mutant("expiry judged by wall clock on first sight", Rules { evaluate: by_wall_clock, ..product }),
        mutant("an absent Lease created at once", Rules { creation_waits: |_, _, _| Duration::ZERO, ..product }),
        mutant("uncordon without ownership", Rules { release: uncordons_always, ..product }),
        mutant("reboot re-sent after a lost reply", Rules { came_to_nothing: |_| true, ..product }),
        mutant("permit not checked at the call", Rules { grant: by_state_alone, ..product }),
        mutant("epochs compared across Leases", Rules { fencing: by_epoch_alone, ..product }),
        mutant("residue first without re-queueing", Rules { fencing: adopted_in_turn, ..product }),
        mutant("the process of the last look is recorded", Rules { is_another: |_, _| false, ..product }),
        mutant("loaded by times alone", Rules { judge: by_times_alone, ..product }),
    ]
}

/// Incident 2026-08-23: its own renewal moved the version, and the release of a run that had succeeded failed.
fn free_with_version(record: &LeaseRecord, me: &str, now: &str) -> Vec<Value> {
    let mut patch = (Rules::product().free)(record, me, now);
    patch.insert(0, json!({ "op": "test", "path": "/metadata/resourceVersion", "value": record.resource_version }));
    patch
}

/// A PUT of the holder's own copy.
fn renew_without_tests(_: &str, me: &str, epoch: i64, now: &str) -> Vec<Value> {
    vec![
        json!({ "op": "add", "path": "/spec/holderIdentity", "value": me }),
        json!({ "op": "add", "path": "/spec/leaseTransitions", "value": epoch }),
        json!({ "op": "add", "path": "/spec/renewTime", "value": now }),
    ]
}

/// Incident 2026-08-10: nobody knew which node the kubeconfig's address was.
fn endpoint_unknown_as_none(server: (&str, u16), resolved: &[IpAddr], nodes: &[FleetNode]) -> Endpoint {
    let found = (Rules::product().endpoint)(server, resolved, nodes);
    Endpoint { node: None, known: true, ..found }
}

/// A renewTime that is older than its duration by our own clock.
fn by_wall_clock(sight: &Sight<'_>, policy: Takeover, timing: &Timing) -> Evaluation {
    let expired = sight
        .record
        .age(sight.wall)
        .zip(sight.record.duration)
        .is_some_and(|(age, duration)| age > duration + OLDEST.saturating_sub(duration));
    let other = sight.record.holder.as_deref().is_some_and(|holder| holder != sight.me);
    if expired && other {
        return Evaluation::TakeOver { why: "expired".to_owned() };
    }
    (Rules::product().evaluate)(sight, policy, timing)
}

/// The record of a model's lease was renewed now; an hour's step makes it older than this.
const OLDEST: Duration = Duration::from_secs(1_800);

/// The node was cordoned by an operator before, and is uncordoned with the rest.
fn uncordons_always(uid: &str, old: &str, fence: &Fence, now: &NodeView) -> Result<Next<Released>, FenceError> {
    let forgets = Fence { cordoned_before: false, ..fence.clone() };
    (Rules::product().release)(uid, old, &forgets, now)
}

/// What the writer knew last, without a look at the clock.
fn by_state_alone(standing: Standing<'_>, timing: &Timing, _: Moment, asked: Asked) -> Result<Moment, NoPermit> {
    (Rules::product().grant)(standing, timing, standing.renewed_from, asked)
}

/// A fence with a later epoch than ours is a newer holder's, whatever Lease it names.
fn by_epoch_alone(node: &NodeView, known: &Known, leases: LeaseNames<'_>, ours: Option<i64>) -> Fencing {
    match fencing(node, None, known, leases) {
        Fencing::Residue { raw, fence } if ours.is_some_and(|ours| fence.epoch >= ours) => {
            Fencing::Foreign { raw, fence }
        }
        other => other,
    }
}

/// An adopted fence goes on where the dead run stood, whoever's turn it is.
fn adopted_in_turn(node: &NodeView, known: &Known, leases: LeaseNames<'_>, _: Option<i64>) -> Fencing {
    match fencing(node, None, known, leases) {
        Fencing::Ours { raw, fence, .. } => Fencing::Ours { raw, fence, in_turn: true },
        other => other,
    }
}

/// Without the record that names the CRI process.
fn by_times_alone(facts: &Facts, desired: &Desired, pull: &Pull, now: Timestamp) -> Judgement {
    let by_times = (Rules::product().judge)(&without_record(facts), desired, pull, now);
    let judgement = (Rules::product().judge)(facts, desired, pull, now);
    let mut facts = facts.clone();
    if by_times.claims.loaded.holds() != judgement.claims.loaded.holds() {
        facts = without_record(&facts);
        return Judgement { record: judgement.record, ..(Rules::product().judge)(&facts, desired, pull, now) };
    }
    judgement
}
