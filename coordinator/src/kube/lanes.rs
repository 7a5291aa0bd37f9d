//! One eviction at a time of the pods of one controller, whichever node's drain asks.
//!
//! Evictions under one disruption budget write one object, its status. Where two of them collide, the API server sleeps
//! half a second and tries again, up to twenty times (kubernetes pkg/registry/core/pod/storage/eviction.go,
//! `EvictionsRetry`). Whoever gives up meanwhile may have spent the budget for a pod that then is not deleted: the
//! disruption controller gives it back after two minutes only (pkg/controller/disruption, `DeletionTimeout`). One after
//! the other is faster, and nothing is spent in vain.
//!
//! Which budget a pod is under is not known beforehand; that pods of one controller are under the same one is the rule,
//! and that those of two are is rare. So one that hangs holds up its own kind and nobody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as Lane, OwnedMutexGuard};

/// The lanes of one cluster, by the UID of a controller.
#[derive(Default)]
pub struct Lanes(Mutex<HashMap<String, Arc<Lane<()>>>>);

impl Lanes {
    /// Waits for the turn of a pod of this controller, by its UID; the turn ends when the guard is dropped. A pod without
    /// a controller has no one to wait for.
    pub async fn turn(&self, controller: Option<String>) -> Option<OwnedMutexGuard<()>> {
        let controller = controller?;
        let lane = {
            let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(lanes.entry(controller).or_default())
        };
        Some(lane.lock_owned().await)
    }
}
