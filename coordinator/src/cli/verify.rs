//! `talos-ghcr verify`.

use std::path::{Path, PathBuf};

use agent::claims::Answer;
use talos_proto::clock::Clock;

use super::args::{ClaimName, VerifyArgs};
use super::fail;
use super::look::{Looked, look};
use crate::exit::Exit;
use crate::plan::{NodeRow, PlanDocument, document};
use crate::report::{Format, actions, junit, machine_readable, print, table};

pub(super) async fn verify(args: VerifyArgs) -> Exit {
    let VerifyArgs { claims, junit, common } = args;
    let format = common.output;
    let Looked { inventory, settings } = match look(common, &Clock::system()).await {
        Ok(looked) => looked,
        Err(exit) => return exit,
    };
    let mut document = document("Verification", &inventory, &settings);
    // Only what was asked for is verified: a node that is left out proves nothing and fails nothing.
    document
        .nodes
        .retain(|row| inventory.snapshot.node(&row.name).is_some_and(|node| !node.left_out && !node.is_ignored()));
    let text =
        machine_readable(&document, format).unwrap_or_else(|| table::verification(&document, format == Format::Wide));
    print(&text);
    let exit = judge(&document, &claims);
    if exit != Exit::Done {
        actions::annotate(&what_does_not_hold(&document, &claims));
    }
    match junit.filter(|file| !file.as_os_str().is_empty()).map(|file| write_junit(&file, &document, &claims)) {
        Some(Err(error)) => exit.worse(fail(Exit::Failed, &error)),
        _ => exit,
    }
}

/// 0 when every claim that was asked for holds on every node; 1 when a node could not be asked; else 2.
fn judge(document: &PlanDocument, claims: &[ClaimName]) -> Exit {
    document.nodes.iter().map(|row| judge_row(row, claims)).fold(Exit::Done, Exit::worse)
}

fn judge_row(row: &NodeRow, claims: &[ClaimName]) -> Exit {
    let Some(seen) = &row.claims else { return Exit::Failed };
    let holds = claims.iter().all(|claim| claim.of(seen).answer == Answer::True);
    if holds { Exit::Done } else { Exit::Differs }
}

/// For one annotation: each node that fails, and by which claims.
fn what_does_not_hold(document: &PlanDocument, claims: &[ClaimName]) -> String {
    let mut text = String::new();
    for row in document.nodes.iter().filter(|row| judge_row(row, claims) != Exit::Done) {
        let words = match &row.claims {
            None => row.reason.clone(),
            Some(seen) => {
                let failing = claims.iter().filter(|claim| claim.of(seen).answer != Answer::True);
                failing.map(|claim| format!("{claim}: {}", claim.of(seen).evidence)).collect::<Vec<_>>().join("; ")
            }
        };
        text.push_str(&format!("{}: {words}\n", row.name));
    }
    text + "Next: talos-ghcr plan shows what a run would do about it."
}

/// Writes the JUnit file.
fn write_junit(file: &Path, document: &PlanDocument, claims: &[ClaimName]) -> Result<(), JunitError> {
    let text = junit::text(document, claims).map_err(JunitError::Make)?;
    std::fs::write(file, text).map_err(|source| JunitError::Write { file: file.to_owned(), source })
}

/// Why there is no JUnit file.
#[derive(Debug, thiserror::Error)]
enum JunitError {
    #[error("the JUnit document cannot be made")]
    Make(#[source] quick_junit::SerializeError),
    #[error("--junit: {} cannot be written", file.display())]
    Write {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
}
