//! Steps that write the machine config or prove a credential: canary, stage, records, pull.

use agent::claims::{Adoption, Blocked, Pull};
use agent::credential::Desired;
use agent::facts::{cri_process, read_configs};
use agent::machine_config::{Change, MachineConfig};
use agent::pull::NoResult;
use agent::record::{self, CriProcess, Record};
use agent::write::{Session, await_effective};
use agent::{adopt, pull};
use talos_proto::cosi::Change as Seen;
use talos_proto::node::{Apply, Node};
use talos_proto::resources::{ACTIVE, MachineConfigs};
use talos_proto::version::TalosVersion;

use super::env::Env;
use super::outcome::{End, Failure, Learned};
use crate::fleet::FleetNode;
use crate::kube::lease::HeldLease;

/// The node that tries the credential first. It is staged with a TRY that Talos itself rolls back, and made permanent
/// after its pull: a bad credential, or our death, leaves the old one in place.
pub async fn canary(env: &Env, node: &FleetNode) -> (Learned, End) {
    let mut learned = Learned::default();
    let end = try_canary(env, node, &mut learned).await.unwrap_or_else(|end| end);
    (learned, end)
}

async fn try_canary(env: &Env, node: &FleetNode, learned: &mut Learned) -> Result<End, End> {
    let lease = env.held()?;
    let talos = talos(env, node)?;
    let text = staged(env, node)?;
    env.say(node, "canary: trying the credential, Talos rolls it back by itself unless it is proved");
    let mut session = open_to_stage(node, &talos).await?;
    let before = session.configs().active.clone();
    let apply = Apply::Try(env.try_timeout());
    let desired = &env.context.desired;
    let tried = session.edit(&*lease, &change(node, desired, &text), apply).await?;
    effective(env, node, &talos, &text).await?;
    if is_live(node) {
        // A pull goes through the containerd that Talos restarts now.
        let before = node.facts().and_then(|facts| facts.cri.seen());
        if let Err(error) = adopt::await_adopted(&talos, before, env.try_timeout() / 2).await {
            env.say(node, &format!("canary: {}", talos_proto::chain(&error)));
        }
    }
    let pulled = match check(env, node, &talos, &lease).await? {
        Ok(pulled) => pulled,
        // Not proven in time is not proven: a TRY does not wait until the way is free again.
        Err(unreached) => Pull::Failed(unreached),
    };
    match &pulled {
        Pull::Proved(_) | Pull::Unprovable(_) => {
            session.make_permanent(&*lease, &tried).await?;
            env.say(node, &format!("canary: {}; made permanent", say(&pulled)));
            warn_of(env, &pulled);
            learned.canary_passed = true;
            learned.pull = Some(pulled);
            Ok(End::Done)
        }
        Pull::Failed(why) => {
            env.say(node, &format!("canary: {why}; waiting for Talos to put the old credential back"));
            drop(session);
            let rolled_back = await_rollback_to(env, &talos, &before).await;
            let after = if rolled_back { "the old credential is back" } else { "the rollback was not seen yet" };
            let reason = format!("{why}; {after}");
            learned.pull = Some(Pull::Failed(reason.clone()));
            Ok(End::Failed(Failure::halting(Blocked::Pull(reason), false)))
        }
        Pull::NotTried => Ok(End::Again("the pull was not tried".into())),
    }
}

/// Writes credential and record, and waits until the effective configuration shows it.
pub async fn stage(env: &Env, node: &FleetNode) -> Result<End, End> {
    let lease = env.held()?;
    let talos = talos(env, node)?;
    let text = staged(env, node)?;
    let desired = &env.context.desired;
    open_to_stage(node, &talos).await?.edit(&*lease, &change(node, desired, &text), Apply::NoReboot).await?;
    effective(env, node, &talos, &text).await?;
    env.say(node, "credential written");
    Ok(End::Done)
}

/// Somebody else configured the node: a record names the CRI process that does not hold it yet.
pub async fn record_staged(env: &Env, node: &FleetNode) -> Result<End, End> {
    let lease = env.held()?;
    let talos = talos(env, node)?;
    let text = staged(env, node)?;
    let mut session = open_to_stage(node, &talos).await?;
    session.edit(&*lease, &change(node, &Desired::default(), &text), Apply::NoReboot).await?;
    env.say(node, "recorded as staged");
    Ok(End::Done)
}

