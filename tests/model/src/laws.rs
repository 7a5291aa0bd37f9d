//! What must hold in every state, and what must be reachable so that this says something.

use coordinator::exit::Exit;
use stateright::Property;

use crate::check::World;
use crate::cluster::{Config, identity};
use crate::state::{Hold, Law, Live, Run, State};

/// The properties.
#[must_use]
pub fn properties() -> Vec<Property<World>> {
    vec![
        Property::always("S1 budget", |_, state: &State| state.keeps(Law::S1)),
        Property::always("S2 permit", |_, state: &State| state.keeps(Law::S2)),
        Property::always("S3 reboot only what needs it", |_, state: &State| state.keeps(Law::S3)),
        Property::always("S4 order", |_, state: &State| state.keeps(Law::S4)),
        Property::always("S5 cordons of others", |_, state: &State| state.keeps(Law::S5)),
        Property::always("S6 asked once", |_, state: &State| state.keeps(Law::S6)),
        Property::always("S7 success is true", |_, state: &State| state.keeps(Law::S7)),
        Property::always("S7 the lease is given back", |_, state: &State| ended_holds_nothing(state)),
        Property::always("S7 a release of ours is not refused", |_, state: &State| state.keeps(Law::Freed)),
        Property::always("S8 the next run ends it", |world: &World, state: &State| {
            state.broken != 0 || world.recovers(state)
        }),
        Property::sometimes("a takeover", |_, state: &State| taken_over(state)),
        Property::sometimes("an adoption", |_, state: &State| adopted(state)),
        Property::sometimes("a residue given back", |_, state: &State| given_back(state)),
        Property::sometimes("a lapse ridden out", |_, state: &State| {
            lives(state).any(|(_, live)| live.lapsed && matches!(live.hold, Hold::Releasing { .. }))
        }),
        Property::sometimes("a canary rolled back", |_, state: &State| {
            lives(state).any(|(_, live)| {
                let rolled = |place: usize| {
                    live.halted && state.nodes[place].config == Config::Old && live.known[place].memory.failed.is_some()
                };
                (0..state.nodes.len()).any(rolled)
            })
        }),
        Property::sometimes("a finished roll", |world: &World, state: &State| {
            let done = state.runs.iter().any(|run| *run == Run::Ended(Exit::Done.code()));
            done && world.is_goal(state) && state.lease.as_ref().is_some_and(|lease| lease.holder.is_none())
        }),
        Property::sometimes("control lost", |_, state: &State| {
            state.runs.iter().any(|run| *run == Run::Ended(Exit::ControlLost.code()))
        }),
        Property::sometimes("refused", |_, state: &State| {
            state.runs.iter().any(|run| *run == Run::Ended(Exit::Refused.code()))
        }),
    ]
}

fn lives(state: &State) -> impl Iterator<Item = (usize, &Live)> {
    state.runs.iter().enumerate().filter_map(|(number, run)| match run {
        Run::Live(live) => Some((number, &**live)),
        _ => None,
    })
}

fn ended_holds_nothing(state: &State) -> bool {
    let holder = state.lease.as_ref().and_then(|lease| lease.holder);
    let ended = holder.and_then(|holder| state.runs.get(usize::from(holder)));
    !matches!(ended, Some(Run::Ended(code)) if *code == Exit::Done.code())
}

/// A run holds the lease that a dead one had held.
fn taken_over(state: &State) -> bool {
    state.runs.contains(&Run::Dead)
        && lives(state).any(|(_, live)| matches!(live.hold, Hold::Held { epoch, .. } if epoch > 8))
}

/// A run holds a fence that it did not claim in the node's turn.
fn adopted(state: &State) -> bool {
    state.runs.contains(&Run::Dead)
        && lives(state).any(|(number, live)| {
            let ours = format!("\"holder\":\"{}\"", identity(number));
            (0..state.nodes.len()).any(|place| {
                let fence = state.nodes[place].fence.as_ref();
                fence.is_some_and(|fence| fence.contains(&ours)) && !live.known[place].claimed
            })
        })
}

/// A run that took a lease over has come to its end, and no fence is left.
fn given_back(state: &State) -> bool {
    let over = state.lease.as_ref().is_some_and(|lease| lease.transitions > 8);
    let ending = lives(state).any(|(_, live)| matches!(live.hold, Hold::Releasing { .. }));
    over && ending && state.runs.contains(&Run::Dead) && state.nodes.iter().all(|node| node.fence.is_none())
}
