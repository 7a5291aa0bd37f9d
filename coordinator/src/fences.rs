//! What runs hold or have left behind: every fence, every Lease concerned, and what becomes of each. Only looked at.
//!
//! A fence is judged here by the same functions as in a run ([`crate::inventory`], [`crate::kube::lease::evaluate()`]), with
//! the flags that a run has by default.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{join_all, try_join_all};
use jiff::Timestamp;

use crate::ci::Ci;
use crate::commands::{self, Kubectl, Patch};
use crate::fleet::Fencing;
use crate::holder::{Life, life_of, run_link, run_of};
use crate::inventory::{InventoryError, Known, fencing, judged};
use crate::kube::api_servers::ApiServers;
use crate::kube::fence::script::ScriptFence;
use crate::kube::fence::{Fence, Step};
use crate::kube::lease::{self, Evaluation, LeaseRecord, Takeover, Timing, evaluate};
use crate::kube::nodes::{self, NodeView};
use crate::report::progress::short;
use crate::settings::{LeaseName, LeaseNames};

pub use rows::{Decision, FenceRow, FencesDocument, LeaseRow, LifeRow};

mod rows;
#[cfg(test)]
mod tests;

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// All Nodes.
    pub nodes: Vec<NodeView>,
    /// Ours, the old script's, and each that a fence names; none where there is no such Lease.
    pub leases: BTreeMap<LeaseName, Option<LeaseRecord>>,
    /// What is known of the holders of these Leases, by their names.
    pub lives: BTreeMap<String, Life>,
}

impl Seen {
    /// The one place where a holder is judged.
    fn life(&self, record: &LeaseRecord) -> Life {
        let judged = record.holder.as_ref().and_then(|holder| self.lives.get(holder)).cloned();
        judged.unwrap_or_else(|| life_of(record.evidence.as_ref()))
    }
}

/// Reads the Nodes, and then each Lease once. In this order: who set a fence that is seen here, and still holds its Lease,
/// is then seen to hold it. Of a holder whose process cannot be seen its CI job is asked for, where there is a token.
///
/// # Errors
/// [`InventoryError`]: what could not be read is never taken for nothing.
pub async fn look(servers: &ApiServers, names: LeaseNames<'_>, ci: &Ci) -> Result<Seen, InventoryError> {
    let nodes = nodes::list(servers).await.map_err(InventoryError::Nodes)?;
    look_beside(nodes, servers, names, ci).await
}

/// The same beside Nodes that were read just now.
///
/// # Errors
/// [`InventoryError`].
pub async fn look_beside(
    nodes: Vec<NodeView>,
    servers: &ApiServers,
    names: LeaseNames<'_>,
    ci: &Ci,
) -> Result<Seen, InventoryError> {
    let named = nodes.iter().filter_map(|node| Fence::on(node)?.1.ok()?.lease.parse::<LeaseName>().ok());
    let wanted: BTreeSet<LeaseName> = named.chain([names.ours.clone(), names.script.clone()]).collect();
    let leases = try_join_all(wanted.into_iter().map(|name| async move {
        match lease::look(servers, &name.namespace, &name.name).await {
            Ok(record) => Ok((name, record)),
            Err(source) => Err(InventoryError::Lease { name: name.to_string(), source }),
        }
    }));
    let leases: BTreeMap<_, Option<LeaseRecord>> = leases.await?.into_iter().collect();
    let held = leases.values().flatten().filter_map(|record| Some((record.holder.clone()?, record)));
    let asked = held.map(|(holder, record)| async move {
        let life = ci.life(&holder, record.evidence.as_ref()).await.life;
        (holder, life)
    });
    let lives = join_all(asked).await.into_iter().collect();
    Ok(Seen { nodes, leases, lives })
}

