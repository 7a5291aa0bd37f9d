//! Writing a machine config, and the pull that proves a credential. Each is one moment: what may come between the reads and
//! the apply is the lab's to show.

use std::time::Duration;

use agent::claims::{Blocked, Pull};
use coordinator::decide::Task;
use coordinator::exit::Exit;
use coordinator::rollout::Learned;

use crate::check::World;
use crate::cluster::{Config, Rec};
use crate::facts::process;
use crate::state::{Doing, State};
use crate::steps::End;

/// The timeout of a config's apply.
const APPLY: Duration = Duration::from_secs(20);

impl World {
    pub(crate) fn apply(&self, state: &mut State, run: usize, place: usize, canary: bool) -> Option<End> {
        if !self.permits(state, run, APPLY, false) || !state.nodes[place].up {
            return None;
        }
        let seen = state.live(run)?.view.as_ref()?.nodes[place].boot;
        let node = &mut state.nodes[place];
        if (self.setup.rules.is_another)(Some(&process(seen)), Some(&process(node.boot))) {
            return Some(End::Again);
        }
        if matches!(node.config, Config::Foreign | Config::Try) {
            let blocked = Blocked::ForeignConfig;
            return Some(End::Failed { blocked, exit: Exit::Failed, halts: false, stuck: false });
        }
        node.record = Some(Rec { proved: false, boot: seen });
        if node.config == Config::New {
            // Somebody was quicker: only the record is new, and the file is not written again.
            return Some(if canary { End::Again } else { End::Done(Learned::default()) });
        }
        node.config = if canary { Config::Try } else { Config::New };
        node.touched();
        state.ghosts[place].reboots = 0;
        if canary {
            state.live_mut(run)?.doing[place] = Doing::Tried;
            return Some(End::GoesOn);
        }
        Some(End::Done(Learned::default()))
    }

    /// The canary's pull, and what follows from it.
    pub(crate) fn prove(&self, state: &mut State, run: usize, place: usize, works: bool) -> Option<End> {
        if !self.permits(state, run, Duration::from_secs(60), false) {
            return None;
        }
        let node = &mut state.nodes[place];
        if node.config != Config::Try {
            return Some(End::Again);
        }
        if !works {
            let blocked = Blocked::Pull("no answer".to_owned());
            node.config = Config::Old;
            node.record = None;
            node.touched();
            return Some(End::Failed { blocked, exit: Exit::Failed, halts: true, stuck: false });
        }
        node.config = Config::New;
        let pull = Some(Pull::Proved("image".to_owned()));
        Some(End::Done(Learned { pull, canary_passed: true, ..Learned::default() }))
    }

    /// The registry does not answer the canary's pull.
    pub fn pull_fails(&self, state: &mut State, run: usize, place: usize) -> Option<()> {
        if state.live(run)?.doing[place] != Doing::Tried {
            return None;
        }
        let end = self.prove(state, run, place, false)?;
        self.finish(state, run, place, Some(&Task::Canary), end)
    }

    pub(crate) fn annotate(&self, state: &mut State, run: usize, place: usize, proved: bool) -> Option<End> {
        if !self.permits(state, run, APPLY, false) || !state.nodes[place].up {
            return None;
        }
        // The record names the process that the run saw.
        let seen = state.live(run)?.view.as_ref()?.nodes[place].boot;
        let node = &mut state.nodes[place];
        if !matches!(node.config, Config::New) {
            return Some(End::Done(Learned::default()));
        }
        if !proved && (self.setup.rules.is_another)(Some(&process(seen)), Some(&process(node.boot))) {
            return Some(End::Again);
        }
        node.record = Some(Rec { proved, boot: seen });
        Some(End::Done(Learned::default()))
    }
}
