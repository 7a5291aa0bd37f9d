//! `talos-ghcr proofs`.

use talos_proto::clock::Clock;

use super::args::ProofsArgs;
use super::connect::{Need, connect};
use super::{fail, fail_warned};
use crate::exit::Exit;
use crate::inventory::Known;
use crate::proofs::document;
use crate::report::{self, Format, machine_readable, print};

pub(super) async fn proofs(args: ProofsArgs) -> Exit {
    let common = args.common;
    let format = common.output;
    let clock = Clock::system();
    let context = match connect(common, None, Need::Nothing, &clock).await {
        Ok(context) => context,
        Err(error) => return fail(error.exit(), &error),
    };
    let inventory = match context.inventory(&Known::default()).await {
        Ok(inventory) => inventory,
        Err(error) => return fail_warned(&context, &error),
    };
    let document = document(&inventory.snapshot, clock.utc());
    let wide = format == Format::Wide;
    print(&machine_readable(&document, format).unwrap_or_else(|| report::proofs::text(&document, wide)));
    // It shows what is there, like `fences`: only a node that could not be asked is a failure.
    if document.nodes.iter().any(|node| node.state == "unknown") { Exit::Failed } else { Exit::Done }
}
