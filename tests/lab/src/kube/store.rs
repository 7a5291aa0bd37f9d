//! The one store behind all API servers of a lab: JSON objects with resource versions, and the history that watches
//! are served from.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use talos_proto::clock::Clock;
use tokio::sync::watch;
use uuid::Uuid;

use super::evict::is_ready;
use super::kind::Kind;

/// Kept events of one kind; a watch that begins before them is answered with 410.
///
/// A test reads the story of a whole roll from them, also of one of hundreds of nodes.
const HISTORY: usize = 20_000;

/// Where an object is: kind, namespace (empty for cluster-scoped) and name.
pub type Key = (Kind, String, String);

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Event {
    /// The store's version with this change.
    pub version: u64,
    /// The object before; absent when it was created.
    pub before: Option<Arc<Value>>,
    /// The object after, or as it was when it was deleted.
    pub object: Arc<Value>,
    /// Whether the change was its deletion.
    pub deleted: bool,
}

/// Objects, version and history; all access is under one lock.
pub struct State {
    version: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: HashMap<Kind, VecDeque<Event>>,
    /// The newest version that is no longer in the history.
    compacted: u64,
    clock: Clock,
}

/// RFC 3339 with whole seconds, as `metav1.Time` is written.
#[must_use]
pub fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// RFC 3339 with six digits, as `metav1.MicroTime` is written.
#[must_use]
pub fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

impl State {
    /// The store's version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The wall clock of the lab.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// One object.
    #[must_use]
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        self.objects.get(&(kind, namespace.to_owned(), name.to_owned()))
    }

    /// All objects of a kind, by namespace and name.
    pub fn list(&self, kind: Kind) -> impl Iterator<Item = &Arc<Value>> {
        self.objects.iter().filter(move |((of, _, _), _)| *of == kind).map(|(_, object)| object)
    }

    /// Stores a new object: gives it uid (unless it brings one), creationTimestamp and resourceVersion. One that is
    /// there under that name is replaced as a new object.
    pub fn create(&mut self, kind: Kind, mut object: Value) -> Arc<Value> {
        let now = seconds(self.clock.utc());
        let version = self.next();
        let metadata = metadata_mut(&mut object);
        metadata.entry("uid").or_insert_with(|| json!(Uuid::new_v4().to_string()));
        metadata.entry("creationTimestamp").or_insert_with(|| json!(now));
        if matches!(kind, Kind::Pod | Kind::DaemonSet | Kind::PodDisruptionBudget) {
            metadata.entry("generation").or_insert(json!(1));
        }
        metadata.insert("resourceVersion".into(), json!(version.to_string()));
        let object = Arc::new(object);
        self.objects.insert(key(kind, &object), Arc::clone(&object));
        self.remember(kind, Event { version, before: None, object: Arc::clone(&object), deleted: false });
        object
    }

    /// Replaces an object that is there. Equal content keeps the resourceVersion and is no event, as in the real
    /// server (captures 066, 096).
    pub fn replace(&mut self, kind: Kind, mut object: Value) -> Arc<Value> {
        let key = key(kind, &object);
        let Some(before) = self.objects.get(&key).cloned() else { return self.create(kind, object) };
        let metadata = metadata_mut(&mut object);
        metadata.insert("resourceVersion".into(), before["metadata"]["resourceVersion"].clone());
        if *before == object {
            return before;
        }
        let version = self.next();
        metadata_mut(&mut object).insert("resourceVersion".into(), json!(version.to_string()));
        let object = Arc::new(object);
        self.objects.insert(key, Arc::clone(&object));
        self.remember(kind, Event { version, before: Some(before), object: Arc::clone(&object), deleted: false });
        object
    }

    /// Changes an object in place; None if it is not there.
    pub fn edit(
        &mut self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Option<Arc<Value>> {
        let mut object = Value::clone(self.get(kind, namespace, name)?);
        change(&mut object);
        Some(self.replace(kind, object))
    }

    /// Removes an object; None if it is not there.
    pub fn remove(&mut self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let before = self.objects.remove(&(kind, namespace.to_owned(), name.to_owned()))?;
        let version = self.next();
        let mut last = Value::clone(&before);
        metadata_mut(&mut last).insert("resourceVersion".into(), json!(version.to_string()));
        self.remember(kind, Event { version, before: Some(before.clone()), object: Arc::new(last), deleted: true });
        Some(before)
    }

    /// The events of a kind after `version`, or None when some of them are no longer kept.
    #[must_use]
    pub fn since(&self, kind: Kind, version: u64) -> Option<Vec<Event>> {
        if version < self.compacted {
            return None;
        }
        let Some(events) = self.history.get(&kind) else { return Some(Vec::new()) };
        // Asked for at every change: the versions rise, so the ones before are skipped without a look at each.
        let first = events.partition_point(|event| event.version <= version);
        Some(events.range(first..).cloned().collect())
    }

    /// Forgets all history, as etcd's compaction does: a watch from before now is answered with 410.
    pub fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.version;
    }

    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn remember(&mut self, kind: Kind, event: Event) {
        let events = self.history.entry(kind).or_default();
        if events.len() == HISTORY
            && let Some(dropped) = events.pop_front()
        {
            self.compacted = self.compacted.max(dropped.version);
        }
        events.push_back(event);
    }
}

/// The key of an object by its own metadata.
fn key(kind: Kind, object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (kind, text("namespace"), text("name"))
}

