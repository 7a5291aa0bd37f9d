//! The product against a real Talos cluster, which `make conformance-talos` is given: `tests/conformance/talos/README.md`.
//!
//! Nothing of the lab is used here. What is true is read from Kubernetes with a client of the suite's own, and compared
//! with what the product says. All tests are ignored unless they are asked for, and fail when what they need is missing:
//! a suite that was asked for never passes without having looked.
#![allow(clippy::disallowed_macros, reason = "its reader is a person who waits for a roll")]

mod cluster;
mod look;
mod roll;
mod secrets;
mod suite;
