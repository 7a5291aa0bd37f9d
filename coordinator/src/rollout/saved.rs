//! Since when each node's machine config is the same. Talos saves an applied config asynchronously, and a reboot by force
//! does not wait for that: what was applied just before it would be lost.
//!
//! A config counts from the moment in which this run saw it first, whoever applied it: no clock of a node is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::facts::Configs;
use talos_proto::clock::Moment;

use crate::fleet::FleetNode;

/// A config by its counters, which begin anew with each boot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    boot: String,
    versions: (u64, u64),
}

/// What was seen, by Node UID.
#[derive(Clone, Debug, Default)]
pub struct Saved(Arc<Mutex<HashMap<String, (Seen, Moment)>>>);

impl Saved {
    /// Notes what a look at a node has shown.
    pub fn note(&self, node: &FleetNode, now: Moment) {
        if let Some(configs) = node.facts().and_then(|facts| facts.configs.seen()) {
            self.stands_for(node, configs, now);
        }
    }

    /// How long these configs of a node have stood for certain.
    pub fn stands_for(&self, node: &FleetNode, configs: &Configs, now: Moment) -> Duration {
        let versions = (configs.active_version, configs.persistent_version);
        let seen = Seen { boot: node.boot().unwrap_or_default().to_owned(), versions };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = all.entry(node.kube.uid.clone()).or_insert_with(|| (seen.clone(), now));
        if entry.0 != seen {
            *entry = (seen, now);
        }
        now.since(entry.1)
    }
}
