//! Exit codes. Frozen: scripts hold them.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, or nothing to do.
    Done,
    /// Failed, or something is left that a human must see.
    Failed,
    /// Something differs (`plan --detailed-exitcode`, `verify`).
    Differs,
    /// Refused: the lease is held by another.
    Refused,
    /// Stopped at a gate, a drain budget or `--timeout`; fences and cordons are undone.
    Stopped,
    /// Control was lost; run the same command again.
    ControlLost,
    /// The command line is wrong.
    Usage,
    /// Ended by a signal of that number.
    Signal(u8),
}

impl Exit {
    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Differs => 2,
            Exit::Refused => 3,
            Exit::Stopped => 4,
            Exit::ControlLost => 5,
            Exit::Usage => 64,
            Exit::Signal(number) => 128 + number,
        }
    }

    /// What the number means, for the last line of a failure.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Failed => "failed, or something is left that a human must see",
            Exit::Differs => "something differs",
            Exit::Refused => "refused: another holds the lease",
            Exit::Stopped => "stopped at a gate or a budget; fences and cordons of this run are undone",
            Exit::ControlLost => "control lost; run the same command again",
            Exit::Usage => "usage",
            Exit::Signal(_) => "ended by a signal",
        }
    }

    /// Of several causes the first of 5, 1, 4, 3 counts.
    #[must_use]
    pub fn worse(self, other: Exit) -> Exit {
        let weight = |exit: Exit| match exit {
            Exit::Signal(_) => 7,
            Exit::ControlLost => 6,
            Exit::Usage => 5,
            Exit::Failed => 4,
            Exit::Stopped => 3,
            Exit::Refused => 2,
            Exit::Differs => 1,
            Exit::Done => 0,
        };
        if weight(other) > weight(self) { other } else { self }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p09_of_several_causes_control_lost_comes_first_then_failure_gate_refusal() {
        let all = [Exit::Refused, Exit::Stopped, Exit::Failed, Exit::ControlLost];
        for (index, worst) in all.iter().enumerate() {
            assert_eq!(all[..=index].iter().fold(Exit::Done, |exit, next| exit.worse(*next)), *worst);
        }
    }

    #[test]
    fn the_numbers_are_frozen() {
        let codes =
            [Exit::Done, Exit::Failed, Exit::Differs, Exit::Refused, Exit::Stopped, Exit::ControlLost, Exit::Usage]
                .map(Exit::code);
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 64]);
        assert_eq!((Exit::Signal(2).code(), Exit::Signal(15).code()), (130, 143));
    }
}
