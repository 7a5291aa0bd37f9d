//! One ordered log of all requests that a lab's servers were asked, and the counters that come from it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use talos_proto::clock::Clock;
use tokio::sync::watch;

/// One request, at the server where it entered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// From 1, in the order of arrival over all servers of the lab.
    pub seq: u64,
    /// When it arrived.
    pub at: Timestamp,
    /// The server that was asked, for instance `talos/cp-1`.
    pub server: String,
    /// The gRPC path, or what was asked of the Kubernetes API (`PATCH nodes`).
    pub method: String,
    /// What it was about: another node that it was meant for, a path.
    pub target: String,
    /// It changes stored state.
    pub write: bool,
    /// The lab does not know this request: a test must fail on it.
    pub unexpected: bool,
    /// Who asked, as the client's certificate names it; empty where that has no name.
    pub client: String,
    /// Its place, from 1, among the requests that changed stored state and were not refused, in the order in which they
    /// took effect. None: it only reads, it was refused, or it never took effect.
    pub landed: Option<u64>,
}

/// How many requests a server was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Requests that change nothing.
    pub reads: u64,
    /// Requests that change stored state, also those that were refused.
    pub writes: u64,
    /// Both, by what was asked.
    pub by_method: BTreeMap<String, u64>,
}

/// The log of a lab; shared by all its servers.
#[derive(Debug)]
pub struct Log {
    clock: Clock,
    entries: Mutex<Vec<Entry>>,
    landed: AtomicU64,
    last: watch::Sender<u64>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            entries: Mutex::default(),
            landed: AtomicU64::new(0),
            last: watch::Sender::new(0),
        }
    }
}

impl Log {
    /// Notes a request and gives its number.
    pub fn note(&self, server: &str, method: &str, target: &str, write: bool) -> u64 {
        self.note_of("", server, method, target, write)
    }

    /// The same of a client that is known by name.
    pub fn note_of(&self, client: &str, server: &str, method: &str, target: &str, write: bool) -> u64 {
        self.push(client, server, method, target, (write, false))
    }

    /// The request with that number took effect.
    pub fn landed(&self, seq: u64) {
        let mut entries = self.entries();
        let place = usize::try_from(seq).ok().and_then(|seq| seq.checked_sub(1));
        if let Some(entry) = place.and_then(|place| entries.get_mut(place)) {
            entry.landed = Some(self.landed.fetch_add(1, Ordering::SeqCst) + 1);
        }
    }

    /// Notes a request that the lab does not know; it counts as a write.
    pub fn unexpected(&self, server: &str, method: &str, target: &str) -> u64 {
        self.push("", server, method, target, (true, true))
    }

    fn push(&self, client: &str, server: &str, method: &str, target: &str, (write, unexpected): (bool, bool)) -> u64 {
        let mut entries = self.entries();
        let seq = entries.len() as u64 + 1;
        entries.push(Entry {
            seq,
            at: self.clock.utc(),
            server: server.to_owned(),
            method: method.to_owned(),
            target: target.to_owned(),
            write,
            unexpected,
            client: client.to_owned(),
            landed: None,
        });
        self.last.send_replace(seq);
        seq
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        // A poisoned list of plain values is still a list.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything so far.
    #[must_use]
    pub fn all(&self) -> Vec<Entry> {
        self.entries().clone()
    }

    /// The requests that change stored state.
    #[must_use]
    pub fn writes(&self) -> Vec<Entry> {
        self.entries().iter().filter(|entry| entry.write).cloned().collect()
    }

    /// The requests that took effect, in the order in which they did.
    #[must_use]
    pub fn effects(&self) -> Vec<Entry> {
        let mut effects: Vec<_> = self.entries().iter().filter(|entry| entry.landed.is_some()).cloned().collect();
        effects.sort_by_key(|entry| entry.landed);
        effects
    }

    /// The requests that the lab does not know.
    #[must_use]
    pub fn surprises(&self) -> Vec<Entry> {
        self.entries().iter().filter(|entry| entry.unexpected).cloned().collect()
    }

    /// The number of the last entry; moves with each.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Counters of one server.
    #[must_use]
    pub fn counters(&self, server: &str) -> Counters {
        let mut counters = Counters::default();
        for entry in self.entries().iter().filter(|entry| entry.server == server) {
            counters.add(entry);
        }
        counters
    }

    /// Counters of every server that was asked anything.
    #[must_use]
    pub fn by_server(&self) -> BTreeMap<String, Counters> {
        let mut servers = BTreeMap::<String, Counters>::new();
        for entry in self.entries().iter() {
            servers.entry(entry.server.clone()).or_default().add(entry);
        }
        servers
    }
}

impl Counters {
    fn add(&mut self, entry: &Entry) {
        *if entry.write { &mut self.writes } else { &mut self.reads } += 1;
        *self.by_method.entry(entry.method.clone()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_the_log_seen_by_server() {
        let log = Log::default();
        log.note("talos/a", "/machine.MachineService/Version", "b", false);
        log.note("talos/a", "/machine.MachineService/Reboot", "b", true);
        log.unexpected("talos/b", "/nope.Nope/Nope", "");
        let a = log.counters("talos/a");
        assert_eq!((a.reads, a.writes, a.by_method.len()), (1, 1, 2));
        assert_eq!(log.surprises().iter().map(|entry| entry.seq).collect::<Vec<_>>(), [3]);
        assert_eq!(log.by_server().len(), 2);
        assert_eq!(*log.watch().borrow(), 3);
    }

    #[test]
    fn effects_are_in_the_order_in_which_they_took_place_and_name_their_client() {
        let log = Log::default();
        let slow = log.note_of("one", "talos/a", "Pull", "a", true);
        let refused = log.note_of("two", "kubernetes/a", "PATCH nodes", "b", true);
        let quick = log.note_of("two", "kubernetes/a", "PATCH leases", "c", true);
        log.landed(quick);
        log.landed(slow);
        let effects = log.effects();
        let seen: Vec<_> = effects.iter().map(|entry| (entry.client.as_str(), entry.seq, entry.landed)).collect();
        assert_eq!(seen, [("two", quick, Some(1)), ("one", slow, Some(2))]);
        assert_eq!(log.all().iter().find(|entry| entry.seq == refused).and_then(|entry| entry.landed), None);
    }
}
