//! What every step works with.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::claims::Pull;
use agent::record::{Entry, PullRecord};
use jiff::Timestamp;
use talos_proto::channel::Avoided;
use talos_proto::clock::Clock;
use talos_proto::node::Node;
use talos_proto::permit::NoPermit;
use tokio_util::sync::CancellationToken;

use super::saved::Saved;
use crate::fleet::FleetNode;
use crate::gates::GateRules;
use crate::inventory::Context;
use crate::kube::lease::{HeldLease, LeaseState};
use crate::report::progress::Progress;

/// Shared by all steps of a run.
#[derive(Clone)]
pub struct Env {
    /// The cluster.
    pub context: Arc<Context>,
    /// The lease; steps that write are never begun without it.
    pub lease: Option<Arc<HeldLease>>,
    /// Where events go.
    pub progress: Progress,
    /// Cancelled by a signal or `--timeout`.
    pub stop: CancellationToken,
    /// Held from the look at the gates until the fence is written or the config applied: two steps must not take one free
    /// place.
    pub gate: Arc<tokio::sync::Mutex<()>>,
    /// Nodes whose CRI this run has set out to restart: no fence shows them to the gates.
    pub restarting: Arc<Mutex<BTreeSet<String>>>,
    /// What was said once.
    pub said: Arc<Mutex<BTreeSet<String>>>,
    /// Since when machine configs are the same.
    pub saved: Saved,
    /// Nodes that nothing is proxied through while they are away.
    pub avoided: Arc<Mutex<HashMap<String, Avoided>>>,
}

impl Env {
    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.context.talos.clock()
    }

    /// The lease.
    ///
    /// # Errors
    /// [`NoPermit::Released`] when there is none: a step that writes was begun without it.
    pub fn held(&self) -> Result<Arc<HeldLease>, NoPermit> {
        self.lease.clone().ok_or(NoPermit::Released)
    }

    /// The Talos side of a node.
    #[must_use]
    pub fn node(&self, node: &FleetNode) -> Option<Node> {
        node.address().map(|address| self.context.talos.node(address))
    }

    /// Whether nothing has asked the run to stop and the lease is not lost.
    #[must_use]
    pub fn can_go_on(&self) -> bool {
        let lost = |lease: &Arc<HeldLease>| matches!(*lease.state().borrow(), LeaseState::Lost { .. });
        !self.stop.is_cancelled() && !self.lease.as_ref().is_some_and(lost)
    }

    /// Waits, unless the run is asked to stop: then what is waited for is dropped.
    ///
    /// # Errors
    /// [`NoPermit::Stopping`].
    pub async fn unless_stopped<T>(&self, wait: impl Future<Output = T>) -> Result<T, NoPermit> {
        tokio::select! {
            done = wait => Ok(done),
            () = self.stop.cancelled() => Err(NoPermit::Stopping),
        }
    }

    /// The gates' rules.
    #[must_use]
    pub fn rules(&self) -> GateRules {
        let restarting = self.restarting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        GateRules { restarting, ..self.context.settings.gate_rules() }
    }

    /// An event about a node.
    pub fn say(&self, node: &FleetNode, text: &str) {
        self.progress.event(node.name(), text);
    }

    /// Its CRI is about to restart, or is healthy again.
    pub fn restarts(&self, node: &FleetNode, begins: bool) {
        let mut restarting = self.restarting.lock().unwrap_or_else(PoisonError::into_inner);
        if begins {
            restarting.insert(node.name().to_owned());
        } else {
            restarting.remove(node.name());
        }
    }

    /// Something that holds for every node: said once in a run.
    pub fn say_once(&self, text: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.insert(text.to_owned()) {
            self.progress.event("", text);
        }
    }

    /// Proxies nothing through the node from now on.
    pub fn avoid(&self, node: &FleetNode, address: IpAddr) {
        let mut avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        // A second guard would end the first, and with it what both are for.
        avoided.entry(node.name().to_owned()).or_insert_with(|| self.context.talos.avoid(address));
    }

    /// It is back: it may be a proxy again.
    pub fn use_again(&self, node: &FleetNode) {
        self.avoided.lock().unwrap_or_else(PoisonError::into_inner).remove(node.name());
    }

    /// How long a canary's TRY stands before Talos rolls it back: 5 minutes with the default lease, and scaled with it.
    #[must_use]
    pub fn try_timeout(&self) -> Duration {
        self.context.settings.timing.duration.mul_f64(5.0 / 3.0).min(Duration::from_secs(300))
    }

    /// What a record of this node says beyond its state; `None` when the revision cannot be computed.
    #[must_use]
    pub fn entry(&self, node: &FleetNode, pull: &Pull) -> Option<Entry> {
        let facts = node.facts()?;
        let revision = node.judgement.as_ref()?.revision?;
        Some(Entry {
            revision,
            boot: facts.boot.seen().cloned(),
            cri: facts.cri.seen().cloned(),
            images: self.context.settings.proof_image().map(|(_, image)| image.to_owned()).into_iter().collect(),
            pull: match pull {
                Pull::Proved(_) => PullRecord::Proved,
                Pull::Unprovable(_) => PullRecord::Unprovable,
                Pull::NotTried | Pull::Failed(_) => PullRecord::None,
            },
            // Whole seconds: it is for people.
            at: Timestamp::from_second(self.clock().utc().as_second()).unwrap_or_default(),
            holder: self.lease.as_ref().map(|lease| lease.holder().to_owned()).unwrap_or_default(),
        })
    }
}
