//! The flags. Fixed, because scripts hold them; each has an environment variable.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use agent::claims::{Claim, Claims};
use agent::credential::RegistryHost;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::decide::MaxUnavailable;
use crate::kube::lease::Takeover;
use crate::reboot_mode::ModeOf;
use crate::report::Format;
use crate::settings::{DEFAULT_ROUNDS, LEAST_ROUNDS, LeaseName};
use talos_proto::channel::Routing;

/// Version and commit, for `--version`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("TALOS_GHCR_COMMIT"), ")");

/// Rolls a registry pull credential through a Talos Linux cluster.
///
/// The credential lives in every node's machine config. On Talos 1.13 and older the running containerd holds on to the
/// old one until the node reboots; Talos 1.14 restarts it by itself. talos-ghcr reads what each node really has and
/// changes only what differs.
#[derive(Debug, Parser)]
#[command(name = "talos-ghcr", version = VERSION, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what each node has, why it differs, and what `run` would do; changes nothing.
    Plan(PlanArgs),
    /// Bring the cluster onto the credential. Nothing to do means nothing written.
    Run(RunArgs),
    /// Check the four claims of each node: configured, loaded, pull, proof; changes nothing.
    Verify(VerifyArgs),
    /// Show the record of each node: which credential was proved there, when, by whom, in which boot, and whether that
    /// still holds; changes nothing, and needs no credential.
    Proofs(ProofsArgs),
    /// Show what runs hold or have left behind: fences on nodes, Leases, who holds them, what the next `run` does with
    /// them, and the command for what only you may decide; changes nothing.
    Fences(FencesArgs),
    /// Look at everything that a run depends on, from the files to clocks and other tools that reboot nodes, and say of
    /// each whether it is well and what to do next; changes nothing.
    Doctor(DoctorArgs),
    /// Print a script that completes commands and flags in a shell.
    Completions(CompletionsArgs),
    /// Print the manual page, or write all pages to a folder.
    Man(ManArgs),
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(
    after_help = "For bash: source <(talos-ghcr completions bash), or write it to ~/.local/share/bash-completion/completions/talos-ghcr."
)]
pub struct CompletionsArgs {
    /// Whose.
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(
    after_help = "To read it at once: talos-ghcr man | man -l -. To install: talos-ghcr man ~/.local/share/man/man1."
)]
pub struct ManArgs {
    /// Folder for a page of each command; made when it is not there.
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only try the credential at the registry; needs no cluster.
    #[arg(long, env = "TALOS_GHCR_REGISTRY_ONLY")]
    pub registry_only: bool,
    /// Where and with what.
    #[command(flatten)]
    pub common: Common,
    /// How the run would go that is thought of.
    #[command(flatten)]
    pub roll: Roll,
}

/// Flags of `proofs`.
#[derive(Debug, Args)]
pub struct ProofsArgs {
    /// Where.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of `fences`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs only the kubeconfig: the flags about Talos, the credential and nodes are taken as everywhere, and not used. All nodes are looked at."
)]
pub struct FencesArgs {
    /// Where.
    #[command(flatten)]
    pub common: Common,
}

/// Flags of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Exit with 2 when something differs.
    #[arg(long, env = "TALOS_GHCR_DETAILED_EXITCODE")]
    pub detailed_exitcode: bool,
    /// Where and with what.
    #[command(flatten)]
    pub common: Common,
    /// How a run would go.
    #[command(flatten)]
    pub roll: Roll,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Do not ask before the first change; only a terminal is ever asked.
    #[arg(long, env = "TALOS_GHCR_YES")]
    pub yes: bool,
    /// At whatever end, also write what was done and when to this file: FILE.json for machines, FILE.html for people, one
    /// page that needs nothing beside it.
    #[arg(long, env = "TALOS_GHCR_REPORT", value_name = "FILE")]
    pub report: Option<OsString>,
    /// Where and with what.
    #[command(flatten)]
    pub common: Common,
    /// How it goes.
    #[command(flatten)]
    pub roll: Roll,
}

