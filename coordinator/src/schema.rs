//! The JSON Schemas of the documents that `-o json` prints and `--report` writes, made from their types; `docs/schema/` holds them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::json;

use crate::doctor::DoctorDocument;
use crate::fences::FencesDocument;
use crate::plan::{PlanDocument, SCHEMA_VERSION};
use crate::proofs::ProofsDocument;
use crate::report::run_report::ReportDocument;
use crate::rollout::RunDocument;

/// Each kind of document with its schema (JSON Schema 2020-12). A document says its kind itself.
#[must_use]
pub fn all() -> Vec<(&'static str, Schema)> {
    vec![
        of::<PlanDocument>("Plan", "What `talos-ghcr plan` prints."),
        of::<PlanDocument>("Verification", "What `talos-ghcr verify` prints."),
        of::<RunDocument>("Run", "What `talos-ghcr run` prints."),
        of::<ProofsDocument>("Proofs", "What `talos-ghcr proofs` prints."),
        of::<FencesDocument>("Fences", "What `talos-ghcr fences` prints."),
        of::<DoctorDocument>("Doctor", "What `talos-ghcr doctor` prints."),
        of::<ReportDocument>("Report", "What `talos-ghcr run --report FILE.json` writes."),
    ]
}

fn of<T: JsonSchema>(kind: &'static str, description: &str) -> (&'static str, Schema) {
    let mut schema = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), json!(kind));
    schema.insert("description".to_owned(), json!(description));
    // Two kinds may share a type, and a version is a number in it.
    for (field, value) in [("kind", json!(kind)), ("schemaVersion", json!(SCHEMA_VERSION))] {
        if let Some(described) = schema.pointer_mut(&format!("/properties/{field}")) {
            *described = json!({ "const": value });
        }
    }
    (kind, schema)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// `UPDATE_SCHEMAS=1` writes them.
    #[test]
    fn the_schemas_in_docs_are_those_of_the_types() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
        let mut expected = Vec::new();
        for (kind, schema) in all() {
            let name = format!("{}.json", kind.to_lowercase());
            let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
            if std::env::var_os("UPDATE_SCHEMAS").is_some() {
                std::fs::write(folder.join(&name), &text).unwrap();
            }
            assert_eq!(std::fs::read_to_string(folder.join(&name)).unwrap(), text, "docs/schema/{name}");
            expected.push(name);
        }
        let mut there: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        there.sort();
        expected.sort();
        assert_eq!(there, expected, "a file that no type makes");
    }
}
