//! Requests, and what becomes of them.

use coordinator::kube::lease::Timing;

use crate::cluster::{Lease, Node, STANDS};
use crate::memo::{Memo, Text};
use crate::state::{Doing, Hold, Law, Run, State};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is applied or refused, and the answer comes.
    Fine,
    /// It never arrives.
    RequestLost,
    /// It is applied or refused, and the answer does not come.
    ReplyLost,
    /// Its sender gives up, and it may land later.
    Late,
}

/// How many ticks a late request may be under way: it lands before its second tick, or never.
pub const BOUND: u8 = 1;

/// What a release writes.
const FREES: &str = r#"{"op":"add","path":"/spec/holderIdentity","value":""}"#;

/// A request that is still under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// The run that sent it.
    pub from: u8,
    /// Ticks since.
    pub age: u8,
    /// Nobody has written its object since: a test of the resourceVersion passes.
    pub fresh: bool,
    /// What it asks for.
    pub what: What,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum What {
    /// A JSON patch of the Lease.
    Lease(Text),
    /// The creation of the Lease.
    Create,
    /// A JSON patch of a Node, by its place.
    Node(u8, Text),
    /// A reboot of a node.
    Reboot(u8),
}

/// What the sender hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Applied.
    Done,
    /// A test failed, or the object is not there.
    Refused,
    /// Nothing.
    Nothing,
}

/// What patches came to: applying one is pure.
#[derive(Default)]
pub struct Applied {
    nodes: Memo<Option<Node>>,
    leases: Memo<Option<Lease>>,
}

/// The model's settings that a request needs.
pub struct Server<'a> {
    /// Times of the lease.
    pub timing: &'a Timing,
    /// All runs share one machine.
    pub one_machine: bool,
    /// Patches that were applied already.
    pub applied: &'a Applied,
}

impl Server<'_> {
    /// The machine of a run.
    #[must_use]
    pub fn machine(&self, run: usize) -> usize {
        if self.one_machine { 0 } else { run }
    }

    /// Sends a request that may meet that fate.
    pub fn send(&self, state: &mut State, from: usize, what: What, fresh: bool, fate: Fate) -> Reply {
        let message = Message { from: number(from), age: 0, fresh, what };
        match fate {
            Fate::RequestLost => Reply::Nothing,
            Fate::Late => {
                state.wire.push(message);
                state.wire.sort();
                Reply::Nothing
            }
            Fate::Fine => self.land(state, &message),
            Fate::ReplyLost => {
                self.land(state, &message);
                Reply::Nothing
            }
        }
    }

    /// The request reaches its server.
    pub fn land(&self, state: &mut State, message: &Message) -> Reply {
        let from = usize::from(message.from);
        let version = if message.fresh { "1" } else { "2" };
        match &message.what {
            What::Create if state.lease.is_some() => Reply::Refused,
            What::Create => {
                state.lease_uids += 1;
                let uid = state.lease_uids;
                state.lease = Some(Lease { uid, holder: Some(message.from), transitions: 0 });
                wrote_lease(state);
                Reply::Done
            }
            What::Lease(patch) => {
                let Some(lease) = &state.lease else { return Reply::Refused };
                let was_ours = lease.holder == Some(message.from);
                let releases = patch.contains(FREES);
                let after = self.applied.leases.once((lease, patch, message.fresh), || {
                    let object = lease.object(|run| self.machine(run), self.timing, version, STANDS);
                    lease.patched(object, patch)
                });
                let Some(after) = after else {
                    // A release of what is ours must not be refused because of what else was written.
                    state.hold(Law::Freed, !(releases && was_ours));
                    return Reply::Refused;
                };
                state.lease = Some(after);
                wrote_lease(state);
                Reply::Done
            }
            What::Node(place, patch) => {
                let place = usize::from(*place);
                let node = &state.nodes[place];
                let after = self.applied.nodes.once((node, patch, message.fresh), || node.patched(patch, version));
                let Some(after) = after else { return Reply::Refused };
                self.judge_write(state, from);
                let before = std::mem::replace(&mut state.nodes[place], after);
                self.judge_cordon(state, place, &before);
                wrote_node(state, place);
                Reply::Done
            }
            What::Reboot(place) => {
                let place = usize::from(*place);
                let node = &mut state.nodes[place];
                if !node.up {
                    return Reply::Refused;
                }
                node.up = false;
                state.ghosts[place].reboots += 1;
                let once = state.ghosts[place].reboots <= 1 || state.ghosts[place].misled;
                state.hold(Law::S3, once);
                // While the intent stands in a fence the next holder waits for it; else it must not come.
                let awaited = state.nodes[place].fence.as_ref().is_some_and(|fence| fence.contains("rebooting"));
                if !awaited {
                    self.judge_write(state, from);
                }
                Reply::Done
            }
        }
    }

    /// S2: nobody else may have taken the lease by the time that a change lands.
    fn judge_write(&self, state: &mut State, from: usize) {
        let holder = state.lease.as_ref().and_then(|lease| lease.holder);
        state.hold(Law::S2, holder.is_none_or(|holder| usize::from(holder) == from));
    }

    fn judge_cordon(&self, state: &mut State, place: usize, before: &crate::cluster::Node) {
        let now = &state.nodes[place];
        let ghost = &state.ghosts[place];
        let (uncordons, cordons) = (before.cordoned && !now.cordoned, !before.cordoned && now.cordoned);
        let undone = uncordons && ghost.cordoned_before || cordons && before.fence.is_some() && ghost.uncordoned;
        state.hold(Law::S5, !undone);
        if state.nodes[place].fence.is_none() {
            state.ghosts[place].uncordoned = false;
        }
    }
}

/// Somebody wrote the Lease: its version is another.
pub fn wrote_lease(state: &mut State) {
    for message in state.wire.iter_mut().filter(|message| matches!(message.what, What::Lease(_))) {
        message.fresh = false;
    }
    for run in &mut state.runs {
        if let Run::Live(live) = run
            && let Hold::Taking(taking) = &mut live.hold
        {
            taking.fresh = false;
            taking.same = false;
        }
    }
}

/// Somebody wrote the Node: its version is another.
pub fn wrote_node(state: &mut State, place: usize) {
    for message in &mut state.wire {
        if matches!(&message.what, What::Node(at, _) if usize::from(*at) == place) {
            message.fresh = false;
        }
    }
    for run in &mut state.runs {
        if let Run::Live(live) = run
            && let Doing::Claim { fresh, .. } = &mut live.doing[place]
        {
            *fresh = false;
        }
    }
    state.wire.sort();
}

/// A small index as it is kept.
#[must_use]
pub fn number(index: usize) -> u8 {
    u8::try_from(index).unwrap_or(u8::MAX)
}
