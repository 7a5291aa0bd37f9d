//! The recordings, read.

use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value as Json;

/// One call to a real Talos server and what came back.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Call {
    /// The file and line, for messages.
    #[serde(skip)]
    pub(super) at: String,
    pub(super) name: String,
    pub(super) role: String,
    pub(super) method: String,
    pub(super) request: Json,
    pub(super) replies: Vec<Reply>,
    pub(super) code_number: i32,
    #[serde(default)]
    pub(super) message: String,
}

/// One reply, as bytes and as the recorder decoded it.
#[derive(Deserialize)]
pub(super) struct Reply {
    hex: String,
    pub(super) json: Json,
}

impl Reply {
    pub(super) fn bytes(&self) -> Vec<u8> {
        unhex(&self.hex)
    }

    /// The recorder did not repeat a machine config in `json`.
    pub(super) fn is_abridged(&self) -> bool {
        is_abridged(&self.json)
    }
}

impl Call {
    /// The type of the COSI resource that was asked for.
    pub(super) fn resource_type(&self) -> &str {
        self.request["json"]["type"].as_str().unwrap_or_default()
    }

    /// The bytes of the request, where they were kept.
    pub(super) fn request_bytes(&self) -> Option<Vec<u8>> {
        self.request["hex"].as_str().map(unhex)
    }
}

pub(super) fn is_abridged(json: &Json) -> bool {
    json.get("see").is_some() || json.get("left out").is_some()
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    assert_eq!(text.len() % 2, 0, "half a byte");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// All of them.
pub(super) fn calls() -> &'static [Call] {
    static CALLS: LazyLock<Vec<Call>> = LazyLock::new(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/talos-captures");
        let mut calls = Vec::new();
        for version in ["v1.13.9", "v1.14.0-rc.1"] {
            let mut files: Vec<_> =
                std::fs::read_dir(root.join(version)).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort();
            for file in files {
                let text = std::fs::read_to_string(&file).unwrap();
                let file = file.file_name().unwrap().to_string_lossy().into_owned();
                for (line, text) in text.lines().enumerate() {
                    let at = format!("{version}/{file}:{}", line + 1);
                    let call: Call = serde_json::from_str(text).unwrap_or_else(|error| panic!("{at}: {error}"));
                    calls.push(Call { at: format!("{at} ({}, {})", call.name, call.role), ..call });
                }
            }
        }
        assert!(calls.len() > 400, "only {} calls", calls.len());
        calls
    });
    &CALLS
}
