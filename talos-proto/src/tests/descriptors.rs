//! Our protos by reflection, and any message of theirs as protobuf's JSON.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _, Value,
};
use serde_json::Value as Json;

/// All of `talos-proto/proto`.
pub(super) fn pool() -> &'static DescriptorPool {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
        let files = protos(&root);
        assert!(files.len() > 10, "{files:?}");
        DescriptorPool::from_file_descriptor_set(protox::compile(files, [root]).unwrap()).unwrap()
    });
    &POOL
}

fn protos(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .flat_map(|path| if path.is_dir() { protos(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "proto"))
        .collect();
    files.sort();
    files
}

/// Whether a message, enum or service is our own and not Google's.
pub(super) fn is_ours(full_name: &str) -> bool {
    !full_name.starts_with("google.")
}

pub(super) fn message(full_name: &str) -> MessageDescriptor {
    pool().get_message_by_name(full_name).unwrap_or_else(|| panic!("there is no message {full_name}"))
}

/// A message in protobuf's JSON mapping: default values left out, 64 bit numbers as text, bytes in base64.
pub(super) fn render(message: &DynamicMessage) -> Json {
    match message.descriptor().full_name() {
        "google.protobuf.Timestamp" => {
            let (seconds, nanos) = seconds_and_nanos(message);
            let whole = jiff::Timestamp::from_second(seconds).unwrap().to_string();
            Json::String(format!("{}{}Z", whole.trim_end_matches('Z'), fraction(nanos)))
        }
        "google.protobuf.Duration" => {
            let (seconds, nanos) = seconds_and_nanos(message);
            assert!(seconds >= 0 && nanos >= 0, "no negative duration is expected here");
            Json::String(format!("{seconds}{}s", fraction(nanos)))
        }
        _ => message.fields().map(|(field, value)| (field.json_name().to_owned(), field_json(&field, value))).collect(),
    }
}

fn seconds_and_nanos(message: &DynamicMessage) -> (i64, i32) {
    let seconds = message.get_field_by_name("seconds").unwrap().as_i64().unwrap();
    (seconds, message.get_field_by_name("nanos").unwrap().as_i32().unwrap())
}

/// None, three, six or nine digits, as protobuf prints them.
fn fraction(nanos: i32) -> String {
    match nanos {
        0 => String::new(),
        n if n % 1_000_000 == 0 => format!(".{:03}", n / 1_000_000),
        n if n % 1_000 == 0 => format!(".{:06}", n / 1_000),
        n => format!(".{n:09}"),
    }
}

fn field_json(field: &FieldDescriptor, value: &Value) -> Json {
    match value {
        Value::List(list) => list.iter().map(|item| scalar(&field.kind(), item)).collect(),
        Value::Map(map) => {
            let Kind::Message(entry) = field.kind() else { panic!("a map without entries") };
            let kind = entry.map_entry_value_field().kind();
            map.iter().map(|(key, item)| (map_key(key), scalar(&kind, item))).collect()
        }
        value => scalar(&field.kind(), value),
    }
}

fn map_key(key: &MapKey) -> String {
    key.as_str().expect("only maps with text keys are used").to_owned()
}

fn scalar(kind: &Kind, value: &Value) -> Json {
    match value {
        Value::Bool(value) => Json::Bool(*value),
        Value::I32(value) => Json::from(*value),
        Value::U32(value) => Json::from(*value),
        Value::I64(value) => Json::String(value.to_string()),
        Value::U64(value) => Json::String(value.to_string()),
        Value::String(value) => Json::String(value.clone()),
        Value::Bytes(value) => Json::String(STANDARD.encode(value)),
        Value::Message(value) => render(value),
        Value::EnumNumber(number) => {
            let Kind::Enum(of) = kind else { panic!("a number that is no enum") };
            of.get_value(*number).map_or_else(|| Json::from(*number), |name| Json::String(name.name().to_owned()))
        }
        other => panic!("no field of ours has such a value: {other:?}"),
    }
}
