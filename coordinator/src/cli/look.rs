//! What `verify` and `proofs` have in common: one look at the whole cluster, with Kubernetes or without.

use talos_proto::clock::Clock;

use super::args::Common;
use super::connect::{Cluster, connect_to_look};
use super::{fail, fail_warned};
use crate::exit::Exit;
use crate::inventory::{Inventory, Known};
use crate::settings::Settings;

/// What was seen.
pub(super) struct Looked {
    pub(super) inventory: Inventory,
    pub(super) settings: Settings,
}

/// Looks; what prevents it has been said when there is only an exit code.
pub(super) async fn look(common: Common, clock: &Clock) -> Result<Looked, Exit> {
    match connect_to_look(common, clock).await.map_err(|error| fail(error.exit(), &error))? {
        Cluster::Whole(context) => {
            let inventory = context.inventory(&Known::default()).await;
            let inventory = inventory.map_err(|error| fail_warned(&context.warnings, &error))?;
            Ok(Looked { inventory, settings: context.settings })
        }
        Cluster::Talos(alone) => {
            let found = alone.find().await;
            let warnings = found.warnings.clone();
            let inventory = alone.inventory(found).await.map_err(|error| fail_warned(&warnings, &error))?;
            Ok(Looked { inventory, settings: alone.settings })
        }
    }
}
