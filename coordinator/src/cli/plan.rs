//! `talos-ghcr plan`.

use talos_proto::clock::Clock;

use super::args::PlanArgs;
use super::connect::connect;
use super::{fail, fail_warned};
use crate::exit::Exit;
use crate::hooks;
use crate::inventory::Known;
use crate::plan::{document, drains, needs};
use crate::report::width::terminal;
use crate::report::{Format, machine_readable, print, table};

pub(super) async fn plan(args: PlanArgs) -> Exit {
    let PlanArgs { detailed_exitcode, common, roll } = args;
    let format = common.output;
    let clock = Clock::system();
    let context = match connect(common, Some(roll), &clock).await {
        Ok(context) => context,
        Err(error) => return fail(error.exit(), &error),
    };
    let inventory = match context.inventory(&Known::default()).await {
        Ok(inventory) => inventory,
        Err(error) => return fail_warned(&context.warnings, &error),
    };
    let mut document = document("Plan", &inventory, &context.settings);
    document.check_finds_work = match hooks::check(&context.settings.hooks, &context.desired, &clock).await {
        None => None,
        Some(Ok(found)) => Some(found),
        Some(Err(error)) => return fail(Exit::Failed, &error),
    };
    drains::look(&context.servers, context.settings.drain, &mut document).await;
    needs::look(&context, &inventory.snapshot, &clock, &mut document).await;
    let text = machine_readable(&document, format)
        .unwrap_or_else(|| table::plan(&document, format == Format::Wide, terminal(std::io::stdout())));
    print(&text);
    let differs = document.nodes.iter().any(|node| !node.steps.is_empty())
        || document.summary.blocked + document.summary.unknown > 0
        || document.check_finds_work == Some(true);
    if detailed_exitcode && differs { Exit::Differs } else { Exit::Done }
}
