//! What the flags say, checked and with their units.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use agent::credential::RegistryHost;

use crate::commands::Kubectl;
use crate::decide::FleetPolicy;
use crate::gates::GateRules;
use crate::hooks::Hooks;
use crate::kube::api_servers::KubeServer;
use crate::kube::drain::DrainOptions;
use crate::kube::lease::{Takeover, Timing};
use crate::reboot_mode::RebootModes;

/// The name of a Lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("{text:?} is not NAMESPACE/NAME")),
        }
    }
}

/// What Kubernetes takes for a name (RFC 1123): it becomes part of a URL.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
}

/// Rounds of a run unless `--max-rounds` says otherwise. A fleet that is not done after so many is changed by somebody
/// else all the time.
pub const DEFAULT_ROUNDS: u32 = 20;
/// Rounds that a roll takes at least: one that finds work, one that does it once the lease is held, two that find nothing
/// more.
pub const LEAST_ROUNDS: u32 = 4;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// Evictions and the pods' end, for one node.
    pub drain: Duration,
    /// From the reboot call until the node is ready.
    pub reboot: Duration,
    /// How long a closed gate is waited for.
    pub gate: Duration,
    /// How long a Live node may take to adopt.
    pub adopt: Duration,
    /// The whole run; `None` is no limit.
    pub run: Option<Duration>,
}

/// The Leases that a fence may stand under without naming it to us.
#[derive(Clone, Copy, Debug)]
pub struct LeaseNames<'a> {
    /// Ours.
    pub ours: &'a LeaseName,
    /// The old script's; ours as well while both tools are in use.
    pub script: &'a LeaseName,
}

/// Everything that the flags decide.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Registry hosts whose credential is managed.
    pub registries: Vec<RegistryHost>,
    /// Private images whose pull is proved.
    pub images: Vec<String>,
    /// API servers beside the kubeconfig's and the control planes' own.
    pub kube_servers: Vec<KubeServer>,
    /// Only these nodes are worked on; empty is all.
    pub nodes: Vec<String>,
    /// These are left alone.
    pub exclude: Vec<String>,
    /// These may be rebooted although they have been for this revision.
    pub reboot_again: Vec<String>,
    /// How each node is rebooted.
    pub reboot_modes: RebootModes,
    /// Our Lease.
    pub lease: LeaseName,
    /// The old script's.
    pub legacy_lease: Option<LeaseName>,
    /// Its times.
    pub timing: Timing,
    /// How long a living holder is waited for; `None` watches one that may be dead, zero refuses at first sight.
    pub lease_wait: Option<Duration>,
    /// When the lease of another may be taken.
    pub takeover: Takeover,
    /// About order and budget.
    pub fleet: FleetPolicy,
    /// The command rolls, or shows how a roll would go.
    pub rolls: bool,
    /// One or two control planes: their reboot takes the API or the quorum away.
    pub allow_control_plane_outage: bool,
    /// How people reach the cluster, for the commands that are printed.
    pub kubectl: Kubectl,
    /// About pods.
    pub drain: DrainOptions,
    /// How long things may take.
    pub budgets: Budgets,
    /// How often the whole fleet may be looked at in a run.
    pub max_rounds: u32,
    /// Commands of the user's own.
    pub hooks: Hooks,
}

impl Settings {
    /// The Leases' names.
    #[must_use]
    pub fn leases(&self) -> LeaseNames<'_> {
        LeaseNames { ours: &self.lease, script: self.legacy_lease.as_ref().unwrap_or(&self.lease) }
    }

    /// The gates' rules, before anything is disrupted.
    #[must_use]
    pub fn gate_rules(&self) -> GateRules {
        GateRules {
            max_unavailable: self.fleet.max_unavailable,
            allow_outage: self.allow_control_plane_outage,
            restarting: BTreeSet::new(),
        }
    }

    /// Whether the node of that name is left alone.
    #[must_use]
    pub fn leaves_out(&self, name: &str) -> bool {
        self.exclude.iter().any(|excluded| excluded == name)
            || (!self.nodes.is_empty() && !self.nodes.iter().any(|node| node == name))
    }

    /// The image whose pull is proved and its registry: the first that belongs to a managed one.
    #[must_use]
    pub fn proof_image(&self) -> Option<(&RegistryHost, &str)> {
        self.images.iter().find_map(|image| {
            let host = image.split_once('/').map(|(host, _)| host)?;
            let registry = self.registries.iter().find(|registry| registry.as_str() == host)?;
            Some((registry, image.as_str()))
        })
    }
}
