//! A talosconfig as YAML, before anything in it is understood.
//!
//! It is read as a tree and not into a structure: a fault of a context that is not selected must not matter, one of the
//! selected is named by its path, and serde's own words about a wrong type would repeat the value.

use serde_yaml::{Mapping, Value};

/// The tree of the file, or what is wrong with it as a whole and what to do.
pub(super) fn read(bytes: &[u8]) -> Result<Mapping, String> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err("is UTF-16, as PowerShell's `>` writes: save it as UTF-8".into());
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8 text: is it a talosconfig?")?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut tree: Value = serde_yaml::from_str(text).map_err(|error| syntax(text, &error))?;
    tree.apply_merge().map_err(|_| "has a `<<` that names no mapping")?;
    match tree {
        Value::Mapping(tree) => known(tree),
        Value::Null => Err("is empty: name another file with --talosconfig".into()),
        other => Err(format!("is {}, not a mapping with `context` and `contexts`", kind(&other))),
    }
}

/// Files that are often given in the place of a talosconfig.
fn known(tree: Mapping) -> Result<Mapping, String> {
    let kubeconfig = tree.contains_key("clusters") || tree.get("contexts").is_some_and(Value::is_sequence);
    if kubeconfig {
        return Err("is a kubeconfig, which --kubeconfig takes: name a talosconfig with --talosconfig".into());
    }
    if tree.contains_key("machine") {
        return Err("is a machine config: the client's file is the `talosconfig` that was generated beside it".into());
    }
    if tree.contains_key("sops") {
        return Err("is encrypted by SOPS: decrypt it first (`sops --decrypt`)".into());
    }
    if tree.contains_key("contexts") { Ok(tree) } else { Err("has no `contexts`: is it a talosconfig?".into()) }
}

/// What the parser says, in the words of somebody who edits the file.
fn syntax(text: &str, error: &serde_yaml::Error) -> String {
    let words = error.to_string();
    if words.contains("more than one document") {
        return "holds several YAML documents (`---`): join talosconfigs with `talosctl config merge`".into();
    }
    if words.contains("duplicate entry") {
        return format!("is not valid YAML: {words}; join talosconfigs with `talosctl config merge`");
    }
    let Some(place) = error.location() else { return format!("is not valid YAML: {words}") };
    let indented_by_tab = |line: &str| line.chars().take_while(|it| it.is_whitespace()).any(|it| it == '\t');
    // The parser stops at the tab or at the line before it.
    let tab = text.lines().enumerate().skip(place.line().saturating_sub(2)).take(3).find(|(_, it)| indented_by_tab(it));
    match tab {
        Some((index, _)) => format!("line {}: a tab indents nothing in YAML: use spaces", index + 1),
        None => format!("is not valid YAML: {words}"),
    }
}

/// What a value is, with its article.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a mapping",
        Value::Tagged(_) => "a tagged value",
    }
}

/// A name as go-yaml reads one: `context: 1` names the context `1`.
pub(super) fn name(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p05_a_file_that_is_no_talosconfig_is_called_what_it_is() {
        for (text, expected) in [
            (&b""[..], "is empty"),
            (b"# nothing\n", "is empty"),
            (b"- a\n", "is a list"),
            (b"a text\n", "is a text"),
            (b"\xff\xfec\0", "is UTF-16"),
            (b"\x80\x81", "is not UTF-8"),
            (b"apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\n", "is a kubeconfig"),
            (b"contexts:\n- name: a\n", "is a kubeconfig"),
            (b"version: v1alpha1\nmachine: {}\n", "is a machine config"),
            (b"contexts: {}\nsops: {}\n", "is encrypted by SOPS"),
            (b"context: prod\n", "has no `contexts`"),
            (b"contexts:\n  a: {}\n---\ncontexts: {}\n", "several YAML documents"),
            (b"contexts:\n  a: {}\ncontexts: {}\n", "duplicate entry"),
            (b"context: a\ncontexts:\n\ta:\n\t\tca: x\n", "line 3: a tab"),
            (b"context: a\ncontexts:\n  a:\n    ca: x\n\t\tcrt: y\n", "line 5: a tab"),
            (b"contexts:\n  a: [1\n", "is not valid YAML"),
            (b"contexts:\n  a: &x 1\n  b: *y\n", "is not valid YAML"),
            (b"contexts:\n  a: {<<: 1}\n", "`<<`"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(expected), "{:?}: {problem}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn p05_a_byte_order_mark_and_crlf_are_read_over() {
        let tree = read(b"\xef\xbb\xbfcontext: a\r\ncontexts:\r\n  a: {}\r\n").unwrap();
        assert_eq!(tree.get("context").and_then(name).as_deref(), Some("a"));
    }
}
