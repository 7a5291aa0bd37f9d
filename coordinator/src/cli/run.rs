//! `talos-ghcr run`.

use std::io::{BufRead as _, IsTerminal as _};
use std::sync::Arc;

use talos_proto::clock::Clock;

use super::args::RunArgs;
use super::connect::{Need, connect};
use super::fail;
use super::signals::Stop;
use crate::exit::Exit;
use crate::inventory::Inventory;
use crate::plan::document;
use crate::report::actions::Actions;
use crate::report::progress::Progress;
use crate::report::{self, machine_readable, table};
use crate::rollout::{Confirm, Rollout, RunDocument};
use crate::settings::Settings;

pub(super) async fn run(args: RunArgs) -> Exit {
    let RunArgs { yes, common, roll } = args;
    let format = common.output;
    let clock = Clock::system();
    let context = match connect(common, Some(roll), Need::Credential, &clock).await {
        Ok(context) => Arc::new(context),
        Err(error) => return fail(error.exit(), &error),
    };
    let mut stop = match Stop::listen(&clock, context.settings.budgets.run) {
        Ok(stop) => stop,
        Err(error) => return fail(Exit::Failed, &error),
    };
    let actions = Actions::begin(&context.desired);
    let progress = Progress::new(clock);
    let ask = !yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let settings = context.settings.clone();
    let confirm: Confirm = Box::new(move |inventory| !ask || confirmed(inventory, &settings));
    let rollout = Rollout::new(context, progress.clone(), stop.token.clone(), confirm);
    let (exit, document) = tokio::select! {
        ended = rollout.run() => ended,
        () = async { progress.heartbeat().await; std::future::pending().await } => unreachable!("it never ends"),
    };
    let exit = stop.exit().map_or(exit, |asked| exit.worse(asked));
    let document = RunDocument { exit_code: exit.code(), ..document };
    report::print(&machine_readable(&document, format).unwrap_or_else(|| summary(&document)));
    // The work is done: that its outputs are missing is a failure for the steps that read them.
    match actions.map(|actions| actions.end(&document)) {
        Some(Err(problem)) => {
            report::say(&format!("error: {problem}"));
            exit.worse(Exit::Failed)
        }
        _ => exit,
    }
}

/// Shows the plan and asks; only a terminal is ever asked.
fn confirmed(inventory: &Inventory, settings: &Settings) -> bool {
    report::say(&table::plan(&document("Plan", inventory, settings), false));
    report::say("Go on? [y/N]");
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

fn summary(document: &RunDocument) -> String {
    let mut text = String::new();
    if document.changed || !document.rebooted.is_empty() {
        let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        text.push_str(&format!("Rebooted: {}\n", list(&document.rebooted)));
        text.push_str(&format!("Adopted live: {}\n", list(&document.adopted_live)));
    }
    for (node, reason) in &document.left {
        let name = if node.is_empty() { "run" } else { node };
        text.push_str(&format!("Left: {name}: {reason}\n"));
    }
    let requests = document.requests;
    text.push_str(&format!(
        "{} in {:.1} s ({} Talos calls, {} Kubernetes requests).\n",
        match document.result.as_str() {
            "nothing-to-do" => "Nothing to do",
            "done" => "Done",
            other if other.starts_with("stopped") => "Stopped",
            other => other,
        },
        document.seconds,
        requests.talos,
        requests.kubernetes
    ));
    if let Some(words) = document.left_out.words() {
        text.push_str(&format!("{words}.\n"));
    }
    text
}
