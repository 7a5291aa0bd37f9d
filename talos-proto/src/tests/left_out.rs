//! The fields that real Talos servers send and our protos leave out, each with the reason. What is on neither list must
//! be in our protos, and what is on a list must be in the recordings.

use std::collections::BTreeSet;

use protox::prost_reflect::{DynamicMessage, Kind, MessageDescriptor, ReflectMessage as _, Value};
use serde_json::{Map, Value as Json};

use super::recordings::is_abridged;

/// `(message, number, name in JSON, why)`.
pub(super) const FIELDS: &[(&str, u32, &str, &str)] = &[(
    "common.Metadata",
    3,
    "status",
    "`error` says the same in words, and whether there is one is all that is asked",
)];

/// `(message, number, why)`: left out of a spec, where the JSON holds the spec as base64.
pub(super) const SPEC_FIELDS: &[(&str, u32, &str)] = &[
    (
        "talos.resource.definitions.cri.RegistriesConfigSpec",
        3,
        "TLS of a registry: the product neither writes nor compares it",
    ),
    ("talos.resource.definitions.k8s.NodeStatusSpec", 6, "pod CIDRs: no address of a node is among them"),
];

/// `(resource type, key in its YAML, why)`.
pub(super) const YAML_KEYS: &[(&str, &str, &str)] = &[
    ("RegistryConfigs.cri.talos.dev", "tls", "as in SPEC_FIELDS"),
    ("NodeStatuses.kubernetes.talos.dev", "podCIDRs", "as in SPEC_FIELDS"),
    ("NodeAddresses.net.talos.dev", "sortAlgorithm", "the order of addresses is not used"),
];

/// What was met that our protos do not have: `(message, number)` on the wire and `(message, name)` in JSON.
#[derive(Default)]
pub(super) struct Met {
    pub(super) wire: BTreeSet<(String, u32)>,
    pub(super) json: BTreeSet<(String, String)>,
}

impl Met {
    /// Notes every unknown field of a message, however deep.
    pub(super) fn wire(&mut self, message: &DynamicMessage) {
        let name = message.descriptor().full_name().to_owned();
        self.wire.extend(message.unknown_fields().map(|field| (name.clone(), field.number())));
        message.fields().for_each(|(_, value)| self.value(value));
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Message(message) => self.wire(message),
            Value::List(list) => list.iter().for_each(|item| self.value(item)),
            Value::Map(map) => map.values().for_each(|item| self.value(item)),
            _ => {}
        }
    }

    /// The recorded JSON of a message without the keys that our protos do not have, which are noted.
    pub(super) fn prune(&mut self, of: &MessageDescriptor, json: &Json) -> Json {
        let Json::Object(object) = json else { return json.clone() };
        if is_abridged(json) {
            return json.clone();
        }
        let mut known = Map::new();
        for (key, value) in object {
            let Some(field) = of.get_field_by_json_name(key) else {
                self.json.insert((of.full_name().to_owned(), key.clone()));
                continue;
            };
            let Kind::Message(inner) = field.kind() else {
                known.insert(key.clone(), value.clone());
                continue;
            };
            let pruned = match (value, field.is_map()) {
                (Json::Object(entries), true) => {
                    let kind = inner.map_entry_value_field().kind();
                    let mut prune = |value: &Json| match &kind {
                        Kind::Message(inner) => self.prune(inner, value),
                        _ => value.clone(),
                    };
                    entries.keys().cloned().zip(entries.values().map(&mut prune)).collect()
                }
                (Json::Array(list), _) => list.iter().map(|item| self.prune(&inner, item)).collect(),
                (value, _) => self.prune(&inner, value),
            };
            known.insert(key.clone(), pruned);
        }
        Json::Object(known)
    }
}
