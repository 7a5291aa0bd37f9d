//! The fence: an annotation on a Node that says that we cordoned it, as whom, and what must be undone.
//!
//! It is set together with the cordon in one patch and removed together with the uncordon in one patch, so that there
//! is no moment in which a node is cordoned by us and does not say so. A run that dies leaves it behind, and the next
//! one reads in it all that it needs.

mod look;
pub mod script;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::nodes::NodeView;

pub(crate) use look::release_patch;
pub use look::{Next, look_for_claim, look_for_release, look_for_update};
pub use write::{ClaimError, FenceError, Released, claim, discard, release, revert, update};

/// The annotation on the Node.
pub const ANNOTATION: &str = "talos-ghcr/fence";

/// Keeps the cluster autoscaler from deleting a node that looks empty because it was drained.
pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";

/// The format's version.
const VERSION: u32 = 1;

/// What stands in the annotation, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fence {
    /// Version of this format: 1.
    pub v: u32,
    /// The holder's identity, as in the Lease.
    pub holder: String,
    /// `namespace/name` of the Lease.
    pub lease: String,
    /// UID of the Lease: epochs compare only under the same.
    pub lease_uid: String,
    /// `leaseTransitions` at the holder's acquisition.
    pub epoch: i64,
    /// The Node's name.
    pub node: String,
    /// The Node's UID.
    pub uid: String,
    /// How far the work on the node has come.
    pub step: Step,
    /// Since when it is at this step; restarted by whoever adopts the fence.
    pub step_since: Timestamp,
    /// The boot id before the reboot.
    pub boot: String,
    /// How often a reboot was asked for.
    pub reboot_calls: u32,
    /// The node was cordoned before us, and stays so after us.
    pub cordoned_before: bool,
    /// Taken over from a tool that did not record whether the node was cordoned before: it stays cordoned, and a human
    /// is told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordon_unknown: bool,
    /// What [`SCALE_DOWN_DISABLED`] was before we set it; left out when we did not touch it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down_before: Option<ScaleDown>,
    /// The revision that the node is being brought to.
    pub revision: String,
    /// When the node was claimed.
    pub since: Timestamp,
}

/// The steps between claim and release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Cordoned, perhaps drained; no reboot was asked for.
    Claimed,
    /// A reboot was about to be asked for: it may have been.
    Rebooting,
}

/// [`SCALE_DOWN_DISABLED`] before the claim: the word `absent`, else the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleDown {
    /// It was not there: removed at release.
    Absent,
    /// It had this value: put back at release.
    Value(String),
}

impl Serialize for ScaleDown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Absent => "absent",
            Self::Value(value) => value,
        })
    }
}

impl<'de> Deserialize<'de> for ScaleDown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = String::deserialize(deserializer)?;
        Ok(if value == "absent" { Self::Absent } else { Self::Value(value) })
    }
}

/// A fence that cannot be read. Only its node is blocked; a human decides.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// It was written by a newer version of this tool.
    #[error("the fence has format {0}, and this version knows {VERSION}: use a newer talos-ghcr")]
    Version(u64),
    /// It is not what this tool writes.
    #[error("the fence is not what talos-ghcr writes ({0})")]
    Malformed(#[source] serde_json::Error),
}

/// Who claims, under which lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The holder's identity.
    pub holder: String,
    /// `namespace/name` of the Lease.
    pub lease: String,
    /// Its UID.
    pub lease_uid: String,
    /// Its transitions at our acquisition.
    pub epoch: i64,
}

impl Fence {
    /// A fence for a claim of `node` as it was read, with what must be undone taken from it.
    #[must_use]
    pub fn claimed(by: Claimant, node: &NodeView, boot: &str, revision: &str, now: Timestamp) -> Self {
        let now = whole_seconds(now);
        Self {
            v: VERSION,
            holder: by.holder,
            lease: by.lease,
            lease_uid: by.lease_uid,
            epoch: by.epoch,
            node: node.name.clone(),
            uid: node.uid.clone(),
            step: Step::Claimed,
            step_since: now,
            boot: boot.to_owned(),
            reboot_calls: 0,
            cordoned_before: node.unschedulable,
            cordon_unknown: false,
            scale_down_before: scale_down_before(node),
            revision: revision.to_owned(),
            since: now,
        }
    }

    /// The same fence under another holder: it goes on from the same facts, with its waiting begun anew.
    #[must_use]
    pub fn adopted(&self, by: Claimant, now: Timestamp) -> Self {
        Self {
            holder: by.holder,
            lease: by.lease,
            lease_uid: by.lease_uid,
            epoch: by.epoch,
            step_since: whole_seconds(now),
            ..self.clone()
        }
    }

    /// The same fence at another step.
    #[must_use]
    pub fn at(&self, step: Step, now: Timestamp) -> Self {
        Self { step, step_since: whole_seconds(now), ..self.clone() }
    }

    /// It is the old script's, seen as one of ours: that names no Lease and no time.
    #[must_use]
    pub fn is_the_scripts(&self) -> bool {
        self.lease_uid.is_empty()
    }

    /// The annotation's value.
    #[must_use]
    pub fn render(&self) -> String {
        // Strings, numbers and booleans always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads an annotation's value. Unknown fields are let pass.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn parse(value: &str) -> Result<Self, ParseError> {
        #[derive(Deserialize)]
        struct Versioned {
            v: u64,
        }
        let Versioned { v } = serde_json::from_str(value).map_err(ParseError::Malformed)?;
        if v != u64::from(VERSION) {
            return Err(ParseError::Version(v));
        }
        serde_json::from_str(value).map_err(ParseError::Malformed)
    }

    /// The fence on a Node, if there is one, with its raw value.
    #[must_use]
    pub fn on(node: &NodeView) -> Option<(&str, Result<Self, ParseError>)> {
        node.annotations.get(ANNOTATION).map(|value| (value.as_str(), Self::parse(value)))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claimed => "claimed",
            Self::Rebooting => "rebooting",
        })
    }
}

/// Fractions of a second say nothing to the reader and make the value longer.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Only on nodes that the cluster autoscaler has to do with, and only where the key is not set already.
fn scale_down_before(node: &NodeView) -> Option<ScaleDown> {
    const PREFIX: &str = "cluster-autoscaler.kubernetes.io/";
    let value = node.annotations.get(SCALE_DOWN_DISABLED);
    let keys = node.annotations.keys().chain(node.labels.keys());
    let autoscaled = keys.into_iter().any(|key| key.starts_with(PREFIX) || key.ends_with("/node-group"));
    match value {
        Some(value) if value == "true" => None,
        Some(value) => Some(ScaleDown::Value(value.clone())),
        None if autoscaled => Some(ScaleDown::Absent),
        None => None,
    }
}

/// Taints that keep pods away or drive them off. Those that only repeat a cordon, and the autoscaler's advisory ones,
/// say nothing about another actor.
fn hard(taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
        && taint.key != "node.kubernetes.io/unschedulable"
        && !taint.key.starts_with("DeletionCandidate")
}
