//! Setting, changing and removing a fence.

use std::sync::Arc;

use coordinator::decide::MaxUnavailable;
use coordinator::fleet::Fencing;
use coordinator::gates::GateRules;
use coordinator::kube::fence::{Fence, FenceError, Next};
use coordinator::rollout::Learned;

use crate::check::World;
use crate::cluster::Kind;
use crate::facts::{now, revision};
use crate::lease::text;
use crate::state::{Doing, Law, Op, State};
use crate::steps::{End, given_up};
use crate::wire::{Fate, Reply, What, number};

impl World {
    /// The gates, on the Nodes as they are now.
    pub(crate) fn budget(&self, state: &State, place: usize) -> bool {
        let views: Vec<_> =
            state.nodes.iter().enumerate().map(|(at, node)| node.view(self.setup.kinds[at], at, "1")).collect();
        let rules = GateRules {
            max_unavailable: MaxUnavailable::Number(1),
            allow_outage: true,
            restarting: std::collections::BTreeSet::new(),
        };
        (self.setup.rules.budget)(&views, &views[place], &rules).is_ok()
    }

    pub(crate) fn gate(&self, state: &mut State, run: usize, place: usize) -> Option<End> {
        if !self.reaches(state, run) {
            return None;
        }
        let seen = state.live(run)?.view.as_ref()?.nodes[place].uid;
        if state.nodes[place].uid != seen {
            return Some(End::Done(Learned::default()));
        }
        if !self.budget(state, place) {
            return Some(given_up("gate", false));
        }
        self.judge_order(state, run, place);
        state.ghosts[place].turns |= 1 << run;
        let (cordoned, fence) = (state.nodes[place].cordoned, state.nodes[place].fence.clone());
        state.live_mut(run)?.doing[place] = Doing::Claim { cordoned, fence, fresh: true };
        Some(End::GoesOn)
    }

    pub(crate) fn send_claim(
        &self,
        state: &mut State,
        run: usize,
        place: usize,
        (cordoned, fence): (bool, Option<Arc<str>>),
        fresh: bool,
        fate: Fate,
    ) -> Option<End> {
        if !self.reaches(state, run) || !self.permits(state, run, self.timing.call, false) {
            return None;
        }
        let (kind, by) = (self.setup.kinds[place], self.claimant(state, run)?);
        let seen = state.live(run)?.view.as_ref()?.nodes[place].clone();
        let node = crate::cluster::Node { cordoned, fence, ..seen };
        let view = node.view(kind, place, if fresh { "1" } else { "0" });
        let revision = revision().map(|revision| revision.to_string()).unwrap_or_default();
        let fence = Fence::claimed(by, &view, &node.boot_id(), &revision, now());
        match (self.setup.rules.claim)(&view, &fence, &view) {
            Ok(Next::Patch(patch)) => {
                let what = What::Node(number(place), text(&patch));
                let reply = self.server().send(state, run, what, fresh, fate);
                if reply == Reply::Done {
                    self.judge_budget(state, place);
                    return Some(End::Done(Learned { claimed: true, ..Learned::default() }));
                }
                let new = fence.render().into();
                state.live_mut(run)?.doing[place] = Doing::Settle { op: Op::Claim, old: "".into(), new };
                Some(End::GoesOn)
            }
            Ok(Next::Done(_)) => Some(End::Done(Learned { claimed: true, ..Learned::default() })),
            Err(error) => Some(refused(&error, Op::Claim)),
        }
    }

    /// S1, by all runs together: no two fences in one class.
    pub fn judge_budget(&self, state: &mut State, place: usize) {
        let plane = self.setup.kinds[place].is_plane();
        let of_class = |at: &usize| self.setup.kinds[*at].is_plane() == plane;
        let fenced = (0..state.nodes.len()).filter(of_class).filter(|at| state.nodes[*at].fence.is_some()).count();
        state.hold(Law::S1, fenced <= 1);
    }

