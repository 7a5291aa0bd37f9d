//! What must be so at the end, judged by the lab's truth.

use super::{ENDPOINT, Seen};
use crate::truth::{Held, LeaseTruth, NodeTruth, Truth};

/// One demand and what speaks against it.
pub(super) struct Check {
    pub demand: String,
    /// Empty when it holds.
    pub against: String,
}

impl Check {
    fn new(demand: impl Into<String>, against: impl Into<String>) -> Self {
        Self { demand: demand.into(), against: against.into() }
    }

    pub fn holds(&self) -> bool {
        self.against.is_empty()
    }
}

/// Every demand.
pub(super) fn all(seen: &Seen) -> Vec<Check> {
    let truth = &seen.truth;
    let nodes = |bad: fn(&NodeTruth) -> bool| {
        let names: Vec<_> = truth.nodes.iter().filter(|node| bad(node)).map(|node| node.name.as_str()).collect();
        names.join(", ")
    };
    let holder = truth.lease.as_ref().filter(|lease| LeaseTruth::is_held(lease)).and_then(|lease| lease.holder.clone());
    vec![
        Check::new("every command ended with exit code 0", failed(seen)),
        Check::new("every containerd holds the new credential", nodes(|node| node.cri_loaded != Held::New)),
        Check::new("no cordon is left", nodes(|node| node.cordoned)),
        Check::new("no fence is left", nodes(|node| node.fence.is_some())),
        Check::new("the lease is not held", holder.unwrap_or_default()),
        Check::new(format!("the endpoint node ({ENDPOINT}) booted last"), not_last(truth)),
        Check::new("the second run wrote nothing", wrote(seen)),
        Check::new("nothing was asked that the lab does not know", truth.unexpected.join(", ")),
    ]
}

fn failed(seen: &Seen) -> String {
    let Some(bad) = seen.commands.iter().find(|ended| ended.code != Some(0)) else { return String::new() };
    match bad.code {
        Some(code) => format!("{}: exit code {code}", bad.name),
        None => format!("{}: ended by a signal", bad.name),
    }
}

fn not_last(truth: &Truth) -> String {
    match truth.boot_order.last() {
        Some(last) if last == ENDPOINT => String::new(),
        Some(last) => format!("{last} did"),
        None => "no node booted".to_owned(),
    }
}

fn wrote(seen: &Seen) -> String {
    let writes = writes(&seen.truth);
    match seen.commands.iter().any(|ended| ended.name == "run again") {
        false => "there was none".to_owned(),
        true if writes == 0 => String::new(),
        true => format!("{writes} writes"),
    }
}

/// Writes in Kubernetes and in Talos.
pub(super) fn writes(truth: &Truth) -> u64 {
    truth.total("kubernetes/").writes + truth.total("talos/").writes
}
