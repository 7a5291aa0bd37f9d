//! Steps that quiet a node and give it back: claim, drain, release, and the adoption of a dead run's fence.

use std::sync::Arc;
use std::time::Duration;

use agent::claims::Blocked;
use talos_proto::cosi::Change;
use talos_proto::resources::NodeStatuses;
use tokio::sync::OwnedMutexGuard;

use super::env::Env;
use super::outcome::{End, Failure, Learned};
use crate::fleet::{Fencing, FleetNode};
use crate::gates::{self, Closed};
use crate::kube::drain::{self, DrainProgress};
use crate::kube::fence::{self, Fence, Released};
use crate::kube::nodes::NodeView;
use crate::report::progress::short;

/// Our annotation shows through Talos after about 0.35 s (talos-captures, point 22).
const THROUGH_TALOS: Duration = Duration::from_secs(30);
/// A closed gate is looked at again after that long.
const GATE_PAUSE: Duration = Duration::from_secs(1);

/// Fence and cordon in one patch, once the gates are open and nothing stands in the way of a drain.
pub async fn claim(env: &Env, node: &FleetNode, learned: &mut Learned) -> Result<End, End> {
    let lease = env.held()?;
    let servers = &env.context.servers;
    // Asked before any fence: a node that cannot be drained is left as it is. And before the gates, which one node passes
    // at a time: in a large fleet many places are free at once.
    let options = env.context.settings.drain;
    drain::plan(servers, node.name(), options).await?;
    let (now, guard) = match pass_gates(env, node).await? {
        Gates::Open { node: now, guard, waited } => {
            if waited {
                drain::plan(servers, node.name(), options).await?;
            }
            (now, guard)
        }
        Gates::End(end) => return Ok(end),
    };
    let boot = node.boot().unwrap_or_default();
    let revision = node.judgement.as_ref().and_then(|judgement| judgement.revision);
    let revision = revision.map(|revision| revision.to_string()).unwrap_or_default();
    let wanted = Fence::claimed(lease.claimant(), &now, boot, &revision, env.clock().utc());
    let value = wanted.render();
    let claimed = fence::claim(servers, &*lease, &now, wanted).await?;
    drop(guard);
    env.say(node, if now.unschedulable { "fenced (it was cordoned already)" } else { "fenced and cordoned" });
    // A talosconfig of one cluster with the kubeconfig of another ends here: the machine that we are about to drain and
    // reboot must see our fence on its own Node. Until then the claim is none, and a look at it gives the node back.
    let problem = match seen_through_talos(env, node, &value).await {
        Ok(()) => {
            learned.claimed = true;
            return Ok(End::Done);
        }
        Err(problem) => problem,
    };
    fence::release(servers, &*lease, &claimed, &value).await?;
    learned.released = true;
    Ok(match problem {
        Unseen::Away(why) => End::Again(why),
        Unseen::Elsewhere(why) => End::Failed(Failure::halting(Blocked::Identity(why), false)),
    })
}

/// Why our fence was not seen through Talos.
enum Unseen {
    /// The machine did not answer: it says nothing.
    Away(String),
    /// It answered, and its Node is without our fence.
    Elsewhere(String),
}

/// What became of a wait at the gates.
pub enum Gates {
    /// All are open; the Node as it was in that moment, whether it had to be waited for, and what keeps other steps of
    /// this run from passing until it is dropped.
    Open {
        /// The Node.
        node: Box<NodeView>,
        /// A gate was closed before.
        waited: bool,
        /// Held until the disruption shows in the cluster.
        guard: OwnedMutexGuard<()>,
    },
    /// They did not open: how the step ends.
    End(End),
}

/// Waits until every gate is open, within its budget.
pub async fn pass_gates(env: &Env, node: &FleetNode) -> Result<Gates, End> {
    let budget = env.context.settings.budgets.gate;
    let deadline = env.clock().now() + budget;
    let mut said: Option<Closed> = None;
    let waiting = env.progress.waiting(node.name(), "waiting at a gate", Some(deadline));
    loop {
        // It may take its time: the other gates are looked at after it.
        let closed = match env.unless_stopped(env.gate_command(node)).await? {
            Err(closed) => closed,
            Ok(()) => {
                let guard = Arc::clone(&env.gate).lock_owned().await;
                let rules = env.rules();
                match gates::look(&env.context.servers, &env.context.talos, &node.kube, &rules).await {
                    Ok(now) => return Ok(Gates::Open { node: Box::new(now), waited: said.is_some(), guard }),
                    Err(closed) => closed,
                }
            }
        };
        if closed == Closed::Replaced {
            return Ok(Gates::End(End::Done));
        }
        if !closed.may_open() || deadline <= env.clock().now() {
            return Ok(Gates::End(End::Failed(Failure::at_gate(format!("gate: {closed}")))));
        }
        if said.as_ref() != Some(&closed) {
            let left = deadline.since(env.clock().now());
            env.say(node, &format!("gate closed: {closed}; waiting up to {}", short(left)));
            waiting.is_for(format!("waiting at a gate: {closed}"));
            said = Some(closed);
        }
        let pause = if matches!(said, Some(Closed::Command(_))) { env.command_pause() } else { GATE_PAUSE };
        env.unless_stopped(env.clock().sleep(pause)).await?;
    }
}

