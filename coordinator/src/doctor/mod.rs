//! `doctor`: everything that a run depends on, looked at once and said in one list; changes nothing.
//!
//! It goes on after a failure, for whoever calls it has one already: a file that is broken hides only what cannot be looked
//! at without it, and that is said. Each room asks and then judges; judging is pure.

mod clock;
mod cluster;
mod files;
mod kubernetes;
mod managers;
mod nodes;
mod registry;
mod residue;
mod talos;
mod validity;

use std::path::PathBuf;

use agent::credential::Desired;
use schemars::JsonSchema;
use serde::Serialize;
use talos_proto::Talos;
use talos_proto::channel::Routing;
use talos_proto::clock::Clock;
use talos_proto::config::{Context as TalosContext, TalosConfigError};

use crate::kube::api_servers::{ApiServers, KubeconfigError};
use crate::plan::SCHEMA_VERSION;
use crate::settings::Settings;

use cluster::Cluster;
pub use registry::look as registry;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should be.
    Ok,
    /// A run may work, but somebody should know.
    Warning,
    /// A run would fail.
    Fault,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub health: Health,
    /// What was seen.
    pub detail: String,
    /// What to do about it; a command to paste where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Check {
    fn new(name: &'static str, health: Health, detail: impl Into<String>) -> Self {
        Self { name, health, detail: detail.into(), next: None }
    }

    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Health::Ok, detail)
    }

    fn warning(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Health::Warning, detail)
    }

    fn fault(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Health::Fault, detail)
    }

    /// What could not be looked at for want of something else, whose own check says what to do.
    fn not_looked_at(name: &'static str, why: &str) -> Self {
        Self::warning(name, format!("{NOT_LOOKED_AT}: {why}"))
    }

    fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }
}

/// The document that `doctor` shows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DoctorDocument {
    /// Version of the shape.
    pub schema_version: u32,
    /// `Doctor`.
    pub kind: &'static str,
    /// All checks, in the order in which a run meets them.
    pub checks: Vec<Check>,
}

impl DoctorDocument {
    /// From the checks.
    #[must_use]
    pub fn new(checks: Vec<Check>) -> Self {
        Self { schema_version: SCHEMA_VERSION, kind: "Doctor", checks }
    }

    /// The worst of all.
    #[must_use]
    pub fn health(&self) -> Health {
        self.checks.iter().map(|check| check.health).max().unwrap_or(Health::Ok)
    }

    /// How many are only what could not be looked at.
    #[must_use]
    pub fn unseen(&self) -> usize {
        self.checks.iter().filter(|check| check.detail.starts_with(NOT_LOOKED_AT)).count()
    }

    /// How many came out so.
    #[must_use]
    pub fn count(&self, health: Health) -> usize {
        self.checks.iter().filter(|check| check.health == health).count()
    }
}

/// Where the credential was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// `--credential-file`.
    File(PathBuf),
    /// `--credential-file -`.
    Stdin,
    /// The environment variable of that name.
    Variable(&'static str),
}

/// What the flags name, each read by itself and wrong by itself.
pub struct Patient {
    /// What needs no file.
    pub settings: Settings,
    /// `--route`.
    pub routing: Routing,
    /// Where the credential was looked for.
    pub credential_source: CredentialSource,
    /// The credential, `None` when none was given; else what is wrong with it.
    pub credential: Result<Option<Desired>, String>,
    /// The talosconfig's context.
    pub talosconfig: Result<TalosContext, TalosConfigError>,
    /// The kubeconfig's API server.
    pub servers: Result<ApiServers, KubeconfigError>,
}

/// Looks at everything, as much of it at once as can be. Nothing is changed anywhere.
pub async fn examine(patient: Patient, clock: &Clock) -> Vec<Check> {
    let now = clock.utc();
    let mut checks = files::look(&patient, clock).await;
    let (identity, mut of_identity) = talos::identity(&patient.talosconfig, now);
    checks.append(&mut of_identity);
    let Patient { settings, routing, credential, talosconfig, servers, .. } = patient;
    let desired = credential.ok().flatten().unwrap_or_default();
    let talos = match identity.zip(talosconfig.ok()) {
        None => None,
        Some((identity, context)) => match Talos::new(&identity, &context.endpoints, routing, clock.clone()) {
            Ok(talos) => Some((identity, talos)),
            Err(error) => {
                checks.push(Check::fault("talos identity", talos_proto::chain(&error)));
                None
            }
        },
    };
    let (endpoints, cluster, registry) = futures::join!(
        async {
            match &talos {
                Some((_, talos)) => talos::ask(talos).await,
                None => Vec::new(),
            }
        },
        Cluster::look(servers.as_ref().ok(), talos.as_ref(), &desired, &settings, clock),
        registry::look(&desired, &settings.images, clock),
    );
    let (nodes, without) = (cluster.nodes(), cluster.without());
    match &talos {
        Some(_) => checks.extend(talos::endpoints(&endpoints, nodes)),
        None => checks.push(Check::not_looked_at("talos endpoint", NO_TALOS)),
    }
    match &servers {
        Ok(servers) => checks.extend(kubernetes::checks(&cluster.kubernetes, servers, &cluster)),
        Err(_) => checks.push(Check::not_looked_at("api server", NO_KUBECONFIG)),
    }
    checks.extend(registry);
    checks.extend(nodes::checks(&cluster, &settings, talos::answers(&endpoints)));
    checks.extend(clock::checks(&cluster.clocks, without));
    checks.extend(managers::checks(&cluster.managers, without));
    checks.extend(residue::checks(&cluster.residue, &settings, now, without));
    checks
}

const NOT_LOOKED_AT: &str = "not looked at";
const NO_KUBECONFIG: &str = "there is no kubeconfig that can be used";
const NO_SERVER: &str = "no Kubernetes API server answers us";
const NO_TALOS: &str = "there is no Talos identity to ask with";

fn plural(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}