/// Flags of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The claims that must hold; one of them that was not seen is exit 2.
    #[arg(long, env = "TALOS_GHCR_CLAIMS", value_delimiter = ',', default_values_t = ClaimName::DEFAULT)]
    pub claims: Vec<ClaimName>,
    /// Also write the result as JUnit XML to this file: a suite for each node, a case for each claim.
    #[arg(long, env = "TALOS_GHCR_JUNIT", value_parser = file(), value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Where and with what.
    #[command(flatten)]
    pub common: Common,
}

/// A claim, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClaimName {
    /// The effective credential equals the given one and is persisted.
    Configured,
    /// The running CRI process started with what is configured.
    Loaded,
    /// The node fetched a private image with it.
    Pull,
    /// The record says so.
    Proof,
}

impl ClaimName {
    /// A node without a private image to pull can be current all the same, so `pull` must be asked for.
    pub const DEFAULT: [ClaimName; 3] = [ClaimName::Configured, ClaimName::Loaded, ClaimName::Proof];

    /// That claim.
    #[must_use]
    pub fn of(self, claims: &Claims) -> &Claim {
        match self {
            ClaimName::Configured => &claims.configured,
            ClaimName::Loaded => &claims.loaded,
            ClaimName::Pull => &claims.pull,
            ClaimName::Proof => &claims.proof,
        }
    }
}

impl std::fmt::Display for ClaimName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ClaimName::Configured => "configured",
            ClaimName::Loaded => "loaded",
            ClaimName::Pull => "pull",
            ClaimName::Proof => "proof",
        })
    }
}

/// Flags of every command that looks at a cluster.
#[derive(Debug, Args)]
pub struct Common {
    /// talosconfig; else TALOSCONFIG, else ~/.talos/config.
    #[arg(long, env = "TALOS_GHCR_TALOSCONFIG", value_parser = file(), value_name = "FILE", help_heading = "Cluster")]
    pub talosconfig: Option<PathBuf>,
    /// Context of the talosconfig; else its current one.
    #[arg(long, env = "TALOS_GHCR_CONTEXT", value_name = "NAME", help_heading = "Cluster")]
    pub context: Option<String>,
    /// Talos endpoints in the place of the context's.
    #[arg(
        short,
        long,
        env = "TALOS_GHCR_ENDPOINTS",
        value_delimiter = ',',
        value_name = "HOST",
        help_heading = "Cluster"
    )]
    pub endpoints: Vec<String>,
    /// Which way Talos is reached: through the endpoints, at the nodes' own addresses, or both.
    #[arg(long, env = "TALOS_GHCR_ROUTE", value_enum, default_value_t = RouteArg::Auto, help_heading = "Cluster")]
    pub route: RouteArg,
    /// kubeconfig; else KUBECONFIG, else ~/.kube/config.
    #[arg(long, env = "TALOS_GHCR_KUBECONFIG", value_parser = file(), value_name = "FILE", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; else its current one.
    #[arg(long, env = "TALOS_GHCR_KUBE_CONTEXT", value_name = "NAME", help_heading = "Cluster")]
    pub kube_context: Option<String>,
    /// Further address of an API server, used when the others do not answer; the control planes' own are found anyway.
    /// Before the first change it must prove itself: the kubeconfig's CA, a name of its certificate, /readyz.
    #[arg(
        long,
        env = "TALOS_GHCR_KUBE_SERVER",
        value_delimiter = ',',
        value_name = "HOST[:PORT]",
        help_heading = "Cluster"
    )]
    pub kube_server: Vec<String>,
    /// Only these nodes (Kubernetes names).
    #[arg(short, long, env = "TALOS_GHCR_NODES", value_delimiter = ',', value_name = "NODE", help_heading = "Cluster")]
    pub nodes: Vec<String>,
    /// Not these nodes.
    #[arg(long, env = "TALOS_GHCR_EXCLUDE", value_delimiter = ',', value_name = "NODE", help_heading = "Cluster")]
    pub exclude: Vec<String>,

    /// Registry host whose credential is managed.
    #[arg(
        long,
        env = "TALOS_GHCR_REGISTRY",
        value_delimiter = ',',
        value_name = "HOST",
        default_value = "ghcr.io",
        help_heading = "Credential"
    )]
    pub registry: Vec<RegistryHost>,
    /// File with the credential, `-` for stdin; else the content of TALOS_GHCR_CREDENTIAL. Its content tells the format:
    /// a docker config JSON, a kubernetes.io/dockerconfigjson Secret manifest (YAML or JSON), or Talos
    /// RegistryAuthConfig documents (YAML).
    #[arg(
        long,
        env = "TALOS_GHCR_CREDENTIAL_FILE",
        value_parser = file(),
        value_name = "PATH|-",
        help_heading = "Credential"
    )]
    pub credential_file: Option<PathBuf>,
    /// Private image whose pull is proved on each node.
    #[arg(long, env = "TALOS_GHCR_IMAGE", value_delimiter = ',', value_name = "REF", help_heading = "Credential")]
    pub image: Vec<String>,

    /// The one Lease, NAMESPACE/NAME.
    #[arg(
        long,
        env = "TALOS_GHCR_LEASE",
        value_name = "NS/NAME",
        default_value = "kube-system/talos-ghcr",
        help_heading = "Lease"
    )]
    pub lease: LeaseName,
    /// Lease of the bash script that this tool replaces, read if it exists.
    #[arg(
        long,
        env = "TALOS_GHCR_LEGACY_LEASE",
        value_name = "NS/NAME",
        default_value = "flux-system/ghcr-auth-refresh",
        help_heading = "Lease"
    )]
    pub legacy_lease: LeaseName,

    /// Form of the document on stdout.
    #[arg(short, long, env = "TALOS_GHCR_OUTPUT", value_enum, default_value_t = Format::Table)]
    pub output: Format,
}

