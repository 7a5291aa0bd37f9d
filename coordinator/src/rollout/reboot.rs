//! The reboot of a node: asked for once, proved by another boot id, and over only when everything is back.

use std::time::Duration;

use agent::claims::Blocked;
use agent::facts::{Look, read_boot_id, read_configs, read_machine};
use agent::record::CriProcess;
use jiff::Timestamp;
use talos_proto::chain;
use talos_proto::clock::Moment;
use talos_proto::node::{Node, RebootMode};
use talos_proto::permit::Permits;
use talos_proto::proto::talos::resource::definitions::enums::RuntimeMachineStage;

use talos_proto::Code;

use super::disrupt::{Gates, pass_gates, still_ours};
use super::env::Env;
use super::outcome::{End, Failure, Learned, of_call};
use crate::fleet::{Fencing, FleetNode};
use crate::gates;
use crate::kube::fence::{self, Fence, Step as FenceStep};
use crate::kube::nodes::{self, NodeView, WaitError};
use crate::report::progress::short;

/// A reboot is accepted at once or not at all.
const CALL: Duration = Duration::from_secs(10);
/// Between two looks at a node that is away. Short, because a node may be dark for less than five seconds
/// (talos-captures, point 21), and direct, because another apid's back-off hides it for up to 15 s.
const POLL: Duration = Duration::from_millis(250);
/// After that long a reboot is one with firmware, and a second more or less does not count.
const QUICK: Duration = Duration::from_secs(20);
const SLOW_POLL: Duration = Duration::from_secs(1);
/// A Node is watched that long before what it lacks is said and the watch begun anew.
const LOOK: Duration = Duration::from_secs(5);
/// Whether Kubernetes still has the node is asked that often while it is waited for.
const STILL_THERE: Duration = Duration::from_secs(5);

/// Writes the intent with the boot into the fence, looks at the gates once more, and asks.
pub async fn reboot(env: &Env, node: &FleetNode) -> Result<End, End> {
    let lease = env.held()?;
    let servers = &env.context.servers;
    let Fencing::Ours { raw, fence: claimed, .. } = &node.fencing else { return Ok(End::Done) };
    let (Some(talos), Some(boot)) = (env.node(node), node.boot()) else {
        return Ok(End::Again("its boot id is not known".into()));
    };
    if node.reboot_mode == RebootMode::Force
        && let Some(end) = until_saved(env, node, &talos).await?
    {
        return Ok(end);
    }
    let now = match pass_gates(env, node).await? {
        // What was decided minutes ago is decided again: the node may hold the credential by now.
        Gates::Open { waited: true, .. } => return Ok(End::Done),
        Gates::Open { node: now, .. } => now,
        Gates::End(end) => return Ok(end),
    };
    // Looked at before anything is written: a node that somebody has uncordoned is not written to at each try.
    if let Err(reason) = still_ours(&now, raw) {
        return Ok(End::Again(reason));
    }
    let mut intent = claimed.at(FenceStep::Rebooting, env.clock().utc());
    boot.clone_into(&mut intent.boot);
    intent.reboot_calls += 1;
    let value = intent.render();
    let marked = fence::update(servers, &*lease, &node.kube, raw, &intent).await?;
    // From here on until the call everything is read again, in the same second.
    if let Err(reason) = last_look(env, &marked, &talos, boot, &value).await {
        env.say(node, &format!("not rebooted: {reason}"));
        take_back(env, &marked, &value, claimed).await?;
        return Ok(End::Again(reason));
    }
    env.avoid(node, talos.address());
    let limit = lease.limit(CALL);
    let permit = match lease.permit(limit) {
        Ok(permit) => permit,
        Err(no) => {
            take_back(env, &marked, &value, claimed).await?;
            return Err(no.into());
        }
    };
    match talos.reboot(permit, node.reboot_mode, limit).await {
        Ok(()) if node.reboot_mode == RebootMode::Default => env.say(node, "reboot asked for"),
        Ok(()) => env.say(node, &format!("reboot asked for, mode {}", node.reboot_mode)),
        // Nothing was sent, or it was refused: the intent is taken back.
        Err(error) if came_to_nothing(&error) => {
            env.use_again(node);
            take_back(env, &marked, &value, claimed).await?;
            return Ok(of_call(error));
        }
        // The reply is lost. It is never sent again: the boot id will tell.
        Err(error) => env.say(node, &format!("reboot asked for, its reply is lost ({})", chain(&error))),
    }
    Ok(End::Done)
}