/// The node holds what it should: the record says so.
pub async fn write_proof(env: &Env, node: &FleetNode) -> Result<End, End> {
    let entry = env.entry(node, &node.memory.pull).ok_or_else(unreadable)?;
    let before = node.judgement.as_ref().and_then(|judgement| judgement.record.as_ref());
    let lease = env.held()?;
    let talos = talos(env, node)?;
    let text = Record::proved(entry, before).to_json();
    // Only the annotation: the credential is whatever stands there.
    let nothing = Desired::default();
    Session::open(&talos, version(node)?).await?.edit(&*lease, &change(node, &nothing, &text), Apply::NoReboot).await?;
    env.say(node, "proof written");
    Ok(End::Done)
}

/// Pulls the private image with the configured credential.
pub async fn check_pull(env: &Env, node: &FleetNode, learned: &mut Learned) -> Result<End, End> {
    let lease = env.held()?;
    let pulled = match check(env, node, &talos(env, node)?, &lease).await? {
        Ok(pulled) => pulled,
        Err(unreached) => return Ok(End::Again(unreached)),
    };
    warn_of(env, &pulled);
    if !matches!(pulled, Pull::Unprovable(_)) {
        env.say(node, &say(&pulled));
    }
    learned.pull = Some(pulled);
    Ok(End::Done)
}

/// Talos >= 1.14 restarts CRI by itself.
pub async fn await_adopted(env: &Env, node: &FleetNode, learned: &mut Learned) -> Result<End, End> {
    let talos = talos(env, node)?;
    let limit = env.context.settings.budgets.adopt;
    let _waiting = env.progress.waiting(node.name(), "waiting for CRI to restart", Some(env.clock().now() + limit));
    let before = node.judgement.as_ref().and_then(|judgement| judgement.record.as_ref()?.cri.as_ref());
    match adopt::await_adopted(&talos, before, limit).await {
        Ok(process) => {
            env.say(node, &format!("CRI restarted by itself (pid {}), healthy", process.pid));
            learned.ready = true;
            Ok(End::Done)
        }
        Err(error @ adopt::AdoptError::TimedOut(_)) => {
            env.say(node, &talos_proto::chain(&error));
            learned.not_adopted = true;
            if env.context.settings.fleet.step.escalate_reboot {
                return Ok(End::Done);
            }
            Ok(End::Failed(Failure::halting(Blocked::NotAdopted, false)))
        }
        Err(error) => Ok(End::Again(talos_proto::chain(&error))),
    }
}

/// A TRY of a dead run: Talos rolls it back by itself.
pub async fn await_rollback(env: &Env, node: &FleetNode) -> Result<End, End> {
    let talos = talos(env, node)?;
    env.say(node, "a TRY of a dead run is in flight: waiting for Talos to roll it back");
    // The TRY was begun with the lease's times of its own run, which are not known: the longest that we use.
    let longest = env.try_timeout().max(std::time::Duration::from_secs(300));
    let deadline = env.clock().now() + longest + longest / 10;
    let _waiting = env.progress.waiting(node.name(), "waiting for the rollback", Some(deadline));
    let mut watch = talos.watch::<MachineConfigs>(Some(ACTIVE)).await.map_err(super::outcome::of_call)?;
    while watch.next(deadline.since(env.clock().now())).await.map_err(super::outcome::of_call)?.is_some() {
        let configs = read_configs(&talos).await.map_err(super::outcome::of_call)?;
        if configs.is_some_and(|configs| configs.settled()) {
            env.say(node, "rolled back");
            return Ok(End::Done);
        }
    }
    Ok(End::Failed(Failure::of_node(Blocked::ForeignConfig)))
}

