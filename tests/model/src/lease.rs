//! What a run does about the lease.

use std::time::Duration;

use coordinator::exit::Exit;
use coordinator::holder::{Life, Process, life_on};
use coordinator::kube::lease::{
    Asked, Claimed, Evaluation, LeaseRecord, LeaseState, ReleaseNext, Renewal, Standing, Takeover, Watched,
    renewal_seen, take_patch,
};
use serde_json::Value;
use talos_proto::clock::Moment;

use crate::check::World;
use crate::cluster::{Lease, MOVED, STANDS, holder, identity};
use crate::facts::now;
use crate::memo::Text;
use crate::rules::Sight;
use crate::state::{Hold, Run, State, Taking};
use crate::wire::{Fate, Reply, What, number};

/// One tick of the model's clock: the renew deadline of the default lease. A lease that was not renewed for one tick has
/// lapsed, and three make up the watch of a silent holder.
pub const TICK: Duration = Duration::from_secs(120);

/// As many ticks of watching are told apart; the last number stands for a clock that was stepped in between.
pub const WATCHED: u8 = 3;
/// See [`WATCHED`].
pub const STEPPED: u8 = 4;

/// A moment so many ticks after the start.
#[must_use]
pub fn at(ticks: u8) -> Moment {
    Moment::from_origin(Duration::from_secs(36_000) + TICK * u32::from(ticks))
}

/// A patch as it goes over the wire.
#[must_use]
pub fn text(patch: &[Value]) -> Text {
    serde_json::to_string(patch).unwrap_or_default().into()
}

impl World {
    /// The record as it is read. `fresh` says that its version is the present one.
    #[must_use]
    pub fn record(&self, lease: &Lease, fresh: bool, time: &str) -> LeaseRecord {
        let version = if fresh { "1" } else { "0" };
        self.records.once((lease, fresh, time), || {
            LeaseRecord::read(&lease.object(|run| self.server().machine(run), &self.timing, version, time))
        })
    }

    /// For how long a record counts as unchanged after so many ticks of reading it every few seconds, and after a single
    /// pause in which our wall clock was stepped by an hour.
    #[must_use]
    pub fn watched(&self) -> [Duration; 5] {
        let record = self.record(&Lease { uid: 1, holder: Some(0), transitions: 1 }, true, STANDS);
        let watch = |ticks: u8, step: Duration| {
            let mut watched: Option<Watched> = None;
            let (mut time, end) = (at(0), at(ticks) + if ticks == 0 { step } else { Duration::ZERO });
            while time <= end {
                (self.setup.rules.watch)(&mut watched, &record, (time, time), &self.timing);
                time = time + step;
            }
            watched.map_or(Duration::ZERO, |watched| watched.unchanged)
        };
        let pause = self.timing.pause();
        let hour = Duration::from_secs(3_600);
        [Duration::ZERO, watch(1, pause), watch(2, pause), watch(3, pause), watch(0, hour)]
    }

    /// What is known of the holder of a lease.
    fn life(&self, state: &State, run: usize, of: u8) -> Life {
        let evidence = holder(usize::from(of), self.server().machine(usize::from(of))).evidence;
        let here = format!("machine-{}", self.server().machine(run));
        let process = |_| match state.runs.get(usize::from(of)) {
            Some(Run::Live(_)) => Process::Runs { start: 1 },
            _ => Process::Gone,
        };
        life_on(Some(&evidence), Some(&here), Some("pid:[1]"), &process)
    }