    pub(crate) fn adopt(&self, state: &mut State, run: usize, place: usize, fate: Fate) -> Option<End> {
        let Fencing::Residue { raw, fence } = self.fencing(state, run, place)? else {
            return Some(End::Done(Learned::default()));
        };
        let ours = fence.adopted(self.claimant(state, run)?, now());
        self.settle(state, run, place, Op::Adopt, &raw.into(), &ours.render().into(), fate)
    }

    /// One turn of the loop that sets, changes or removes a fence.
    #[allow(clippy::too_many_arguments, reason = "one place, three kinds of change")]
    pub(crate) fn settle(
        &self,
        state: &mut State,
        run: usize,
        place: usize,
        op: Op,
        old: &Arc<str>,
        new: &Arc<str>,
        fate: Fate,
    ) -> Option<End> {
        if !self.reaches(state, run) {
            return None;
        }
        let kind: Kind = self.setup.kinds[place];
        let seen = state.live(run)?.view.as_ref()?.nodes[place].clone();
        let uid = format!("node-{}", seen.uid);
        let now = state.nodes[place].view(kind, place, "1");
        let rules = &self.setup.rules;
        let next = match op {
            Op::Release => {
                let fence = Fence::parse(old).ok()?;
                match (rules.release)(&uid, old, &fence, &now) {
                    Ok(Next::Patch(patch)) => Ok(Some(patch)),
                    Ok(Next::Done(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Op::Claim => {
                let fence = Fence::parse(new).ok()?;
                let before = crate::cluster::Node { cordoned: fence.cordoned_before, fence: None, ..seen };
                split((rules.claim)(&before.view(kind, place, "1"), &fence, &now))
            }
            Op::Intent | Op::Revert | Op::Adopt => split((rules.update)(&uid, old, &Fence::parse(new).ok()?, &now)),
        };
        match next {
            Err(error) => Some(refused(&error, op)),
            Ok(None) => self.settled(state, run, place, op, old, new),
            Ok(Some(patch)) => {
                let undo = matches!(op, Op::Release | Op::Revert);
                if !self.permits(state, run, self.timing.call, undo) {
                    return None;
                }
                let what = What::Node(number(place), text(&patch));
                if self.server().send(state, run, what, true, fate) == Reply::Done {
                    return self.settled(state, run, place, op, old, new);
                }
                let doing = Doing::Settle { op, old: Arc::clone(old), new: Arc::clone(new) };
                state.live_mut(run)?.doing[place] = doing;
                Some(End::GoesOn)
            }
        }
    }

    pub(crate) fn settled(
        &self,
        state: &mut State,
        run: usize,
        place: usize,
        op: Op,
        old: &Arc<str>,
        new: &Arc<str>,
    ) -> Option<End> {
        let learned = Learned::default();
        Some(match op {
            Op::Claim => {
                self.judge_budget(state, place);
                End::Done(Learned { claimed: true, ..learned })
            }
            Op::Release => End::Done(Learned { released: true, ..learned }),
            Op::Adopt => End::Done(learned),
            Op::Revert => End::Again,
            Op::Intent => {
                let (value, claimed) = (Arc::clone(new), Arc::clone(old));
                state.live_mut(run)?.doing[place] = Doing::Marked { value, claimed };
                End::GoesOn
            }
        })
    }
}

fn split<T>(next: Result<Next<T>, FenceError>) -> Result<Option<Vec<serde_json::Value>>, FenceError> {
    next.map(|next| match next {
        Next::Done(_) => None,
        Next::Patch(patch) => Some(patch),
    })
}

/// What a refusal of a change of a fence makes of its step.
fn refused(error: &FenceError, op: Op) -> End {
    match error {
        FenceError::Gone { .. } | FenceError::Replaced { .. } | FenceError::Leaving { .. } => {
            End::Done(Learned::default())
        }
        other => given_up(&other.to_string(), matches!(op, Op::Adopt | Op::Release)),
    }
}
