//! Crash points: the lab numbers every mutating request from 1 and can hold the k-th, before it is applied or after,
//! until the test has killed the client. The product has no hook for this.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// On which side of its effect a mutating request is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// It arrived and nothing has changed yet.
    Before,
    /// It took effect and was not answered yet.
    After,
}

/// What becomes of a request at a crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Continue,
    /// Its connection is closed without an answer.
    Cut,
}

/// A mutating request, as it was announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// Its number among all mutating requests of the lab, from 1.
    pub number: u64,
    /// What it is, for example `kubernetes/cp-1 PATCH nodes/worker-1`.
    pub what: String,
}

struct Armed {
    reached: watch::Sender<Option<Mutation>>,
    fate: watch::Receiver<Option<Fate>>,
}

/// The crash points of one lab.
#[derive(Default)]
pub struct Faults {
    arrived: AtomicU64,
    armed: Mutex<HashMap<(u64, When), Armed>>,
}

impl Faults {
    fn armed(&self) -> MutexGuard<'_, HashMap<(u64, When), Armed>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many mutating requests have arrived.
    #[must_use]
    pub fn mutations(&self) -> u64 {
        self.arrived.load(Ordering::SeqCst)
    }

    /// Arms a crash point at the `k`-th mutating request, counted from the lab's start.
    pub fn crash_point(&self, k: u64, when: When) -> CrashPoint {
        let (reached, reached_receiver) = watch::channel(None);
        let (fate_sender, fate) = watch::channel(None);
        self.armed().insert((k, when), Armed { reached, fate });
        CrashPoint { reached: reached_receiver, fate: fate_sender }
    }

    /// Arms a crash point at the `k`-th mutating request from now on (1 = the next).
    pub fn crash_point_from_now(&self, k: u64, when: When) -> CrashPoint {
        self.crash_point(self.mutations() + k, when)
    }

    /// A server numbers a mutating request that has arrived.
    pub fn number(&self, what: String) -> Mutation {
        Mutation { number: self.arrived.fetch_add(1, Ordering::SeqCst) + 1, what }
    }

    /// A server asks on each side of the effect what becomes of the request, and waits while it is held.
    pub async fn gate(&self, mutation: &Mutation, when: When) -> Fate {
        let Some(armed) = self.armed().remove(&(mutation.number, when)) else { return Fate::Continue };
        let _ = armed.reached.send(Some(mutation.clone()));
        let mut fate = armed.fate;
        // A crash point that the test has dropped holds nothing.
        fate.wait_for(Option::is_some).await.ok().and_then(|fate| *fate).unwrap_or(Fate::Continue)
    }
}

/// A request that is held, or will be.
#[must_use = "a crash point that is dropped holds nothing"]
pub struct CrashPoint {
    reached: watch::Receiver<Option<Mutation>>,
    fate: watch::Sender<Option<Fate>>,
}

impl CrashPoint {
    /// Waits until the request is held there. None: the lab ended before.
    pub async fn reached(&mut self) -> Option<Mutation> {
        self.reached.wait_for(Option::is_some).await.ok().and_then(|mutation| mutation.clone())
    }

    /// Lets it go on as if nothing had been.
    pub fn release(self) {
        let _ = self.fate.send(Some(Fate::Continue));
    }

    /// Closes its connection without an answer.
    pub fn cut(self) {
        let _ = self.fate.send(Some(Fate::Cut));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_mutation_is_held_after_its_effect_and_cut() {
        let faults = Faults::default();
        let mut point = faults.crash_point(2, When::After);
        let first = faults.number("PATCH nodes/a".into());
        assert_eq!(faults.gate(&first, When::After).await, Fate::Continue);
        let second = faults.number("PATCH nodes/b".into());
        assert_eq!(faults.gate(&second, When::Before).await, Fate::Continue);
        let (fate, ()) = tokio::join!(faults.gate(&second, When::After), async {
            assert_eq!(point.reached().await.unwrap(), second);
            point.cut();
        });
        assert_eq!(fate, Fate::Cut);
    }
}
