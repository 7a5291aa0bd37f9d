//! A run's rounds: look, decide, and in the end conclude.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use agent::claims::Judgement;
use agent::step::{Step, StepPolicy};
use coordinator::decide::{Action, FleetPolicy, MaxUnavailable, canary_has_passed};
use coordinator::exit::Exit;
use coordinator::fleet::{FleetNode, Snapshot, Talk};
use coordinator::identity::mismatch;
use coordinator::inventory;
use coordinator::rollout::{CLEAN_AFTER_WRITE, lost_sight};
use coordinator::settings::{LeaseName, LeaseNames};

use crate::check::World;
use crate::cluster::{Config, Node, identity};
use crate::facts::{desired, facts, now};
use crate::state::{Doing, Hold, Known, Law, Live, Op, State, View};

/// The Lease that every fence names, and the old script's, which nobody holds here.
#[must_use]
pub fn leases() -> LeaseNames<'static> {
    static NAMES: LazyLock<[LeaseName; 2]> = LazyLock::new(|| {
        ["talos-ghcr", "the-script"]
            .map(|name| LeaseName { namespace: "kube-system".to_owned(), name: name.to_owned() })
    });
    let [ours, script] = &*NAMES;
    LeaseNames { ours, script }
}

/// The flags: defaults, with one worker at a time.
#[must_use]
pub fn policy() -> FleetPolicy {
    FleetPolicy { max_unavailable: MaxUnavailable::Number(1), step: StepPolicy::default() }
}

/// The step that a node is busy with.
fn busy(doing: &Doing) -> Option<Step> {
    match doing {
        Doing::Nothing => None,
        Doing::Look => Some(Step::LookAgain(String::new())),
        Doing::Claim { .. } | Doing::Settle { op: Op::Claim, .. } => Some(Step::Claim),
        Doing::Settle { op: Op::Intent | Op::Revert, .. } | Doing::Marked { .. } => Some(Step::Reboot),
        Doing::Settle { op: Op::Adopt, .. } => Some(Step::LookAgain("adopting".to_owned())),
        Doing::Settle { op: Op::Release, .. } => Some(Step::Release),
        Doing::Tried => Some(Step::Stage),
    }
}

/// Which of the steps of [`busy`] it is.
fn tag(doing: &Doing) -> (std::mem::Discriminant<Doing>, Option<Op>) {
    let op = if let Doing::Settle { op, .. } = doing { Some(*op) } else { None };
    (std::mem::discriminant(doing), op)
}

impl World {
    /// What follows from a node's facts.
    #[must_use]
    pub fn judged(&self, place: usize, node: &Node, known: &Known) -> Option<Arc<Judgement>> {
        let pull = &known.memory.pull;
        let bare = Node { fence: None, cordoned: false, uid: 0, ..node.clone() };
        self.judged.once((place, &bare, pull), || {
            let facts = facts(node, self.setup.kinds[place], place)?;
            Some(Arc::new((self.setup.rules.judge)(&facts, &desired(), pull, now())))
        })
    }

    /// What the product's inventory knows of a run.
    pub(crate) fn inventory_known(&self, run: usize, live: &Live) -> inventory::Known {
        let claimed: BTreeSet<String> =
            live.known.iter().filter(|known| known.claimed).map(|known| format!("node-{}", known.uid)).collect();
        let held = matches!(live.hold, Hold::Held { .. } | Hold::Releasing { .. });
        inventory::Known {
            holder: held.then(|| identity(run)),
            claimed,
            halted: live.halted,
            ..inventory::Known::default()
        }
    }

    /// The fleet as a run saw it last.
    #[must_use]
    pub fn snapshot(&self, run: usize, live: &Live, view: &View) -> Snapshot {
        let known = self.inventory_known(run, live);
        let epoch = if let Hold::Held { epoch, .. } = live.hold { Some(epoch) } else { None };
        let fleet: Vec<FleetNode> = view
            .nodes
            .iter()
            .enumerate()
            .map(|(place, node)| {
                let kind = self.setup.kinds[place];
                let kube = node.view(kind, place, "1");
                let facts = facts(node, kind, place);
                FleetNode {
                    mismatch: facts.as_ref().and_then(|facts| mismatch(&kube, facts)),
                    fencing: (self.setup.rules.fencing)(&kube, &known, leases(), epoch),
                    left_out: false,
                    reboot_again: false,
                    reboot_mode: Default::default(),
                    outage: None,
                    talk: facts.map_or_else(|| Talk::Unreachable(String::new()), |facts| Talk::Facts(Box::new(facts))),
                    judgement: self.judged(place, node, &live.known[place]).map(Arc::unwrap_or_clone),
                    memory: live.known[place].memory.clone(),
                    busy: busy(&live.doing[place]),
                    kube,
                }
            })
            .collect();
        let endpoint = self.setup.kinds.iter().position(|kind| *kind == crate::cluster::Kind::Endpoint);
        let address = endpoint.map_or_else(
            || std::net::IpAddr::from([192, 0, 2, 1]),
            |place| crate::cluster::Kind::Endpoint.address(place),
        );
        let host = address.to_string();
        Snapshot {
            endpoint: (self.setup.rules.endpoint)((&host, 6443), &[address], &fleet),
            leader: None,
            canary_passed: view.canary_passed || canary_has_passed(&fleet),
            halted: live.halted,
            warnings: BTreeSet::new(),
            nodes: fleet,
        }
    }

