//! A run's steps: what begins one, what goes on with it, what its end means. The effects are in `stage`,
//! `settle` and `reboot`, each cut where another actor may come in between.

use std::time::Duration;

use agent::claims::{Blocked, Pull};
use agent::step::Step;
use coordinator::decide::Task;
use coordinator::exit::Exit;
use coordinator::fleet::Fencing;
use coordinator::kube::fence::Claimant;
use coordinator::rollout::{Learned, after_done, remember};

use crate::check::World;
use crate::cluster::{Config, identity};
use crate::round::{fail, leases};
use crate::state::{Doing, Hold, Op, State};
use crate::wire::Fate;

/// How a step ended, as far as the model tells it apart.
pub(crate) enum End {
    Done(Learned),
    /// It goes on as [`Doing`] says.
    GoesOn,
    /// Something came in between: the node is looked at again.
    Again,
    /// It cannot be done and is given up.
    Failed {
        blocked: Blocked,
        exit: Exit,
        halts: bool,
        stuck: bool,
    },
}

/// A step that is given up, with its fence kept or not.
pub(crate) fn given_up(reason: &str, stuck: bool) -> End {
    let exit = if stuck { Exit::Failed } else { Exit::Stopped };
    End::Failed { blocked: Blocked::Step(reason.to_owned()), exit, halts: false, stuck }
}

impl World {
    /// Begins what was decided for a node.
    pub fn begin(&self, state: &mut State, run: usize, place: usize, fate: Fate) -> Option<()> {
        let live = state.live(run)?;
        if live.doing[place] != Doing::Nothing || matches!(live.hold, Hold::Taking(_) | Hold::Releasing { .. }) {
            return None;
        }
        let name = self.setup.kinds[place].name(place);
        let task = self.plan(run, live).iter().find(|action| action.node == name)?.task.clone();
        if task.writes() && !matches!(live.hold, Hold::Held { .. }) {
            return None;
        }
        let end = self.task(state, run, place, &task, fate)?;
        self.finish(state, run, place, Some(&task), end)
    }

    /// Goes on with what was begun.
    pub fn go_on(&self, state: &mut State, run: usize, place: usize, fate: Fate) -> Option<()> {
        let live = state.live(run)?;
        let doing = live.doing[place].clone();
        let (end, task) = match doing {
            Doing::Nothing => return None,
            Doing::Look => return self.look_after(state, run, place),
            Doing::Claim { cordoned, fence, fresh } => {
                (self.send_claim(state, run, place, (cordoned, fence), fresh, fate)?, Task::Step(Step::Claim))
            }
            Doing::Settle { op, old, new } => {
                let task = match op {
                    Op::Release => Task::Step(Step::Release),
                    Op::Adopt => Task::Adopt,
                    Op::Claim => Task::Step(Step::Claim),
                    Op::Intent | Op::Revert => Task::Step(Step::Reboot),
                };
                (self.settle(state, run, place, op, &old, &new, fate)?, task)
            }
            Doing::Marked { value, claimed } => {
                (self.call(state, run, place, &value, &claimed, fate)?, Task::Step(Step::Reboot))
            }
            Doing::Tried => (self.prove(state, run, place, true)?, Task::Canary),
        };
        self.finish(state, run, place, Some(&task), end)
    }

