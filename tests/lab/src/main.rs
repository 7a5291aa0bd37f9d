//! `talos-ghcr-lab`: simulated Talos nodes, a Kubernetes API and a registry, for the demo, for tests and to try things.

use std::process::ExitCode;

use clap::Parser as _;
use lab::cli::{Cli, run};

fn main() -> ExitCode {
    run(Cli::parse())
}
