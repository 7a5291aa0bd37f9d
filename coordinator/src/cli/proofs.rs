//! `talos-ghcr proofs`.

use talos_proto::clock::Clock;

use super::args::ProofsArgs;
use super::look::look;
use crate::exit::Exit;
use crate::proofs::document;
use crate::report::{self, Format, machine_readable, print};

pub(super) async fn proofs(args: ProofsArgs) -> Exit {
    let common = args.common;
    let format = common.output;
    let clock = Clock::system();
    let looked = match look(common, &clock).await {
        Ok(looked) => looked,
        Err(exit) => return exit,
    };
    let document = document(&looked.inventory.snapshot, clock.utc());
    let wide = format == Format::Wide;
    print(&machine_readable(&document, format).unwrap_or_else(|| report::proofs::text(&document, wide)));
    // It shows what is there, like `fences`: only a node that could not be asked is a failure.
    if document.nodes.iter().any(|node| node.state == "unknown") { Exit::Failed } else { Exit::Done }
}
