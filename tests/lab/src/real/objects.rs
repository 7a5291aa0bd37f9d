//! The objects of a real cluster, as the lab's tests look at them and change them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::{collection, object};
use super::cluster::Cluster;
use crate::kube::kind::Kind;
use crate::kube::store::Event;
use crate::objects::Objects;

/// How often a change that another writer made obsolete is tried again.
const TRIES: usize = 20;
/// Between two looks at a watch that is some milliseconds behind.
const LOOK: Duration = Duration::from_millis(10);

/// The lab's own API server is there as long as the lab is.
pub(super) const ANSWERS: &str = "the lab's own API server answers";

impl Objects for Cluster {
    fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let reply = self.block(self.api().get(&object(kind, namespace, name))).expect(ANSWERS);
        reply.is_ok().then(|| Arc::new(reply.json()))
    }

    fn list(&self, kind: Kind) -> Vec<Arc<Value>> {
        self.block(self.list_now(kind))
    }

    fn edit(&self, kind: Kind, namespace: &str, name: &str, change: &mut dyn FnMut(&mut Value)) -> Option<Arc<Value>> {
        let path = object(kind, namespace, name);
        for _ in 0..TRIES {
            let before = self.get(kind, namespace, name)?;
            let mut after = Value::clone(&before);
            change(&mut after);
            let mut reply = self.block(self.api().put(&path, &after)).expect(ANSWERS);
            if reply.is_ok() && after["status"] != before["status"] {
                // The status has a door of its own.
                after["metadata"]["resourceVersion"] = reply.json()["metadata"]["resourceVersion"].take();
                reply = self.block(self.api().put(&format!("{path}/status"), &after)).expect(ANSWERS);
            }
            match reply.code {
                200..300 => return Some(Arc::new(reply.json())),
                409 => {}
                _ => panic!("{path}: {}", reply.text),
            }
        }
        panic!("{path}: somebody else was faster {TRIES} times")
    }

    fn create(&self, kind: Kind, new: Value) -> Arc<Value> {
        let namespace = new["metadata"]["namespace"].as_str().unwrap_or_default();
        let path = collection(kind, namespace);
        let reply = self.block(self.api().post(&path, &new)).expect(ANSWERS);
        assert!(reply.is_ok(), "{path}: {}", reply.text);
        Arc::new(reply.json())
    }

    fn remove(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let before = self.get(kind, namespace, name)?;
        let path = object(kind, namespace, name);
        let reply = self.block(self.api().delete(&path, None)).expect(ANSWERS);
        assert!(reply.is_ok() || reply.code == 404, "{path}: {}", reply.text);
        Some(before)
    }

    fn version(&self) -> u64 {
        let list = self.block(self.api().get(&collection(Kind::Node, ""))).expect(ANSWERS).json();
        list["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn node_events(&self, version: u64) -> Vec<Event> {
        self.block(async {
            // The watch is some milliseconds behind.
            while !self.nodes().has_seen(&self.list_now(Kind::Node).await) {
                self.clock().sleep(LOOK).await;
            }
        });
        self.nodes().since(version)
    }
}

impl Cluster {
    async fn list_now(&self, kind: Kind) -> Vec<Arc<Value>> {
        let mut list = self.api().get(&collection(kind, "")).await.expect(ANSWERS).json();
        let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let named = |mut item: Value| {
            // Items of a list do not say what they are.
            item["kind"] = json!(kind.name());
            item["apiVersion"] = json!(kind.api_version());
            Arc::new(item)
        };
        items.into_iter().map(named).collect()
    }
}