    /// Reads the lease that is to be taken, and judges it.
    pub fn read_lease(&self, state: &mut State, run: usize) -> Option<()> {
        let lease = state.lease.clone();
        let live = state.live(run).filter(|_| self.reaches(state, run))?;
        let Hold::Taking(before) = &live.hold else { return None };
        if before.go {
            return None;
        }
        let stepped = live.stepped;
        let mut taking = Taking { read: Some(lease.clone()), fresh: true, same: true, go: false, ..before.clone() };
        let Some(lease) = lease else {
            if !before.same || !matches!(before.read, Some(None)) {
                taking.watched = 0;
            }
            let absent = self.unchanged[usize::from(taking.watched)];
            // Earlier runs have been here, and left their traces.
            taking.go = (self.setup.rules.creation_waits)(true, absent, &self.timing).is_zero();
            return self.set(state, run, Hold::Taking(taking));
        };
        let record = self.record(&lease, true, if before.same { STANDS } else { MOVED });
        // Whether life was seen is the product's judgement about the two records.
        let mut watched = before.read.clone().flatten().map(|earlier| Watched {
            record: self.record(&earlier, false, STANDS),
            unchanged: self.unchanged[usize::from(before.watched)],
            read: None,
        });
        let seen = (self.setup.rules.watch)(&mut watched, &record, (at(0), at(0)), &self.timing);
        let unchanged = watched.map_or(Duration::ZERO, |watched| watched.unchanged);
        if unchanged.is_zero() {
            taking.watched = 0;
        }
        let life = match (seen, lease.holder) {
            (Some(seen), _) => Life::Alive(seen),
            (None, Some(of)) => self.life(state, run, of),
            (None, None) => Life::Unknown(String::new()),
        };
        let record = self.record(&lease, true, STANDS);
        let wall = if stepped { now() + Duration::from_secs(3_600) } else { now() };
        let sight = Sight { record: &record, me: &identity(run), unchanged, life: &life, wall };
        match (self.setup.rules.evaluate)(&sight, Takeover::Auto, &self.timing) {
            Evaluation::Free => taking.go = true,
            Evaluation::Ours => {
                let age = taking.tried.unwrap_or(0);
                return self.holds(state, run, &lease, age);
            }
            Evaluation::HeldAlive { .. } => return self.end(state, run, Exit::Refused),
            Evaluation::Watch { .. } => {}
            Evaluation::TakeOver { .. } if matches!(life, Life::Dead(_)) && !taking.waited => {
                taking.waited = true;
                taking.fresh = false;
                if self.waits_for_requests() {
                    state.wire.retain(|message| matches!(message.what, What::Reboot(_)));
                }
            }
            Evaluation::TakeOver { .. } => taking.go = true,
        }
        self.set(state, run, Hold::Taking(taking))
    }

    /// Whether a holder that is known to be dead is given the bound of a request to Kubernetes before it is taken over.
    fn waits_for_requests(&self) -> bool {
        (self.setup.rules.dead_wait)(&self.timing) >= self.timing.call * 2
    }

    /// Writes us into the lease.
    pub fn take_lease(&self, state: &mut State, run: usize, fate: Fate) -> Option<()> {
        let live = state.live(run).filter(|_| self.reaches(state, run))?;
        let Hold::Taking(taking) = &live.hold else { return None };
        let read = taking.read.clone().filter(|_| taking.go)?;
        let mut after = Taking { go: false, fresh: false, tried: taking.tried.or(Some(0)), ..taking.clone() };
        let (what, fresh) = match &read {
            None => (What::Create, true),
            Some(lease) => {
                let patch = self.patches.once(("take", lease, run), || {
                    let holder = holder(run, self.server().machine(run));
                    text(&take_patch(&self.record(lease, true, STANDS), &holder, &self.timing, STANDS))
                });
                (What::Lease(patch), taking.fresh)
            }
        };
        let reply = self.server().send(state, run, what, fresh, fate);
        if reply == Reply::Done
            && let Some(lease) = state.lease.clone()
        {
            return self.holds(state, run, &lease, 0);
        }
        after.same = false;
        self.set(state, run, Hold::Taking(after))
    }

    fn holds(&self, state: &mut State, run: usize, lease: &Lease, age: u8) -> Option<()> {
        let live = state.live_mut(run)?;
        // Observed again before acting.
        live.view = None;
        live.hold = Hold::Held { uid: lease.uid, epoch: lease.transitions, age };
        Some(())
    }

