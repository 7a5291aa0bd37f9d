//! The command line: flags, connecting, the commands, exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::exit::Exit;
use crate::report;
use args::{Cli, Command};

pub mod args;
pub mod connect;
mod doctor;
mod fences;
mod generate;
mod look;
mod plan;
mod proofs;
mod run;
mod signals;
mod verify;

/// A core file would hold the credential.
pub fn forbid_core_dumps() {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

/// Parses the command line and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    let mut command = Cli::command();
    if is_plugin() {
        command = command.bin_name("kubectl talos-ghcr");
    }
    let parsed = command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let fine = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            if !fine {
                let text = error.to_string();
                report::actions::annotate(text.trim_start_matches("error: ").trim_end());
            }
            return if fine { Exit::Done } else { Exit::Usage }.into();
        }
    };
    match &cli.command {
        Command::Completions(args) => return generate::completions(args).into(),
        Command::Man(args) => return generate::man(args).into(),
        _ => {}
    }
    logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            report::say(&format!("error: no runtime: {error}"));
            return Exit::Failed.into();
        }
    };
    let exit = runtime.block_on(async {
        match cli.command {
            Command::Plan(args) => Box::pin(plan::plan(args)).await,
            Command::Verify(args) => verify::verify(args).await,
            Command::Doctor(args) => Box::pin(doctor::doctor(args)).await,
            Command::Proofs(args) => proofs::proofs(args).await,
            Command::Fences(args) => fences::fences(args).await,
            Command::Run(args) => Box::pin(run::run(args)).await,
            Command::Completions(_) | Command::Man(_) => Exit::Done,
        }
    });
    // A call that hangs in a thread must not hold the exit back.
    runtime.shutdown_background();
    if !matches!(exit, Exit::Done | Exit::Differs) {
        report::say(&format!("exit code {}: {}", exit.code(), exit.meaning()));
    }
    exit.into()
}

/// Whether kubectl has called us: it finds `kubectl talos-ghcr` as a program named `kubectl-talos_ghcr` (Kubernetes,
/// "Extend kubectl with plugins"), which may be a link to this one.
fn is_plugin() -> bool {
    let called = std::env::args_os().next().map(PathBuf::from);
    called.is_some_and(|path| path.file_name().is_some_and(|name| name == "kubectl-talos_ghcr"))
}

/// `TALOS_GHCR_LOG` (else `RUST_LOG`) chooses what is logged to stderr; nothing by default, for the progress says what
/// people need.
fn logging() {
    let filter = ["TALOS_GHCR_LOG", "RUST_LOG"].into_iter().find_map(|name| std::env::var(name).ok());
    if let Some(filter) = filter {
        let _ =
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).try_init();
    }
}

/// Prints an error with its causes, and gives the exit code back for the caller's last line.
pub(crate) fn fail(exit: Exit, error: &dyn std::error::Error) -> Exit {
    let text = talos_proto::chain(error);
    report::say(&format!("error: {text}"));
    report::actions::annotate(&text);
    exit
}

/// As [`fail`], after what is odd about the files: it is often the reason.
pub(crate) fn fail_warned<'a>(warnings: impl IntoIterator<Item = &'a String>, error: &dyn std::error::Error) -> Exit {
    for warning in warnings {
        report::say(&format!("warning: {warning}"));
    }
    fail(Exit::Failed, error)
}
