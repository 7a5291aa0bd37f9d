//! What the images of a lab consist of: small, and whole, so that a real registry takes them and a node can pull them.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The media type of a manifest of one platform.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of an index of such manifests.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The platforms of an index; a node is the first of them.
pub const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// A manifest or an index.
pub(super) struct Manifest {
    pub media_type: &'static str,
    pub text: String,
    pub digest: String,
}

/// All of an image.
pub(super) struct Parts {
    pub blobs: Vec<String>,
    /// The manifests that an index names; none without an index.
    pub platforms: Vec<Manifest>,
    /// What the tag names.
    pub top: Manifest,
}

impl Parts {
    /// An image of one platform. Another name gives another digest.
    pub(super) fn of_one_platform(repository: &str, tag: &str) -> Self {
        let (blobs, top) = platform(&format!("{repository}:{tag}"), ARCHITECTURES[0]);
        Self { blobs: blobs.into(), platforms: Vec::new(), top }
    }

    /// An index of an image for each of [`ARCHITECTURES`].
    pub(super) fn of_all_platforms(repository: &str, tag: &str) -> Self {
        let name = format!("{repository}:{tag}");
        let (mut blobs, mut platforms, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for architecture in ARCHITECTURES {
            let (its_blobs, manifest) = platform(&name, architecture);
            let mut entry = descriptor(manifest.media_type, &manifest.text);
            entry["platform"] = json!({"architecture": architecture, "os": "linux"});
            entries.push(entry);
            blobs.extend(its_blobs);
            platforms.push(manifest);
        }
        let top = manifest(INDEX, &json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}));
        Self { blobs, platforms, top }
    }
}

fn platform(name: &str, architecture: &str) -> ([String; 2], Manifest) {
    let root = json!({"type": "layers", "diff_ids": []});
    let config = json!({"architecture": architecture, "os": "linux", "rootfs": root}).to_string();
    let layer = format!("the only layer of {name} for {architecture}");
    let content = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        "annotations": {"org.opencontainers.image.ref.name": name},
    });
    ([config, layer], manifest(MANIFEST, &content))
}

fn manifest(media_type: &'static str, content: &Value) -> Manifest {
    let text = content.to_string();
    Manifest { media_type, digest: digest(text.as_bytes()), text }
}

fn descriptor(media_type: &str, content: &str) -> Value {
    json!({"mediaType": media_type, "size": content.len(), "digest": digest(content.as_bytes())})
}

/// `sha256:` and 64 hex digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
