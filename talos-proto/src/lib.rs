//! The Talos machine API as `talos-ghcr` uses it.
pub mod clock;
pub mod permit;
pub mod proto;
