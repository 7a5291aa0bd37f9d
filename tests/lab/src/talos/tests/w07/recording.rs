//! The recordings as they are in fixtures/talos-captures/replay.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use prost::Message as _;
use serde::Deserialize;
use talos_proto::proto::machine::ApplyConfigurationRequest;

/// One call to a real node and what came back.
#[derive(Clone, Deserialize)]
pub(super) struct Call {
    pub name: String,
    pub role: String,
    pub method: String,
    #[serde(default)]
    pub metadata: BTreeMap<String, Vec<String>>,
    request: String,
    /// The machine config of a request that applies one: its bytes are not in `request`.
    config: Option<String>,
    pub replies: Vec<Reply>,
    pub code: i32,
    #[serde(default)]
    pub message: String,
}

/// One reply.
#[derive(Clone, Deserialize)]
pub(super) struct Reply {
    hex: String,
    /// The machine config that the reply holds: its bytes are not in `hex`.
    config: Option<String>,
    /// The recorder left out what the reply holds.
    #[serde(default, rename = "leftOut")]
    pub left_out: bool,
}

impl Reply {
    pub fn bytes(&self) -> Vec<u8> {
        unhex(&self.hex)
    }

    pub fn config(&self) -> Option<Vec<u8>> {
        self.config.as_deref().map(config)
    }
}

impl Call {
    /// The request's message. A TRY is over after a quarter of its time, as all that people wait for is shorter in a lab.
    pub fn request(&self) -> Vec<u8> {
        let bytes = unhex(&self.request);
        let Some(name) = &self.config else { return bytes };
        let mut request = ApplyConfigurationRequest::decode(bytes.as_slice()).unwrap();
        request.data = config(name);
        if let Some(timeout) = &mut request.try_mode_timeout {
            let nanos = timeout.seconds * 1_000_000_000 / 4;
            (timeout.seconds, timeout.nanos) = (nanos / 1_000_000_000, (nanos % 1_000_000_000) as i32);
        }
        request.encode_to_vec()
    }

    /// The node that it is for: the endpoint when it names none.
    pub fn target(&self) -> &str {
        let node = self.metadata.get("node").or_else(|| self.metadata.get("nodes"));
        node.and_then(|values| values.first()).map_or("", String::as_str)
    }

    /// The last part of the method.
    pub fn rpc(&self) -> &str {
        self.method.rsplit('/').next().unwrap_or_default()
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/talos-captures/replay")
}

/// The calls of a file, in their order.
pub(super) fn calls(version: &str, file: &str) -> Vec<Call> {
    let path = folder().join(version).join(format!("{file}.jsonl"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// A machine config of the recordings.
pub(super) fn config(name: &str) -> Vec<u8> {
    let path = folder().join("configs").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
