//! `talos-ghcr run`.

use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::sync::Arc;

use talos_proto::clock::Clock;

use super::args::RunArgs;
use super::connect::connect;
use super::fail;
use super::signals::Stop;
use crate::exit::Exit;
use crate::inventory::Inventory;
use crate::plan::document;
use crate::report::actions::Actions;
use crate::report::live::{self, Live};
use crate::report::progress::Progress;
use crate::report::report_file::{Due, ReportFile};
use crate::report::run_report::{self, broken_off};
use crate::report::width::terminal;
use crate::report::{self, machine_readable, table};
use crate::rollout::{Confirm, Ended, Rollout, RunDocument};
use crate::settings::Settings;

pub(super) async fn run(args: RunArgs) -> Exit {
    let RunArgs { yes, report, common, roll } = args;
    let format = common.output;
    // What is wrong with it is said before anything is asked or changed.
    let file = match ReportFile::of(report.map(PathBuf::from)) {
        Ok(file) => file,
        Err(error) => return early(Exit::Usage, &error),
    };
    if let Some(Err(error)) = file.as_ref().map(ReportFile::try_out) {
        return early(Exit::Failed, &error);
    }
    let clock = Clock::system();
    let context = match connect(common, Some(roll), &clock).await {
        Ok(context) => Arc::new(context),
        Err(error) => return early(error.exit(), &error),
    };
    let progress = Progress::new(clock.clone());
    let (trace, servers, due) = (progress.trace().clone(), context.servers.clone(), Due::new(file));
    let at_once = {
        let (trace, servers, due) = (trace.clone(), servers.clone(), due.clone());
        move |exit| {
            if let Err(error) = due.write(|| broken_off(&trace, &servers.outages(), exit)) {
                fail(exit, &error);
            }
        }
    };
    let mut stop = match Stop::listen(&clock, context.settings.budgets.run, at_once) {
        Ok(stop) => stop,
        Err(error) => return fail(Exit::Failed, &error),
    };
    let actions = Actions::begin();
    let ask = !yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let settings = context.settings.clone();
    let confirm: Confirm = Box::new(move |inventory| !ask || confirmed(inventory, &settings));
    let rollout = Rollout::new(context, progress.clone(), stop.token.clone(), confirm);
    let watched = async {
        // Somebody looks at it, and sees all the time what is waited for.
        if live::is_possible() {
            Live::begin().keep(&progress).await;
        } else {
            progress.heartbeat().await;
        }
        std::future::pending().await
    };
    let ended = tokio::select! {
        ended = rollout.run() => ended,
        () = watched => unreachable!("it never ends"),
    };
    let Ended { exit, document, nodes } = ended;
    let mut exit = stop.exit().map_or(exit, |asked| exit.worse(asked));
    let result = match stop.cause() {
        Some(cause) => document.result.replacen("stopped:", &format!("stopped ({cause}):"), 1),
        None => document.result.clone(),
    };
    let mut ended = Ended { exit, document: RunDocument { exit_code: exit.code(), result, ..document }, nodes };
    if let Err(error) = due.write(|| run_report::document(&trace, &servers.outages(), &ended)) {
        exit = exit.worse(Exit::Failed);
        ended.document.exit_code = exit.code();
        let problem = talos_proto::chain(&error);
        report::say(&format!("error: {problem}"));
        let left = ended.document.left.entry(String::new()).or_default();
        *left = if left.is_empty() { problem } else { format!("{left}; {problem}") };
    }
    let document = &ended.document;
    report::print(&machine_readable(document, format).unwrap_or_else(|| summary(document)));
    // The work is done: that its outputs are missing is a failure for the steps that read them.
    match actions.map(|actions| actions.end(document, &run_report::document(&trace, &servers.outages(), &ended))) {
        Some(Err(problem)) => {
            report::say(&format!("error: {problem}"));
            exit.worse(Exit::Failed)
        }
        _ => exit,
    }
}

/// A run that ends before it begins.
fn early(exit: Exit, error: &dyn std::error::Error) -> Exit {
    report::actions::never_began(&talos_proto::chain(error));
    fail(exit, error)
}

/// Shows the plan and asks; only a terminal is ever asked.
fn confirmed(inventory: &Inventory, settings: &Settings) -> bool {
    live::aside(|| {
        report::say(&table::plan(&document("Plan", inventory, settings), false, terminal(std::io::stderr())));
        report::say("Go on? [y/N]");
        let mut answer = String::new();
        let read = std::io::stdin().lock().read_line(&mut answer);
        read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
    })
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
        "{} {:.1} s ({} Talos calls, {} Kubernetes requests){}.\n",
        match document.result.as_str() {
            "nothing-to-do" => "Nothing to do, in",
            "done" => "Done in",
            _ => "Ended after",
        },
        document.seconds,
        requests.talos,
        requests.kubernetes,
        match document.result.as_str() {
            "nothing-to-do" | "done" => String::new(),
            other => format!(": {other}"),
        }
    ));
    if let Some(words) = document.left_out.words() {
        text.push_str(&format!("{words}.\n"));
    }
    text
}
