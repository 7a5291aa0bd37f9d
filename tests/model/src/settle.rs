//! Setting, changing and removing a fence.

use std::sync::Arc;

use coordinator::decide::MaxUnavailable;
use coordinator::fleet::Fencing;
use coordinator::gates::GateRules;
use coordinator::kube::fence::{Fence, FenceError, Next};
use coordinator::rollout::Learned;

use crate::check::World;
use crate::cluster::Node;
use crate::facts::{now, revision};
use crate::lease::text;
use crate::memo::Text;
use crate::state::{Doing, Law, Op, State};
use crate::steps::{End, given_up};
use crate::wire::{Fate, Reply, What, number};

/// A change of a fence: nothing is to be done any more, or this patch.
pub type Change = Result<Option<Text>, FenceError>;

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
        (cordoned, fence): (bool, Option<Text>),
        fresh: bool,
        fate: Fate,
    ) -> Option<End> {
        if !self.reaches(state, run) || !self.permits(state, run, self.timing.call, false) {
            return None;
        }
        let (kind, by) = (self.setup.kinds[place], self.claimant(state, run)?);
        let seen = state.live(run)?.view.as_ref()?.nodes[place].clone();
        let node = Node { cordoned, fence, ..seen };
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

    /// What a fence says.
    pub(crate) fn parsed(&self, text: &Text) -> Option<Arc<Fence>> {
        self.fences.once(text, || Fence::parse(text).ok().map(Arc::new))
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
        old: &Text,
        new: &Text,
        fate: Fate,
    ) -> Option<End> {
        if !self.reaches(state, run) {
            return None;
        }
        let (seen, node) = (&state.live(run)?.view.as_ref()?.nodes[place], &state.nodes[place]);
        let key = (op, old, new, place, seen, (node.uid, &node.fence, node.cordoned, node.up, node.boot));
        let next = self.changes.once(key, || self.next_change(place, op, (old, new), seen, node).map(Arc::new))?;
        match &*next {
            Err(error) => Some(refused(error, op)),
            Ok(None) => self.settled(state, run, place, op, old, new),
            Ok(Some(patch)) => {
                let undo = matches!(op, Op::Release | Op::Revert);
                if !self.permits(state, run, self.timing.call, undo) {
                    return None;
                }
                let what = What::Node(number(place), patch.clone());
                if self.server().send(state, run, what, true, fate) == Reply::Done {
                    return self.settled(state, run, place, op, old, new);
                }
                let doing = Doing::Settle { op, old: old.clone(), new: new.clone() };
                state.live_mut(run)?.doing[place] = doing;
                Some(End::GoesOn)
            }
        }
    }

    /// What the change comes to on the Node as it is now: refused, done, or a patch.
    fn next_change(
        &self,
        place: usize,
        op: Op,
        (old, new): (&Text, &Text),
        seen: &Node,
        node: &Node,
    ) -> Option<Change> {
        let kind = self.setup.kinds[place];
        let uid = format!("node-{}", seen.uid);
        let now = node.view(kind, place, "1");
        let rules = &self.setup.rules;
        Some(match op {
            Op::Release => written((rules.release)(&uid, old, &*self.parsed(old)?, &now)),
            Op::Claim => {
                let fence = self.parsed(new)?;
                let before = Node { cordoned: fence.cordoned_before, fence: None, ..seen.clone() };
                written((rules.claim)(&before.view(kind, place, "1"), &fence, &now))
            }
            Op::Intent | Op::Revert | Op::Adopt => written((rules.update)(&uid, old, &*self.parsed(new)?, &now)),
        })
    }

    pub(crate) fn settled(
        &self,
        state: &mut State,
        run: usize,
        place: usize,
        op: Op,
        old: &Text,
        new: &Text,
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
                let (value, claimed) = (new.clone(), old.clone());
                state.live_mut(run)?.doing[place] = Doing::Marked { value, claimed };
                End::GoesOn
            }
        })
    }
}

fn written<T>(next: Result<Next<T>, FenceError>) -> Change {
    next.map(|next| match next {
        Next::Done(_) => None,
        Next::Patch(patch) => Some(text(&patch)),
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
