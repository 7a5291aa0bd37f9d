//! Resources with their versions, times and watches.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan as _};
use talos_proto::proto::cosi::resource::{Event, EventType, Metadata, Resource, Spec};
use tokio::sync::mpsc;

use super::kind::{self, Kind};

/// The state of one boot. Dropping it ends every watch, as a reboot does.
#[derive(Default)]
pub(crate) struct Store {
    resources: BTreeMap<(&'static str, String), Resource>,
    watchers: Vec<Watcher>,
    changes: u64,
}

struct Watcher {
    kind: &'static str,
    id: Option<String>,
    events: mpsc::UnboundedSender<Event>,
}

/// What a watch begins with, and what comes then; nothing can be lost between.
pub(crate) struct Watching {
    /// The resources that were there.
    pub first: Vec<Event>,
    /// Every change since; ends with the boot.
    pub then: mpsc::UnboundedReceiver<Event>,
}

/// Real times of a new resource: `updated` is stamped when it is made, `created` some microseconds later when it is
/// stored (for instance ServicePIDs cri in read.jsonl).
const STORE_DELAY_MICROSECONDS: i64 = 40;

impl Store {
    pub fn get(&self, kind: &Kind, id: &str) -> Option<&Resource> {
        self.resources.get(&(kind.name, id.to_owned()))
    }

    /// All of a type, in the order of their ids, as List answers.
    pub fn list(&self, kind: &Kind) -> Vec<Resource> {
        self.resources
            .iter()
            .filter(|((name, _), _)| *name == kind.name)
            .map(|(_, resource)| resource.clone())
            .collect()
    }

    /// Writes a rendered resource: an equal one is left alone, version and times too (talos-captures point 3).
    pub fn render(&mut self, now: Timestamp, kind: &Kind, id: &str, spec: Spec) -> bool {
        if self.get(kind, id).is_some_and(|resource| resource.spec.as_ref() == Some(&spec)) {
            return false;
        }
        self.write(now, kind, id, spec);
        true
    }

    /// Writes a resource whose version moves with every write, equal or not, as MachineConfigs' does.
    pub fn write(&mut self, now: Timestamp, kind: &Kind, id: &str, spec: Spec) {
        let key = (kind.name, id.to_owned());
        let old = self.resources.get(&key).cloned();
        let metadata = match old.as_ref().and_then(|resource| resource.metadata.clone()) {
            Some(mut metadata) => {
                let version = metadata.version.parse::<u64>().unwrap_or(0);
                metadata.version = (version + 1).to_string();
                metadata.updated = Some(timestamp(now));
                metadata
            }
            None => new_metadata(now, kind, id),
        };
        let resource = Resource { metadata: Some(metadata), spec: Some(spec) };
        self.resources.insert(key, resource.clone());
        let event_type = if old.is_some() { EventType::Updated } else { EventType::Created };
        self.tell(kind, id, Event { resource: Some(resource), event_type: event_type.into(), old, ..Event::default() });
    }

    pub fn remove(&mut self, kind: &Kind, id: &str) {
        if let Some(resource) = self.resources.remove(&(kind.name, id.to_owned())) {
            let event_type = EventType::Destroyed.into();
            self.tell(kind, id, Event { resource: Some(resource), event_type, ..Event::default() });
        }
    }

    /// Removes those of a type that `keep` does not name.
    pub fn retain(&mut self, kind: &Kind, keep: impl Fn(&str) -> bool) {
        let gone: Vec<_> = self
            .resources
            .keys()
            .filter(|(name, id)| *name == kind.name && !keep(id))
            .map(|(_, id)| id.clone())
            .collect();
        for id in gone {
            self.remove(kind, &id);
        }
    }

    fn tell(&mut self, kind: &Kind, id: &str, mut event: Event) {
        self.changes += 1;
        event.bookmark = Some(bookmark(self.changes));
        self.watchers.retain(|watcher| !watcher.events.is_closed());
        for watcher in &self.watchers {
            if watcher.kind == kind.name && watcher.id.as_deref().is_none_or(|wanted| wanted == id) {
                // A closed one goes with the next change.
                let _ = watcher.events.send(event.clone());
            }
        }
    }

    /// How many watches of clients are open.
    pub fn watches(&self) -> usize {
        self.watchers.iter().filter(|watcher| !watcher.events.is_closed()).count()
    }

    /// Watches a type: what is there as CREATED, then BOOTSTRAPPED (read.jsonl).
    pub fn watch_kind(&mut self, now: Timestamp, kind: &'static Kind, contents: bool) -> Watching {
        let mut first = Vec::new();
        if contents {
            let created = |resource| Event {
                resource: Some(resource),
                event_type: EventType::Created.into(),
                ..Event::default()
            };
            first.extend(self.list(kind).into_iter().map(created));
            first.push(Event {
                resource: Some(nothing(now, kind, "")),
                event_type: EventType::Bootstrapped.into(),
                bookmark: Some(bookmark(self.changes)),
                ..Event::default()
            });
        }
        Watching { first, then: self.subscribe(kind, None) }
    }

