//! One eviction at a time in each namespace, whichever node's drain asks.
//!
//! Evictions under one disruption budget write one object, its status. Where two of them collide, the API server sleeps
//! half a second and tries again, up to twenty times (kubernetes pkg/registry/core/pod/storage/eviction.go,
//! `EvictionsRetry`). Whoever gives up meanwhile may have spent the budget for a pod that then is not deleted: the
//! disruption controller gives it back after two minutes only (pkg/controller/disruption, `DeletionTimeout`). One after
//! the other is faster, and nothing is spent in vain. Budgets do not reach beyond their namespace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as Lane, OwnedMutexGuard};

/// The lanes of one cluster.
#[derive(Default)]
pub struct Lanes(Mutex<HashMap<String, Arc<Lane<()>>>>);

impl Lanes {
    /// Waits for its turn in that namespace; the turn ends when the guard is dropped.
    pub async fn turn(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let lane = {
            let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(lanes.entry(namespace.to_owned()).or_default())
        };
        lane.lock_owned().await
    }
}
