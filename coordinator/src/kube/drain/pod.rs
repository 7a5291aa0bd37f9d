//! What of a pod a drain looks at. A pod of several containers is tens of kilobytes, and a node has hundreds of pods:
//! the rest is passed over while an answer is parsed, so that memory does not grow with it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::kube::watch::Versioned;

/// Written by the kubelet on the API's image of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod as a drain sees it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Wire")]
pub struct PodView {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
    /// Of `metadata.ownerReferences`, the one that would start it again.
    pub controller: Option<OwnerReference>,
    /// The API's image of a static pod, which cannot be evicted.
    pub mirror: bool,
    /// One of `spec.volumes` is an `emptyDir`.
    pub empty_dir: bool,
    /// `status.phase` is Succeeded or Failed.
    pub finished: bool,
    /// `metadata.deletionTimestamp`: when its grace ends or ended.
    pub terminating: Option<Timestamp>,
    /// `metadata.finalizers`: who must let it go first.
    pub finalizers: Vec<String>,
}

impl Versioned for PodView {
    fn version(&self) -> Option<String> {
        self.resource_version.clone()
    }
}

/// The API's shape (core/v1 Pod). A field may be missing, or `null`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    annotations: Option<BTreeMap<String, IgnoredAny>>,
    deletion_timestamp: Option<Timestamp>,
    finalizers: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    volumes: Option<Vec<Volume>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    empty_dir: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
}

impl From<Wire> for PodView {
    fn from(wire: Wire) -> Self {
        let Wire { metadata, spec, status } = wire;
        let volumes = spec.and_then(|spec| spec.volumes).unwrap_or_default();
        let phase = status.and_then(|status| status.phase);
        let owners = metadata.owner_references.unwrap_or_default();
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version,
            controller: owners.into_iter().find(|owner| owner.controller == Some(true)),
            mirror: metadata.annotations.is_some_and(|annotations| annotations.contains_key(MIRROR)),
            empty_dir: volumes.iter().any(|volume| volume.empty_dir.is_some()),
            finished: matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
            terminating: metadata.deletion_timestamp,
            finalizers: metadata.finalizers.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_what_a_drain_looks_at_is_kept_and_a_null_is_nothing() {
        let pod = json!({
            "metadata": {
                "namespace": "n", "name": "p", "uid": "u", "resourceVersion": "7", "finalizers": ["f"],
                "deletionTimestamp": "2026-01-02T03:04:05Z", "annotations": {"kubernetes.io/config.mirror": "x"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1"},
                    {"apiVersion": "apps/v1", "kind": "B", "name": "b", "uid": "2", "controller": true},
                ],
                "managedFields": [{"fieldsV1": {"f:spec": {}}}],
            },
            "spec": {"containers": [{"name": "c", "env": [{"name": "E", "value": "v"}]}],
                     "volumes": [{"name": "v", "emptyDir": {}}]},
            "status": {"phase": "Failed"},
        });
        // It is a pod to those who look at all of it, too.
        assert!(serde_json::from_value::<Pod>(pod.clone()).is_ok());
        let view: PodView = serde_json::from_value(pod).unwrap();
        assert_eq!((view.namespace.as_str(), view.name.as_str(), view.uid.as_str()), ("n", "p", "u"));
        assert_eq!(view.version().as_deref(), Some("7"));
        assert_eq!(view.controller.map(|owner| owner.kind), Some("B".to_owned()));
        assert!(view.mirror && view.empty_dir && view.finished);
        assert_eq!(view.terminating.map(|time| time.to_string()).as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!(view.finalizers, ["f"]);

        let nulls = json!({
            "metadata": {"annotations": null, "ownerReferences": null, "finalizers": null, "deletionTimestamp": null},
            "spec": {"volumes": [{"name": "v", "emptyDir": null}]},
            "status": null,
        });
        assert_eq!(serde_json::from_value::<PodView>(nulls).unwrap(), PodView::default());
        assert_eq!(
            serde_json::from_value::<PodView>(json!({"metadata": {}, "spec": Value::Null})).unwrap(),
            PodView::default()
        );
    }
}