/// The metadata of an object; made when it is not there.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    section_mut(object, "metadata")
}

/// A part of an object that is a map; made when it is none.
pub fn section_mut<'a>(object: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let slot = &mut object[name];
    if !slot.is_object() {
        *slot = json!({});
    }
    match slot {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// The store with its lock and its notification.
pub struct Store {
    state: Mutex<State>,
    version: watch::Sender<u64>,
    nodes: Mutex<HashMap<String, watch::Sender<u64>>>,
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let version = 10_000;
        let state = State { version, objects: BTreeMap::new(), history: HashMap::new(), compacted: version, clock };
        Self { state: Mutex::new(state), version: watch::channel(version).0, nodes: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` alone; watches learn of what it changed when it is done.
    pub fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let before = state.version;
        let done = work(&mut state);
        let after = state.version;
        let changed = state.since(Kind::Node, before).unwrap_or_default();
        drop(state);
        if after != before {
            self.version.send_replace(after);
            for event in changed.iter().filter(|event| is_real_change(event)) {
                let name = event.object["metadata"]["name"].as_str().unwrap_or_default();
                self.node_sender(name).send_replace(event.version);
            }
        }
        done
    }

    /// Learns of every change of the store.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Learns of every change of one Node but its heartbeats, whether it is there yet or not.
    #[must_use]
    pub fn node_changes(&self, name: &str) -> watch::Receiver<u64> {
        self.node_sender(name).subscribe()
    }

    fn node_sender(&self, name: &str) -> watch::Sender<u64> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(name.to_owned()).or_insert_with(|| watch::channel(0).0).clone()
    }

    /// A copy of one object.
    #[must_use]
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.lock().get(kind, namespace, name).cloned()
    }

    /// A copy of all objects of a kind.
    #[must_use]
    pub fn list(&self, kind: Kind) -> Vec<Arc<Value>> {
        self.lock().list(kind).cloned().collect()
    }

    /// Changes a Node behind the API's back, as an administrator or another controller would.
    pub fn edit_node(&self, name: &str, change: impl FnOnce(&mut Value)) -> Option<Arc<Value>> {
        self.with(|state| state.edit(Kind::Node, "", name, change))
    }

    /// The same for a PodDisruptionBudget; its generation moves, as with a change of its spec.
    pub fn edit_pdb(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) -> Option<Arc<Value>> {
        self.with(|state| {
            state.edit(Kind::PodDisruptionBudget, namespace, name, |pdb| {
                let before = pdb["spec"].clone();
                change(pdb);
                if pdb["spec"] != before {
                    let generation = pdb["metadata"]["generation"].as_i64().unwrap_or(0);
                    pdb["metadata"]["generation"] = json!(generation + 1);
                }
            })
        })
    }

    /// Stores an object as a new one.
    pub fn create(&self, kind: Kind, object: Value) -> Arc<Value> {
        self.with(|state| state.create(kind, object))
    }

    /// Removes an object at once.
    pub fn remove(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.with(|state| state.remove(kind, namespace, name))
    }

    /// Puts a Lease as another holder would: created, or replaced whole. Namespace and name are in its metadata.
    pub fn put_lease(&self, lease: Value) -> Arc<Value> {
        self.with(|state| {
            let mut lease = lease;
            lease["apiVersion"] = json!("coordination.k8s.io/v1");
            lease["kind"] = json!("Lease");
            let (_, namespace, name) = key(Kind::Lease, &lease);
            if let Some(before) = state.get(Kind::Lease, &namespace, &name).cloned() {
                let metadata = metadata_mut(&mut lease);
                for field in ["uid", "creationTimestamp"] {
                    metadata.insert(field.into(), before["metadata"][field].clone());
                }
            }
            state.replace(Kind::Lease, lease)
        })
    }
}

/// Whether a Node's event is more than a heartbeat.
pub(crate) fn is_real_change(event: &Event) -> bool {
    let facts = |node: &Value| {
        let metadata = &node["metadata"];
        let ready = is_ready(node);
        (metadata["labels"].clone(), metadata["annotations"].clone(), node["spec"].clone(), ready)
    };
    event.deleted || event.before.as_ref().is_none_or(|before| facts(before) != facts(&event.object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        let store = Store::new(Clock::system());
        store.create(Kind::Node, json!({"metadata": {"name": "n1"}, "spec": {}}));
        store
    }

    #[test]
    fn a_change_moves_the_version_and_an_equal_object_does_not() {
        let store = store();
        let first = store.get(Kind::Node, "", "n1").unwrap();
        let same = store.edit_node("n1", |_| {}).unwrap();
        assert_eq!(same["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        let mut changes = store.node_changes("n1");
        let next = store.edit_node("n1", |node| node["spec"]["unschedulable"] = json!(true)).unwrap();
        assert_ne!(next["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        assert!(changes.has_changed().unwrap());
        assert_eq!(next["metadata"]["resourceVersion"], json!(changes.borrow_and_update().to_string()));
    }

    #[test]
    fn history_that_was_dropped_is_said_to_be_gone() {
        let store = store();
        let start = store.with(|state| state.version());
        for turn in 0..=HISTORY {
            store.edit_node("n1", |node| node["spec"]["turn"] = json!(turn));
        }
        store.with(|state| {
            assert!(state.since(Kind::Node, start).is_none());
            assert_eq!(state.since(Kind::Node, state.version() - 1).unwrap().len(), 1);
        });
    }
}