/// Flags that say how a roll goes.
#[derive(Debug, Args)]
pub struct Roll {
    /// How long the lease lasts without a renewal; all its other times follow from it.
    #[arg(
        long,
        env = "TALOS_GHCR_LEASE_DURATION",
        value_name = "TIME",
        default_value = "180s",
        help_heading = "Lease"
    )]
    pub lease_duration: Time,
    /// Go on waiting that long after the holder was seen alive; 0 refuses at first sight.
    #[arg(long, env = "TALOS_GHCR_LEASE_WAIT", value_name = "TIME", help_heading = "Lease")]
    pub lease_wait: Option<Time>,
    /// When the lease of another may be taken. With GH_TOKEN or GITHUB_TOKEN (actions: read) GitHub is asked whether
    /// the holder's job still runs.
    #[arg(long, env = "TALOS_GHCR_TAKEOVER", value_enum, default_value_t = TakeoverArg::Auto, help_heading = "Lease")]
    pub takeover: TakeoverArg,

    /// Workers that may be disrupted at once: a number or a percentage. Control planes: always one.
    #[arg(long, env = "TALOS_GHCR_MAX_UNAVAILABLE", value_name = "N|N%", default_value = "1", help_heading = "Roll")]
    pub max_unavailable: MaxUnavailable,
    /// Also reboot a control plane where one or two are all: the API or etcd's quorum is away meanwhile.
    #[arg(long, env = "TALOS_GHCR_ALLOW_CONTROL_PLANE_OUTAGE", help_heading = "Roll")]
    pub allow_control_plane_outage: bool,
    /// Go back to a credential that was on a node before the one that is there now.
    #[arg(long, env = "TALOS_GHCR_ALLOW_OLDER", help_heading = "Roll")]
    pub allow_older: bool,
    /// Where only the record is missing: write it after a pull proof, or only report it.
    #[arg(long, env = "TALOS_GHCR_MISSING_PROOF", value_enum, default_value_t = MissingProof::Write, help_heading = "Roll")]
    pub missing_proof: MissingProof,
    /// Reboot a node of Talos 1.14 or newer whose CRI was not restarted by itself in time.
    #[arg(long, env = "TALOS_GHCR_ESCALATE_REBOOT", help_heading = "Roll")]
    pub escalate_reboot: bool,
    /// Reboot this node once more although its reboot for this credential has happened.
    #[arg(long, env = "TALOS_GHCR_REBOOT_AGAIN", value_delimiter = ',', value_name = "NODE", help_heading = "Roll")]
    pub reboot_again: Vec<String>,
    /// How nodes are rebooted: default, powercycle (through the firmware, no kexec) or force (nothing is stopped first;
    /// Talos 1.12 or newer). A mode for all nodes, or NODE=MODE for one.
    #[arg(
        long,
        env = "TALOS_GHCR_REBOOT_MODE",
        value_delimiter = ',',
        value_name = "[NODE=]MODE",
        help_heading = "Roll"
    )]
    pub reboot_mode: Vec<ModeOf>,
    /// Leave the pods of DaemonSets where they are; false refuses a node that has some.
    #[arg(long, env = "TALOS_GHCR_IGNORE_DAEMONSETS", value_name = "BOOL", default_value_t = true, action = ArgAction::Set, help_heading = "Roll")]
    pub ignore_daemonsets: bool,
    /// Evict pods with emptyDir volumes, whose content is lost; false refuses a node that has some.
    #[arg(long, env = "TALOS_GHCR_DELETE_EMPTYDIR_DATA", value_name = "BOOL", default_value_t = true, action = ArgAction::Set, help_heading = "Roll")]
    pub delete_emptydir_data: bool,
    /// Evict pods that nothing will replace; false refuses a node that has some.
    #[arg(long, env = "TALOS_GHCR_FORCE", value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, help_heading = "Roll")]
    pub force: bool,
    /// Delete pods instead of evicting them, so that no disruption budget counts: for a budget that never allows an
    /// eviction. Needs the right to delete pods, which deploy/rbac does not grant.
    #[arg(long, env = "TALOS_GHCR_DISABLE_EVICTION", help_heading = "Roll")]
    pub disable_eviction: bool,
    /// Budget for draining a node.
    #[arg(long, env = "TALOS_GHCR_DRAIN_TIMEOUT", value_name = "TIME", default_value = "10m", help_heading = "Roll")]
    pub drain_timeout: Time,
    /// Budget from the reboot until the node is ready.
    #[arg(long, env = "TALOS_GHCR_REBOOT_TIMEOUT", value_name = "TIME", default_value = "15m", help_heading = "Roll")]
    pub reboot_timeout: Time,
    /// How long a closed gate (etcd, other control planes, budget) is waited for.
    #[arg(long, env = "TALOS_GHCR_GATE_TIMEOUT", value_name = "TIME", default_value = "10m", help_heading = "Roll")]
    pub gate_timeout: Time,
    /// Budget for a node of Talos 1.14 or newer to adopt the credential by itself.
    #[arg(long, env = "TALOS_GHCR_ADOPT_TIMEOUT", value_name = "TIME", default_value = "3m", help_heading = "Roll")]
    pub adopt_timeout: Time,
    /// Looks at the whole fleet in one run, each followed by the work that it finds. A roll that nobody disturbs takes 4;
    /// a run that is not done after so many ends with 1.
    #[arg(long, env = "TALOS_GHCR_MAX_ROUNDS", value_name = "N", default_value_t = DEFAULT_ROUNDS, value_parser = clap::value_parser!(u32).range(i64::from(LEAST_ROUNDS)..), help_heading = "Roll")]
    pub max_rounds: u32,
    /// Budget for the whole run.
    #[arg(long, env = "TALOS_GHCR_TIMEOUT", value_name = "TIME", help_heading = "Roll")]
    pub timeout: Option<Time>,
    /// Commands of the user's own.
    #[command(flatten)]
    pub hooks: HookArgs,
}