/// Waits until Talos has saved the machine config for certain; `None` when nothing had to be waited for, else how the step
/// ends: what was decided before the wait is decided again.
async fn until_saved(env: &Env, node: &FleetNode, talos: &Node) -> Result<Option<End>, End> {
    let configs = match read_configs(talos).await {
        Ok(Some(configs)) => configs,
        Ok(None) => return Ok(Some(End::Again("it has no machine config".into()))),
        Err(error) => return Ok(Some(of_call(error))),
    };
    let stands = env.saved.stands_for(node, &configs, env.clock().now());
    let left = env.context.settings.timing.saved.saturating_sub(stands);
    if left.is_zero() {
        return Ok(None);
    }
    env.say(node, &format!("waiting {} until Talos has saved its config: the mode force does not", short(left)));
    let _waiting = env.progress.waiting(node.name(), "its config is being saved", Some(env.clock().now() + left));
    env.unless_stopped(env.clock().sleep(left)).await?;
    Ok(Some(End::Done))
}

/// Whether a reboot call that failed was certainly not carried out, so that its intent is taken back. A lost reply is no
/// such thing. Pure.
#[must_use]
pub fn came_to_nothing(error: &talos_proto::CallError) -> bool {
    error.why.nothing_sent() || is_refusal(error)
}

/// Whether the node itself said no before it did anything. Other codes can come from a proxy, after delivery.
fn is_refusal(error: &talos_proto::CallError) -> bool {
    use talos_proto::Why;
    match &error.why {
        Why::NotAuthorized | Why::NotSupported => true,
        Why::Refused { code, .. } => matches!(code, Code::InvalidArgument | Code::FailedPrecondition),
        _ => false,
    }
}

async fn last_look(env: &Env, marked: &NodeView, talos: &Node, boot: &str, value: &str) -> Result<(), String> {
    let servers = &env.context.servers;
    let rules = env.rules();
    let (gate, same_boot) =
        futures::join!(gates::look(servers, &env.context.talos, marked, &rules), read_boot_id(talos));
    let now = gate.map_err(|closed| format!("gate: {closed}"))?;
    still_ours(&now, value)?;
    match same_boot {
        Look::Seen(now) if now == boot => Ok(()),
        Look::Seen(_) => Err("it has rebooted by itself in between".into()),
        other => Err(format!("boot id: {}", other.reason())),
    }
}

/// The intent was not carried out: back to `claimed`.
async fn take_back(env: &Env, marked: &NodeView, value: &str, claimed: &Fence) -> Result<(), End> {
    let lease = env.held()?;
    let back = claimed.at(FenceStep::Claimed, env.clock().utc());
    fence::revert(&env.context.servers, &*lease, marked, value, &back).await?;
    Ok(())
}

/// What a look at a node says that was asked to reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// It has booted again.
    Another,
    /// The same boot has been RUNNING for so long that the reboot will not come.
    Settled,
    /// Neither is known yet.
    NotYet,
}

/// Judges such a look: `before` is the boot that it was asked in, `now` the one that answers, and `running` for how long
/// that one was seen RUNNING without a break. Pure.
#[must_use]
pub fn boot_seen(before: &str, now: Option<&str>, running: Option<Duration>, settle: Duration) -> Boot {
    match (now, running) {
        (Some(now), _) if now != before => Boot::Another,
        (Some(_), Some(running)) if running >= settle => Boot::Settled,
        _ => Boot::NotYet,
    }
}

