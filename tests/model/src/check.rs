//! The model: which actions there are, and what must hold.

use std::sync::Arc;
use std::time::Duration;

use agent::claims::Judgement;
use agent::step::Step;
use coordinator::decide::{Action as Planned, Task};
use coordinator::fleet::Fencing;
use coordinator::kube::fence::Fence;
use coordinator::kube::lease::{LeaseRecord, Timing};
use stateright::{Model, Property};

use crate::cluster::{Kind, Lease, Node};
use crate::laws;
use crate::memo::{Memo, Text};
use crate::rules::Rules;
use crate::state::{Doing, Ghost, Hold, Live, Run, State};
use crate::wire::{Fate, Message, Server, What};
use crate::world::Fault;

/// A cluster, the runs on it, and how much may go wrong.
#[derive(Clone)]
pub struct Setup {
    /// For people.
    pub name: &'static str,
    /// The nodes.
    pub kinds: Vec<Kind>,
    /// How many runs.
    pub runs: usize,
    /// They share a machine, so that a dead one is known to be dead.
    pub one_machine: bool,
    /// Also with the first node cordoned by an operator before.
    pub cordoned: bool,
    /// Disturbances in one behaviour.
    pub faults: u8,
    /// Processes killed in one behaviour.
    pub deaths: u8,
    /// Whether requests are lost or late, besides other disturbances.
    pub losses: bool,
    /// Disturbances that are looked at; all by default.
    pub only: fn(&Fault) -> bool,
    /// The decisions.
    pub rules: Rules,
}

/// The model.
pub struct World {
    /// What is checked.
    pub setup: Setup,
    /// Times of the default lease.
    pub timing: Timing,
    /// See [`World::watched`].
    pub unchanged: [Duration; 5],
    /// Decisions that were made already: they are pure.
    pub plans: Memo<Arc<Vec<Planned>>>,
    /// Judgements that were made already.
    pub judged: Memo<Option<Arc<Judgement>>>,
    /// Patches that were applied already.
    pub applied: crate::wire::Applied,
    /// Records that were read already.
    pub records: Memo<LeaseRecord>,
    /// Fences that were read already.
    pub fences: Memo<Option<Arc<Fence>>>,
    /// Changes of fences that were decided already.
    pub changes: Memo<Option<Arc<crate::settle::Change>>>,
    /// Patches of the Lease that were written already.
    pub patches: Memo<Text>,
    /// Whose fence stands there, as it was judged already.
    pub fencings: Memo<Fencing>,
    /// Clusters whose recovery was looked at already.
    pub recovered: Memo<bool>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A process starts.
    Start(usize),
    /// It takes an inventory.
    Look(usize),
    /// It begins what was decided for a node.
    Begin(usize, usize, Fate),
    /// It goes on with that.
    GoOn(usize, usize, Fate),
    /// It reads the lease that it wants.
    ReadLease(usize),
    /// It writes itself into the lease.
    TakeLease(usize, Fate),
    /// It renews the lease.
    Renew(usize, Fate),
    /// It gives the lease back.
    Free(usize, Fate),
    /// SIGKILL.
    Kill(usize),
    /// The API answers it again.
    Heal(usize),
    /// A renew deadline's time passes for all.
    Tick,
    /// A late request lands.
    Land(usize),
    /// A machine comes up.
    Boots(usize),
    /// Talos rolls a TRY back.
    RollsBack(usize),
    /// A disturbance.
    Fault(Fault),
}

