//! The objects of a lab's cluster, looked at and changed as somebody else would: past the listeners of its API servers,
//! so that nothing of it is counted, held or troubled.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::kube::kind::Kind;
use crate::kube::store::{Event, Store, metadata_mut};

/// The objects of a simulated or a real cluster. `namespace` is empty for what is in none.
///
/// # Panics
/// A real cluster may refuse what a test wants to write; that is a fault of the test.
pub trait Objects: Send + Sync {
    /// One object.
    fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// All objects of a kind.
    fn list(&self, kind: Kind) -> Vec<Arc<Value>>;
    /// Changes an object in place; None if it is not there. The change may be tried more than once.
    fn edit(&self, kind: Kind, namespace: &str, name: &str, change: &mut dyn FnMut(&mut Value)) -> Option<Arc<Value>>;
    /// Stores a new object.
    fn create(&self, kind: Kind, object: Value) -> Arc<Value>;
    /// Removes an object at once; None if it is not there.
    fn remove(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// How far the cluster is now.
    fn version(&self) -> u64;
    /// What happened to Nodes after `version`, one after the other.
    fn node_events(&self, version: u64) -> Vec<Event>;
}

impl dyn Objects + '_ {
    /// Changes a Node, as an administrator or another controller would.
    pub fn edit_node(&self, name: &str, mut change: impl FnMut(&mut Value)) -> Option<Arc<Value>> {
        self.edit(Kind::Node, "", name, &mut change)
    }

    /// Changes a PodDisruptionBudget.
    pub fn edit_pdb(&self, namespace: &str, name: &str, mut change: impl FnMut(&mut Value)) -> Option<Arc<Value>> {
        self.edit(Kind::PodDisruptionBudget, namespace, name, &mut change)
    }

    /// Puts a Lease as another holder would: created, or its spec replaced. Namespace and name are in its metadata.
    pub fn put_lease(&self, mut lease: Value) -> Arc<Value> {
        lease["apiVersion"] = json!(Kind::Lease.api_version());
        lease["kind"] = json!(Kind::Lease.name());
        let text = |field: &str| lease["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let spec = lease["spec"].clone();
        let labels = lease["metadata"]["labels"].clone();
        let there = self.edit(Kind::Lease, &namespace, &name, &mut |before| {
            before["spec"] = spec.clone();
            metadata_mut(before).shift_remove("labels");
            if !labels.is_null() {
                before["metadata"]["labels"] = labels.clone();
            }
        });
        there.unwrap_or_else(|| self.create(Kind::Lease, lease))
    }
}

impl Objects for Store {
    fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        Self::get(self, kind, namespace, name)
    }

    fn list(&self, kind: Kind) -> Vec<Arc<Value>> {
        Self::list(self, kind)
    }

    fn edit(&self, kind: Kind, namespace: &str, name: &str, change: &mut dyn FnMut(&mut Value)) -> Option<Arc<Value>> {
        self.with(|state| {
            state.edit(kind, namespace, name, |object| {
                let before = object["spec"].clone();
                change(object);
                // As with any change of a spec.
                if kind == Kind::PodDisruptionBudget && object["spec"] != before {
                    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
                    object["metadata"]["generation"] = json!(generation + 1);
                }
            })
        })
    }

    fn create(&self, kind: Kind, object: Value) -> Arc<Value> {
        Self::create(self, kind, object)
    }

    fn remove(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        Self::remove(self, kind, namespace, name)
    }

    fn version(&self) -> u64 {
        self.with(|state| state.version())
    }

    fn node_events(&self, version: u64) -> Vec<Event> {
        self.with(|state| state.since(Kind::Node, version)).expect("the store remembers a whole test")
    }
}