/// Waits until the effective configuration shows the credential. Where it does not, another writer may have replaced the
/// config in between: then our edit is made again.
async fn effective(env: &Env, node: &FleetNode, talos: &Node, text: &str) -> Result<(), End> {
    let error = match await_effective(talos, version(node)?, &env.context.desired, env.try_timeout() / 2).await {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let configs = read_configs(talos).await.map_err(super::outcome::of_call)?;
    let ours = configs.and_then(|configs| MachineConfig::parse(&configs.active).ok()?.annotation(record::ANNOTATION));
    if ours.as_deref() == Some(text) {
        return Err(error.into());
    }
    Err(End::Again("another writer replaced the machine config just after us".into()))
}

async fn await_rollback_to(env: &Env, talos: &Node, before: &[u8]) -> bool {
    let limit = env.try_timeout() + env.try_timeout() / 10;
    let deadline = env.clock().now() + limit;
    let Ok(mut watch) = talos.watch::<MachineConfigs>(Some(ACTIVE)).await else { return false };
    while let Ok(Some(seen)) = watch.next(deadline.since(env.clock().now())).await {
        if let Seen::Present(config) = seen
            && config.spec.yaml_marshalled == before
        {
            return true;
        }
    }
    false
}

/// Opens the machine config for a record that names the CRI process of the last look as one that does not hold the
/// credential yet. That look may be minutes old: where another process runs by now the record would make a later look
/// take it for one that has loaded, so the node is looked at anew instead.
async fn open_to_stage<'a>(node: &FleetNode, talos: &'a Node) -> Result<Session<'a>, End> {
    let facts = node.facts().ok_or_else(unreadable)?;
    let opened = Session::open(talos, &facts.version);
    let ((now, _), session) = futures::join!(cri_process(talos, Some(&facts.version)), opened);
    if is_another(facts.cri.seen(), now.seen()) {
        return Err(End::Again("its CRI was restarted since it was looked at".into()));
    }
    Ok(session?)
}

/// Whether the CRI process that is seen `now` is not the one that was seen `before`, or is not seen any more. Where the
/// start of the first was not known, the record names none. Pure.
#[must_use]
pub fn is_another(before: Option<&CriProcess>, now: Option<&CriProcess>) -> bool {
    before.is_some() && before != now
}

/// The pull's result, or why the node was not reached.
async fn check(env: &Env, node: &FleetNode, talos: &Node, lease: &HeldLease) -> Result<Result<Pull, String>, End> {
    let facts = node.facts().ok_or_else(unreadable)?;
    match pull::check(talos, lease, facts, env.context.settings.proof_image()).await {
        Ok(pulled) => Ok(Ok(pulled)),
        Err(NoResult::Unreached(why)) => Ok(Err(why)),
        Err(NoResult::NoPermit(no)) => Err(no.into()),
    }
}

fn change<'a>(node: &FleetNode, desired: &'a Desired, text: &'a str) -> Change<'a> {
    let at_least = |minor| node.facts().is_some_and(|facts| facts.version.at_least(1, minor));
    Change { desired, annotation: (record::ANNOTATION, text), documents: at_least(12), node_document: at_least(14) }
}

fn staged(env: &Env, node: &FleetNode) -> Result<String, End> {
    let entry = env.entry(node, &Pull::NotTried).ok_or_else(unreadable)?;
    let before = node.judgement.as_ref().and_then(|judgement| judgement.record.as_ref());
    Ok(Record::staged(entry, before).to_json())
}

fn version(node: &FleetNode) -> Result<&TalosVersion, End> {
    node.facts().map(|facts| &facts.version).ok_or_else(unreadable)
}

fn talos(env: &Env, node: &FleetNode) -> Result<Node, End> {
    env.node(node).ok_or_else(|| End::Failed(Failure::of_node(Blocked::Unreachable("the Node has no address".into()))))
}

fn unreadable() -> End {
    let reason = "the machine config cannot be read, so no record be written (needs os:admin)".to_owned();
    End::Failed(Failure::of_node(Blocked::Step(reason)))
}

/// What keeps one pull from proving anything keeps most: warned of once in a run.
fn warn_of(env: &Env, pull: &Pull) {
    if let Pull::Unprovable(why) = pull {
        env.say_once(&format!("warning: pulls cannot be proved: {why}"));
    }
}

fn say(pull: &Pull) -> String {
    match pull {
        Pull::Proved(_) => "pull proved".into(),
        Pull::Unprovable(why) => format!("pull cannot be proved: {why}"),
        Pull::Failed(why) => format!("pull failed: {why}"),
        Pull::NotTried => "pull not tried".into(),
    }
}

/// Whether a node restarts CRI by itself: a disruption of its own kind, which the gates guard.
#[must_use]
pub fn is_live(node: &FleetNode) -> bool {
    node.judgement.as_ref().is_some_and(|judgement| judgement.adoption == Adoption::Live)
}
