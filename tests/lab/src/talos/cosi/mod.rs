//! A node's COSI state: resources in memory, lost with every boot.

pub(crate) mod kind;
pub(crate) mod spec;
pub(crate) mod store;

pub(crate) use kind::Kind;
pub(crate) use store::Store;
