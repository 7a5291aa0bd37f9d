//! What a drain of each node would do, looked at before anything is fenced.

use futures::stream::{self, StreamExt as _};
use schemars::JsonSchema;
use serde::Serialize;
use talos_proto::chain;

use super::PlanDocument;
use crate::kube::api_servers::ApiServers;
use crate::kube::drain::{self, DrainError, DrainOptions};

/// Nodes that are looked at at once.
const CONCURRENT: usize = 8;

/// A drain that is to come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainRow {
    /// Pods that would be evicted.
    pub evict: usize,
    /// Pods that would stay.
    pub keep: usize,
    /// Each pod that refuses the drain, and why: the node would not be fenced.
    pub refused: Vec<String>,
    /// Why nothing could be looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// Looks at the pods of every node of the document that has a drain before it.
pub async fn look(servers: &ApiServers, options: DrainOptions, document: &mut PlanDocument) {
    let drained = document.nodes.iter_mut().filter(|node| node.short_steps.iter().any(|step| step == "drain"));
    let looked = stream::iter(drained).map(|node| async move {
        node.drain = Some(match drain::plan(servers, &node.name, options).await {
            Ok(plan) => DrainRow { evict: plan.evict.len(), keep: plan.keep.len(), ..DrainRow::default() },
            Err(DrainError::Refused { refusals, .. }) => DrainRow {
                refused: refusals.into_iter().map(|refusal| format!("{}: {}", refusal.pod, refusal.reason)).collect(),
                ..DrainRow::default()
            },
            Err(error) => DrainRow { unknown: Some(chain(&error)), ..DrainRow::default() },
        });
    });
    looked.buffer_unordered(CONCURRENT).collect::<()>().await;
}