/// Commands that a run calls: `sh -c`, killed with their process group when they take too long or the lease lapses.
#[derive(Debug, Args)]
pub struct HookArgs {
    /// Asked in every inventory, also when no node differs; must change nothing. Exit 0: nothing to do; 10: the run takes
    /// the lease and calls the other commands; else the run fails.
    #[arg(long, env = "TALOS_GHCR_CHECK_COMMAND", value_name = "SH", help_heading = "Commands of your own")]
    pub check_command: Option<String>,
    /// Called once, when the lease is held and before the first change. Another exit than 0 ends the run.
    #[arg(long, env = "TALOS_GHCR_BEFORE_COMMAND", value_name = "SH", help_heading = "Commands of your own")]
    pub before_command: Option<String>,
    /// Asked before each disruption, with the node in TALOS_GHCR_NODE: goes on with exit 0, else waits within
    /// --gate-timeout.
    #[arg(long, env = "TALOS_GHCR_GATE_COMMAND", value_name = "SH", help_heading = "Commands of your own")]
    pub gate_command: Option<String>,
    /// Called when all is done, and at whatever end once --before-command was started, with TALOS_GHCR_RESULT (done,
    /// failed, stopped, control-lost) and TALOS_GHCR_CHANGED (true, false). Exit 10 asks for one more round.
    #[arg(long, env = "TALOS_GHCR_AFTER_COMMAND", value_name = "SH", help_heading = "Commands of your own")]
    pub after_command: Option<String>,
    /// How long each of these commands may take.
    #[arg(
        long,
        env = "TALOS_GHCR_HOOK_TIMEOUT",
        value_name = "TIME",
        default_value = "5m",
        help_heading = "Commands of your own"
    )]
    pub hook_timeout: Time,
}

