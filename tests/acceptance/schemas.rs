//! Every document that a test reads is of the shape that `docs/schema/` says, and holds nothing that is not said there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

static ALL: LazyLock<(Schemas, BTreeMap<String, SchemaIndex>)> = LazyLock::new(|| {
    let (mut schemas, mut compiler, mut kinds) = (Schemas::new(), Compiler::new(), BTreeMap::new());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    for file in std::fs::read_dir(folder).expect("docs/schema") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a schema");
        let mut schema: Value = serde_json::from_str(&text).expect("JSON");
        // A user's program must take a field that a later version adds; a test must not.
        close(&mut schema);
        let kind = schema["properties"]["kind"]["const"].as_str().expect("a kind").to_owned();
        let place = format!("mem:///{kind}");
        compiler.add_resource(&place, schema).expect("a resource");
        kinds.insert(kind, compiler.compile(&place, &mut schemas).unwrap_or_else(|error| panic!("{error:#}")));
    }
    (schemas, kinds)
});

fn close(schema: &mut Value) {
    if let Value::Object(object) = schema {
        if object.contains_key("properties") && !object.contains_key("additionalProperties") {
            object.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
        object.values_mut().for_each(close);
    }
    if let Value::Array(items) = schema {
        items.iter_mut().for_each(close);
    }
}

/// Panics where the document is not of its kind's schema.
#[track_caller]
pub fn check(document: &Value) {
    let (schemas, kinds) = &*ALL;
    let kind = document["kind"].as_str().unwrap_or_else(|| panic!("a document without a kind: {document}"));
    let schema = kinds.get(kind).unwrap_or_else(|| panic!("docs/schema has no {kind}"));
    if let Err(error) = schemas.validate(document, *schema) {
        panic!("{error:#}\n{document:#}");
    }
}

#[test]
#[should_panic(expected = "additionalProperties")]
fn a_field_that_no_schema_names_is_seen() {
    check(&serde_json::json!({"schemaVersion": 1, "kind": "Proofs", "nodes": [], "more": 1}));
}

#[test]
#[should_panic(expected = "nodes")]
fn a_field_that_is_missing_is_seen() {
    check(&serde_json::json!({"schemaVersion": 1, "kind": "Proofs"}));
}
