//! What a run would need and not get as things stand now: asked where the plan has something to do, so that the run does
//! not have to fail to tell. Changes nothing.

use agent::image::ImageRef;
use agent::step::Step;
use talos_proto::chain;
use talos_proto::clock::Clock;
use talos_proto::identity::ADMIN;

use super::{GateRow, PlanDocument};
use crate::fleet::Snapshot;
use crate::gates;
use crate::inventory::Context;
use crate::kube::access;
use crate::registry::{explain, preflight};

/// Looks at rights, registry and gates, if the document has something to do.
pub async fn look(context: &Context, snapshot: &Snapshot, clock: &Clock, document: &mut PlanDocument) {
    if document.nodes.iter().all(|node| node.steps.is_empty()) {
        (document.needs, document.gates) = (Some(Vec::new()), Some(Vec::new()));
        return;
    }
    let (rights, registry, gates) =
        futures::join!(rights(context), registry(context, clock, document), gates(context, snapshot, document));
    let role = (!context.is_admin()).then(|| {
        let has = context.identity.role_words();
        format!(
            "the Talos role {ADMIN}: the talosconfig's identity has {has}; take a talosconfig whose certificate has it"
        )
    });
    document.needs = Some(role.into_iter().chain(rights).chain(registry).collect());
    document.gates = Some(gates);
}

async fn rights(context: &Context) -> Option<String> {
    let (lease, deletes) = (&context.settings.lease, context.settings.drain.disable_eviction);
    let needed = access::needed(&lease.namespace, &lease.name, deletes);
    match access::missing(&context.servers, needed).await {
        Ok(missing) if missing.is_empty() => None,
        Ok(missing) => {
            let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
            Some(format!("rights of the kubeconfig's user: {} ({})", list.join(", "), access::granted_by(deletes)))
        }
        Err(error) => Some(format!("rights of the kubeconfig's user, which could not be asked for: {}", chain(&error))),
    }
}

/// Only where a credential is to be written: what is there already is not asked about.
async fn registry(context: &Context, clock: &Clock, document: &PlanDocument) -> Option<String> {
    let stage = Step::Stage.to_string();
    if !document.nodes.iter().any(|node| node.steps.contains(&stage)) {
        return None;
    }
    let images: Result<Vec<ImageRef>, _> = context.settings.images.iter().map(|image| image.parse()).collect();
    let images = match images {
        Ok(images) => images,
        Err(error) => return Some(format!("images that can be named: --image: {}", chain(&error))),
    };
    match preflight(&context.desired, &images, clock).await {
        Ok(_) => None,
        Err(error) => Some(format!("a credential that the registry takes: {}", explain(&error).await)),
    }
}

/// The gates of the first worker and of the first control plane that are disrupted.
async fn gates(context: &Context, snapshot: &Snapshot, document: &PlanDocument) -> Vec<GateRow> {
    let rules = context.settings.gate_rules();
    let first = |role: &str| {
        let ordered = document.nodes.iter().filter(|node| node.role == role && node.order.is_some());
        ordered.min_by_key(|node| node.order).and_then(|node| snapshot.node(&node.name))
    };
    let nodes = [first("worker"), first("control-plane")].into_iter().flatten();
    let looked = nodes.map(|node| async {
        let closed = gates::look(&context.servers, &context.talos, &node.kube, &rules).await.err();
        GateRow {
            node: node.name().to_owned(),
            open: closed.is_none(),
            closed: closed.map(|closed| closed.to_string()),
        }
    });
    futures::future::join_all(looked).await
}
