//! Mutating requests as they go over the wire: JSON patches that test what they were decided on, with the server's own
//! deadline in the query.

use std::time::Duration;

use http::Request;
use serde::Serialize;
use serde_json::{Value, json};

/// Who writes, in `metadata.managedFields`.
const FIELD_MANAGER: &str = "talos-ghcr";

/// Passes only if the member has that value; a missing member equals null if its parent is there.
pub fn test(path: impl AsRef<str>, value: impl Serialize) -> Value {
    json!({ "op": "test", "path": path.as_ref(), "value": json!(value) })
}

/// Sets the member; its parent must be there.
pub fn add(path: impl AsRef<str>, value: impl Serialize) -> Value {
    json!({ "op": "add", "path": path.as_ref(), "value": json!(value) })
}

/// Removes the member, which must be there.
pub fn remove(path: impl AsRef<str>) -> Value {
    json!({ "op": "remove", "path": path.as_ref() })
}

/// The pointer to an annotation.
pub fn annotation(key: &str) -> String {
    format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// A JSON patch of the object at `path`.
pub fn request(path: &str, operations: &[Value], timeout: Duration) -> Result<Request<Vec<u8>>, kube::Error> {
    build(Request::patch(uri(path, timeout)), "application/json-patch+json", &operations)
}

/// The creation of an object in the collection (or subresource) at `path`.
pub fn create(path: &str, object: &Value, timeout: Duration) -> Result<Request<Vec<u8>>, kube::Error> {
    build(Request::post(uri(path, timeout)), "application/json", object)
}

/// A DELETE with those options.
///
/// # Errors
/// As [`create`].
pub fn delete(path: &str, options: &Value, timeout: Duration) -> Result<Request<Vec<u8>>, kube::Error> {
    build(Request::delete(uri(path, timeout)), "application/json", options)
}

fn build(
    builder: http::request::Builder,
    content_type: &str,
    body: &impl Serialize,
) -> Result<Request<Vec<u8>>, kube::Error> {
    let bytes = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
    builder.header(http::header::CONTENT_TYPE, content_type).body(bytes).map_err(kube::Error::HttpError)
}

fn uri(path: &str, timeout: Duration) -> String {
    format!("{path}?timeout={}ms&fieldManager={FIELD_MANAGER}", timeout.as_millis().max(1))
}