/// Waits for another boot id. A boot that stays the same while the machine says RUNNING, for the settle time, means that
/// the reboot will not come.
pub async fn await_boot(env: &Env, node: &FleetNode, learned: &mut Learned) -> Result<End, End> {
    let Fencing::Ours { fence, in_turn, .. } = &node.fencing else { return Ok(End::Done) };
    let Some(talos) = env.node(node) else { return Ok(End::Again("the Node has no address".into())) };
    env.avoid(node, talos.address());
    let budget = env.context.settings.budgets.reboot;
    let settle = env.context.settings.timing.settle;
    let start = env.clock().now();
    let deadline = start + budget;
    let _waiting = env.progress.waiting(node.name(), "waiting for its boot", Some(deadline));
    let mut running_since: Option<Moment> = None;
    let mut looked = start;
    loop {
        let boot = either_way(&talos).await;
        let state = if boot.is_some() { read_machine(&talos).await } else { Look::NotAsked };
        let now = env.clock().now();
        let running = state.seen().is_some_and(|state| state.stage == RuntimeMachineStage::MachineStageRunning);
        running_since = (boot.is_some() && running).then(|| running_since.unwrap_or(now));
        match boot_seen(&fence.boot, boot.as_deref(), running_since.map(|since| now.since(since)), settle) {
            Boot::Another => {
                env.say(node, &format!("booted again after {}", short(now.since(start))));
                return Ok(End::Done);
            }
            Boot::Settled => {
                learned.settled = true;
                // Only our own call is a failure; the one of a dead run may never have been sent.
                if !in_turn {
                    env.say(node, &format!("no reboot came within {}: none is under way", short(settle)));
                    return Ok(End::Done);
                }
                let reason = format!(
                    "it did not reboot within {} although it was asked to (locked by an upgrade?)",
                    short(settle)
                );
                env.say(node, &reason);
                return Ok(End::Failed(Failure::at_gate(reason)));
            }
            Boot::NotYet => {}
        }
        // An autoscaler may take the node away while it is dark.
        if now.since(looked) >= STILL_THERE {
            looked = now;
            if is_gone(env, node).await {
                return Ok(End::Done);
            }
        }
        if now >= deadline {
            let reason = format!(
                "did not come back within {}; its fence is kept: look at its console, then run the same command again",
                short(budget)
            );
            return Ok(End::Failed(Failure::halting(Blocked::Step(reason), true)));
        }
        let pause = if now.since(start) < QUICK { POLL } else { SLOW_POLL };
        env.unless_stopped(env.clock().sleep(pause)).await?;
    }
}

/// Whether Kubernetes has the node no more, has another under its name, or is about to lose it.
async fn is_gone(env: &Env, node: &FleetNode) -> bool {
    match nodes::get(&env.context.servers, node.name()).await {
        Ok(Some(now)) => now.uid != node.kube.uid || now.deleting || now.leaving,
        Ok(None) => true,
        Err(_) => false,
    }
}

/// The boot id, by the first way that answers: directly, or through another control plane.
async fn either_way(talos: &Node) -> Option<String> {
    let ask =
        |node: Node| async move { if let Look::Seen(boot) = read_boot_id(&node).await { Ok(boot) } else { Err(()) } };
    let ways = [talos.directly(), talos.clone()].map(|node| Box::pin(ask(node)));
    futures::future::select_ok(ways).await.map(|(boot, _)| boot).ok()
}

/// Waits until the machine, its CRI and its Node are back; of a control plane also its own API server and its etcd
/// voter: it comes back twice, RUNNING and ready some 20 s before its API server is (talos-captures, point 20), so the
/// machine is looked at once more at the end. All of it must be of one boot: a node that boots once more meanwhile is
/// waited for anew.
pub async fn await_ready(env: &Env, node: &FleetNode, learned: &mut Learned) -> Result<End, End> {
    let Some(talos) = env.node(node) else { return Ok(End::Again("the Node has no address".into())) };
    let Fencing::Ours { .. } = &node.fencing else { return Ok(End::Done) };
    let budget = env.context.settings.budgets.reboot;
    let start = env.clock().now();
    let mut wait = Return { env, node, way: talos, deadline: start + budget, start };
    let waiting = env.progress.waiting(node.name(), "waiting until it is ready", Some(wait.deadline));
    let missing = |what: &str| waiting.is_for(format!("waiting until it is ready: {what}"));
    let mut boot = wait.until(|| wait.boot()).await?;
    loop {
        wait.way = way_to(&wait.way).await;
        missing("its machine");
        wait.until(|| wait.machine()).await?;
        missing("its CRI");
        let process = wait.until(|| wait.cri()).await?;
        missing("its kubelet");
        wait.until(|| wait.kubernetes(&boot, &process)).await?;
        if node.kube.control_plane {
            missing("its API server");
            wait.until(|| wait.api_server()).await?;
            missing("etcd");
            wait.until(|| wait.etcd()).await?;
            missing("its machine");
            wait.until(|| wait.machine()).await?;
        }
        let now = wait.until(|| wait.boot()).await?;
        if std::mem::replace(&mut boot, now) == boot {
            break;
        }
        env.say(node, "booted once more; waiting until it is ready");
    }
    env.say(node, &format!("ready after {}", short(env.clock().now().since(start))));
    learned.ready = true;
    Ok(End::Done)
}

