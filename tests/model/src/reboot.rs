//! The intent, the last look, the call, and the wait for another boot.

use std::time::Duration;

use coordinator::fleet::Fencing;
use coordinator::kube::fence::Step as FenceStep;
use coordinator::rollout::{Boot, Learned, boot_seen, remember};
use talos_proto::{CallError, Why};

use crate::check::World;
use crate::cluster::Config;
use crate::facts::now;
use crate::memo::Text;
use crate::state::{Doing, Law, Op, State};
use crate::steps::{End, given_up};
use crate::wire::{Fate, Reply, What, number};

/// A reboot call's timeout.
const REBOOT: Duration = Duration::from_secs(10);

impl World {
    pub(crate) fn intend(&self, state: &mut State, run: usize, place: usize, fate: Fate) -> Option<End> {
        if !self.reaches(state, run) {
            return None;
        }
        let Fencing::Ours { raw, fence, .. } = self.fencing(state, run, place)? else {
            return Some(End::Done(Learned::default()));
        };
        let node = &state.nodes[place];
        let now_view = node.view(self.setup.kinds[place], place, "1");
        if !self.budget(state, place) || (self.setup.rules.still_ours)(&now_view, &raw).is_err() {
            return Some(given_up("gate, fence or cordon", false));
        }
        let seen = state.live(run)?.view.as_ref()?.nodes[place].clone();
        let mut intent = fence.at(FenceStep::Rebooting, now());
        intent.boot = seen.boot_id();
        intent.reboot_calls += 1;
        self.settle(state, run, place, Op::Intent, &raw.into(), &intent.render().into(), fate)
    }

    /// The last look, in the same second as the call.
    pub(crate) fn call(
        &self,
        state: &mut State,
        run: usize,
        place: usize,
        value: &Text,
        claimed: &Text,
        fate: Fate,
    ) -> Option<End> {
        if !self.reaches(state, run) {
            return None;
        }
        let node = &state.nodes[place];
        let view = node.view(self.setup.kinds[place], place, "1");
        let intent = self.parsed(value)?;
        let back = self.parsed(claimed)?.at(FenceStep::Claimed, now()).render();
        let looks = self.budget(state, place)
            && (self.setup.rules.still_ours)(&view, value).is_ok()
            && node.up
            && node.boot_id() == intent.boot;
        if !looks || !self.permits(state, run, REBOOT, false) {
            return self.settle(state, run, place, Op::Revert, value, &back.into(), fate);
        }
        self.judge_reboot(state, run, place);
        let boot = state.nodes[place].boot;
        state.ghosts[place].asked = Some(boot);
        match self.server().send(state, run, What::Reboot(number(place)), true, fate) {
            Reply::Done => Some(End::Done(Learned::default())),
            Reply::Refused | Reply::Nothing => {
                let error = CallError {
                    call: "Reboot".to_owned(),
                    node: self.setup.kinds[place].address(place),
                    endpoint: String::new(),
                    why: Why::Deadline { after: REBOOT },
                };
                if (self.setup.rules.came_to_nothing)(&error) {
                    let doing = Doing::Settle { op: Op::Revert, old: value.clone(), new: back.into() };
                    state.live_mut(run)?.doing[place] = doing;
                    return Some(End::GoesOn);
                }
                Some(End::Done(Learned::default()))
            }
        }
    }

    /// S3, S5 and S6, and S4 unless the run has begun the node's turn itself, at the moment in which a reboot is asked for.
    pub(crate) fn judge_reboot(&self, state: &mut State, run: usize, place: usize) {
        let node = state.nodes[place].clone();
        let needed = !node.loaded || state.ghosts[place].misled;
        state.hold(Law::S3, node.config == Config::New && needed);
        state.hold(Law::S5, node.cordoned && !state.ghosts[place].uncordoned);
        let asked = state.ghosts[place].asked == Some(node.boot);
        state.hold(Law::S6, !asked);
        if state.ghosts[place].turns & (1 << run) == 0 {
            self.judge_order(state, run, place);
        }
    }

    /// S4, when a run begins a node's turn: a node that appears later does not end it.
    pub(crate) fn judge_order(&self, state: &mut State, run: usize, place: usize) {
        // Workers, then control planes, the endpoint node last, among the nodes that the run knows.
        let rank = |at: usize| self.setup.kinds[at] as u8;
        let Some(live) = state.live(run) else { return };
        let Some(view) = &live.view else { return };
        let waiting = |at: usize| {
            let (seen, known) = (&view.nodes[at], &live.known[at]);
            let needs = !seen.loaded && seen.up && matches!(seen.config, Config::Old | Config::New);
            needs && known.memory.failed.is_none() && rank(at) < rank(place)
        };
        let in_order = !(0..view.nodes.len()).any(waiting);
        state.hold(Law::S4, in_order);
    }

    pub(crate) fn await_boot(&self, state: &mut State, run: usize, place: usize) -> Option<End> {
        let Fencing::Ours { fence, in_turn, .. } = self.fencing(state, run, place)? else {
            return Some(End::Done(Learned::default()));
        };
        let node = &state.nodes[place];
        // Within the settle time a request that was sent has landed or never will.
        let under_way = state.wire.iter().any(|message| message.what == What::Reboot(number(place)));
        let running = (node.up && !under_way).then_some(self.timing.settle);
        let boot = node.boot_id();
        match boot_seen(&fence.boot, node.up.then_some(boot.as_str()), running, self.timing.settle) {
            Boot::Another => Some(End::Done(Learned::default())),
            Boot::Settled => {
                state.ghosts[place].asked = None;
                let learned = Learned { settled: true, ..Learned::default() };
                if in_turn {
                    remember(&mut state.live_mut(run)?.known[place].memory, &learned);
                    return Some(given_up("it did not reboot", false));
                }
                Some(End::Done(learned))
            }
            Boot::NotYet => None,
        }
    }
}
