//! `talos-ghcr doctor`.

use talos_proto::clock::Clock;

use super::args::DoctorArgs;
use super::connect::{Need, connect, credential_only};
use super::fail;
use crate::doctor::{DoctorDocument, Health, cluster, registry};
use crate::exit::Exit;
use crate::report::{machine_readable, print, table};

pub(super) async fn doctor(args: DoctorArgs) -> Exit {
    let DoctorArgs { registry_only, common } = args;
    let clock = Clock::system();
    let format = common.output;
    let images = common.image.clone();
    let checks = if registry_only {
        match credential_only(&common) {
            Ok(desired) => registry(&desired, &images, &clock).await,
            Err(error) => return fail(error.exit(), &error),
        }
    } else {
        match connect(common, None, Need::Nothing, &clock).await {
            Ok(context) => {
                let mut checks = Vec::new();
                if !context.desired.is_empty() {
                    checks = registry(&context.desired, &images, &clock).await;
                }
                checks.extend(cluster(&context).await);
                checks
            }
            Err(error) => return fail(error.exit(), &error),
        }
    };
    let document = DoctorDocument::new(checks);
    print(&machine_readable(&document, format).unwrap_or_else(|| table::doctor(&document)));
    if document.health() == Health::Failure { Exit::Failed } else { Exit::Done }
}