/// Directly where the node can be dialled, for the other control planes' apids may not have seen it come back yet.
async fn way_to(talos: &Node) -> Node {
    let direct = talos.directly();
    if read_boot_id(&direct).await.seen().is_some() { direct } else { talos.through_endpoints() }
}

/// The return of one node: each question is asked until its answer is the wanted one, and then not again.
struct Return<'a> {
    env: &'a Env,
    node: &'a FleetNode,
    way: Node,
    deadline: Moment,
    start: Moment,
}

impl Return<'_> {
    /// Asks until the answer is there, or the budget is used up.
    async fn until<T, F: Future<Output = Result<T, String>>>(&self, ask: impl Fn() -> F) -> Result<T, End> {
        let clock = self.env.clock();
        let mut looked = clock.now();
        loop {
            let missing = match ask().await {
                Ok(found) => return Ok(found),
                Err(missing) => missing,
            };
            if clock.now().since(looked) >= STILL_THERE {
                looked = clock.now();
                if is_gone(self.env, self.node).await {
                    return Err(End::Done);
                }
            }
            if clock.now() >= self.deadline {
                let after = short(clock.now().since(self.start));
                let reason = format!(
                    "not ready after {after}: {missing}; its fence is kept: look at it, then run the same command again"
                );
                return Err(End::Failed(Failure::halting(Blocked::Step(reason), true)));
            }
            self.env.unless_stopped(clock.sleep(POLL)).await?;
        }
    }

    async fn boot(&self) -> Result<String, String> {
        either_way(&self.way.through_endpoints()).await.ok_or_else(|| "Talos does not answer".to_owned())
    }

    async fn machine(&self) -> Result<(), String> {
        match read_machine(&self.way).await {
            Look::Seen(state) if state.is_up() => Ok(()),
            Look::Seen(state) => Err(format!("machine: {state}")),
            other => Err(format!("machine: {}", other.reason())),
        }
    }

    async fn cri(&self) -> Result<CriProcess, String> {
        match agent::facts::cri_process(&self.way, self.node.facts().map(|facts| &facts.version)).await.0 {
            Look::Seen(process) => Ok(process),
            Look::Absent => Err("CRI is not running yet".into()),
            other => Err(format!("CRI: {}", other.reason())),
        }
    }

    /// Waits for a Ready of this boot; what is still missing when that takes long.
    async fn kubernetes(&self, boot: &str, process: &CriProcess) -> Result<(), String> {
        let before = self.node.kube.ready_heartbeat;
        let fresh = |view: &NodeView| not_back(view, boot, process.started, before).is_none();
        let clock = self.env.clock();
        let step = self.deadline.min(clock.now() + LOOK);
        let waiting = nodes::wait_until(&self.env.context.servers, self.node.name(), fresh, step);
        let waited = tokio::select! {
            waited = waiting => waited,
            () = self.env.stop.cancelled() => return Err("stopping".into()),
        };
        match waited {
            // Gone is no failure of ours: the next look drops the node.
            Ok(_) | Err(WaitError::Gone(_)) => Ok(()),
            Err(WaitError::Deadline(seen)) => {
                let missing = seen.and_then(|view| not_back(&view, boot, process.started, before));
                Err(missing.unwrap_or_else(|| "Kubernetes does not say how the Node is".into()))
            }
            Err(WaitError::Read(error)) => Err(chain(&error)),
        }
    }

    /// Its own API server serves again. Where that could not be dialled from here before the reboot either, its machine
    /// tells.
    async fn api_server(&self) -> Result<(), String> {
        let servers = &self.env.context.servers;
        match servers.ready_at(self.way.address()).await {
            Ok(()) => Ok(()),
            Err(_) if servers.is_out_of_reach(self.way.address()) => self.settled().await,
            Err(reason) => Err(format!("its API server: {reason}")),
        }
    }

    /// The machine is ready for so long without a break that what comes back late is back: its static pods are among
    /// what makes it ready, and they are missed for the last time 35 s after it was ready first (talos-captures, point
    /// 20).
    async fn settled(&self) -> Result<(), String> {
        let (clock, settle) = (self.env.clock(), self.env.context.settings.timing.settle);
        let since = clock.now();
        while clock.now().since(since) < settle {
            self.machine().await?;
            tokio::select! {
                () = clock.sleep(POLL) => {}
                () = self.env.stop.cancelled() => return Err("stopping".into()),
            }
        }
        let ready = format!("its API server cannot be reached from here; its machine was ready for {}", short(settle));
        self.env.say(self.node, &ready);
        Ok(())
    }

    async fn etcd(&self) -> Result<(), String> {
        match self.way.etcd_status().await {
            Ok(status) if status.leader == 0 || status.is_learner => Err("its etcd member is not caught up".into()),
            Ok(status) if !status.errors.is_empty() => Err(format!("etcd: {}", status.errors.join("; "))),
            Ok(_) => Ok(()),
            Err(error) => Err(chain(&error)),
        }
    }
}