    fn set(&self, state: &mut State, run: usize, hold: Hold) -> Option<()> {
        state.live_mut(run)?.hold = hold;
        Some(())
    }

    /// The run ends.
    pub fn end(&self, state: &mut State, run: usize, exit: Exit) -> Option<()> {
        *state.runs.get_mut(run)? = Run::Ended(exit.code());
        Some(())
    }

    /// One renewal of the writer, and the look after one that did not succeed.
    pub fn renew(&self, state: &mut State, run: usize, fate: Fate) -> Option<()> {
        let live = state.live(run).filter(|_| self.reaches(state, run))?;
        let Hold::Held { uid, epoch, age } = live.hold else { return None };
        let (id, me) = (format!("lease-{uid}"), identity(run));
        let patch =
            self.patches.once(("renew", uid, run, epoch), || text(&(self.setup.rules.renew)(&id, &me, epoch, MOVED)));
        let before = state.lease.clone();
        let mut seen_moved = false;
        // Noted only where it costs no states.
        let alone = self.setup.runs == 1;
        let renewal = match self.server().send(state, run, What::Lease(patch), true, fate) {
            Reply::Done => Renewal::Renewed { from: at(age) },
            reply => {
                if reply == Reply::Nothing && fate == Fate::ReplyLost {
                    seen_moved = before.is_some_and(|lease| lease.uid == uid && lease.holder == Some(number(run)));
                }
                let time = if seen_moved { MOVED } else { STANDS };
                let record = state.lease.as_ref().map(|lease| self.record(lease, true, time));
                let ours = Claimed { uid: &id, holder: &me, epoch };
                renewal_seen(record.as_ref(), ours, &[(MOVED.to_owned(), at(age))])
            }
        };
        match renewal {
            Renewal::Renewed { .. } => {
                let live = state.live_mut(run)?;
                live.lapsed |= age > 0 && alone;
                live.hold = Hold::Held { uid, epoch, age: 0 };
                Some(())
            }
            Renewal::NotNow => Some(()),
            Renewal::Lost { .. } => self.end(state, run, Exit::ControlLost),
        }
    }

    /// One try to give the lease back.
    pub fn free(&self, state: &mut State, run: usize, fate: Fate) -> Option<()> {
        let live = state.live(run).filter(|_| self.reaches(state, run))?;
        let Hold::Releasing { wrote } = live.hold else { return None };
        let exit = live.exit;
        let record = state.lease.as_ref().map(|lease| self.record(lease, true, STANDS));
        let me = identity(run);
        let reply = match ((self.setup.rules.release_next)(record.as_ref(), &me, wrote), record) {
            (ReleaseNext::Done(_), _) | (_, None) => Reply::Done,
            (ReleaseNext::Free, Some(record)) => {
                let key = ("free", state.lease.as_ref(), run);
                let patch = self.patches.once(key, || text(&(self.setup.rules.free)(&record, &me, STANDS)));
                self.server().send(state, run, What::Lease(patch), !self.moves_between(state), fate)
            }
        };
        match reply {
            Reply::Done => *state.runs.get_mut(run)? = Run::Ended(exit),
            Reply::Refused => {}
            Reply::Nothing => self.set(state, run, Hold::Releasing { wrote: true })?,
        }
        Some(())
    }

    /// Another tool writes labels to the Lease between our read and our patch (L26), as long as disturbances are left.
    fn moves_between(&self, state: &State) -> bool {
        state.faults > 0
    }

    /// Whether a run may make a change now that may take `timeout`.
    #[must_use]
    pub fn permits(&self, state: &State, run: usize, timeout: Duration, undo: bool) -> bool {
        let Some(Hold::Held { age, .. }) = state.live(run).map(|live| &live.hold) else { return false };
        let standing = Standing { state: &LeaseState::Held, releasing: false, stopping: false, renewed_from: at(0) };
        (self.setup.rules.grant)(standing, &self.timing, at(*age), Asked { timeout, undo }).is_ok()
    }
}