/// The document about it.
#[must_use]
pub fn document(seen: &Seen, names: LeaseNames<'_>, kubectl: &Kubectl, now: Timestamp) -> FencesDocument {
    let report = Report { seen, names, kubectl, now };
    let rows: Vec<(FenceRow, Vec<Decision>)> = seen.nodes.iter().filter_map(|node| report.fence(node)).collect();
    let (fences, decisions): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let leases: Vec<LeaseRow> = seen.leases.iter().map(|(name, record)| report.lease(name, record.as_ref())).collect();
    let freed = seen.leases.iter().filter_map(|(name, record)| report.free(name, record.as_ref()?));
    let both = |node: &&NodeView| Fence::on(node).is_some() && ScriptFence::on(node).is_some();
    let warnings = seen.nodes.iter().filter(both).map(|node| {
        format!("{} also carries a fence of the old script: it is looked at when the other is gone", node.name)
    });
    let (refused, next_run) = report.next_run(&fences);
    FencesDocument {
        schema_version: crate::plan::SCHEMA_VERSION,
        kind: "Fences",
        held: !fences.is_empty() || leases.iter().any(|lease| lease.holder.is_some()),
        nodes: seen.nodes.len(),
        refused,
        next_run,
        decisions: decisions.into_iter().flatten().chain(freed).collect(),
        warnings: warnings.collect(),
        fences,
        leases,
    }
}

struct Report<'a> {
    seen: &'a Seen,
    names: LeaseNames<'a>,
    kubectl: &'a Kubectl,
    now: Timestamp,
}