    pub(crate) fn task(&self, state: &mut State, run: usize, place: usize, task: &Task, fate: Fate) -> Option<End> {
        let step = match task {
            Task::Adopt => return self.adopt(state, run, place, fate),
            Task::Canary => return self.apply(state, run, place, true),
            Task::Step(step) => step,
        };
        match step {
            Step::Stage => self.apply(state, run, place, false),
            Step::RecordStaged => self.annotate(state, run, place, false),
            Step::WriteProof => self.annotate(state, run, place, true),
            Step::CheckPull => {
                let up = state.nodes[place].up && self.permits(state, run, Duration::from_secs(60), false);
                let pull = Some(Pull::Proved("image".to_owned()));
                up.then(|| End::Done(Learned { pull, ..Learned::default() }))
            }
            Step::Claim => self.gate(state, run, place),
            Step::Drain => {
                let may = self.reaches(state, run) && self.permits(state, run, self.timing.call, false);
                may.then(|| End::Done(Learned { drained: true, ..Learned::default() }))
            }
            Step::Reboot => self.intend(state, run, place, fate),
            Step::AwaitBoot => self.await_boot(state, run, place),
            Step::AwaitReady => {
                let back = state.nodes[place].up && self.reaches(state, run);
                back.then(|| End::Done(Learned { ready: true, ..Learned::default() }))
            }
            Step::Release => {
                let Fencing::Ours { raw, .. } = self.fencing(state, run, place)? else {
                    return Some(End::Done(Learned::default()));
                };
                self.settle(state, run, place, Op::Release, &raw.into(), &"".into(), fate)
            }
            Step::AwaitRollback => (state.nodes[place].config != Config::Try).then(|| End::Done(Learned::default())),
            // Looked at again until the gate's budget is used up.
            Step::LookAgain(_) => {
                let seen = state.live(run)?.view.as_ref().map(|view| view.nodes[place].clone());
                (seen.as_ref() != Some(&state.nodes[place])).then(|| End::Done(Learned::default()))
            }
            Step::AwaitAdopted | Step::Nothing | Step::Blocked(_) => None,
        }
    }

    /// The fence as the run saw it last.
    pub(crate) fn fencing(&self, state: &State, run: usize, place: usize) -> Option<Fencing> {
        let live = state.live(run)?;
        let node = &live.view.as_ref()?.nodes[place];
        let epoch = if let Hold::Held { epoch, .. } = live.hold { Some(epoch) } else { None };
        let held = matches!(live.hold, Hold::Held { .. } | Hold::Releasing { .. });
        let claimed: Vec<_> = live.known.iter().map(|known| (known.uid, known.claimed)).collect();
        Some(self.fencings.once((run, place, node, epoch, held, claimed), || {
            let kube = node.view(self.setup.kinds[place], place, "1");
            (self.setup.rules.fencing)(&kube, &self.inventory_known(run, live), leases(), epoch)
        }))
    }

    pub(crate) fn claimant(&self, state: &State, run: usize) -> Option<Claimant> {
        let Hold::Held { uid, epoch, .. } = state.live(run)?.hold else { return None };
        Some(Claimant {
            holder: identity(run),
            lease: leases().ours.to_string(),
            lease_uid: format!("lease-{uid}"),
            epoch,
        })
    }

    pub(crate) fn finish(
        &self,
        state: &mut State,
        run: usize,
        place: usize,
        task: Option<&Task>,
        end: End,
    ) -> Option<()> {
        let live = state.live_mut(run)?;
        let known = &mut live.known[place];
        match end {
            End::GoesOn => return Some(()),
            End::Again => {}
            End::Done(learned) => {
                remember(&mut known.memory, &learned);
                known.claimed = (known.claimed || learned.claimed) && !learned.released;
                if let Some(task) = task {
                    after_done(&mut known.memory, task, &learned);
                }
                if learned.canary_passed
                    && let Some(view) = &mut live.view
                {
                    view.canary_passed = true;
                }
            }
            End::Failed { blocked, exit, halts, stuck } => {
                known.memory.failed = Some(blocked);
                known.memory.stuck |= stuck;
                live.halted |= halts;
                fail(live, exit);
            }
        }
        state.live_mut(run)?.doing[place] = Doing::Look;
        // Looked at again at once, if the API answers.
        self.look_after(state, run, place).or(Some(()))
    }

    pub(crate) fn look_after(&self, state: &mut State, run: usize, place: usize) -> Option<()> {
        let node = state.nodes[place].clone();
        if !self.reaches(state, run) {
            return None;
        }
        let live = state.live_mut(run)?;
        if live.known[place].uid != node.uid {
            live.known[place] = crate::state::Known { uid: node.uid, ..crate::state::Known::default() };
        }
        live.view.as_mut()?.nodes[place] = node;
        live.doing[place] = Doing::Nothing;
        Some(())
    }
}
