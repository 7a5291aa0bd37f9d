//! What is really so in a lab, asked of the simulated containerds and of the stores themselves, never of the product.
//! It names credentials `old` and `new` and holds no secret.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::talos::log::Entry;

/// Which credential of the lab something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Held {
    /// The one that every node starts with.
    Old,
    /// The one that is to be rolled out.
    New,
    /// None at all.
    None,
    /// Some other.
    Other,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeTruth {
    /// Its name in Kubernetes and its host name.
    pub name: String,
    /// Its Talos version.
    pub talos: String,
    /// Its address.
    pub address: String,
    /// The credential of its active machine config.
    pub configured: Held,
    /// The credential that its containerd loaded when it started.
    pub cri_loaded: Held,
    /// How often it has booted since the lab began.
    pub boots: u32,
    /// The record in its machine config: JSON, or a string when it is none.
    pub record: Option<Value>,
    /// Whether its Node is unschedulable.
    pub cordoned: bool,
    /// The fence on its Node: JSON, or a string when it is none.
    pub fence: Option<Value>,
}

/// The product's Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseTruth {
    /// Its holder; null or empty: nobody's.
    pub holder: Option<String>,
    /// How often it changed hands.
    pub transitions: i64,
    /// When it was renewed last, as it stands there.
    pub renew_time: Option<String>,
}

impl LeaseTruth {
    /// From a Lease object.
    #[must_use]
    pub fn from_object(lease: &Value) -> Self {
        let text = |field: &str| lease["spec"][field].as_str().map(str::to_owned);
        Self {
            holder: text("holderIdentity"),
            transitions: lease["spec"]["leaseTransitions"].as_i64().unwrap_or(0),
            renew_time: text("renewTime"),
        }
    }

    /// Whether somebody holds it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holder.as_deref().is_some_and(|holder| !holder.is_empty())
    }
}

pub use crate::talos::log::Counters;

impl Counters {
    /// Counts the entries of a log by server.
    #[must_use]
    pub fn by_server<'a>(
        servers: impl IntoIterator<Item = String>,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> BTreeMap<String, Self> {
        let mut counters: BTreeMap<String, Self> = servers.into_iter().map(|name| (name, Self::default())).collect();
        for entry in entries {
            let of = counters.entry(entry.server.clone()).or_default();
            *if entry.write { &mut of.writes } else { &mut of.reads } += 1;
            *of.by_method.entry(entry.method.clone()).or_default() += 1;
        }
        counters
    }
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Truth {
    /// Control planes first, then workers.
    pub nodes: Vec<NodeTruth>,
    /// `kube-system/talos-ghcr`; null when it is not there.
    pub lease: Option<LeaseTruth>,
    /// Requests since the start or the last reset, by server: `kubernetes/…`, `talos/…`, `registry`.
    pub counters: BTreeMap<String, Counters>,
    /// The nodes in the order in which they booted again.
    pub boot_order: Vec<String>,
    /// Requests that the lab does not know, since its start: there must be none.
    pub unexpected: Vec<String>,
}

impl Truth {
    /// The sum of the counters of all servers whose name begins so.
    #[must_use]
    pub fn total(&self, prefix: &str) -> Counters {
        let mut total = Counters::default();
        for (_, part) in self.counters.iter().filter(|(name, _)| name.starts_with(prefix)) {
            total.reads += part.reads;
            total.writes += part.writes;
            for (method, count) in &part.by_method {
                *total.by_method.entry(method.clone()).or_default() += count;
            }
        }
        total
    }
}

/// A JSON text as JSON, any other as a string.
#[must_use]
pub fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
