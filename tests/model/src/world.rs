//! What everybody else does: machines, time, operators, other tools.

use crate::check::World;
use crate::cluster::{Config, Lease, Node};
use crate::lease::{STEPPED, WATCHED};
use crate::state::{Ghost, Hold, Run, State};
use crate::wire::{BOUND, What, number, wrote_lease, wrote_node};

/// A disturbance. A behaviour has only a few of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No API server answers this run, until it heals.
    Cut(usize),
    /// The node is replaced by another of the same name.
    Replaced(usize),
    /// Somebody else reboots the node.
    Rebooted(usize),
    /// Somebody stages another machine config.
    Staged(usize),
    /// Somebody else writes the desired credential, without our record.
    Written(usize),
    /// The wall clock of the run's machine is stepped forward by an hour.
    RunClock(usize),
    /// The node's clock is stepped.
    NodeClock(usize),
    /// An operator uncordons the node.
    Uncordoned(usize),
    /// Somebody deletes the Lease.
    LeaseDeleted,
    /// The canary's pull gets no answer.
    PullFails(usize, usize),
}

impl World {
    /// Kubernetes answers the run. A control plane that is up is enough, for requests fail over; a cluster of workers alone
    /// has its API servers elsewhere.
    #[must_use]
    pub fn reaches(&self, state: &State, run: usize) -> bool {
        let mut planes =
            state.nodes.iter().zip(&self.setup.kinds).filter(|(_, kind)| kind.is_plane()).map(|(node, _)| node.up);
        let served = planes.clone().count() == 0 || planes.any(|up| up);
        served && state.live(run).is_some_and(|live| !live.cut)
    }

    /// Every disturbance that makes sense now.
    pub fn faults(&self, state: &State, found: &mut Vec<Fault>) {
        if state.faults == 0 {
            return;
        }
        for (run, process) in state.runs.iter().enumerate() {
            let Run::Live(live) = process else { continue };
            found.extend([Fault::Cut(run), Fault::RunClock(run)]);
            let tried = |place: &usize| live.doing[*place] == crate::state::Doing::Tried;
            found.extend((0..state.nodes.len()).filter(tried).map(|place| Fault::PullFails(run, place)));
        }
        for place in 0..state.nodes.len() {
            found.extend([
                Fault::Replaced(place),
                Fault::Rebooted(place),
                Fault::Staged(place),
                Fault::Written(place),
                Fault::NodeClock(place),
                Fault::Uncordoned(place),
            ]);
        }
        found.push(Fault::LeaseDeleted);
    }

    /// The disturbance happens.
    pub fn fault(&self, state: &mut State, fault: Fault) -> Option<()> {
        state.faults = state.faults.checked_sub(1)?;
        match fault {
            Fault::Cut(run) => {
                let live = state.live_mut(run).filter(|live| !live.cut)?;
                live.cut = true;
            }
            Fault::Replaced(place) => {
                let uid = state.nodes[place].uid + 1;
                state.nodes[place] = Node::old(uid);
                state.ghosts[place] = Ghost::default();
                // The new node has another address.
                state.wire.retain(|message| message.what != What::Reboot(number(place)));
                wrote_node(state, place);
            }
            Fault::Rebooted(place) => {
                let node = state.nodes.get_mut(place).filter(|node| node.up)?;
                node.up = false;
            }
            Fault::Staged(place) => {
                let node = state.nodes.get_mut(place).filter(|node| node.up && node.config == Config::Old)?;
                node.config = Config::Foreign;
            }
            Fault::Written(place) => {
                // Of a config that others wrote while the clock was wrong nothing tells when it came.
                let node =
                    state.nodes.get_mut(place).filter(|node| node.up && node.config == Config::Old && !node.lying)?;
                node.config = Config::New;
                node.touched();
            }
            Fault::RunClock(run) => {
                let live = state.live_mut(run).filter(|live| !live.stepped)?;
                live.stepped = true;
                match &mut live.hold {
                    Hold::Held { age, .. } => *age = 1,
                    Hold::Taking(taking) if taking.same => taking.watched = STEPPED,
                    _ => {}
                }
            }
            Fault::NodeClock(place) => {
                let node = state.nodes.get_mut(place).filter(|node| !node.lying)?;
                node.lying = true;
            }
            Fault::Uncordoned(place) => {
                let node = state.nodes.get_mut(place).filter(|node| node.cordoned && node.fence.is_some())?;
                node.cordoned = false;
                state.ghosts[place].uncordoned = true;
                state.ghosts[place].cordoned_before = false;
                wrote_node(state, place);
            }
            Fault::LeaseDeleted => {
                state.lease.take()?;
                wrote_lease(state);
            }
            Fault::PullFails(run, place) => self.pull_fails(state, run, place)?,
        }
        Some(())
    }

    /// Time passes.
    pub fn tick(&self, state: &mut State) -> Option<()> {
        for message in &mut state.wire {
            message.age += 1;
        }
        state.wire.retain(|message| message.age <= BOUND);
        let reached: Vec<bool> = (0..state.runs.len()).map(|run| self.reaches(state, run)).collect();
        for (run, reached) in state.runs.iter_mut().zip(reached) {
            let Run::Live(live) = run else { continue };
            match &mut live.hold {
                Hold::Held { age, .. } => *age = 1,
                Hold::Taking(taking) => {
                    if let Some(tried) = &mut taking.tried {
                        *tried = 1;
                    }
                    let free = matches!(&taking.read, None | Some(Some(Lease { holder: None, .. })));
                    if !free && taking.same && !taking.go && reached {
                        let before = if taking.watched == STEPPED { 0 } else { taking.watched };
                        taking.watched = (before + 1).min(WATCHED);
                    }
                }
                _ => {}
            }
        }
        Some(())
    }

    /// The machine comes up.
    pub fn boots(&self, state: &mut State, place: usize) -> Option<()> {
        let node = state.nodes.get_mut(place).filter(|node| !node.up)?;
        let ghost = &mut state.ghosts[place];
        ghost.misled = node.lying && ghost.asked != Some(node.boot);
        node.booted();
        Some(())
    }

    /// Talos rolls a TRY back that nobody has made permanent.
    pub fn rolls_back(&self, state: &mut State, place: usize) -> Option<()> {
        let node = state.nodes.get_mut(place).filter(|node| node.up && node.config == Config::Try)?;
        node.config = Config::Old;
        node.record = None;
        node.touched();
        Some(())
    }
}
