//! The shape of the document.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::kube::nodes::NodeView;

/// What `fences` shows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FencesDocument {
    /// [`crate::plan::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `Fences`.
    pub kind: &'static str,
    /// Whether there is a fence, or a holder of any of the Leases.
    pub held: bool,
    /// How many Nodes were looked at.
    pub nodes: usize,
    /// The fences, by node.
    pub fences: Vec<FenceRow>,
    /// Ours, the old script's, and each that a fence names.
    pub leases: Vec<LeaseRow>,
    /// The next run is refused with 3 as things stand.
    pub refused: bool,
    /// What the next run with something to do does about them.
    pub next_run: String,
    /// What only a human may decide.
    pub decisions: Vec<Decision>,
    /// What is odd.
    pub warnings: Vec<String>,
}

/// A fence.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FenceRow {
    /// The Node's name.
    pub node: String,
    /// Whose it is: `talos-ghcr`, `script`, or `unknown`.
    #[schemars(extend("enum" = ["talos-ghcr", "script", "unknown"]))]
    pub of: &'static str,
    /// How far the work had come; of the script its own words.
    pub step: Option<String>,
    /// When the node was claimed.
    pub since: Option<Timestamp>,
    /// Since when it is at this step.
    pub step_since: Option<Timestamp>,
    /// How long ago it was claimed, by this machine's clock.
    pub age_seconds: Option<f64>,
    /// Who set it.
    pub holder: Option<String>,
    /// The page of the holder's CI run, or its number.
    pub run: Option<String>,
    /// The Lease that it stands under.
    pub lease: Option<String>,
    /// The Lease's transitions then.
    pub epoch: Option<i64>,
    /// Whether the holder lives; `gone` when it holds its Lease no more.
    pub life: Option<LifeRow>,
    /// The node is cordoned.
    pub cordoned: bool,
    /// By whom: `fence`, `before` (it was so before the fence), `unknown`, or `none`.
    #[schemars(extend("enum" = ["fence", "before", "unknown", "none"]))]
    pub cordon: &'static str,
    /// What the next run does with it: `adopt`, `drop` or `leave`.
    #[schemars(extend("enum" = ["adopt", "drop", "leave"]))]
    pub action: &'static str,
    /// The same in words, and why.
    pub next_run: String,
}

/// Whether a holder lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LifeRow {
    /// `alive`, `dead`, `unknown` or `gone`.
    #[schemars(extend("enum" = ["alive", "dead", "unknown", "gone"]))]
    pub state: &'static str,
    /// How that is known.
    pub evidence: String,
}

/// A Lease.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRow {
    /// `namespace/name`.
    pub name: String,
    /// Whose it is: `talos-ghcr`, `script`, or `fence` when only a fence names it.
    #[schemars(extend("enum" = ["talos-ghcr", "script", "fence"]))]
    pub of: &'static str,
    /// There is one.
    pub exists: bool,
    /// Who holds it; `null` when nobody does.
    pub holder: Option<String>,
    /// The page of the holder's CI run, or its number.
    pub run: Option<String>,
    /// Whether the holder lives.
    pub life: Option<LifeRow>,
    /// `leaseTransitions`.
    pub transitions: Option<i64>,
    /// `renewTime` as written.
    pub renew_time: Option<String>,
    /// How long ago that is, by this machine's clock.
    pub age_seconds: Option<f64>,
    /// `leaseDurationSeconds`.
    pub duration_seconds: Option<f64>,
    /// `resourceVersion`.
    pub resource_version: Option<String>,
    /// UID.
    pub uid: Option<String>,
}

/// What only a human may decide, and the command that does it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// What it is about: `node worker-1`, `Lease flux-system/ghcr-auth-refresh`.
    pub object: String,
    /// What must be known first.
    pub why: String,
    /// The command, for a POSIX shell.
    pub command: String,
}

impl FenceRow {
    /// A fence of which nothing is known.
    pub(super) fn bare(node: &NodeView, action: &'static str, next_run: String) -> Self {
        Self {
            node: node.name.clone(),
            of: "unknown",
            step: None,
            since: None,
            step_since: None,
            age_seconds: None,
            holder: None,
            run: None,
            lease: None,
            epoch: None,
            life: None,
            cordoned: node.unschedulable,
            cordon: if node.unschedulable { "unknown" } else { "none" },
            action,
            next_run,
        }
    }
}

impl LifeRow {
    /// In one phrase.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{}: {}", self.state, self.evidence)
    }
}
