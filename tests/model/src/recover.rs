//! S8: whatever dead runs leave, one more run ends it. Asked of every state that is reached, as if every process were killed
//! there and every request that is still under way never landed.

use agent::claims::{Blocked, Verdict};
use coordinator::exit::Exit;

use crate::check::World;
use crate::cluster::Config;
use crate::state::{Doing, Ghost, Hold, Known, Live, Run, State};
use crate::wire::Fate;

/// A run that takes longer goes in circles.
const STEPS: usize = 400;

impl World {
    /// Whether the next run ends in the goal, or is refused for something that a human must do.
    #[must_use]
    pub fn recovers(&self, state: &State) -> bool {
        let ghost = |ghost: &Ghost| Ghost { asked: None, reboots: 0, turns: 0, ..ghost.clone() };
        let ghosts: Vec<Ghost> = state.ghosts.iter().map(ghost).collect();
        let key = (&state.lease, &state.nodes, &ghosts, state.lease_uids);
        self.recovered.once(key, || self.ends(state, ghosts.clone()))
    }

    fn ends(&self, state: &State, ghosts: Vec<Ghost>) -> bool {
        let mut runs: Vec<Run> = state.runs.iter().map(|_| Run::Dead).collect();
        runs.push(Run::Live(Box::new(Live::new(state.nodes.len()))));
        let start = State { ghosts, runs, wire: Vec::new(), faults: 0, deaths: 0, broken: 0, ..state.clone() };
        self.run_to_the_end(start).is_ok()
    }

    /// The last run of these goes on alone, with nothing going wrong.
    ///
    /// # Errors
    /// The state in which it stands still, goes in circles, or ends wrongly.
    pub fn run_to_the_end(&self, mut state: State) -> Result<(), Box<State>> {
        let run = state.runs.len() - 1;
        for _ in 0..STEPS {
            if let Run::Ended(code) = state.runs[run] {
                let good = code == Exit::Done.code() && self.is_goal(&state) || self.needs_a_human(&state);
                return if good && state.broken == 0 { Ok(()) } else { Err(Box::new(state)) };
            }
            let Some(next) = self.next_of(&state, run) else { return Err(Box::new(state)) };
            state = next;
        }
        Err(Box::new(state))
    }

    fn next_of(&self, state: &State, run: usize) -> Option<State> {
        use crate::check::Action;
        let live = state.live(run)?;
        let size = state.nodes.len();
        let trying = |place: usize| live.doing[place] == Doing::Tried;
        let mut wanted: Vec<Action> = Vec::new();
        wanted.extend((0..size).map(Action::Boots));
        wanted.extend((0..size).filter(|place| !trying(*place)).map(Action::RollsBack));
        if matches!(live.hold, Hold::Held { age, .. } if age > 0) {
            wanted.push(Action::Renew(run, Fate::Fine));
        }
        wanted.extend([
            Action::TakeLease(run, Fate::Fine),
            Action::ReadLease(run),
            Action::Free(run, Fate::Fine),
            Action::Look(run),
        ]);
        wanted.extend((0..size).map(|place| Action::GoOn(run, place, Fate::Fine)));
        wanted.extend((0..size).map(|place| Action::Begin(run, place, Fate::Fine)));
        wanted.push(Action::Tick);
        wanted.into_iter().find_map(|action| self.does(state, action))
    }

    /// A refusal that names what a human must do: somebody's staged config, or a second reboot.
    fn needs_a_human(&self, state: &State) -> bool {
        state.nodes.iter().enumerate().any(|(place, node)| {
            let judged = self.judged(place, node, &Known::default());
            node.config == Config::Foreign
                || judged.is_some_and(|judged| judged.verdict == Verdict::Blocked(Blocked::Times))
        })
    }
}
