//! Our protos against the tables of each Talos version's own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use protox::prost_reflect::{Cardinality, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

use super::descriptors::{is_ours, pool};

/// In the order of their release.
pub(super) const VERSIONS: [&str; 7] =
    ["v1.9.6", "v1.10.9", "v1.11.6", "v1.12.11", "v1.13.7", "v1.13.9", "v1.14.0-rc.1"];

/// What not all of [`VERSIONS`] have, or have otherwise: a message, field, enum, value or service with all that is in
/// it, and the first and the last version in which it is as ours. Before and after it must be missing or another.
const SPANS: &[(&str, &str, &str)] = &[
    ("cosi.resource.EventType.NOOP", "v1.10.9", LAST),
    ("cosi.resource.WatchOptions.bootstrap_bookmark", "v1.10.9", LAST),
    // The endpoints of a mirror were texts in 1.9.
    ("talos.resource.definitions.cri.RegistryEndpointConfig", "v1.10.9", LAST),
    ("talos.resource.definitions.cri.RegistryMirrorConfig.mirror_endpoints", "v1.10.9", LAST),
    ("machine.EtcdMemberStatus.storage_version", "v1.11.6", LAST),
    ("machine.RebootRequest.Mode.FORCE", "v1.12.11", LAST),
    // Credentials by host directly; until then inside of what a host has.
    ("talos.resource.definitions.cri.v1_11.RegistriesConfigSpec.registry_config", FIRST, "v1.11.6"),
    ("talos.resource.definitions.cri.v1_11.RegistryConfig", FIRST, "v1.11.6"),
    ("talos.resource.definitions.cri.RegistriesConfigSpec.registry_auths", "v1.12.11", LAST),
    ("common.ContainerdInstance", "v1.13.7", LAST),
    // The service, and its messages by their prefix.
    ("machine.ImageService", "v1.13.7", LAST),
    ("talos.resource.definitions.runtime.ServicePIDSpec", "v1.13.7", LAST),
    ("talos.resource.definitions.runtime.BootIDSpec", "v1.14.0-rc.1", LAST),
];
const FIRST: &str = VERSIONS[0];
const LAST: &str = VERSIONS[VERSIONS.len() - 1];

