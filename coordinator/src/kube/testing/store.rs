//! Objects by path, one version counter, and a history to watch.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::sync::watch;

/// One entry of the history.
#[derive(Clone)]
pub struct Event {
    pub version: u64,
    pub kind: &'static str,
    pub path: String,
    pub object: Value,
}

pub struct Store {
    objects: BTreeMap<String, Value>,
    pub version: u64,
    pub history: Vec<Event>,
    /// Versions before this one are forgotten.
    pub oldest: u64,
    /// Told at each change; the number of times that watches were broken.
    pub news: watch::Sender<u64>,
}

impl Default for Store {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), version: 100, history: Vec::new(), oldest: 0, news: watch::Sender::new(0) }
    }
}

impl Store {
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(path)
    }

    /// Objects of a collection: of one namespace, or of all when the path names none.
    pub fn list(&self, collection: &str) -> Vec<&Value> {
        self.objects.iter().filter(|(path, _)| in_collection(path, collection)).map(|(_, object)| object).collect()
    }

    pub fn insert(&mut self, path: &str, mut object: Value) {
        let name = path.rsplit('/').next().unwrap();
        self.version += 1;
        object["metadata"]["name"] = json!(name);
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{name}-{}", self.version));
        }
        self.store("ADDED", path, object);
    }

    /// Stores a change under a new version; a change of nothing keeps the version.
    pub fn update(&mut self, path: &str, mut object: Value) -> Value {
        normalise(&mut object);
        if self.objects.get(path) != Some(&object) {
            self.version += 1;
            self.store("MODIFIED", path, object);
        }
        self.objects[path].clone()
    }

    pub fn remove(&mut self, path: &str) {
        if let Some(mut object) = self.objects.remove(path) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.tell("DELETED", path, object);
        }
    }

    pub fn compact(&mut self) {
        self.version += 1;
        self.oldest = self.version;
    }

    pub fn break_watches(&self) {
        self.news.send_modify(|broken| *broken += 1);
    }

    fn store(&mut self, kind: &'static str, path: &str, mut object: Value) {
        normalise(&mut object);
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        self.tell(kind, path, object);
    }

    fn tell(&mut self, kind: &'static str, path: &str, object: Value) {
        self.history.push(Event { version: self.version, kind, path: path.to_owned(), object });
        self.news.send_modify(|_| {});
    }
}

pub fn in_collection(path: &str, collection: &str) -> bool {
    let Some((parent, _)) = path.rsplit_once('/') else { return false };
    if parent == collection {
        return true;
    }
    let (group, plural) = collection.rsplit_once('/').unwrap();
    !collection.contains("/namespaces/")
        && parent.starts_with(&format!("{group}/namespaces/"))
        && parent.ends_with(&format!("/{plural}"))
}

/// As the real server stores: `unschedulable` false and an empty annotations map are left out.
fn normalise(object: &mut Value) {
    if let Some(spec) = object["spec"].as_object_mut()
        && !matches!(spec.get("unschedulable"), Some(Value::Bool(true)))
    {
        spec.remove("unschedulable");
    }
    if let Some(metadata) = object["metadata"].as_object_mut()
        && metadata.get("annotations").is_some_and(|map| map.as_object().is_none_or(serde_json::Map::is_empty))
    {
        metadata.remove("annotations");
    }
}
