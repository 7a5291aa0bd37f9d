//! `talos-ghcr verify`.

use agent::claims::{Answer, Claims};
use talos_proto::clock::Clock;

use super::args::{ClaimName, VerifyArgs};
use super::connect::{Need, connect};
use super::{fail, fail_warned};
use crate::exit::Exit;
use crate::inventory::Known;
use crate::plan::{NodeRow, PlanDocument, document};
use crate::report::{Format, machine_readable, print, table};

pub(super) async fn verify(args: VerifyArgs) -> Exit {
    let VerifyArgs { claims, common } = args;
    let format = common.output;
    let context = match connect(common, None, Need::Nothing, &Clock::system()).await {
        Ok(context) => context,
        Err(error) => return fail(error.exit(), &error),
    };
    let inventory = match context.inventory(&Known::default()).await {
        Ok(inventory) => inventory,
        Err(error) => return fail_warned(&context, &error),
    };
    let mut document = document("Verification", &inventory, &context.settings);
    // Only what was asked for is verified: a node that is left out proves nothing and fails nothing.
    document
        .nodes
        .retain(|row| inventory.snapshot.node(&row.name).is_some_and(|node| !node.left_out && !node.is_ignored()));
    let text =
        machine_readable(&document, format).unwrap_or_else(|| table::verification(&document, format == Format::Wide));
    print(&text);
    judge(&document, &claims)
}

/// 0 when every claim that was asked for holds on every node; 1 when a node could not be asked; else 2.
fn judge(document: &PlanDocument, claims: &[ClaimName]) -> Exit {
    document.nodes.iter().map(|row| judge_row(row, claims)).fold(Exit::Done, Exit::worse)
}

fn judge_row(row: &NodeRow, claims: &[ClaimName]) -> Exit {
    let Some(seen) = &row.claims else { return Exit::Failed };
    let holds = claims.iter().all(|claim| answer(seen, *claim) == Answer::True);
    if holds { Exit::Done } else { Exit::Differs }
}

fn answer(claims: &Claims, name: ClaimName) -> Answer {
    match name {
        ClaimName::Configured => claims.configured.answer,
        ClaimName::Loaded => claims.loaded.answer,
        ClaimName::Pull => claims.pull.answer,
        ClaimName::Proof => claims.proof.answer,
    }
}
