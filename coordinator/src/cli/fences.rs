//! `talos-ghcr fences`.

use talos_proto::clock::Clock;

use super::args::FencesArgs;
use super::connect::kubernetes_only;
use super::fail;
use crate::ci::Ci;
use crate::exit::Exit;
use crate::fences::{document, look};
use crate::report::{self, Format, machine_readable, print};
use crate::settings::LeaseNames;

pub(super) async fn fences(args: FencesArgs) -> Exit {
    let common = args.common;
    let clock = Clock::system();
    let (servers, kubectl) = match kubernetes_only(&common, &clock).await {
        Ok(connected) => connected,
        Err(error) => return fail(error.exit(), &error),
    };
    for warning in servers.warnings() {
        report::say(&format!("warning: {warning}"));
    }
    let names = LeaseNames { ours: &common.lease, script: &common.legacy_lease };
    let seen = match look(&servers, names, &Ci::from_env(&clock)).await {
        Ok(seen) => seen,
        Err(error) => return fail(Exit::Failed, &error),
    };
    let document = document(&seen, names, &kubectl, clock.utc());
    let wide = common.output == Format::Wide;
    print(&machine_readable(&document, common.output).unwrap_or_else(|| report::fences::text(&document, wide)));
    Exit::Done
}
