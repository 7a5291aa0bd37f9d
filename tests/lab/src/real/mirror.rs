//! A copy of all objects of one kind, kept by a watch as an informer keeps it (client-go's reflector).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use serde_json::Value;
use talos_proto::clock::Clock;
use tokio::sync::watch;

use super::api::{Api, collection};
use crate::kube::kind::Kind;
use crate::kube::store::{Event, is_real_change};

/// How soon a broken watch is tried again.
const AGAIN: Duration = Duration::from_millis(50);

#[derive(Default)]
struct State {
    objects: BTreeMap<(String, String), Arc<Value>>,
    history: Vec<Event>,
    senders: HashMap<String, watch::Sender<u64>>,
}

/// The objects of a kind and what happened to them since the lab began.
pub(super) struct Mirror {
    kind: Kind,
    state: Mutex<State>,
}

impl Mirror {
    pub fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self { kind, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All objects.
    pub fn list(&self) -> Vec<Arc<Value>> {
        self.state().objects.values().cloned().collect()
    }

    /// One that is in no namespace.
    pub fn get(&self, name: &str) -> Option<Arc<Value>> {
        self.state().objects.get(&(String::new(), name.to_owned())).cloned()
    }

    /// What happened after that version.
    pub fn since(&self, version: u64) -> Vec<Event> {
        self.state().history.iter().filter(|event| event.version > version).cloned().collect()
    }

    /// Whether it has come as far as that list of the server.
    pub fn has_seen(&self, listed: &[Arc<Value>]) -> bool {
        let state = self.state();
        listed.len() == state.objects.len()
            && listed.iter().all(|object| {
                let seen = state.objects.get(&key(object));
                seen.is_some_and(|seen| version(seen) >= version(object))
            })
    }

    /// Moves with every change of that object but heartbeats, whether it is there yet or not.
    pub fn changes(&self, name: &str) -> watch::Receiver<u64> {
        self.state().senders.entry(name.to_owned()).or_insert_with(|| watch::channel(0).0).subscribe()
    }

    /// Lists and watches until the lab ends.
    pub async fn follow(self: Arc<Self>, api: Api, clock: Clock) {
        loop {
            // Whatever went wrong: a new list brings all of it.
            let _ = self.once(&api).await;
            clock.sleep(AGAIN).await;
        }
    }

    async fn once(&self, api: &Api) -> std::io::Result<()> {
        let path = collection(self.kind, "");
        let reply = api.get(&path).await?;
        if !reply.is_ok() {
            return Err(std::io::Error::other(reply.text));
        }
        let list = reply.json();
        let from = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let items: Vec<Value> = list["items"].as_array().cloned().unwrap_or_default();
        let gone: Vec<_> = {
            let listed: Vec<_> = items.iter().map(key).collect();
            self.list().into_iter().filter(|object| !listed.contains(&key(object))).collect()
        };
        items.into_iter().for_each(|object| self.take(object, false));
        gone.into_iter().for_each(|object| self.take(Value::clone(&object), true));
        let mut events = std::pin::pin!(api.watch(&format!("{path}?watch=1&resourceVersion={from}")).await?);
        while let Some(event) = events.next().await {
            let mut event = event?;
            match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => self.take(event["object"].take(), false),
                Some("DELETED") => self.take(event["object"].take(), true),
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn take(&self, object: Value, deleted: bool) {
        let (key, object) = (key(&object), Arc::new(object));
        let mut state = self.state();
        let before = state.objects.get(&key).cloned();
        if before.as_ref().is_some_and(|before| version(before) >= version(&object)) && !deleted {
            return;
        }
        if deleted {
            state.objects.remove(&key);
        } else {
            state.objects.insert(key.clone(), Arc::clone(&object));
        }
        let event = Event { version: version(&object), before, object, deleted };
        if is_real_change(&event)
            && let Some(sender) = state.senders.get(&key.1)
        {
            sender.send_replace(event.version);
        }
        // Pods come and go by the hundred, and nobody asks what became of them.
        if self.kind == Kind::Node {
            state.history.push(event);
        }
    }
}

fn key(object: &Value) -> (String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// etcd's revision of an object's last change. Clients must not read meaning into it; the lab knows its server.
pub(super) fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}
