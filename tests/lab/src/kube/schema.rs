//! What the server makes of an object before it stores it: types checked, unknown fields of a Lease dropped, nulls and
//! empty maps gone, and the few validations that the product can meet.

use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::micro_time;
use super::status::Failure;

/// An object in the form in which it is stored.
pub struct Decoded {
    /// The object.
    pub object: Value,
    /// Paths of fields that were dropped because the server does not know them.
    pub unknown: Vec<String>,
}

/// Decodes an object of a request.
///
/// # Errors
/// Go's text of what is wrong with a field's type.
pub fn decode(kind: Kind, given: &Value) -> Result<Decoded, String> {
    let mut object = given.clone();
    let mut unknown = Vec::new();
    object["apiVersion"] = json!(kind.api_version());
    object["kind"] = json!(kind.name());
    metadata(&mut object)?;
    match kind {
        Kind::Lease => lease_spec(&mut object, &mut unknown)?,
        Kind::Node => node_spec(&mut object)?,
        _ => {}
    }
    Ok(Decoded { object, unknown })
}

/// The rules that an object of this kind breaks.
///
/// # Errors
/// 422, naming each.
pub fn validate(kind: Kind, object: &Value) -> Result<(), Failure> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut broken = Vec::new();
    if !is_dns_subdomain(name) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        broken.push(("metadata.name", format!("{name:?}"), rule));
    }
    if kind == Kind::Lease {
        if let Some(seconds) = object["spec"]["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
            broken.push(("spec.leaseDurationSeconds", seconds.to_string(), "must be greater than 0"));
        }
        if let Some(count) = object["spec"]["leaseTransitions"].as_i64().filter(|count| *count < 0) {
            broken.push(("spec.leaseTransitions", count.to_string(), "must be greater than or equal to 0"));
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, name, &broken)) }
}

fn is_dns_subdomain(name: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let part = |part: &str| {
        let bytes = part.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// The type of a value as Go's JSON decoder names it.
fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn mismatch(value: &Value, field: &str, wanted: &str) -> String {
    let mut found = json_type(value).to_owned();
    if let (Value::Number(number), "int32") = (value, wanted) {
        found = format!("number {number}");
    }
    format!("json: cannot unmarshal {found} into Go struct field {field} of type {wanted}")
}

fn metadata(object: &mut Value) -> Result<(), String> {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        object["metadata"] = json!({});
        return Ok(());
    };
    // Bookkeeping that no test looks at; the real server fills it by itself.
    metadata.shift_remove("managedFields");
    metadata.retain(|_, value| !value.is_null());
    for field in ["labels", "annotations"] {
        let Some(entries) = metadata.get(field) else { continue };
        let Some(entries) = entries.as_object() else {
            return Err(mismatch(entries, &format!("ObjectMeta.metadata.{field}"), "map[string]string"));
        };
        if let Some(value) = entries.values().find(|value| !value.is_string()) {
            return Err(mismatch(value, &format!("ObjectMeta.metadata.{field}"), "string"));
        }
        if entries.is_empty() {
            metadata.shift_remove(field);
        }
    }
    if metadata.get("finalizers").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        metadata.shift_remove("finalizers");
    }
    for field in ["name", "namespace", "uid", "resourceVersion", "generateName"] {
        if let Some(value) = metadata.get(field).filter(|value| !value.is_string()) {
            return Err(mismatch(value, &format!("ObjectMeta.metadata.{field}"), "string"));
        }
    }
    Ok(())
}

fn lease_spec(object: &mut Value, unknown: &mut Vec<String>) -> Result<(), String> {
    let mut kept = Map::new();
    let given = match object.get("spec") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(spec)) => spec.clone(),
        Some(other) => return Err(mismatch(other, "Lease.spec", "v1.LeaseSpec")),
    };
    for (name, value) in given.into_iter().filter(|(_, value)| !value.is_null()) {
        let field = format!("LeaseSpec.spec.{name}");
        let value = match name.as_str() {
            "holderIdentity" if value.is_string() => value,
            "holderIdentity" => return Err(mismatch(&value, &field, "string")),
            "leaseDurationSeconds" | "leaseTransitions" => {
                let fits = value.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
                if !fits {
                    return Err(mismatch(&value, &field, "int32"));
                }
                value
            }
            "acquireTime" | "renewTime" => match &value {
                Value::String(text) => json!(micro_time::parse(text)?),
                other => return Err(mismatch(other, &field, "string")),
            },
            // Behind a feature gate that is off: known and dropped (050, 051).
            "strategy" | "preferredHolder" => continue,
            _ => {
                unknown.push(format!("spec.{name}"));
                continue;
            }
        };
        kept.insert(name, value);
    }
    object["spec"] = Value::Object(kept);
    Ok(())
}

fn node_spec(object: &mut Value) -> Result<(), String> {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        object["spec"] = json!({});
        return Ok(());
    };
    spec.retain(|_, value| !value.is_null());
    match spec.get("unschedulable") {
        Some(Value::Bool(false)) => drop(spec.shift_remove("unschedulable")),
        None | Some(Value::Bool(true)) => {}
        Some(other) => return Err(mismatch(other, "NodeSpec.spec.unschedulable", "bool")),
    }
    match spec.get("taints") {
        Some(Value::Array(taints)) if taints.is_empty() => drop(spec.shift_remove("taints")),
        None | Some(Value::Array(_)) => {}
        Some(other) => return Err(mismatch(other, "NodeSpec.spec.taints", "[]v1.Taint")),
    }
    Ok(())
}