impl Report<'_> {
    fn record(&self, lease: &LeaseName) -> Option<&LeaseRecord> {
        self.seen.leases.get(lease)?.as_ref()
    }

    /// A node's fence, and what only a human may decide about it.
    fn fence(&self, node: &NodeView) -> Option<(FenceRow, Vec<Decision>)> {
        let found = fencing(node, None, &Known::default(), self.names);
        let lease = match &found {
            Fencing::Residue { fence, .. } | Fencing::Foreign { fence, .. } => fence.lease.parse::<LeaseName>().ok(),
            _ => None,
        };
        let record = lease.as_ref().and_then(|lease| self.record(lease));
        let held = record.filter(|record| record.holder.is_some());
        let dead = held.is_none_or(|record| matches!(self.seen.life(record), Life::Dead(_)));
        let found = if lease.is_some() { judged(found, dead) } else { found };
        Some(match &found {
            Fencing::Free => return None,
            // Without a holder of our own no fence is ours.
            Fencing::Ours { fence, .. } | Fencing::Residue { fence, .. } => {
                let (action, next_run) = match self.holder(fence, record).state {
                    "alive" => ("leave", "leaves it to its holder, who is at work".to_owned()),
                    _ => ("adopt", adopted(fence)),
                };
                (self.row(node, fence, record, action, next_run), self.after(node, fence))
            }
            Fencing::Foreign { raw, fence } => {
                let mut decisions = self.after(node, fence);
                let why = if lease.is_some() {
                    format!("leaves the node alone and counts it as away: {}", self.holder(fence, record).words())
                } else {
                    decisions.push(self.decide(
                        format!("node {}", node.name),
                        "its fence names a Lease that cannot be one, so no run touches it; if no run is at work on the node, give it back".into(),
                        &commands::release(node, raw, fence),
                    ));
                    format!("leaves the node alone and counts it as away: {:?} is no name of a Lease", fence.lease)
                };
                (self.row(node, fence, record, "leave", why), decisions)
            }
            Fencing::Misplaced { raw } => {
                let of = Fence::parse(raw).map(|fence| format!("{} (UID {})", fence.node, fence.uid));
                let of = of.unwrap_or_else(|_| "another node".to_owned());
                let row = FenceRow::bare(node, "drop", format!("drops it: it speaks of {of}, not of this node"));
                (row, Vec::new())
            }
            Fencing::Unreadable(why) => (
                FenceRow::bare(node, "leave", format!("leaves the node alone and counts it as away: {why}")),
                self.unread(node),
            ),
        })
    }

    fn unread(&self, node: &NodeView) -> Vec<Decision> {
        let object = || format!("node {}", node.name);
        let mut decisions = vec![self.decide(
            object(),
            "its fence cannot be read; if no run is at work on the node, remove it".into(),
            &commands::remove_unread(node),
        )];
        if node.unschedulable {
            let why = "it is cordoned, and nobody can tell by whom; if nobody wants it so, uncordon it";
            decisions.push(self.decide(object(), why.into(), &commands::uncordon(node)));
        }
        decisions
    }

    /// What is left for a human when the fence is gone.
    fn after(&self, node: &NodeView, fence: &Fence) -> Vec<Decision> {
        if !fence.cordon_unknown {
            return Vec::new();
        }
        let why = "the old script did not record whether it was cordoned before, so a run leaves it cordoned; if nobody wants it so, uncordon it after that run";
        vec![self.decide(format!("node {}", node.name), why.into(), &commands::uncordon(node))]
    }

    fn row(
        &self,
        node: &NodeView,
        fence: &Fence,
        record: Option<&LeaseRecord>,
        action: &'static str,
        next_run: String,
    ) -> FenceRow {
        let script = ScriptFence::on(node).and_then(Result::ok).filter(|_| fence.is_the_scripts());
        let holds = record.filter(|record| record.holder.as_deref() == Some(&fence.holder));
        let ours = script.is_none();
        FenceRow {
            of: if ours { "talos-ghcr" } else { "script" },
            step: Some(script.as_ref().map_or_else(|| fence.step.to_string(), ScriptFence::words)),
            since: ours.then_some(fence.since),
            step_since: ours.then_some(fence.step_since),
            age_seconds: ours.then(|| seconds(self.now, fence.since)),
            holder: Some(fence.holder.clone()),
            run: run(&fence.holder, holds),
            lease: Some(fence.lease.clone()),
            epoch: ours.then_some(fence.epoch),
            life: Some(self.holder(fence, record)),
            cordon: match (node.unschedulable, fence.cordon_unknown, fence.cordoned_before) {
                (false, ..) => "none",
                (true, true, _) => "unknown",
                (true, false, true) => "before",
                (true, false, false) => "fence",
            },
            ..FenceRow::bare(node, action, next_run)
        }
    }

    /// Whether the one who set a fence lives. Who does not hold the Lease any more may change nothing, dead or alive.
    fn holder(&self, fence: &Fence, record: Option<&LeaseRecord>) -> LifeRow {
        let gone = |evidence: String| LifeRow { state: "gone", evidence };
        let Some(record) = record else { return gone(format!("there is no Lease {}", fence.lease)) };
        let Some(holder) = &record.holder else { return gone(format!("its Lease {} is free", fence.lease)) };
        let life = LifeRow::from(self.seen.life(record));
        if *holder == fence.holder {
            return life;
        }
        if fence.is_the_scripts() {
            let evidence = format!("the script's Lease is held by {holder}: {}", life.evidence);
            return LifeRow { evidence, ..life };
        }
        if *fence.lease == self.names.ours.to_string() {
            return gone(format!("its Lease is held by {holder} by now"));
        }
        LifeRow { evidence: format!("its Lease is held by {holder} by now: {}", life.evidence), ..life }
    }

    fn lease(&self, name: &LeaseName, record: Option<&LeaseRecord>) -> LeaseRow {
        let held = record.and_then(|record| Some((record, record.holder.clone()?)));
        LeaseRow {
            name: name.to_string(),
            of: match () {
                () if name == self.names.ours => "talos-ghcr",
                () if name == self.names.script => "script",
                () => "fence",
            },
            exists: record.is_some(),
            holder: held.as_ref().map(|(_, holder)| holder.clone()),
            run: held.as_ref().and_then(|(record, holder)| run(holder, Some(record))),
            life: held.as_ref().map(|(record, _)| self.seen.life(record).into()),
            transitions: record.and_then(|record| record.transitions),
            renew_time: record.and_then(|record| record.renew_time.clone()),
            age_seconds: record.and_then(|record| record.age(self.now)).map(|age| age.as_secs_f64()),
            duration_seconds: record.and_then(|record| record.duration).map(|duration| duration.as_secs_f64()),
            resource_version: record.map(|record| record.resource_version.clone()),
            uid: record.map(|record| record.uid.clone()),
        }
    }

    /// A Lease that is not ours and that a run does not take by watching it: a human who knows more may free it.
    fn free(&self, name: &LeaseName, record: &LeaseRecord) -> Option<Decision> {
        let holder = record.holder.as_ref()?;
        let Life::Unknown(unknown) = self.seen.life(record) else { return None };
        if name == self.names.ours {
            return None;
        }
        let why =
            format!("nobody can tell whether {holder} lives ({unknown}); if you know that it is dead, free its Lease");
        Some(self.decide(format!("Lease {name}"), why, &commands::free_lease(name, record)))
    }

    fn decide(&self, object: String, why: String, patch: &Patch) -> Decision {
        Decision { object, why, command: patch.text(self.kubectl) }
    }

    /// Whether the next run is refused, and what it does about the Leases and then about the fences.
    fn next_run(&self, fences: &[FenceRow]) -> (bool, String) {
        let then = match fences.iter().filter(|fence| fence.action != "leave").count() {
            0 => "",
            _ => ", then puts in order what is fenced",
        };
        let name = self.names.script;
        if name != self.names.ours
            && let Some((record, holder)) = self.record(name).and_then(|it| Some((it, it.holder.as_ref()?)))
            && !matches!(self.seen.life(record), Life::Dead(_))
        {
            let why = "which counts as dead only by evidence";
            return (true, format!("refuses with exit 3: the old script's Lease {name} is held by {holder}, {why}"));
        }
        let (ours, name) = (self.record(self.names.ours), self.names.ours);
        let Some((record, holder)) = ours.and_then(|record| Some((record, record.holder.as_ref()?))) else {
            return (false, format!("takes the Lease {name}, which nobody holds{then}"));
        };
        // Our own name is none of theirs.
        match evaluate(
            record,
            "",
            std::time::Duration::ZERO,
            &self.seen.life(record),
            Takeover::Auto,
            &Timing::default(),
        ) {
            Evaluation::Free | Evaluation::Ours => (false, format!("takes the Lease {name}{then}")),
            Evaluation::HeldAlive { .. } => {
                (true, format!("refuses with exit 3: the Lease {name} is held by {holder}, who lives"))
            }
            Evaluation::TakeOver { .. } => {
                (false, format!("takes the Lease {name} over, for its holder is dead{then}"))
            }
            Evaluation::Watch { left } => (
                false,
                format!(
                    "watches the Lease {name}: takes it over when it stood unchanged for {}{then}; refuses with exit 3 when {holder} renews it",
                    short(left)
                ),
            ),
        }
    }
}

impl From<Life> for LifeRow {
    fn from(life: Life) -> Self {
        let (state, evidence) = match life {
            Life::Alive(why) => ("alive", why),
            Life::Dead(why) => ("dead", why),
            Life::Unknown(why) => ("unknown", why),
        };
        Self { state, evidence }
    }
}

/// What becomes of a fence that a run adopts.
fn adopted(fence: &Fence) -> String {
    let timing = Timing::default();
    match fence.step {
        Step::Claimed => "adopts it and gives the node back: no reboot was asked for".to_owned(),
        Step::Rebooting if fence.is_the_scripts() => format!(
            "adopts it, waits for a reboot that may be under way (gives the node back when none came in {})",
            short(timing.settle)
        ),
        Step::Rebooting => format!(
            "adopts it, waits for the reboot that was asked for and for the node (gives it back when none came in {})",
            short(timing.settle)
        ),
    }
}

/// The page of a holder's run, or at least its number.
fn run(holder: &str, record: Option<&LeaseRecord>) -> Option<String> {
    run_link(holder, record.and_then(|record| record.evidence.as_ref()))
        .or_else(|| run_of(holder).map(|(run, attempt)| format!("{run}, attempt {attempt}")))
}

fn seconds(now: Timestamp, since: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}
