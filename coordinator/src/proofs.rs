//! What the records on the nodes say, and whether each still holds. Pure.

use agent::claims::{Answer, Claims};
use agent::record::{PullRecord, Record};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::fleet::{FleetNode, Snapshot};
use crate::holder::run_link;
use crate::plan::SCHEMA_VERSION;

/// The document that `proofs` shows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProofsDocument {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `Proofs`.
    pub kind: &'static str,
    /// One row a node, by name.
    pub nodes: Vec<ProofRow>,
    /// What is not about one node.
    pub warnings: Vec<String>,
}

/// The record of one node.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProofRow {
    /// The Node's name.
    pub node: String,
    /// `proved`, `staged`, `none`, or `unknown` where the node could not be asked.
    #[schemars(extend("enum" = ["proved", "staged", "none", "unknown"]))]
    pub state: &'static str,
    /// Whether a record says `proved` and its CRI process, or a later one, still holds that credential; `null` where that
    /// could not be looked at.
    pub holds: Option<bool>,
    /// Why.
    pub evidence: String,
    /// The credentials that were written.
    pub revision: Option<String>,
    /// When it was written, by the writer's clock.
    pub at: Option<Timestamp>,
    /// Since then, in seconds.
    pub age_seconds: Option<f64>,
    /// Who wrote it.
    pub holder: Option<String>,
    /// The holder's workflow run, when it is one.
    pub run: Option<String>,
    /// The boot that it was written in.
    pub boot: Option<String>,
    /// The CRI process that it names.
    pub cri_pid: Option<i32>,
    /// That process's start, by the node's clock.
    pub cri_started: Option<Timestamp>,
    /// `proved`, `unprovable` or `none`.
    #[schemars(extend("enum" = ["proved", "unprovable", "none", null]))]
    pub pull: Option<&'static str>,
    /// The images that were pulled for it.
    pub images: Vec<String>,
    /// Earlier revisions, newest first, shortened.
    pub previous: Vec<String>,
}

/// The document about a fleet.
#[must_use]
pub fn document(snapshot: &Snapshot, now: Timestamp) -> ProofsDocument {
    let asked = snapshot.nodes.iter().filter(|node| !node.left_out && !node.is_ignored());
    ProofsDocument {
        schema_version: SCHEMA_VERSION,
        kind: "Proofs",
        nodes: asked.map(|node| row(node, now)).collect(),
        warnings: snapshot.warnings.iter().cloned().collect(),
    }
}

fn row(node: &FleetNode, now: Timestamp) -> ProofRow {
    let judgement = node.judgement.as_ref();
    let record = judgement.and_then(|judgement| judgement.record.as_ref());
    let (holds, evidence) = match judgement {
        Some(judgement) => still_holds(&judgement.claims),
        None => (None, node.verdict().reason().unwrap_or_default()),
    };
    let bare = ProofRow {
        node: node.name().to_owned(),
        state: if judgement.is_some() { "none" } else { "unknown" },
        holds,
        evidence,
        revision: None,
        at: None,
        age_seconds: None,
        holder: None,
        run: None,
        boot: None,
        cri_pid: None,
        cri_started: None,
        pull: None,
        images: Vec::new(),
        previous: Vec::new(),
    };
    record.map_or(bare.clone(), |record| with_record(bare, record, now))
}

fn with_record(bare: ProofRow, record: &Record, now: Timestamp) -> ProofRow {
    ProofRow {
        state: match record.state {
            agent::record::RecordState::Staged => "staged",
            agent::record::RecordState::Proved => "proved",
        },
        revision: Some(record.revision.to_string()),
        at: Some(record.at),
        age_seconds: Some(now.duration_since(record.at).as_secs_f64().max(0.0)),
        run: run_link(&record.holder, None),
        holder: Some(record.holder.clone()).filter(|holder| !holder.is_empty()),
        boot: record.boot.clone(),
        cri_pid: record.cri.map(|cri| cri.pid),
        cri_started: record.cri.map(|cri| cri.started),
        pull: Some(match record.pull {
            PullRecord::Proved => "proved",
            PullRecord::Unprovable => "unprovable",
            PullRecord::None => "none",
        }),
        images: record.images.clone(),
        previous: record.previous.clone(),
        ..bare
    }
}

/// A proof holds while the record says so, the config is what it was written with, and the CRI holds it. What cannot be
/// looked at says nothing.
fn still_holds(claims: &Claims) -> (Option<bool>, String) {
    let of = [&claims.proof, &claims.configured, &claims.loaded];
    if let Some(broken) = of.iter().find(|claim| claim.answer == Answer::False) {
        return (Some(false), broken.evidence.clone());
    }
    // Whether it is configured needs the credential, or os:admin; the other two are what a record is about.
    match [&claims.proof, &claims.loaded].iter().find(|claim| claim.answer != Answer::True) {
        Some(unseen) => (None, unseen.evidence.clone()),
        None => (Some(true), claims.loaded.evidence.clone()),
    }
}