    /// What a run may begin now, by what it saw last.
    #[must_use]
    pub fn plan(&self, run: usize, live: &Live) -> Arc<Vec<Action>> {
        let Some(view) = &live.view else { return Arc::default() };
        let busy: Vec<_> = live.doing.iter().map(tag).collect();
        let hold = match live.hold {
            Hold::Held { epoch, .. } => Some(epoch),
            Hold::Releasing { .. } => Some(-1),
            _ => None,
        };
        let key = (run, hold, view, &live.known, busy, live.halted);
        self.plans.once(key, || Arc::new((self.setup.rules.decide)(&self.snapshot(run, live, view), &policy())))
    }

    /// Whether nothing is going on and nothing may be begun: then everything is looked at anew.
    #[must_use]
    pub fn wants_look(&self, state: &State, run: usize, live: &Live) -> bool {
        let idle = live.doing.iter().all(|doing| *doing == Doing::Nothing);
        let holding = matches!(live.hold, Hold::None | Hold::Held { .. });
        self.reaches(state, run) && idle && holding && (live.view.is_none() || self.plan(run, live).is_empty())
    }

    /// A fresh inventory, and what follows from it.
    pub fn look(&self, state: &mut State, run: usize) -> Option<()> {
        let live = state.live(run)?;
        if !self.wants_look(state, run, live) {
            return None;
        }
        let mut live = live.clone();
        for (known, node) in live.known.iter_mut().zip(&state.nodes) {
            if known.uid != node.uid {
                *known = Known { uid: node.uid, ..Known::default() };
            }
        }
        live.view = Some(View { nodes: state.nodes.clone(), canary_passed: false });
        let plan = self.plan(run, &live);
        let held = matches!(live.hold, Hold::Held { .. });
        if plan.is_empty() {
            live.clean += 1;
            if !held || u32::from(live.clean) >= CLEAN_AFTER_WRITE {
                return self.conclude(state, run, live);
            }
        } else {
            live.clean = 0;
            if !held && plan.iter().any(|action| action.task.writes()) {
                live.hold = Hold::Taking(crate::state::Taking::default());
                // Observed again before acting.
                live.view = None;
            }
        }
        *state.live_mut(run)? = live;
        Some(())
    }

    fn conclude(&self, state: &mut State, run: usize, mut live: Live) -> Option<()> {
        let view = live.view.clone()?;
        let snapshot = self.snapshot(run, &live, &view);
        let left =
            !(self.setup.rules.left_over)(&snapshot, &policy()).is_empty() || snapshot.nodes.iter().any(lost_sight);
        if left {
            fail(&mut live, Exit::Failed);
        }
        if live.exit == Exit::Done.code() {
            let good = self.is_goal(state);
            state.hold(Law::S7, good);
        }
        live.view = None;
        if matches!(live.hold, Hold::Held { .. }) {
            live.hold = Hold::Releasing { wrote: false };
            *state.live_mut(run)? = live;
        } else {
            state.runs[run] = crate::state::Run::Ended(live.exit);
        }
        Some(())
    }

    /// What success means, in truth: every running CRI holds the persisted credential, and no fence or cordon of a run is
    /// left.
    #[must_use]
    pub fn is_goal(&self, state: &State) -> bool {
        state.nodes.iter().zip(&state.ghosts).all(|(node, ghost)| {
            node.config == Config::New
                && node.loaded
                && node.fence.is_none()
                && (!node.cordoned || ghost.cordoned_before)
        })
    }
}

/// Of several causes the worst counts.
pub fn fail(live: &mut Live, exit: Exit) {
    let known = [Exit::Done, Exit::Failed, Exit::Refused, Exit::Stopped, Exit::ControlLost];
    let before = known.into_iter().find(|known| known.code() == live.exit).unwrap_or(Exit::Failed);
    live.exit = before.worse(exit).code();
}
