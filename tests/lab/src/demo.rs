//! The demo: a lab in this process, the product in others, as its user would run it; at the end what really happened.

mod check;
mod report;
mod turns;

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use talos_proto::clock::Clock;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use self::turns::Watcher;
use crate::cluster::Lab;
use crate::options::{Kubernetes, Options, Share};
use crate::talos::Role;
use crate::truth::Truth;

/// The node that the kubeconfig names.
const ENDPOINT: &str = "cp-1";
/// The default is 180 s; the cluster is not a real one, so its times are scaled.
const LEASE_DURATION: &str = "10s";
/// Real nodes take a minute or more.
const REBOOT_TIME: Duration = Duration::from_secs(2);
/// How often a command is looked at: the precision of how long it took.
const POLL: Duration = Duration::from_millis(5);

/// Why the demo could not be shown to its end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The product is not there.
    #[error("cannot start {}: build it first (make build)", .0.display())]
    Product(PathBuf, #[source] io::Error),
    /// No place for the lab's files.
    #[error("cannot make {}", .0.display())]
    Dir(PathBuf, #[source] io::Error),
    /// The lab.
    #[error("the lab does not start")]
    Lab(#[from] crate::cluster::StartError),
    /// Nobody reads.
    #[error("cannot write to stdout")]
    Stdout(#[source] io::Error),
    /// The user had enough.
    #[error("interrupted")]
    Interrupted,
    /// Signals.
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
}

/// A command of the product that has ended.
struct Ended {
    /// As it is called in the summary.
    name: &'static str,
    took: Duration,
    /// `None` when a signal ended it.
    code: Option<i32>,
}

/// All that was seen, for the summary and for the verdict.
struct Seen {
    commands: Vec<Ended>,
    /// The truth after the last command, its counters those of the second run alone.
    truth: Truth,
    turns: Vec<turns::Turn>,
}

/// Shows the demo with the product at that path; whether all was as it must be.
///
/// # Errors
/// [`DemoError`] when it could not be shown to its end.
pub async fn show(product: &Path, kubernetes: Kubernetes) -> Result<bool, DemoError> {
    let product = fs::canonicalize(product).map_err(|error| DemoError::Product(product.to_owned(), error))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(DemoError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(DemoError::Signals)?;
    let files = Files::make()?;
    let mut options = Options::new(files.0.clone());
    options.talos = ["1.13.9=5", "1.14.0=1"].iter().filter_map(|share| share.parse::<Share>().ok()).collect();
    options.reboot_time = REBOOT_TIME;
    options.kubernetes = kubernetes;
    let lab = tokio::select! {
        lab = Lab::start(options) => lab?,
        _ = interrupt.recv() => return Err(DemoError::Interrupted),
        _ = terminate.recv() => return Err(DemoError::Interrupted),
    };
    let stage = Stage { lab, product, clock: Clock::system() };
    // A terminal sends SIGINT to the product too, which then stops in order; the lab must outlive it.
    let mut interrupted = false;
    let shown = {
        let mut story = std::pin::pin!(stage.story());
        loop {
            tokio::select! {
                seen = &mut story => break seen,
                _ = interrupt.recv() => interrupted = true,
                _ = terminate.recv() => return Err(DemoError::Interrupted),
            }
        }
    };
    let seen = shown?;
    if interrupted {
        return Err(DemoError::Interrupted);
    }
    let checks = check::all(&seen);
    say(&report::summary(&seen, &checks))?;
    stage.lab.stop();
    Ok(checks.iter().all(|check| check.holds()))
}

/// What the demo is played on.
struct Stage {
    lab: Arc<Lab>,
    product: PathBuf,
    clock: Clock,
}

impl Stage {
    /// Everything up to the summary. A command that fails ends it early: what comes after would say nothing.
    async fn story(&self) -> Result<Seen, DemoError> {
        self.introduce()?;
        let mut commands = Vec::new();
        let mut turns = Vec::new();
        let chapters: [(&str, &str, &[&str]); 4] = [
            ("plan", "What differs, and why", &["plan"]),
            ("run", "Roll it through", &["run", "--lease-duration", LEASE_DURATION]),
            ("verify", "What each node has now", &["verify"]),
            ("run again", "Again: nothing to do, nothing written", &["run", "--lease-duration", LEASE_DURATION]),
        ];
        for (number, (name, title, args)) in chapters.into_iter().enumerate() {
            say(&heading(&format!("{}. {title}", number + 1)))?;
            self.lab.reset_counters();
            let watcher = Watcher::start(Arc::clone(&self.lab), self.clock.clone());
            let ended = self.command(name, args).await?;
            let seen = watcher.end().await;
            if name == "run" {
                turns = seen;
            }
            let failed = ended.code != Some(0);
            commands.push(ended);
            if failed {
                break;
            }
        }
        Ok(Seen { commands, truth: self.lab.truth(), turns })
    }

    fn introduce(&self) -> Result<(), DemoError> {
        say(
            "talos-ghcr on a simulated cluster: Talos nodes, a Kubernetes API and a registry, over real sockets and TLS.\n",
        )?;
        for node in self.lab.talos().nodes() {
            let role = if node.role() == Role::ControlPlane { "control plane" } else { "worker" };
            let version = node.version();
            let adopts = if version.adopts_live() { "Talos restarts containerd by itself" } else { "must reboot" };
            let endpoint = if node.name() == ENDPOINT { "; the kubeconfig names it" } else { "" };
            say(&format!(
                "  {:<9} {:<15} {role:<13}  Talos {version}: {adopts}{endpoint}",
                node.name(),
                node.address()
            ))?;
        }
        say(&format!(
            "\nEvery node pulls with the old credential. The new one is in credential-new.json. A reboot takes {} s here.\n",
            REBOOT_TIME.as_secs()
        ))?;
        say(&format!("  cd {}", self.lab.dir().display()))?;
        for (name, value) in self.environment() {
            say(&format!("  export {name}={value}"))?;
        }
        Ok(())
    }

    /// What a user would export once; paths are relative to the lab's directory.
    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("TALOSCONFIG", "talosconfig".to_owned()),
            ("KUBECONFIG", "kubeconfig".to_owned()),
            ("SSL_CERT_FILE", "registry-ca.pem".to_owned()),
            ("TALOS_GHCR_REGISTRY", self.lab.registry().host()),
            ("TALOS_GHCR_IMAGE", self.lab.image()),
            ("TALOS_GHCR_CREDENTIAL_FILE", "credential-new.json".to_owned()),
        ]
    }

    /// Runs the product with this terminal as its own.
    async fn command(&self, name: &'static str, args: &[&str]) -> Result<Ended, DemoError> {
        say(&format!("$ talos-ghcr {}\n", args.join(" ")))?;
        let mut command = Command::new(&self.product);
        // Nothing of the user's own environment may lead to a real cluster.
        command.env_clear().envs(self.environment()).current_dir(self.lab.dir()).args(args);
        let kept = ["PATH", "TERM", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"];
        command.envs(kept.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.stdin(Stdio::null());
        let start = self.clock.now();
        let started = |error| DemoError::Product(self.product.clone(), error);
        let mut running = Running(command.spawn().map_err(started)?);
        let status = loop {
            if let Some(status) = running.0.try_wait().map_err(started)? {
                break status;
            }
            self.clock.sleep(POLL).await;
        };
        Ok(Ended { name, took: self.clock.now().since(start), code: status.code() })
    }
}

/// A process that does not outlive the demo.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already unless the demo was told to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lab's directory, for this demo alone; gone at its end.
struct Files(PathBuf);

impl Files {
    fn make() -> Result<Self, DemoError> {
        // Short: a unix socket in it has a path of at most 107 bytes.
        let name = Uuid::new_v4().simple().to_string();
        let dir = std::env::temp_dir().join(format!("talos-ghcr-demo-{}", &name[..8]));
        DirBuilder::new().mode(0o700).create(&dir).map_err(|error| DemoError::Dir(dir.clone(), error))?;
        Ok(Self(dir))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // The system's own cleaning of its temporary files is the second chance.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn heading(title: &str) -> String {
    format!("\n=== {title} {}\n", "=".repeat(95_usize.saturating_sub(title.chars().count())))
}

fn say(text: &str) -> Result<(), DemoError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(DemoError::Stdout)
}
