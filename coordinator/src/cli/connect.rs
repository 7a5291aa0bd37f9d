//! From flags to a [`Context`]: everything that can be wrong is found before the first connection.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use talos_proto::clock::short;

use agent::credential::{CredentialError, Desired, RegistryHost};
use agent::step::StepPolicy;
use talos_proto::Talos;
use talos_proto::channel::{ChannelError, Routing};
use talos_proto::clock::Clock;
use talos_proto::config::{Context as TalosContext, TalosConfigError, locate};
use talos_proto::identity::{Identity, IdentityError};
use zeroize::Zeroizing;

use super::args::{Common, HookArgs, MissingProof, Roll, TakeoverArg, Time};
use crate::ci::Ci;
use crate::commands::Kubectl;
use crate::decide::{FleetPolicy, MaxUnavailable};
use crate::exit::Exit;
use crate::hooks::Hooks;
use crate::inventory::Context;
use crate::kube::api_servers::{ApiServers, KubeServer, KubeconfigError};
use crate::kube::drain::DrainOptions;
use crate::kube::lease::Timing;
use crate::reboot_mode::RebootModes;
use crate::report::actions;
use crate::settings::{Budgets, DEFAULT_ROUNDS, Settings};
use crate::talos_alone::TalosAlone;

/// The environment variable that holds the docker config itself.
pub(super) const CREDENTIAL: &str = "TALOS_GHCR_CREDENTIAL";
/// Shorter leases leave no time for a call; tests use the shortest.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// Why a command cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No credential was given.
    #[error(
        "no credential: give a docker config JSON (or a Secret or RegistryAuthConfig that holds it) with --credential-file PATH (or - for stdin), or its content in {CREDENTIAL}"
    )]
    NoCredential,
    /// The credential file cannot be read.
    #[error("the credential file {} cannot be read", file.display())]
    ReadCredential {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It holds no usable credential.
    #[error("the credential cannot be used")]
    Credential(#[source] CredentialError),
    /// A flag's value is out of range.
    #[error("--{flag}: {problem}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The talosconfig.
    #[error(transparent)]
    TalosConfig(#[from] TalosConfigError),
    /// Its certificates.
    #[error("talosconfig {}: {source}", file.display())]
    Identity {
        /// The file.
        file: PathBuf,
        /// Which and why.
        source: IdentityError,
    },
    /// Its endpoints.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The kubeconfig.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
}

impl ConnectError {
    /// What was typed wrong is usage; what a file holds is a failure.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            ConnectError::NoCredential | ConnectError::Flag { .. } => Exit::Usage,
            _ => Exit::Failed,
        }
    }
}

/// A cluster that is only looked at.
pub enum Cluster {
    /// With Kubernetes.
    Whole(Box<Context>),
    /// By Talos alone, for nobody has named a kubeconfig and none is there.
    Talos(Box<TalosAlone>),
}

/// Only the credential, for what needs no cluster.
///
/// # Errors
/// [`ConnectError`] about the credential.
pub fn credential_only(common: &Common) -> Result<Desired, ConnectError> {
    desired(common.credential_file.as_deref(), &common.registry)?.ok_or(ConnectError::NoCredential)
}

/// Only Kubernetes, for what needs neither Talos nor a credential.
///
/// # Errors
/// [`ConnectError`] about the kubeconfig.
pub async fn kubernetes_only(common: &Common, clock: &Clock) -> Result<(ApiServers, Kubectl), ConnectError> {
    let kubectl = Kubectl {
        kubeconfig: common.kubeconfig.clone().filter(|path| !path.as_os_str().is_empty()),
        context: common.kube_context.clone().filter(|context| !context.is_empty()),
    };
    let (file, context) = (kubectl.kubeconfig.as_deref(), kubectl.context.as_deref());
    let servers = ApiServers::connect(file, context, clock.clone()).await?;
    Ok((servers, kubectl))
}

/// Reads every file that the flags name, and connects nothing yet.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(common: Common, roll: Option<Roll>, clock: &Clock) -> Result<Context, ConnectError> {
    let given = Given::new(common, roll)?;
    let desired = given.credential()?.ok_or(ConnectError::NoCredential)?;
    let side = TalosSide::of(&given, clock)?;
    let servers = given.servers(clock).await?;
    Ok(whole(given, desired, side, servers, clock))
}

/// As [`connect`], for a look that does without a credential, and without a kubeconfig when nobody speaks of one. One that
/// is named and is not there, or is broken, stays an error: to look elsewhere than somebody meant is worse than none.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect_to_look(common: Common, clock: &Clock) -> Result<Cluster, ConnectError> {
    let given = Given::new(common, None)?;
    let desired = given.credential()?.unwrap_or_default();
    let side = TalosSide::of(&given, clock)?;
    match given.servers(clock).await {
        Ok(servers) => Ok(Cluster::Whole(Box::new(whole(given, desired, side, servers, clock)))),
        Err(KubeconfigError::NotFound { named: false, .. }) if !given.speaks_of_kubernetes() => {
            let TalosSide { talos, identity, nodes, warnings } = side;
            let settings = given.settings;
            Ok(Cluster::Talos(Box::new(TalosAlone { talos, identity, desired, settings, nodes, warnings })))
        }
        Err(error) => Err(error.into()),
    }
}

