//! What CI knows of a holder: GitHub says whether the job that took a lease still runs.
//!
//! Asked only about a holder that this machine's processes cannot tell of, once in a while and within seconds; what is
//! not answered clearly is unknown, and then the lease's own rule of time decides. The token goes to the API that our
//! own environment names and to nobody else: what stands in an annotation of the cluster never chooses the server.

mod github;
mod judge;
mod place;
#[cfg(test)]
pub(crate) mod tests;
mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use talos_proto::clock::{Clock, Moment};

use crate::holder::{Evidence, Life, life_of};
use github::{Client, Transport};
use place::{Environment, Place};

/// An answer is kept for so long, unless it is final; a lease is read every few seconds.
const FRESH: Duration = Duration::from_secs(30);
/// A server that limits us is believed up to here.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// How the life of a holder is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By its process on this machine, or by nothing at all.
    Process,
    /// By its CI job. A runner that the server has lost may still run it: death is believed only of a record that then
    /// stands unchanged for some renewals.
    Ci,
}

/// A holder as it was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Whether it lives.
    pub life: Life,
    /// How that is known.
    pub by: By,
}

/// Asks about holders. One for the whole process, so that no question is put twice.
pub struct Ci {
    environment: Environment,
    /// What a holder of this very job would have left as evidence.
    me: Evidence,
    clock: Clock,
    transport: Transport,
    /// By holder.
    kept: Mutex<BTreeMap<String, Kept>>,
    /// Holders whose record stood unchanged although their job had ended.
    confirmed: Mutex<BTreeSet<String>>,
}

struct Kept {
    life: Life,
    /// `None`: a job that has ended stays so.
    until: Option<Moment>,
}

impl fmt::Debug for Ci {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ci").field("environment", &self.environment).finish_non_exhaustive()
    }
}

impl Ci {
    /// With the token of `GH_TOKEN`, else of `GITHUB_TOKEN`; without one nobody is ever asked.
    #[must_use]
    pub fn from_env(clock: &Clock) -> Self {
        let environment = Environment::read(|name| std::env::var(name).ok());
        Self::new(environment, Evidence::of_this_process(clock), clock.clone(), github::https())
    }

    fn new(environment: Environment, me: Evidence, clock: Clock, transport: Transport) -> Self {
        Self { environment, me, clock, transport, kept: Mutex::default(), confirmed: Mutex::default() }
    }

    /// Judges a holder: by its process where that can be seen, else by its CI job.
    pub async fn life(&self, holder: &str, evidence: Option<&Evidence>) -> Judged {
        let Life::Unknown(unseen) = life_of(evidence) else {
            return Judged { life: life_of(evidence), by: By::Process };
        };
        let unknown = |why: &str| {
            let why = if why.is_empty() { unseen.clone() } else { format!("{unseen}; {why}") };
            Judged { life: Life::Unknown(why), by: By::Process }
        };
        let place = match self.environment.place(holder, evidence) {
            Ok(Some(place)) => place,
            Ok(None) => return unknown(""),
            Err(why) => return unknown(&why),
        };
        // Of this job it is known that it runs, for we are in it: that says nothing of a process of an earlier step.
        if self.is_this_job(evidence) {
            return unknown("it is of this very job, which says nothing of its process");
        }
        let life = match self.kept(holder) {
            Some(life) => life,
            None => self.ask(holder, &place).await,
        };
        match life {
            Life::Unknown(why) => unknown(&why),
            life => Judged { life, by: By::Ci },
        }
    }

    async fn ask(&self, holder: &str, place: &Place) -> Life {
        let client = Client { transport: &self.transport, clock: &self.clock, environment: &self.environment };
        let (life, pause) = client.life(place, self.is_this_attempt(place)).await;
        let until = match &life {
            Life::Dead(_) => None,
            _ => Some(self.clock.now() + pause.unwrap_or_default().clamp(FRESH, LONGEST_PAUSE)),
        };
        lock(&self.kept).insert(holder.to_owned(), Kept { life: life.clone(), until });
        life
    }

    fn kept(&self, holder: &str) -> Option<Life> {
        let now = self.clock.now();
        let kept = lock(&self.kept);
        kept.get(holder).filter(|kept| kept.until.is_none_or(|until| now < until)).map(|kept| kept.life.clone())
    }

    fn is_this_job(&self, evidence: Option<&Evidence>) -> bool {
        let job = |of: &Evidence| {
            let Evidence { run, attempt, job, repository, server, runner, .. } = of.clone();
            Some((run?, attempt?, job?, repository, server, runner))
        };
        evidence.and_then(job).is_some_and(|theirs| job(&self.me) == Some(theirs))
    }

    /// Whether we run in the same attempt of the same run: that it is in progress says nothing then.
    fn is_this_attempt(&self, place: &Place) -> bool {
        let number = |text: &Option<String>| text.as_ref()?.parse::<u64>().ok();
        number(&self.me.run) == Some(place.run)
            && number(&self.me.attempt) == Some(u64::from(place.attempt))
            && self.me.repository.as_ref().is_some_and(|ours| ours.eq_ignore_ascii_case(&place.repository))
    }

    fn is_confirmed(&self, holder: &str) -> bool {
        lock(&self.confirmed).contains(holder)
    }

    fn confirm(&self, holder: &str) {
        lock(&self.confirmed).insert(holder.to_owned());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
