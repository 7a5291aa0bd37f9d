//! When API servers did not answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use talos_proto::clock::Moment;

/// A server that did not do its work for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its address; none is all of them at once.
    pub server: Option<String>,
    /// The first request that failed.
    pub from: Moment,
    /// The last one that did.
    pub last: Moment,
    /// The next answer; none when none was seen, be it that nobody asked there again.
    pub to: Option<Moment>,
    /// Why the first one failed.
    pub why: String,
    /// Requests that failed.
    pub requests: u32,
}

/// Collects the outages of a set of servers.
#[derive(Debug, Default)]
pub struct Outages(Mutex<Vec<Outage>>);

impl Outages {
    /// A request to that server failed; none is: every server was tried.
    pub fn failed(&self, server: Option<&str>, now: Moment, why: &str) {
        let mut outages = self.lock();
        if let Some(outage) = outages.iter_mut().find(|it| it.to.is_none() && it.server.as_deref() == server) {
            outage.last = now;
            outage.requests += 1;
            return;
        }
        outages.push(Outage {
            server: server.map(str::to_owned),
            from: now,
            last: now,
            to: None,
            why: why.to_owned(),
            requests: 1,
        });
    }

    /// That server answered.
    pub fn answered(&self, server: &str, now: Moment) {
        let ended = |it: &&mut Outage| it.to.is_none() && it.server.as_deref().is_none_or(|name| name == server);
        self.lock().iter_mut().filter(ended).for_each(|outage| outage.to = Some(now));
    }

    /// All until now, in the order of their begins.
    #[must_use]
    pub fn all(&self) -> Vec<Outage> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Outage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn an_outage_lasts_from_the_first_failure_to_the_next_answer_of_that_server() {
        let outages = Outages::default();
        outages.answered("a", at(0));
        outages.failed(Some("a"), at(1), "refused");
        outages.failed(Some("a"), at(2), "reset");
        outages.failed(Some("b"), at(2), "late");
        outages.failed(None, at(2), "a: reset; b: late");
        outages.answered("b", at(3));
        outages.answered("b", at(4));
        let told: Vec<_> =
            outages.all().into_iter().map(|it| (it.server, it.from, it.last, it.to, it.requests)).collect();
        assert_eq!(
            told,
            [
                (Some("a".to_owned()), at(1), at(2), None, 2),
                (Some("b".to_owned()), at(2), at(2), Some(at(3)), 1),
                (None, at(2), at(2), Some(at(3)), 1),
            ]
        );
        assert_eq!(outages.all()[0].why, "refused");
        outages.answered("a", at(9));
        outages.failed(Some("a"), at(10), "refused");
        assert_eq!(outages.all().len(), 4, "a second outage is one of its own");
    }
}
