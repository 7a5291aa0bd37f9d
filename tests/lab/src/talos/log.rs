//! One ordered log of all requests that a lab's servers were asked, and the counters that come from it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use talos_proto::clock::Clock;
use tokio::sync::watch;

/// One request, at the server where it entered.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    last: watch::Sender<u64>,
}

impl Default for Log {
    fn default() -> Self {
        Self { clock: Clock::system(), entries: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Log {
    /// Notes a request and gives its number.
    pub fn note(&self, server: &str, method: &str, target: &str, write: bool) -> u64 {
        self.push(server, method, target, write, false)
    }

    /// Notes a request that the lab does not know; it counts as a write.
    pub fn unexpected(&self, server: &str, method: &str, target: &str) -> u64 {
        self.push(server, method, target, true, true)
    }

    fn push(&self, server: &str, method: &str, target: &str, write: bool, unexpected: bool) -> u64 {
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
}