fn whole(given: Given, desired: Desired, side: TalosSide, servers: ApiServers, clock: &Clock) -> Context {
    let TalosSide { talos, identity, nodes: _, mut warnings } = side;
    warnings.extend(servers.warnings().iter().cloned());
    let ci = Arc::new(Ci::from_env(clock));
    Context { servers, talos, ci, identity, desired, settings: given.settings, warnings }
}

/// What the talosconfig gives.
struct TalosSide {
    talos: Talos,
    identity: Identity,
    nodes: Vec<String>,
    warnings: Vec<String>,
}

impl TalosSide {
    fn of(given: &Given, clock: &Clock) -> Result<Self, ConnectError> {
        let selected = given.talosconfig()?;
        let identity = Identity::from_context(&selected, clock.utc())
            .map_err(|source| ConnectError::Identity { file: selected.file.clone(), source })?;
        let talos = Talos::new(&identity, &selected.endpoints, given.routing, clock.clone())?;
        let findings = selected.warnings().iter().chain(identity.warnings());
        let findings = findings.map(|finding| format!("talosconfig {}: {finding}", selected.file.display()));
        let warnings = findings.chain(given.other_credential()).collect();
        Ok(Self { talos, identity, nodes: selected.nodes, warnings })
    }
}

/// What the flags say, before any file is read: each of the files can then be read, and be wrong, by itself.
#[derive(Debug)]
pub struct Given {
    /// All that needs no file.
    pub settings: Settings,
    /// `--route`.
    pub routing: Routing,
    /// `--credential-file`.
    pub credential_file: Option<PathBuf>,
    talosconfig: Option<PathBuf>,
    context: Option<String>,
    endpoints: Vec<String>,
}

impl Given {
    /// Checks the flags' values.
    ///
    /// # Errors
    /// [`ConnectError::Flag`].
    pub fn new(common: Common, roll: Option<Roll>) -> Result<Self, ConnectError> {
        let Common {
            talosconfig,
            context,
            endpoints,
            route,
            kubeconfig,
            kube_context,
            kube_server,
            nodes,
            exclude,
            registry,
            credential_file,
            image,
            lease,
            legacy_lease,
            output: _,
        } = common;
        // A variable that is set to nothing is as good as none: CI sets optional ones so.
        let given = |list: Vec<String>| list.into_iter().filter(|it| !it.trim().is_empty()).collect::<Vec<_>>();
        let file = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        let (endpoints, nodes, exclude, image) = (given(endpoints), given(nodes), given(exclude), given(image));
        let kube_servers = kube_server_list(given(kube_server))?;
        let (talosconfig, kubeconfig, credential_file) = (file(talosconfig), file(kubeconfig), file(credential_file));
        let (context, kube_context) = (context.filter(|it| !it.is_empty()), kube_context.filter(|it| !it.is_empty()));
        let rolls = roll.is_some();
        let roll = roll.unwrap_or_else(defaults);
        if roll.lease_duration.0 < SHORTEST_LEASE {
            let problem = format!("{} is too short; at least {}", short(roll.lease_duration.0), short(SHORTEST_LEASE));
            return Err(ConnectError::Flag { flag: "lease-duration", problem });
        }
        let reboot_modes = RebootModes::new(roll.reboot_mode)
            .map_err(|problem| ConnectError::Flag { flag: "reboot-mode", problem })?;
        for image in &image {
            let known = image.split_once('/').is_some_and(|(host, _)| registry.iter().any(|it| it.as_str() == host));
            if !known {
                let hosts: Vec<_> = registry.iter().map(ToString::to_string).collect();
                let problem = format!(
                    "{image:?} is not an image of a managed registry ({}); write HOST/NAME:TAG",
                    hosts.join(", ")
                );
                return Err(ConnectError::Flag { flag: "image", problem });
            }
        }
        let settings = Settings {
            registries: registry,
            images: image,
            kube_servers,
            nodes,
            exclude,
            reboot_again: roll.reboot_again,
            reboot_modes,
            lease,
            legacy_lease: Some(legacy_lease),
            timing: Timing::scaled(roll.lease_duration.0),
            lease_wait: roll.lease_wait.map(|time| time.0),
            takeover: roll.takeover.into(),
            fleet: FleetPolicy {
                max_unavailable: roll.max_unavailable,
                step: StepPolicy {
                    write_missing_proof: roll.missing_proof == MissingProof::Write,
                    allow_older: roll.allow_older,
                    escalate_reboot: roll.escalate_reboot,
                    reboot_again: false,
                },
            },
            rolls,
            allow_control_plane_outage: roll.allow_control_plane_outage,
            kubectl: Kubectl { kubeconfig, context: kube_context },
            drain: DrainOptions {
                ignore_daemonsets: roll.ignore_daemonsets,
                delete_emptydir_data: roll.delete_emptydir_data,
                force: roll.force,
                disable_eviction: roll.disable_eviction,
            },
            budgets: Budgets {
                drain: roll.drain_timeout.0,
                reboot: roll.reboot_timeout.0,
                gate: roll.gate_timeout.0,
                adopt: roll.adopt_timeout.0,
                run: roll.timeout.map(|time| time.0),
            },
            max_rounds: roll.max_rounds,
            hooks: Hooks {
                check: roll.hooks.check_command,
                before: roll.hooks.before_command,
                gate: roll.hooks.gate_command,
                after: roll.hooks.after_command,
                timeout: roll.hooks.hook_timeout.0,
            },
        };
        Ok(Self { settings, routing: route.into(), credential_file, talosconfig, context, endpoints })
    }

