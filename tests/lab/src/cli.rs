//! The command line of `talos-ghcr-lab`.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use talos_proto::chain;
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::Lab;
use crate::conformance;
use crate::control::{self, Question};
use crate::demo;
use crate::options::{Kubernetes, Options, Share};
use crate::truth::Truth;

/// A Talos cluster that is not there: simulated nodes, a Kubernetes API and a private registry on loopback addresses.
#[derive(Debug, Parser)]
#[command(name = "talos-ghcr-lab", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster, write its files into DIR (`ready` last) and stay up until SIGINT or SIGTERM.
    Up(Up),
    /// Say what is really so in the lab that is up in DIR.
    Truth {
        /// The directory of the lab.
        #[arg(long)]
        dir: PathBuf,
        /// The form of the answer.
        #[arg(short, long, value_enum, default_value_t = Output::Json)]
        output: Output,
    },
    /// Start counting requests at zero again in the lab that is up in DIR.
    ResetCounters {
        /// The directory of the lab.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Roll a credential through a cluster with the product, show each step, and say what happened. Exits with 0 only
    /// if the cluster is then as it must be.
    Demo {
        /// The product: target/debug/talos-ghcr.
        #[arg(long)]
        product: PathBuf,
        /// Who plays Kubernetes: `simulated`, or `real` with the programs in the folder that KUBEBUILDER_ASSETS names.
        #[arg(long, default_value = "simulated", value_name = "WHO")]
        kubernetes: Kubernetes,
    },
    /// Run the suites that hold the product and the lab to real components, and print a table. Exits with 0 only if
    /// nothing failed. `make conformance` brings what it needs.
    Conformance {
        /// Only these suites.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(conformance::names()))]
        only: Vec<String>,
        /// What cannot run because something is missing has failed.
        #[arg(long)]
        require: bool,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// One JSON document.
    Json,
}

#[derive(Debug, clap::Args)]
struct Up {
    /// Where the lab writes its files; made if it is not there.
    #[arg(long)]
    dir: PathBuf,
    /// How many control planes.
    #[arg(long, default_value_t = 3)]
    control_planes: usize,
    /// How many workers.
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// Talos versions and how many nodes have them; control planes take the first, the last fills up.
    #[arg(long, value_delimiter = ',', default_value = "1.13.9", value_name = "VERSION[=COUNT]")]
    talos: Vec<Share>,
    /// How long a reboot takes.
    #[arg(long, default_value = "2s", value_parser = duration)]
    reboot_time: Duration,
    /// The control plane that the kubeconfig names, from 1.
    #[arg(long, default_value_t = 1)]
    endpoint: usize,
    /// Who plays Kubernetes: `simulated`, or `real` with the programs in the folder that KUBEBUILDER_ASSETS names.
    #[arg(long, default_value = "simulated", value_name = "WHO")]
    kubernetes: Kubernetes,
}

/// `2s`, `500ms`, `1m`.
fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no duration such as 2s or 500ms"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err(format!("{text:?} is no duration such as 2s or 500ms")),
    }
}

/// Runs a command.
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.command {
        Command::Up(up) => start(up),
        Command::Truth { dir, output: Output::Json } => control::ask(&dir, Question::Truth)
            .map_err(|error| format!("no lab answers in {}: {error}", dir.display()))
            .and_then(|text| {
                let truth: Truth = serde_json::from_str(&text).map_err(|error| error.to_string())?;
                say(&serde_json::to_string_pretty(&truth).map_err(|error| error.to_string())?)
            }),
        Command::ResetCounters { dir } => control::ask(&dir, Question::ResetCounters)
            .map(drop)
            .map_err(|error| format!("no lab answers in {}: {error}", dir.display())),
        Command::Demo { product, kubernetes } => match block_on(demo::show(&product, kubernetes)) {
            Ok(Ok(true)) => Ok(()),
            // The summary has said why.
            Ok(Ok(false)) => return ExitCode::FAILURE,
            Ok(Err(error)) => Err(chain(&error)),
            Err(why) => Err(why),
        },
        Command::Conformance { only, require } => match conformance::run(&only, require) {
            Ok(true) => Ok(()),
            // The table has said what.
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(chain(&error)),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Nothing can be done about a closed stderr.
            let _ = writeln!(io::stderr(), "talos-ghcr-lab: {why}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) -> Result<(), String> {
    writeln!(io::stdout(), "{line}").map_err(|error| error.to_string())
}

fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| error.to_string())?;
    Ok(runtime.block_on(work))
}

fn start(up: Up) -> Result<(), String> {
    block_on(async {
        let mut options = Options::new(up.dir);
        options.control_planes = up.control_planes;
        options.workers = up.workers;
        options.kubernetes = up.kubernetes;
        options.talos = up.talos;
        options.reboot_time = up.reboot_time;
        options.endpoint = up.endpoint.saturating_sub(1);
        // Listened for before the lab says that it is ready: who reads `ready` may end it at once.
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        let mut stopped = std::pin::pin!(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        let lab = tokio::select! {
            started = Lab::start(options) => started.map_err(|error| chain(&error))?,
            () = &mut stopped => return Ok(()),
        };
        for node in lab.truth().nodes {
            say(&format!("{:<12} {:<14} Talos {}", node.name, node.address, node.talos))?;
        }
        say(&format!("ready: {}", lab.dir().join("ready").display()))?;
        stopped.await;
        lab.stop();
        Ok(())
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_of_the_demo_is_understood() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
        let line =
            "talos-ghcr-lab up --dir d --control-planes 3 --workers 3 --talos 1.13.9=5,1.14.0 --reboot-time 500ms";
        let Command::Up(up) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!("not up") };
        assert_eq!((up.control_planes, up.workers, up.reboot_time), (3, 3, Duration::from_millis(500)));
        assert_eq!(up.talos[0], Share { version: "1.13.9".into(), count: Some(5) });
        assert_eq!(up.talos[1], Share { version: "1.14.0".into(), count: None });
        assert!(duration("2").is_err() && duration("fast").is_err());
    }
}
