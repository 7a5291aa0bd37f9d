//! `doctor`: everything that a run depends on, looked at once and said in one list; changes nothing.
//!
//! It goes on after a failure, for whoever calls it has one already: a file that is broken hides only what cannot be looked
//! at without it, and that is said. Each room asks and then judges; judging is pure.

mod clock;
mod files;
mod kubernetes;
mod managers;
mod nodes;
mod registry;
mod residue;
mod talos;
mod validity;

use std::path::PathBuf;
use std::sync::Arc;

use agent::credential::Desired;
use serde::Serialize;
use talos_proto::Talos;
use talos_proto::channel::Routing;
use talos_proto::clock::Clock;
use talos_proto::config::{Context as TalosContext, TalosConfigError};
use talos_proto::identity::{ADMIN, Identity};

use crate::ci::Ci;
use crate::inventory::{Context, Inventory, Known};
use crate::kube::api_servers::{ApiServers, KubeconfigError};
use crate::kube::nodes::NodeView;
use crate::plan::SCHEMA_VERSION;
use crate::settings::Settings;

pub use registry::look as registry;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, Serialize)]
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
    // Of what has no channel the identity's checks have told already.
    let talos = identity.zip(talosconfig.ok()).and_then(|(identity, context)| {
        let talos = Talos::new(&identity, &context.endpoints, routing, clock.clone()).ok()?;
        Some((identity, talos))
    });
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
    let without = without.as_deref();
    match &talos {
        Some(_) => checks.extend(talos::endpoints(&endpoints, nodes)),
        None => checks.push(Check::not_looked_at("talos endpoint", NO_TALOS)),
    }
    match &servers {
        Ok(servers) => checks.extend(kubernetes::checks(&cluster.kubernetes, servers, &cluster)),
        Err(_) => checks.push(Check::not_looked_at("api server", NO_KUBECONFIG)),
    }
    checks.extend(registry);
    checks.extend(nodes::checks(&cluster, &settings));
    checks.extend(clock::checks(&cluster.clocks, without));
    checks.extend(managers::checks(&cluster.managers, without));
    checks.extend(residue::checks(&cluster.residue, &settings, now, without));
    checks
}

const NOT_LOOKED_AT: &str = "not looked at";
const NO_KUBECONFIG: &str = "there is no kubeconfig that can be used";
const NO_SERVER: &str = "no Kubernetes API server answers us";
const NO_TALOS: &str = "there is no Talos identity to ask with";

/// All that was seen of the cluster.
struct Cluster {
    kubernetes: kubernetes::Seen,
    /// The Nodes, or why there are none.
    listed: Result<Vec<NodeView>, String>,
    /// The Nodes and the machines behind them; needs both sides.
    inventory: Result<Inventory, String>,
    clocks: Vec<clock::Reading>,
    managers: Result<managers::Seen, String>,
    residue: Result<crate::fences::Seen, String>,
}

impl Cluster {
    async fn look(
        servers: Option<&ApiServers>,
        talos: Option<&(Identity, Talos)>,
        desired: &Desired,
        settings: &Settings,
        clock: &Clock,
    ) -> Self {
        let none = async |kubernetes: kubernetes::Seen, why: &str| Self {
            kubernetes,
            listed: Err(why.to_owned()),
            inventory: Err(why.to_owned()),
            clocks: match talos {
                Some((identity, talos)) => clock::ask_endpoints(talos, identity.has_role(ADMIN)).await,
                None => Vec::new(),
            },
            managers: Err(why.to_owned()),
            residue: Err(why.to_owned()),
        };
        let Some(servers) = servers else { return none(kubernetes::Seen::default(), NO_KUBECONFIG).await };
        let mut kubernetes = kubernetes::greet(servers, settings).await;
        if !kubernetes.answers() {
            return none(kubernetes, NO_SERVER).await;
        }
        let ci = Arc::new(Ci::from_env(clock));
        let context = talos.map(|(identity, talos)| Context {
            servers: servers.clone(),
            talos: talos.clone(),
            ci: Arc::clone(&ci),
            identity: identity.clone(),
            desired: desired.clone(),
            settings: settings.clone(),
            warnings: Vec::new(),
        });
        let (rights, inventory, pods) = futures::join!(
            kubernetes::rights(servers, settings),
            async {
                match &context {
                    Some(context) => {
                        context.inventory(&Known::default()).await.map_err(|error| talos_proto::chain(&error))
                    }
                    None => Err(format!("{NOT_LOOKED_AT}: {NO_TALOS}")),
                }
            },
            managers::pods(servers),
        );
        kubernetes.rights = Some(rights);
        let listed = match &inventory {
            Ok(inventory) => Ok(inventory.snapshot.nodes.iter().map(|node| node.kube.clone()).collect()),
            Err(_) => crate::kube::nodes::list(servers).await.map_err(|error| talos_proto::chain(&error)),
        };
        let nodes: &[NodeView] = listed.as_deref().unwrap_or_default();
        let (joined, residue, mut clocks) = futures::join!(
            kubernetes::join(servers, nodes),
            async {
                match &listed {
                    Ok(nodes) => crate::fences::look_beside(nodes.clone(), servers, settings.leases(), &ci).await,
                    Err(_) => crate::fences::look(servers, settings.leases(), &ci).await,
                }
                .map_err(|error| talos_proto::chain(&error))
            },
            async {
                match (&context, &inventory) {
                    (Some(context), Ok(inventory)) => clock::ask(context, inventory).await,
                    (Some(_), Err(_)) => clock::untold(nodes, "no machine could be joined with its Node"),
                    (None, _) => clock::untold(nodes, NO_TALOS),
                }
            },
        );
        kubernetes.take(joined);
        clock::by_servers(&mut clocks, &kubernetes, nodes);
        let managers = match &listed {
            Ok(nodes) => pods.map(|pods| managers::seen(nodes, &pods)),
            Err(why) => Err(why.clone()),
        };
        Self { kubernetes, listed, inventory, clocks, managers, residue }
    }

    fn nodes(&self) -> &[NodeView] {
        self.listed.as_deref().unwrap_or_default()
    }

    /// Why the cluster's objects could not be looked at, if none could.
    fn without(&self) -> Option<String> {
        self.listed.as_ref().err().cloned()
    }
}

fn plural(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}