/// `--route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RouteArg {
    /// Through the endpoints; a node that comes back from a reboot also at its own address.
    Auto,
    /// Only through the endpoints.
    Proxy,
    /// Only at the nodes' own addresses.
    Direct,
}

impl From<RouteArg> for Routing {
    fn from(arg: RouteArg) -> Self {
        match arg {
            RouteArg::Auto => Routing::Auto,
            RouteArg::Proxy => Routing::Proxy,
            RouteArg::Direct => Routing::Direct,
        }
    }
}

/// `--takeover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TakeoverArg {
    /// On evidence that the holder is dead, or after its record was watched unchanged.
    Auto,
    /// Only on evidence.
    Verified,
    /// Never.
    Never,
}

impl From<TakeoverArg> for Takeover {
    fn from(arg: TakeoverArg) -> Self {
        match arg {
            TakeoverArg::Auto => Takeover::Auto,
            TakeoverArg::Verified => Takeover::Verified,
            TakeoverArg::Never => Takeover::Never,
        }
    }
}

/// `--missing-proof`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MissingProof {
    /// Prove the pull and write the record.
    Write,
    /// Only say so.
    Report,
}

/// A file, also one that is named by nothing: CI sets variables that have no value as empty ones, which clap's own parser
/// of a path refuses. Who reads it takes an empty path for none.
fn file() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// A length of time such as `90s`, `10m`, `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no length of time; write 90s, 10m or 1h30m");
        if text == "0" {
            return Ok(Self(Duration::ZERO));
        }
        let parsed = text.parse::<jiff::SignedDuration>().map_err(|_| wrong())?;
        Duration::try_from(parsed).map(Self).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times() {
        assert_eq!("90s".parse(), Ok(Time(Duration::from_secs(90))));
        assert_eq!("1h30m".parse(), Ok(Time(Duration::from_secs(5400))));
        assert_eq!("0".parse(), Ok(Time(Duration::ZERO)));
        assert!("-3s".parse::<Time>().is_err());
        assert!("ten".parse::<Time>().is_err());
    }

    #[test]
    fn every_flag_has_an_environment_variable() {
        for command in Cli::command().get_subcommands() {
            for arg in
                command.get_arguments().filter(|arg| arg.get_long().is_some_and(|l| l != "help" && l != "version"))
            {
                let name = arg.get_long().unwrap().to_uppercase().replace('-', "_");
                let expected = format!("TALOS_GHCR_{name}");
                assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(expected.as_str()), "--{name}");
            }
        }
    }
}