    /// The credential, if one was given.
    ///
    /// # Errors
    /// [`ConnectError`] about the credential.
    pub fn credential(&self) -> Result<Option<Desired>, ConnectError> {
        desired(self.credential_file.as_deref(), &self.settings.registries)
    }

    /// A second credential that nobody looks at.
    fn other_credential(&self) -> Option<String> {
        let set = std::env::var_os(CREDENTIAL).is_some_and(|value| !value.is_empty());
        let file = self.credential_file.as_ref().filter(|file| set && !file.as_os_str().is_empty())?;
        Some(format!("the content of {CREDENTIAL} is not used: the credential is that of {}", file.display()))
    }

    /// The selected context of the talosconfig.
    ///
    /// # Errors
    /// [`TalosConfigError`].
    pub fn talosconfig(&self) -> Result<TalosContext, TalosConfigError> {
        let file = locate(self.talosconfig.as_deref())?;
        TalosContext::load(&file, self.context.as_deref(), &self.endpoints)
    }

    /// A flag is about Kubernetes, so that somebody counts on a kubeconfig.
    fn speaks_of_kubernetes(&self) -> bool {
        let Kubectl { kubeconfig, context } = &self.settings.kubectl;
        kubeconfig.is_some() || context.is_some() || !self.settings.kube_servers.is_empty()
    }

    /// The API server of the kubeconfig.
    ///
    /// # Errors
    /// [`KubeconfigError`].
    pub async fn servers(&self, clock: &Clock) -> Result<ApiServers, KubeconfigError> {
        let Kubectl { kubeconfig, context } = &self.settings.kubectl;
        ApiServers::connect(kubeconfig.as_deref(), context.as_deref(), clock.clone()).await
    }
}

fn kube_server_list(given: Vec<String>) -> Result<Vec<KubeServer>, ConnectError> {
    let read =
        |text: String| text.trim().parse().map_err(|problem| ConnectError::Flag { flag: "kube-server", problem });
    given.into_iter().map(read).collect()
}

/// The credential, if one was given; masked before anything else is said.
fn desired(file: Option<&Path>, registries: &[RegistryHost]) -> Result<Option<Desired>, ConnectError> {
    let Some(bytes) = credential(file)? else { return Ok(None) };
    let desired = Desired::read(&bytes, registries).map_err(ConnectError::Credential)?;
    actions::mask(&desired);
    Ok(Some(desired))
}

/// The docker config, from the file, from stdin, or from the environment; never from an argument, which every process
/// of the machine could read.
fn credential(file: Option<&Path>) -> Result<Option<Zeroizing<Vec<u8>>>, ConnectError> {
    let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else {
        return Ok(std::env::var(CREDENTIAL)
            .ok()
            .filter(|it| !it.is_empty())
            .map(|it| Zeroizing::new(it.into_bytes())));
    };
    let failed = |source| ConnectError::ReadCredential { file: file.to_owned(), source };
    if file == Path::new("-") {
        let mut bytes = Zeroizing::new(Vec::new());
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(failed)?;
        return Ok(Some(bytes));
    }
    std::fs::read(file).map(|bytes| Some(Zeroizing::new(bytes))).map_err(failed)
}

/// The roll's defaults, for commands that never roll but show what a run would do.
fn defaults() -> Roll {
    let minutes = |minutes: u64| Time(Duration::from_secs(minutes * 60));
    Roll {
        lease_duration: minutes(3),
        lease_wait: None,
        takeover: TakeoverArg::Auto,
        max_unavailable: MaxUnavailable::Number(1),
        allow_control_plane_outage: false,
        allow_older: false,
        missing_proof: MissingProof::Write,
        escalate_reboot: false,
        reboot_again: Vec::new(),
        reboot_mode: Vec::new(),
        ignore_daemonsets: true,
        delete_emptydir_data: true,
        force: false,
        disable_eviction: false,
        drain_timeout: minutes(10),
        reboot_timeout: minutes(15),
        gate_timeout: minutes(10),
        adopt_timeout: minutes(3),
        max_rounds: DEFAULT_ROUNDS,
        timeout: None,
        hooks: HookArgs {
            check_command: None,
            before_command: None,
            gate_command: None,
            after_command: None,
            hook_timeout: minutes(5),
        },
    }
}
