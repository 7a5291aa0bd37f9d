//! What a step of a node came to.

use agent::claims::{Blocked, Pull};
use agent::write::WriteError;
use talos_proto::permit::NoPermit;
use talos_proto::{CallError, Why, chain};

use crate::exit::Exit;
use crate::kube::drain::DrainError;
use crate::kube::fence::FenceError;

/// How a step ended.
#[derive(Debug)]
pub enum End {
    /// It is done, or the next look will say what is.
    Done,
    /// Something is in the way that may go by itself: looked at again, within the gate's budget.
    Again(String),
    /// It failed for good, in this run.
    Failed(Failure),
    /// The lease does not allow it now.
    NoPermit(NoPermit),
}

/// A step that failed for good.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Why, as the node's verdict from now on.
    pub blocked: Blocked,
    /// What it makes of the exit code.
    pub exit: Exit,
    /// No other node is disrupted after this.
    pub halts: bool,
    /// The node did not come back: fence and cordon stay.
    pub stuck: bool,
}

impl Failure {
    /// A failure of one node alone.
    #[must_use]
    pub fn of_node(blocked: Blocked) -> Self {
        Self { blocked, exit: Exit::Failed, halts: false, stuck: false }
    }

    /// Stopped at a gate or a budget, with nothing left behind.
    #[must_use]
    pub fn at_gate(reason: String) -> Self {
        Self { blocked: Blocked::Step(reason), exit: Exit::Stopped, halts: false, stuck: false }
    }

    /// The credential was not seen to work, or the node did not come back: the roll ends here.
    #[must_use]
    pub fn halting(blocked: Blocked, stuck: bool) -> Self {
        Self { blocked, exit: Exit::Failed, halts: true, stuck }
    }
}

/// What a step taught about its node; all of it soft.
#[derive(Debug, Default)]
pub struct Learned {
    /// The pull's result.
    pub pull: Option<Pull>,
    /// Nothing that must go is left on it.
    pub drained: bool,
    /// CRI did not restart by itself in time.
    pub not_adopted: bool,
    /// It is back.
    pub ready: bool,
    /// Its reboot will not come.
    pub settled: bool,
    /// We fenced it, in its turn.
    pub claimed: bool,
    /// Its fence is gone.
    pub released: bool,
    /// It is left cordoned, and nobody knows whether it was cordoned before.
    pub cordon_unknown: bool,
    /// The credential was seen to work on it.
    pub canary_passed: bool,
}

impl From<NoPermit> for End {
    fn from(no: NoPermit) -> Self {
        End::NoPermit(no)
    }
}

impl From<WriteError> for End {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::NoPermit(no) => End::NoPermit(no),
            WriteError::ForeignConfig => End::Failed(Failure::of_node(Blocked::ForeignConfig)),
            WriteError::Edit(_) | WriteError::NoConfig => End::Failed(Failure::of_node(Blocked::Config(chain(&error)))),
            // What cannot be read or was not seen may be seen in a moment.
            WriteError::Read(_) | WriteError::NotSeen(_) => End::Again(chain(&error)),
            WriteError::Refused(_) | WriteError::Contended | WriteError::NotEffective => {
                End::Failed(Failure::of_node(Blocked::Step(chain(&error))))
            }
        }
    }
}

impl From<FenceError> for End {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::NoPermit(no) => End::NoPermit(no),
            // The node went away or changed under us: the next look says what it is now.
            FenceError::Gone { .. } | FenceError::Replaced { .. } | FenceError::Leaving { .. } => End::Done,
            other => End::Again(chain(&other)),
        }
    }
}

impl From<DrainError> for End {
    fn from(error: DrainError) -> Self {
        match error {
            DrainError::NoPermit { source, .. } => End::NoPermit(source),
            DrainError::Read { .. } => End::Again(chain(&error)),
            _ => End::Failed(Failure::at_gate(chain(&error))),
        }
    }
}

/// A call that failed before or without an effect that matters.
pub fn of_call(error: CallError) -> End {
    match error.why {
        Why::NoPermit(no) => End::NoPermit(no),
        Why::NotAuthorized | Why::NotSupported | Why::Refused { .. } => {
            End::Failed(Failure::of_node(Blocked::Step(chain(&error))))
        }
        _ => End::Again(chain(&error)),
    }
}
