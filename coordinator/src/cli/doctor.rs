//! `talos-ghcr doctor`.

use std::path::Path;

use talos_proto::chain;
use talos_proto::clock::Clock;

use super::args::DoctorArgs;
use super::connect::{CREDENTIAL, ConnectError, Given, credential_only};
use super::fail;
use crate::doctor::{CredentialSource, DoctorDocument, Health, Patient, examine, registry};
use crate::exit::Exit;
use crate::report::doctor::{text, width};
use crate::report::{actions, machine_readable, print};

pub(super) async fn doctor(args: DoctorArgs) -> Exit {
    let DoctorArgs { registry_only, common, roll } = args;
    let clock = Clock::system();
    let format = common.output;
    let checks = if registry_only {
        match credential_only(&common) {
            Ok(desired) => registry(&desired, &common.image, &clock).await,
            Err(error) => return fail(error.exit(), &error),
        }
    } else {
        // What was typed wrong is no illness.
        match Given::new(common, Some(roll)) {
            Ok(given) => Box::pin(examine(patient(given, &clock).await, &clock)).await,
            Err(error) => return fail(error.exit(), &error),
        }
    };
    let document = DoctorDocument::new(checks);
    print(&machine_readable(&document, format).unwrap_or_else(|| text(&document, registry_only, width())));
    if document.health() != Health::Fault {
        return Exit::Done;
    }
    let faults = document.checks.iter().filter(|check| check.health == Health::Fault);
    let words: Vec<_> = faults.map(|check| format!("{}: {}", check.name, check.detail)).collect();
    actions::annotate(&words.join("\n"));
    Exit::Failed
}

/// Reads each file, whatever is wrong with the others.
async fn patient(mut given: Given, clock: &Clock) -> Patient {
    // One or two control planes have a check of their own.
    given.settings.rolls = false;
    let credential_source = match &given.credential_file {
        Some(file) if file == Path::new("-") => CredentialSource::Stdin,
        Some(file) => CredentialSource::File(file.clone()),
        None => CredentialSource::Variable(CREDENTIAL),
    };
    Patient {
        credential_source,
        credential: given.credential().map_err(|error: ConnectError| chain(&error)),
        talosconfig: given.talosconfig(),
        servers: given.servers(clock).await,
        routing: given.routing,
        settings: given.settings,
    }
}
