//! JSON patches as the real server applies them: an absent member equals null in a `test` if its parent is there, and
//! `replace` of an absent member adds it.

use json_patch::{Patch, patch};
use serde_json::{Value, json};

/// Applies all operations or none; the server never says which one failed.
pub fn apply(object: &Value, operations: &Value) -> Result<Value, ()> {
    let mut changed = object.clone();
    for operation in operations.as_array().ok_or(())? {
        let mut operation = operation.clone();
        let path = operation["path"].as_str().ok_or(())?.to_owned();
        let absent = changed.pointer(&path).is_none();
        let parent = path.rsplit_once('/').and_then(|(parent, _)| changed.pointer(parent));
        if absent && operation["op"] == "test" && operation["value"].is_null() && parent.is_some() {
            continue;
        }
        if absent && operation["op"] == "replace" {
            operation["op"] = json!("add");
        }
        let one: Patch = serde_json::from_value(json!([operation])).map_err(|_| ())?;
        patch(&mut changed, &one).map_err(|_| ())?;
    }
    Ok(changed)
}

/// What validation says of a Lease: code and message.
pub fn lease_fault(lease: &Value) -> Option<(u16, String)> {
    let spec = &lease["spec"];
    for field in ["renewTime", "acquireTime"] {
        let Some(time) = spec[field].as_str() else { continue };
        let digits = time.split_once('.').map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).count());
        if digits != Some(6) || !time.ends_with('Z') || time.parse::<jiff::Timestamp>().is_err() {
            return Some((400, format!("parsing time \"{time}\" as \"2006-01-02T15:04:05.000000Z07:00\"")));
        }
    }
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        return Some((422, "spec.leaseDurationSeconds: Invalid value: must be greater than 0".to_owned()));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|number| number < 0) {
        return Some((422, "spec.leaseTransitions: Invalid value: must be greater than or equal to 0".to_owned()));
    }
    None
}
