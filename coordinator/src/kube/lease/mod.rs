//! The one Lease: whoever holds it may mutate.
//!
//! Three laws: a write tests holder and transitions (a compare-and-set, never a PUT, which would re-create a deleted
//! Lease); the record's `renewTime` is never compared with our clock; and one task writes, so that a renewal can never
//! race a release.

pub mod acquire;
pub mod evaluate;
pub mod held;
pub mod record;
pub mod timing;
pub mod watched;
mod wire;
mod writer;

#[cfg(test)]
mod tests;

pub use acquire::{AcquireError, HeldByAnother, LeaseOptions, LeaseProgress, acquire, look};
pub use evaluate::{Evaluation, Takeover, creation_waits, evaluate};
pub use held::{Asked, HeldLease, LeaseState, Release, ReleaseError, Standing, grant};
pub use record::LeaseRecord;
pub use timing::Timing;
pub use watched::Watched;
pub use wire::{new_lease, release_patch, renew_patch, take_patch};
pub use writer::{Claimed, ReleaseNext, Renewal, release_next, renewal_seen};
