//! What a registry, or whatever stands between it and its clients, does wrong when a test asks for it.

use std::time::Duration;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with this status, by whatever stands before the registry; 429 comes with `Retry-After: 7`.
    Answer(u16),
    /// It is answered as ever, that much later.
    Slow(Duration),
    /// The connection is cut before there is an answer.
    Cut,
    /// The connection is cut in the middle of the answer's body (of HEAD, which has none: before it).
    CutShort,
    /// It is sent on with 307 to the same path at this `host:port`.
    Redirect(String),
}

/// The tokens that the token endpoint gives for a good credential.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tokens {
    /// Good ones, for what was asked.
    #[default]
    Good,
    /// Ones that ran out ten minutes ago: the clocks of the two servers differ.
    Expired,
    /// Good ones, for another repository.
    WrongScope,
}

/// Which requests have which fault.
#[derive(Default)]
pub(super) struct Faults {
    pub everywhere: Option<Fault>,
    by_path: Vec<(String, Fault)>,
}

impl Faults {
    pub(super) fn set(&mut self, prefix: &str, fault: Option<Fault>) {
        self.by_path.retain(|(other, _)| other != prefix);
        self.by_path.extend(fault.map(|fault| (prefix.to_owned(), fault)));
    }

    /// The fault of a request to this path and query.
    pub(super) fn of(&self, target: &str) -> Option<Fault> {
        let by_path = || self.by_path.iter().find(|(prefix, _)| target.starts_with(prefix));
        self.everywhere.clone().or_else(|| by_path().map(|(_, fault)| fault.clone()))
    }
}