impl World {
    /// The model of a setup.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let mut world = Self {
            setup,
            timing: Timing::default(),
            unchanged: [Duration::ZERO; 5],
            plans: Memo::default(),
            judged: Memo::default(),
            applied: crate::wire::Applied::default(),
            records: Memo::default(),
            fences: Memo::default(),
            changes: Memo::default(),
            patches: Memo::default(),
            fencings: Memo::default(),
            recovered: Memo::default(),
        };
        world.unchanged = world.watched();
        world
    }

    /// What requests need.
    #[must_use]
    pub fn server(&self) -> Server<'_> {
        Server { timing: &self.timing, one_machine: self.setup.one_machine, applied: &self.applied }
    }

    fn fates(&self, state: &State) -> &'static [Fate] {
        if state.faults > 0 && self.setup.losses {
            &[Fate::Fine, Fate::RequestLost, Fate::ReplyLost, Fate::Late]
        } else {
            &[Fate::Fine]
        }
    }

    fn of_run(&self, state: &State, run: usize, live: &Live, found: &mut Vec<Action>) {
        let fates = self.fates(state);
        if state.deaths > 0 {
            found.push(Action::Kill(run));
        }
        if live.cut {
            found.push(Action::Heal(run));
        }
        match &live.hold {
            Hold::Taking(taking) if taking.go => {
                found.extend(fates.iter().map(|fate| Action::TakeLease(run, *fate)));
                return;
            }
            Hold::Taking(_) => {
                found.push(Action::ReadLease(run));
                return;
            }
            Hold::Releasing { .. } => {
                found.extend(fates.iter().map(|fate| Action::Free(run, *fate)));
                return;
            }
            Hold::Held { age, .. } => {
                let watched = state.runs.iter().any(|other| matches!(other, Run::Live(other) if matches!(&other.hold, Hold::Taking(taking) if taking.same)));
                let ours = state.lease.as_ref().is_some_and(|lease| usize::from(lease.holder.unwrap_or(99)) == run);
                if *age > 0 || watched || !ours || state.faults > 0 {
                    found.extend(fates.iter().map(|fate| Action::Renew(run, *fate)));
                }
            }
            Hold::None => {}
        }
        if self.wants_look(state, run, live) {
            found.push(Action::Look(run));
        }
        let plan = self.plan(run, live);
        for place in 0..state.nodes.len() {
            match &live.doing[place] {
                Doing::Nothing => {
                    let name = self.setup.kinds[place].name(place);
                    let Some(planned) = plan.iter().find(|planned| planned.node == name) else { continue };
                    let writes_fence = matches!(planned.task, Task::Adopt | Task::Step(Step::Release | Step::Reboot));
                    let fates = if writes_fence { fates } else { &[Fate::Fine] };
                    found.extend(fates.iter().map(|fate| Action::Begin(run, place, *fate)));
                }
                Doing::Look | Doing::Tried => found.push(Action::GoOn(run, place, Fate::Fine)),
                _ => found.extend(fates.iter().map(|fate| Action::GoOn(run, place, *fate))),
            }
        }
    }

    /// What an action does; `None` when it cannot happen now.
    #[must_use]
    pub fn does(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let fate = match action {
            Action::Begin(_, _, fate)
            | Action::GoOn(_, _, fate)
            | Action::TakeLease(_, fate)
            | Action::Renew(_, fate)
            | Action::Free(_, fate) => fate,
            _ => Fate::Fine,
        };
        if fate != Fate::Fine {
            state.faults = state.faults.checked_sub(1)?;
        }
        match action {
            Action::Start(run) => state.runs[run] = Run::Live(Box::new(Live::new(state.nodes.len()))),
            Action::Look(run) => self.look(&mut state, run)?,
            Action::Begin(run, place, fate) => self.begin(&mut state, run, place, fate)?,
            Action::GoOn(run, place, fate) => self.go_on(&mut state, run, place, fate)?,
            Action::ReadLease(run) => self.read_lease(&mut state, run)?,
            Action::TakeLease(run, fate) => self.take_lease(&mut state, run, fate)?,
            Action::Renew(run, fate) => self.renew(&mut state, run, fate)?,
            Action::Free(run, fate) => self.free(&mut state, run, fate)?,
            Action::Kill(run) => {
                state.deaths = state.deaths.checked_sub(1)?;
                state.runs[run] = Run::Dead;
            }
            Action::Heal(run) => state.live_mut(run)?.cut = false,
            Action::Tick => self.tick(&mut state)?,
            Action::Land(at) => {
                let message: Message = state.wire.remove(at);
                let reply = self.server().land(&mut state, &message);
                if let (What::Node(place, _), crate::wire::Reply::Done) = (&message.what, reply) {
                    self.judge_budget(&mut state, usize::from(*place));
                }
            }
            Action::Boots(place) => self.boots(&mut state, place)?,
            Action::RollsBack(place) => self.rolls_back(&mut state, place)?,
            Action::Fault(fault) => self.fault(&mut state, fault)?,
        }
        (state != *last).then_some(state)
    }

    /// The cluster as it is in the beginning; `cordoned`: an operator has cordoned the first node.
    #[must_use]
    pub fn first(&self, cordoned: bool) -> State {
        let size = self.setup.kinds.len();
        let mut nodes = vec![Node::old(1); size];
        let mut ghosts = vec![Ghost::default(); size];
        nodes[0].cordoned = cordoned;
        ghosts[0].cordoned_before = cordoned;
        State {
            // Earlier runs have held it.
            lease: Some(Lease { uid: 1, holder: None, transitions: 7 }),
            lease_uids: 1,
            nodes,
            ghosts,
            runs: vec![Run::Waiting; self.setup.runs],
            wire: Vec::new(),
            faults: self.setup.faults,
            deaths: self.setup.deaths,
            broken: 0,
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        if self.setup.cordoned { vec![self.first(false), self.first(true)] } else { vec![self.first(false)] }
    }

    fn actions(&self, state: &State, found: &mut Vec<Action>) {
        if state.broken != 0 {
            return;
        }
        // Runs are alike: they start in order.
        found.extend(state.runs.iter().position(|run| *run == Run::Waiting).map(Action::Start));
        for (run, process) in state.runs.iter().enumerate() {
            if let Run::Live(live) = process {
                self.of_run(state, run, live, found);
            }
        }
        found.push(Action::Tick);
        found.extend((0..state.wire.len()).map(Action::Land));
        for (place, node) in state.nodes.iter().enumerate() {
            if !node.up {
                found.push(Action::Boots(place));
            } else if node.config == crate::cluster::Config::Try {
                found.push(Action::RollsBack(place));
            }
        }
        let mut faults = Vec::new();
        self.faults(state, &mut faults);
        found.extend(faults.into_iter().filter(|fault| (self.setup.only)(fault)).map(Action::Fault));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.does(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        laws::properties()
    }
}