async fn seen_through_talos(env: &Env, node: &FleetNode, value: &str) -> Result<(), Unseen> {
    let Some(talos) = env.node(node) else { return Err(Unseen::Away("the Node has no address".into())) };
    let said = |error: talos_proto::CallError| Unseen::Away(talos_proto::chain(&error));
    let mut watch = talos.watch::<NodeStatuses>(Some(node.name())).await.map_err(said)?;
    let deadline = env.clock().now() + THROUGH_TALOS;
    loop {
        match watch.next(deadline.since(env.clock().now())).await.map_err(said)? {
            Some(Change::Present(seen)) => {
                if seen.spec.annotations.get(fence::ANNOTATION).is_some_and(|seen| seen == value) {
                    return Ok(());
                }
            }
            Some(_) => {}
            None => {
                return Err(Unseen::Elsewhere(format!(
                    "the machine at {} does not see our fence on its Node: are talosconfig and kubeconfig of the same cluster?",
                    talos.address()
                )));
            }
        }
    }
}

/// So many pods, in words.
fn count(pods: usize) -> String {
    format!("{pods} pod{}", if pods == 1 { "" } else { "s" })
}

/// Evicts what must go.
pub async fn drain(env: &Env, node: &FleetNode, learned: &mut Learned) -> Result<End, End> {
    let lease = env.held()?;
    let budget = env.context.settings.budgets.drain;
    let waiting = env.progress.waiting(node.name(), "draining", Some(env.clock().now() + budget));
    let say = |event: DrainProgress| match event {
        DrainProgress::Started { pods: 0 } => {}
        DrainProgress::Started { pods } => {
            env.say(node, &format!("draining {}", count(pods)));
            waiting.is_for(format!("draining: {} to go", count(pods)));
        }
        DrainProgress::Blocked { pod, message } => {
            let words = format!("eviction of {pod} is held back: {message}");
            env.say(node, &words);
            waiting.is_for(format!("draining: {words}"));
        }
        DrainProgress::Warning { pod, warning } => tracing::info!(%pod, %warning, "drain"),
        DrainProgress::Gone { pod, left } => {
            tracing::debug!(%pod, left, "gone");
            waiting.is_for(format!("draining: {} to go", count(left)));
        }
    };
    let options = env.context.settings.drain;
    let draining = drain::drain(&env.context.servers, &*lease, node.name(), options, budget, &say);
    let drained = env.unless_stopped(Box::pin(draining)).await??;
    learned.drained = true;
    env.say(node, &format!("drained: {} evicted, {} stay", count(drained.evicted), drained.kept));
    Ok(End::Done)
}

/// Removes the fence and undoes the cordon if it is ours.
pub async fn release(env: &Env, node: &FleetNode, learned: &mut Learned) -> Result<End, End> {
    let lease = env.held()?;
    let Fencing::Ours { raw, fence, .. } = &node.fencing else { return Ok(End::Done) };
    let released = fence::release(&env.context.servers, &*lease, &node.kube, raw).await?;
    learned.released = true;
    env.use_again(node);
    match released {
        Released::Free { schedulable: true, .. } => env.say(node, "uncordoned and released"),
        Released::Free { schedulable: false, .. } if fence.cordon_unknown => {
            learned.cordon_unknown = true;
            env.say(node, "released, still cordoned: the old script did not record whether it was cordoned before");
        }
        Released::Free { schedulable: false, .. } => env.say(node, "released, still cordoned as somebody else left it"),
        Released::NodeGone => env.say(node, "gone"),
    }
    Ok(End::Done)
}

/// Takes over the fence of a dead run, whose lease we hold now.
pub async fn adopt(env: &Env, node: &FleetNode) -> Result<End, End> {
    let lease = env.held()?;
    let (raw, fence) = match &node.fencing {
        Fencing::Residue { raw, fence } => (raw, fence),
        Fencing::Misplaced { raw } => {
            fence::discard(&env.context.servers, &*lease, &node.kube, raw).await?;
            env.say(node, "dropped a fence that speaks of another node");
            return Ok(End::Done);
        }
        _ => return Ok(End::Done),
    };
    let (servers, now) = (&env.context.servers, env.clock().utc());
    let ours = fence.adopted(lease.claimant(), now);
    if node.kube.annotations.contains_key(fence::ANNOTATION) {
        fence::update(servers, &*lease, &node.kube, raw, &ours).await?;
        env.say(node, &format!("adopted the fence of {} ({})", fence.holder, fence.step));
    } else {
        // The script did not say since when.
        let ours = Fence { since: ours.step_since, ..ours };
        fence::script::take_over(servers, &*lease, &node.kube, &ours).await?;
        env.say(node, &format!("adopted the old script's fence of {} ({})", fence.holder, fence.step));
    }
    Ok(End::Done)
}

/// Whether the fence that we wrote still stands on the Node as we wrote it, with its cordon.
///
/// # Errors
/// What changed, in words.
pub fn still_ours(now: &NodeView, value: &str) -> Result<(), String> {
    if now.annotations.get(fence::ANNOTATION).map(String::as_str) != Some(value) {
        return Err("the fence was changed by somebody else".into());
    }
    if now.unschedulable { Ok(()) } else { Err("somebody uncordoned it".into()) }
}
