//! Everything at one moment.

use agent::step::Memory;
use coordinator::exit::Exit;

use crate::cluster::{Lease, Node};
use crate::memo::Text;
use crate::wire::Message;

/// The whole world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The Lease, if there is one.
    pub lease: Option<Lease>,
    /// UIDs that Leases have had.
    pub lease_uids: u8,
    /// The nodes, in the order of the setup.
    pub nodes: Vec<Node>,
    /// What happened to each node, for the laws only: no decision sees it.
    pub ghosts: Vec<Ghost>,
    /// The runs.
    pub runs: Vec<Run>,
    /// Requests that their senders do not wait for any more and that may still land.
    pub wire: Vec<Message>,
    /// Disturbances that may still come.
    pub faults: u8,
    /// Processes that may still be killed.
    pub deaths: u8,
    /// The laws that were broken on the way here, as bits of [`Law`].
    pub broken: u16,
}

/// What only the laws look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// An operator had cordoned it before any run.
    pub cordoned_before: bool,
    /// An operator has uncordoned it under a fence.
    pub uncordoned: bool,
    /// A reboot was asked for in this boot, and nobody has found out that it will not come.
    pub asked: Option<u8>,
    /// Reboots that were asked for and happened since its config last changed.
    pub reboots: u8,
    /// The runs that began its turn with a claim of their own, and so were in order then; one bit each.
    pub turns: u8,
    /// Others have rebooted it while its clock was wrong, so that no time and no record tells that it has loaded: it is
    /// rebooted once more, on the safe side.
    pub misled: bool,
}

/// A law that a step can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// The budget.
    S1 = 1,
    /// The permit.
    S2 = 2,
    /// Who is rebooted.
    S3 = 4,
    /// The order.
    S4 = 8,
    /// Cordons that are not ours.
    S5 = 16,
    /// A reboot is asked for once.
    S6 = 32,
    /// What success means.
    S7 = 64,
    /// A release of a lease that is ours is not refused.
    Freed = 128,
}

impl State {
    /// Notes that a law was broken, unless `kept`.
    pub fn hold(&mut self, law: Law, kept: bool) {
        if !kept {
            self.broken |= law as u16;
        }
    }

    /// Whether that law was kept on the way here.
    #[must_use]
    pub fn keeps(&self, law: Law) -> bool {
        self.broken & law as u16 == 0
    }

    /// That run, if it is alive.
    #[must_use]
    pub fn live(&self, run: usize) -> Option<&Live> {
        match self.runs.get(run) {
            Some(Run::Live(live)) => Some(live),
            _ => None,
        }
    }

    /// As [`State::live`], to change it.
    pub fn live_mut(&mut self, run: usize) -> Option<&mut Live> {
        match self.runs.get_mut(run) {
            Some(Run::Live(live)) => Some(live),
            _ => None,
        }
    }
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// Not started yet.
    Waiting,
    /// Alive; one that does nothing for a while is one that was stopped.
    Live(Box<Live>),
    /// Killed.
    Dead,
    /// It has ended by itself.
    Ended(u8),
}

/// A live process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Live {
    /// Its side of the lease.
    pub hold: Hold,
    /// Its inventory.
    pub view: Option<View>,
    /// What it remembers of each node.
    pub known: Vec<Known>,
    /// What it is in the middle of on each node.
    pub doing: Vec<Doing>,
    /// Inventories in a row in which nothing was to be done.
    pub clean: u8,
    /// A node of its did not come back, or the credential was not seen to work.
    pub halted: bool,
    /// Something failed.
    pub exit: u8,
    /// No API server answers it.
    pub cut: bool,
    /// Its wall clock was stepped forward.
    pub stepped: bool,
    /// Its lease had lapsed once.
    pub lapsed: bool,
}

impl Live {
    /// A process that has just started.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self {
            hold: Hold::None,
            view: None,
            known: vec![Known::default(); nodes],
            doing: vec![Doing::Nothing; nodes],
            clean: 0,
            halted: false,
            exit: Exit::Done.code(),
            cut: false,
            stepped: false,
            lapsed: false,
        }
    }
}

/// What a run remembers of a node beyond what the cluster shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Known {
    /// The UID that it is about.
    pub uid: u8,
    /// The product's memory.
    pub memory: Memory,
    /// It claimed the node in its turn.
    pub claimed: bool,
}

/// An inventory: copies of what was there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The nodes as they were seen last.
    pub nodes: Vec<Node>,
    /// A canary has passed.
    pub canary_passed: bool,
}

/// A run's side of the lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    /// Nothing was written yet.
    None,
    /// It is being taken.
    Taking(Taking),
    /// It is held, as far as the writer knows.
    Held {
        /// The Lease's UID.
        uid: u8,
        /// The transitions at the acquisition.
        epoch: i64,
        /// Ticks since the last renewal that is known to have succeeded.
        age: u8,
    },
    /// The work is done: it is given back.
    Releasing {
        /// A write of it may have been applied.
        wrote: bool,
    },
}

/// A lease that is being taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Taking {
    /// The record that was read: `None` before the first read, `Some(None)` when there is no Lease.
    pub read: Option<Option<Lease>>,
    /// Nobody has written it since.
    pub fresh: bool,
    /// Ticks for which it was watched unchanged.
    pub watched: u8,
    /// The same holding still stands.
    pub same: bool,
    /// Its dead holder was given the time for a last request to land.
    pub waited: bool,
    /// It may be taken as it was read.
    pub go: bool,
    /// Ticks since the first write that was sent.
    pub tried: Option<u8>,
}

/// What a run is in the middle of on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Nothing.
    Nothing,
    /// The step is done; the node is looked at again as soon as the API answers.
    Look,
    /// The gates were open for a claim; the patch is not sent yet.
    Claim {
        /// Cordoned, as the gates saw it.
        cordoned: bool,
        /// The fence, as the gates saw it.
        fence: Option<Text>,
        /// Nobody has written the Node since.
        fresh: bool,
    },
    /// A fence is being set, changed or removed, and a reply did not come.
    Settle {
        /// Which.
        op: Op,
        /// The value that stood there.
        old: Text,
        /// The value that is to stand there.
        new: Text,
    },
    /// The intent stands in the fence: the last look and the call come next.
    Marked {
        /// The fence with the intent.
        value: Text,
        /// The fence before.
        claimed: Text,
    },
    /// The canary's TRY is applied, its pull comes next.
    Tried,
}

/// What is done to a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Set, with the cordon.
    Claim,
    /// The intent of a reboot.
    Intent,
    /// The intent taken back.
    Revert,
    /// Taken over from a dead run.
    Adopt,
    /// Removed, with the cordon.
    Release,
}