/// What Kubernetes still lacks of a node that has booted; `None` when it is back. A Ready that is left over from before
/// the boot does not count: it must come from a kubelet of this boot, by the boot id that it reports or by a heartbeat
/// that is newer than the boot's CRI process. Pure.
fn not_back(view: &NodeView, boot: &str, started: Timestamp, heartbeat_before: Option<Timestamp>) -> Option<String> {
    let heard =
        view.ready_heartbeat.is_some_and(|heartbeat| heartbeat > started) && view.ready_heartbeat != heartbeat_before;
    let taints: Vec<_> =
        view.taints.iter().filter(|taint| is_lifecycle(taint)).map(|taint| taint.key.as_str()).collect();
    if !view.ready {
        Some("Kubernetes does not report the Node ready".into())
    } else if view.boot_id != boot && !heard {
        Some("the Node's Ready is left over from before its boot".into())
    } else if !taints.is_empty() {
        Some(format!("the Node still carries the taint {}", taints.join(", ")))
    } else {
        None
    }
}

/// Taints of a node that is coming back; others are somebody's will.
fn is_lifecycle(taint: &k8s_openapi::api::core::v1::Taint) -> bool {
    matches!(taint.key.as_str(), "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
        || taint.key.ends_with("agent-not-ready")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Taint;

    use super::*;

    /// A Node that is ready and reported by the kubelet of `boot`, with these taints.
    fn seen(boot: &str, taints: &[&str]) -> NodeView {
        let taint = |key: &&str| Taint { key: (*key).to_owned(), effect: "NoSchedule".into(), ..Taint::default() };
        NodeView {
            ready: true,
            boot_id: boot.into(),
            taints: taints.iter().map(taint).collect(),
            ready_heartbeat: Some(at(10)),
            ..NodeView::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn missing(view: &NodeView) -> Option<String> {
        not_back(view, "boot-2", at(20), Some(at(10)))
    }

    #[test]
    fn r04_r07_a_ready_of_an_earlier_boot_does_not_count() {
        assert_eq!(missing(&seen("boot-2", &[])), None);
        // Neither of the boot before the reboot nor of one between it and this one.
        for earlier in ["boot-0", "boot-1"] {
            assert!(missing(&seen(earlier, &[])).unwrap().contains("left over"), "{earlier}");
        }
        // A kubelet may lag with its boot id; a heartbeat from after the boot is as good.
        let heard = NodeView { ready_heartbeat: Some(at(30)), ..seen("boot-0", &[]) };
        assert_eq!(missing(&heard), None);
        assert!(missing(&NodeView { ready: false, ..heard }).unwrap().contains("not report the Node ready"));
    }

    #[test]
    fn r05_taints_of_a_node_that_comes_back_are_waited_for_and_others_are_somebodys_will() {
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.cilium.io/agent-not-ready"]
        {
            assert!(missing(&seen("boot-2", &[key, "dedicated"])).unwrap().contains(key), "{key}");
        }
        assert_eq!(missing(&seen("boot-2", &["dedicated", "node.kubernetes.io/unschedulable"])), None);
    }
}