    /// Watches one id: what is there as CREATED, a tombstone as DESTROYED when nothing is (talos.md 1.6).
    pub fn watch_id(&mut self, now: Timestamp, kind: &'static Kind, id: &str) -> Watching {
        let event = match self.get(kind, id) {
            Some(resource) => {
                Event { resource: Some(resource.clone()), event_type: EventType::Created.into(), ..Event::default() }
            }
            None => Event {
                resource: Some(nothing(now, kind, id)),
                event_type: EventType::Destroyed.into(),
                ..Event::default()
            },
        };
        Watching { first: vec![event], then: self.subscribe(kind, Some(id.to_owned())) }
    }

    fn subscribe(&mut self, kind: &'static Kind, id: Option<String>) -> mpsc::UnboundedReceiver<Event> {
        let (events, then) = mpsc::unbounded_channel();
        self.watchers.push(Watcher { kind: kind.name, id, events });
        then
    }
}

fn new_metadata(now: Timestamp, kind: &Kind, id: &str) -> Metadata {
    let annotations = if kind.name == kind::MACHINE_CONFIG.name {
        [("talos.dev/yaml-spec".to_owned(), "1".to_owned())].into()
    } else {
        Default::default()
    };
    Metadata {
        namespace: kind.namespace.to_owned(),
        r#type: kind.name.to_owned(),
        id: id.to_owned(),
        version: "1".to_owned(),
        owner: kind.owner.to_owned(),
        phase: "running".to_owned(),
        created: Some(timestamp(now + STORE_DELAY_MICROSECONDS.microseconds())),
        updated: Some(timestamp(now)),
        annotations,
        ..Metadata::default()
    }
}

fn nothing(now: Timestamp, kind: &Kind, id: &str) -> Resource {
    let metadata = Metadata {
        namespace: kind.namespace.to_owned(),
        r#type: kind.name.to_owned(),
        id: id.to_owned(),
        version: "undefined".to_owned(),
        phase: "running".to_owned(),
        created: Some(timestamp(now)),
        updated: Some(timestamp(now)),
        ..Metadata::default()
    };
    Resource { metadata: Some(metadata), spec: Some(Spec::default()) }
}

/// Sixteen opaque bytes, the last eight counting.
fn bookmark(changes: u64) -> Vec<u8> {
    [*b"labstore", changes.to_be_bytes()].concat()
}

pub(crate) fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Spec {
        Spec { proto_spec: text.as_bytes().to_vec(), yaml_spec: text.to_owned() }
    }

    fn version(store: &Store, kind: &Kind) -> String {
        store.get(kind, "x").unwrap().metadata.as_ref().unwrap().version.clone()
    }

    #[test]
    fn only_a_real_change_moves_a_rendered_resource() {
        let (mut store, now) = (Store::default(), Timestamp::UNIX_EPOCH);
        assert!(store.render(now, &kind::REGISTRIES, "x", spec("a")));
        assert!(!store.render(now, &kind::REGISTRIES, "x", spec("a")));
        store.write(now, &kind::MACHINE_CONFIG, "x", spec("a"));
        store.write(now, &kind::MACHINE_CONFIG, "x", spec("a"));
        assert_eq!(
            (version(&store, &kind::REGISTRIES), version(&store, &kind::MACHINE_CONFIG)),
            ("1".into(), "2".into())
        );
        store.remove(&kind::REGISTRIES, "x");
        store.render(now, &kind::REGISTRIES, "x", spec("b"));
        assert_eq!(version(&store, &kind::REGISTRIES), "1", "a resource that comes back counts anew");
    }

    #[test]
    fn a_watch_sees_what_is_there_and_then_each_change_of_its_own() {
        let (mut store, now) = (Store::default(), Timestamp::UNIX_EPOCH);
        store.render(now, &kind::SERVICE, "x", spec("a"));
        let mut all = store.watch_kind(now, &kind::SERVICE, true);
        let mut one = store.watch_id(now, &kind::SERVICE, "y");
        store.render(now, &kind::SERVICE, "x", spec("b"));
        store.render(now, &kind::SERVICE, "y", spec("c"));
        store.remove(&kind::SERVICE, "x");
        let types = |events: &[Event]| events.iter().map(Event::event_type).collect::<Vec<_>>();
        assert_eq!(types(&all.first), [EventType::Created, EventType::Bootstrapped]);
        assert_eq!(types(&one.first), [EventType::Destroyed]);
        let seen: Vec<_> = std::iter::from_fn(|| all.then.try_recv().ok()).collect();
        assert_eq!(types(&seen), [EventType::Updated, EventType::Created, EventType::Destroyed]);
        assert_eq!(seen[0].old.as_ref().unwrap().spec, Some(spec("a")));
        assert_eq!(types(&[one.then.try_recv().unwrap()]), [EventType::Created]);
        drop(store);
        assert!(matches!(one.then.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
    }
}
