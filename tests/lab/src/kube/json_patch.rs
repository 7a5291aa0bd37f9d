//! RFC 6902 as the real API server applies it. It departs from the RFC, and from the `json-patch` crate, where the
//! captures say so: an absent member of a parent that is there equals null in a `test` (079, 506, 508), and `replace`
//! of an absent member adds it (503, 509).

use serde_json::Value;

/// The patch cannot be applied; the server never says which operation it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Applies all operations or none.
///
/// # Errors
/// [`Refused`], the document then being half changed: the caller works on a copy.
pub fn apply(document: &mut Value, operations: &[Value]) -> Result<(), Refused> {
    operations.iter().try_for_each(|operation| apply_one(document, operation))
}

fn apply_one(document: &mut Value, operation: &Value) -> Result<(), Refused> {
    let path = operation["path"].as_str().ok_or(Refused)?;
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    let from = || operation["from"].as_str().ok_or(Refused);
    match operation["op"].as_str() {
        Some("test") => {
            let (parent, member) = parent(document, path)?;
            let found = member_of(parent, &member).cloned().unwrap_or(Value::Null);
            if found == value() { Ok(()) } else { Err(Refused) }
        }
        Some("add") => add(document, path, value()),
        Some("replace") => {
            let (parent, member) = parent(document, path)?;
            match parent {
                Value::Object(map) => {
                    map.insert(member, value());
                    Ok(())
                }
                Value::Array(list) => {
                    *list.get_mut(index(&member)?).ok_or(Refused)? = value();
                    Ok(())
                }
                _ => Err(Refused),
            }
        }
        Some("remove") => remove(document, path).map(drop),
        Some("move") => {
            let moved = remove(document, from()?)?;
            add(document, path, moved)
        }
        Some("copy") => {
            let (parent, member) = parent(document, from()?)?;
            let copied = member_of(parent, &member).cloned().ok_or(Refused)?;
            add(document, path, copied)
        }
        _ => Err(Refused),
    }
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), Refused> {
    let (parent, member) = parent(document, path)?;
    match parent {
        Value::Object(map) => {
            map.insert(member, value);
            Ok(())
        }
        Value::Array(list) => {
            let at = if member == "-" { list.len() } else { index(&member)? };
            if at > list.len() {
                return Err(Refused);
            }
            list.insert(at, value);
            Ok(())
        }
        _ => Err(Refused),
    }
}

fn remove(document: &mut Value, path: &str) -> Result<Value, Refused> {
    let (parent, member) = parent(document, path)?;
    match parent {
        Value::Object(map) => map.shift_remove(&member).ok_or(Refused),
        Value::Array(list) => {
            let at = index(&member)?;
            if at < list.len() { Ok(list.remove(at)) } else { Err(Refused) }
        }
        _ => Err(Refused),
    }
}

/// The container that a path ends in, which has to be there, and the member's name.
fn parent<'a>(document: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), Refused> {
    let (parent, member) = path.rsplit_once('/').ok_or(Refused)?;
    let parent = document.pointer_mut(parent).ok_or(Refused)?;
    Ok((parent, member.replace("~1", "/").replace("~0", "~")))
}

fn member_of<'a>(parent: &'a Value, member: &str) -> Option<&'a Value> {
    match parent {
        Value::Object(map) => map.get(member),
        Value::Array(list) => list.get(index(member).ok()?),
        _ => None,
    }
}

fn index(member: &str) -> Result<usize, Refused> {
    member.parse().map_err(|_| Refused)
}

/// RFC 7396.
pub fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *document = patch.clone();
        return;
    };
    if !document.is_object() {
        *document = Value::Object(serde_json::Map::new());
    }
    let Value::Object(map) = document else { return };
    for (name, change) in changes {
        if change.is_null() {
            map.shift_remove(name);
        } else {
            merge(map.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_are_patched_by_index() {
        let mut document = json!({"a": ["x", "y"]});
        let patch = [
            json!({"op": "add", "path": "/a/-", "value": "z"}),
            json!({"op": "test", "path": "/a/2", "value": "z"}),
            json!({"op": "remove", "path": "/a/0"}),
            json!({"op": "copy", "from": "/a/0", "path": "/b"}),
            json!({"op": "move", "from": "/a/1", "path": "/c"}),
        ];
        apply(&mut document, &patch).unwrap();
        assert_eq!(document, json!({"a": ["y"], "b": "y", "c": "z"}));
        assert_eq!(apply(&mut document, &[json!({"op": "replace", "path": "/a/7", "value": 1})]), Err(Refused));
        assert_eq!(apply(&mut document, &[json!({"op": "add", "path": "/none/of/it", "value": 1})]), Err(Refused));
    }

    #[test]
    fn a_null_in_a_merge_removes() {
        let mut document = json!({"a": {"b": 1, "c": 2}});
        merge(&mut document, &json!({"a": {"b": null, "d": 3}}));
        assert_eq!(document, json!({"a": {"c": 2, "d": 3}}));
    }
}
