//! The behaviours of tests/BEHAVIOURS.md, proved with the real binary against the lab: real processes, real sockets,
//! all times scaled. A test that proves L07 is called `l07_…`.
#![allow(clippy::disallowed_methods, reason = "tests of real processes wait in real time")]

mod harness;
mod smoke;
