//! The rules of one Talos node, a library: which credential it should have, what it has, what follows from that.
//!
//! Most of it is pure: facts in, a verdict or a step out. Nothing here knows Kubernetes or the fleet.
//!
//! - [`credential`]: a registry's credential and the set that a run was given.
//! - [`revision`]: the public name of such a set.
//! - [`image`]: references to images.
//! - [`machine_config`]: what a config says, and the edit that leaves every other byte alone.
//! - [`record`]: the annotation that says what was written to a node, and for which CRI process.
//! - [`facts`], [`claims`], [`step`]: what was read, what follows from it, what the node needs next.
//! - [`write`](mod@write), [`pull`], [`adopt`]: the effects on one node.
#![warn(missing_docs)]

pub mod adopt;
pub mod claims;
pub mod credential;
pub mod facts;
pub mod image;
pub mod machine_config;
pub mod pull;
pub mod record;
pub mod revision;
pub mod step;
pub mod write;