pub(super) fn table(name: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/talos-api").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Whether something of ours is as `version` has it.
fn is_in(full_name: &str, version: &str) -> bool {
    let at = |version: &str| VERSIONS.iter().position(|known| *known == version).unwrap();
    SPANS
        .iter()
        .filter(|(what, ..)| full_name.starts_with(what))
        .all(|(_, first, last)| (at(first)..=at(last)).contains(&at(version)))
}

/// Talos has one package for both layouts of the registries, one after the other; we need both at once.
fn as_talos_calls_it(full_name: &str) -> String {
    full_name.replace(".cri.v1_11.", ".cri.")
}

fn messages() -> Vec<MessageDescriptor> {
    let ours = |message: &MessageDescriptor| is_ours(message.full_name()) && !message.is_map_entry();
    pool().all_messages().filter(ours).collect()
}

fn enums() -> Vec<EnumDescriptor> {
    pool().all_enums().filter(|of| is_ours(of.full_name())).collect()
}

/// As the tables spell it, but with full names.
fn type_of(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(of) => of.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}

fn label_of(field: &FieldDescriptor) -> String {
    // An `optional` of proto3 is a oneof of one field, which is no real one.
    let optional = field.field_descriptor_proto().proto3_optional();
    match (field.containing_oneof(), field.cardinality()) {
        _ if optional => "optional".into(),
        (Some(oneof), _) => format!("oneof:{}", oneof.name()),
        (None, Cardinality::Repeated) if !field.is_map() => "repeated".into(),
        _ => String::new(),
    }
}

/// A type as its source spells it is the end of the full name.
fn spells(full: &str, spelled: &str) -> bool {
    full == spelled || full.ends_with(&format!(".{spelled}"))
}

fn same_type(field: &FieldDescriptor, spelled: &str) -> bool {
    if !field.is_map() {
        return spells(&type_of(&field.kind()), spelled);
    }
    let Kind::Message(entry) = field.kind() else { return false };
    let inside = spelled.strip_prefix("map<").and_then(|rest| rest.strip_suffix('>'));
    let Some((key, value)) = inside.and_then(|inside| inside.split_once(',')) else { return false };
    spells(&type_of(&entry.map_entry_key_field().kind()), key)
        && spells(&type_of(&entry.map_entry_value_field().kind()), value)
}

/// What differs between a field of ours and the row with its name.
fn difference(field: &FieldDescriptor, row: Option<&&Vec<String>>) -> Option<String> {
    let Some(row) = row else { return Some("there is no such field".into()) };
    let label = row.get(5).map(|label| label.replace("deprecated", "").trim().to_owned()).unwrap_or_default();
    let same = row[3] == field.number().to_string() && same_type(field, &row[4]) && label == label_of(field);
    let ours = || (field.number(), type_of(&field.kind()), label_of(field));
    (!same).then(|| format!("ours is {:?}, theirs {:?}", ours(), &row[3..]))
}

/// Notes what is not as [`SPANS`] says.
fn judge(wrong: &mut Vec<String>, name: &str, version: &str, difference: Option<String>) {
    match (is_in(name, version), difference) {
        (true, Some(difference)) => wrong.push(format!("{version}: {name}: {difference}")),
        (false, None) => wrong.push(format!("{version}: {name}: is as ours, though SPANS says that it is not")),
        _ => {}
    }
}

#[test]
fn w01_every_field_has_the_number_type_and_label_of_each_talos_version() {
    let mut wrong = Vec::new();
    for version in VERSIONS {
        let rows = table(&format!("{version}.tsv"));
        let known: BTreeSet<&str> = rows.iter().map(|row| row[1].as_str()).collect();
        let fields: BTreeMap<(&str, &str), &Vec<String>> =
            rows.iter().map(|row| ((row[1].as_str(), row[2].as_str()), row)).collect();
        let mut compared = 0;
        for message in messages() {
            let theirs = as_talos_calls_it(message.full_name());
            let missing = || "there is no such message".to_owned();
            judge(&mut wrong, message.full_name(), version, (!known.contains(theirs.as_str())).then(missing));
            for field in message.fields() {
                let row = fields.get(&(theirs.as_str(), field.name()));
                judge(&mut wrong, field.full_name(), version, difference(&field, row));
                compared += usize::from(row.is_some());
            }
        }
        assert!(compared > 140, "{version}: only {compared} fields");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn w01_every_enum_value_has_the_number_of_each_talos_version() {
    let mut wrong = Vec::new();
    for version in VERSIONS {
        let rows = table(&format!("{version}.enums.tsv"));
        let theirs: BTreeMap<(&str, &str), &str> =
            rows.iter().map(|row| ((row[1].as_str(), row[2].as_str()), row[3].as_str())).collect();
        let mut compared = 0;
        for of in enums() {
            for value in of.values() {
                let number = theirs.get(&(of.full_name(), value.name()));
                let ours = value.number().to_string();
                let difference = (number != Some(&ours.as_str())).then(|| format!("ours is {ours}, theirs {number:?}"));
                judge(&mut wrong, &format!("{}.{}", of.full_name(), value.name()), version, difference);
                compared += usize::from(number.is_some());
            }
        }
        assert!(compared > 35, "{version}: only {compared} values");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn w01_every_call_has_the_messages_and_streams_of_each_talos_version() {
    let rows = table("services.tsv");
    let mut wrong = Vec::new();
    for version in VERSIONS {
        let mut compared = 0;
        for method in pool().services().flat_map(|service| service.methods().collect::<Vec<_>>()) {
            let service = method.parent_service();
            let of = |row: &&Vec<String>| row[0] == version && row[1] == service.full_name() && row[2] == method.name();
            let row = rows.iter().find(of);
            let streaming = match (method.is_client_streaming(), method.is_server_streaming()) {
                (false, false) => "unary",
                (false, true) => "server-stream",
                (true, false) => "client-stream",
                (true, true) => "bidi",
            };
            let same = |row: &Vec<String>| {
                spells(method.input().full_name(), &row[3])
                    && spells(method.output().full_name(), &row[4])
                    && row[5] == streaming
            };
            let difference = (!row.is_some_and(same)).then(|| format!("theirs is {row:?}"));
            judge(&mut wrong, method.full_name(), version, difference);
            compared += usize::from(row.is_some());
        }
        assert!(compared >= 13, "{version}: only {compared} calls");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A row of [`SPANS`] that fits nothing would excuse nothing, and hide a typing error.
#[test]
fn w01_each_span_is_of_something() {
    let fields = messages().into_iter().flat_map(|message| {
        let fields = message.fields().map(|field| field.full_name().to_owned()).collect::<Vec<_>>();
        fields.into_iter().chain([message.full_name().to_owned()])
    });
    let values = enums()
        .into_iter()
        .flat_map(|of| of.values().map(|value| format!("{}.{}", of.full_name(), value.name())).collect::<Vec<_>>());
    let names: Vec<String> = fields.chain(values).collect();
    for (what, ..) in SPANS {
        assert!(names.iter().any(|name| name.starts_with(what)), "nothing of ours is called {what}");
    }
}

/// The value of a mirror before 1.12: 1.9 has other fields than 1.10, and only the host that is its key is read.
#[test]
fn w01_no_field_of_a_mirror_is_declared_for_the_older_layout() {
    let mirror = messages().into_iter().find(|message| message.full_name().ends_with("v1_11.RegistryMirrorConfig"));
    assert_eq!(mirror.unwrap().fields().count(), 0);
}
