//! Checks the laws of the control (ARCHITECTURE.md) on every state that a small cluster can reach, with the product's own
//! decisions: what is modelled is the world around them. README.md says what was left out.
//!
//! - [`rules`]: the functions of the product that decide; a mutant replaces one.
//! - [`memo`]: each question is asked once.
//! - [`cluster`], [`facts`]: the objects of the API server and the machines, and what the product reads of them.
//! - [`state`]: everything at one moment. [`wire`]: requests and what becomes of them.
//! - [`lease`], [`round`], [`steps`]: what a run does. [`world`]: what everybody else does.
//! - [`check`], [`laws`]: the model and its properties; [`setups`]: what is checked; [`report`]: what is said of it. [`recover`]: one more run, from any state, to its end.
//! - [`mutants`]: mistakes that must be found.
#![warn(missing_docs)]
#![allow(clippy::type_complexity, reason = "the signatures of the product's functions, and keys of what is remembered")]

pub mod check;
pub mod cluster;
pub mod facts;
pub mod laws;
pub mod lease;
pub mod memo;
pub mod mutants;
mod reboot;
pub mod recover;
pub mod report;
pub mod round;
pub mod rules;
pub mod settle;
pub mod setups;
mod stage;
pub mod state;
pub mod steps;
pub mod wire;
pub mod world;
