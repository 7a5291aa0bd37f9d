//! The recorded exchanges of a real API server (fixtures/kubernetes), asked again: of the lab's own API by the lab's
//! tests, of a real one by tests/conformance. What both answer as it was recorded, the one may stand for the other in.

pub mod compare;
pub mod play;
pub mod recording;
pub mod scripts;

#[cfg(test)]
pub(crate) mod simulated;

pub use play::{Replay, Report, Target};
