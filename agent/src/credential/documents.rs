//! Telling the input's format by its content, and the YAML or JSON documents in it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_yaml::{Mapping, Value};
use zeroize::Zeroize as _;

use super::error::CredentialError;
use super::{Credential, RegistryHost, docker_config, registry_auth, secret};

/// One document or item of a `List`, with its place for messages.
pub(super) struct Document<'a> {
    /// `document 2`, `items[0]`, `document 2, items[0]`; empty when the input is one document.
    pub(super) place: String,
    pub(super) mapping: &'a Mapping,
}

impl<'a> Document<'a> {
    /// A value by its key; null is absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.mapping.get(key).filter(|value| !value.is_null())
    }

    /// Whether it has that version and kind.
    pub(super) fn is(&self, api_version: &str, kind: &str) -> bool {
        let text = |key| self.get(key).and_then(Value::as_str);
        text("apiVersion") == Some(api_version) && text("kind") == Some(kind)
    }

    /// Kind, name and place, as a message names it.
    pub(super) fn title(&self) -> String {
        let kind = match self.get("kind").and_then(Value::as_str) {
            Some(kind) => format!("{kind}{}", self.name()),
            None if self.get("auths").is_some() => "a docker config that is YAML and not JSON".to_owned(),
            None => "a document without kind".to_owned(),
        };
        if self.place.is_empty() { kind } else { format!("{kind} ({})", self.place) }
    }

    fn name(&self) -> String {
        let metadata = self.get("metadata");
        let text = |key: &str| metadata.and_then(|it| it.get(key)).and_then(Value::as_str);
        match (text("namespace"), text("name")) {
            (Some(namespace), Some(name)) => format!(" {namespace}/{name}"),
            (None, Some(name)) => format!(" {name}"),
            _ => String::new(),
        }
    }
}

/// Parsed documents; their texts, which may be secret, are wiped on drop.
struct Documents(Vec<Value>);

impl Drop for Documents {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(wipe);
    }
}

fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Sequence(items) => items.iter_mut().for_each(wipe),
        Value::Mapping(mapping) => mapping.values_mut().for_each(wipe),
        Value::Tagged(tagged) => wipe(&mut tagged.value),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What tells a manifest from a docker config, which has no kind.
#[derive(Deserialize)]
struct Head {
    kind: Option<serde::de::IgnoredAny>,
}

/// The credentials of `wanted`, from whichever format it is.
pub(super) fn read(
    bytes: &[u8],
    wanted: &[RegistryHost],
) -> Result<BTreeMap<RegistryHost, Credential>, CredentialError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|_| CredentialError::NotText)?;
    let start = text.trim_start();
    if start.is_empty() {
        return Err(CredentialError::Blank);
    }
    if start.starts_with('{') {
        match serde_json::from_str::<Head>(text) {
            Ok(Head { kind: None }) => return docker_config::read(bytes, wanted),
            Ok(Head { kind: Some(_) }) => {
                let value = serde_json::from_str(text).map_err(|error| json(&error))?;
                return from(&Documents(vec![value]), wanted);
            }
            // A YAML mapping in flow style begins alike; a docker config with a comma too many is YAML as well.
            Err(error) => match yaml(text) {
                Ok(documents) if documents.0.iter().any(|it| it.get("kind").is_some()) => {
                    return from(&documents, wanted);
                }
                _ => return Err(json(&error)),
            },
        }
    }
    from(&yaml(text)?, wanted)
}

fn json(error: &serde_json::Error) -> CredentialError {
    CredentialError::Json { line: error.line(), column: error.column() }
}

fn yaml(text: &str) -> Result<Documents, CredentialError> {
    let mut documents = Documents(Vec::new());
    for document in serde_yaml::Deserializer::from_str(text) {
        let mut value = Value::deserialize(document).map_err(|error| at(&error))?;
        // An alias is resolved by the parser, `<<: *alias` is not.
        value.apply_merge().map_err(|error| at(&error))?;
        documents.0.push(value);
    }
    Ok(documents)
}

fn at(error: &serde_yaml::Error) -> CredentialError {
    let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
    CredentialError::Yaml { line, column }
}

fn from(documents: &Documents, wanted: &[RegistryHost]) -> Result<BTreeMap<RegistryHost, Credential>, CredentialError> {
    let values: Vec<(usize, &Value)> = documents.0.iter().enumerate().filter(|(_, value)| !value.is_null()).collect();
    if let [(_, Value::String(text))] = values.as_slice() {
        return Err(CredentialError::Bare { base64: is_base64_of_json(text) });
    }
    let alone = documents.0.len() == 1;
    let mut all = Vec::new();
    let mut found = Vec::new();
    for (index, value) in values {
        let place = if alone { String::new() } else { format!("document {}", index + 1) };
        match value {
            Value::Mapping(mapping) => flatten(Document { place, mapping }, &mut all),
            _ => found.push(format!("a document that is no mapping{}", bracketed(&place))),
        }
    }
    let (auths, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|document| document.is("v1alpha1", "RegistryAuthConfig"));
    let (secrets, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|document| document.is("v1", "Secret"));
    let (usable, unusable): (Vec<_>, Vec<_>) = secrets.into_iter().partition(secret::is_docker_config);
    match (usable.as_slice(), auths.as_slice()) {
        ([], []) => {
            if let Some(error) = secret::refusal(&unusable) {
                return Err(error);
            }
            found.extend(others.iter().map(Document::title));
            Err(if found.is_empty() { CredentialError::Blank } else { CredentialError::Unrecognised { found } })
        }
        ([one], []) => secret::read(one, wanted),
        ([], auths) => registry_auth::read(auths, wanted),
        _ => Err(CredentialError::Several {
            found: usable.iter().map(Document::title).chain(auths_title(&auths)).collect(),
        }),
    }
}

fn auths_title(auths: &[Document<'_>]) -> Option<String> {
    match auths {
        [] => None,
        [one] => Some(one.title()),
        more => Some(format!("{} RegistryAuthConfig documents", more.len())),
    }
}

/// A `List` (or `SecretList`) stands for its items.
fn flatten<'a>(document: Document<'a>, into: &mut Vec<Document<'a>>) {
    let list = document.is("v1", "List") || document.is("v1", "SecretList");
    let Some(items) = document.get("items").and_then(Value::as_sequence).filter(|_| list) else {
        into.push(document);
        return;
    };
    let separator = if document.place.is_empty() { "" } else { ", " };
    for (index, item) in items.iter().enumerate() {
        if let Value::Mapping(mapping) = item {
            into.push(Document { place: format!("{}{separator}items[{index}]", document.place), mapping });
        }
    }
}

fn bracketed(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!(" ({place})") }
}

fn is_base64_of_json(text: &str) -> bool {
    let compact: String = text.split_whitespace().collect();
    STANDARD.decode(compact).is_ok_and(|bytes| bytes.trim_ascii_start().starts_with(b"{"))
}

/// What a YAML value is, for a message that expected something else. Never the value itself.
#[must_use]
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a mapping",
        Value::Tagged(_) => "a value with a YAML tag",
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{auth, one};

    fn says(text: &str) -> String {
        let error = one(text).err().unwrap_or_else(|| panic!("{text} was read"));
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        error.to_string()
    }

    #[test]
    fn k02_what_is_none_of_the_formats_is_told_apart() {
        assert!(says(" \n\t ").starts_with("it is empty; a credential is a docker config JSON"));
        assert!(says("---\n# nothing\n").starts_with("it is empty"));
        assert!(says("s3cret\n").contains("a token or password alone has no user"));
        assert!(says(&auth("{\"auths\":{\"s3cret\":{}}}")).contains("decode it first"));
        assert!(says("kind: Deployment\nmetadata: {namespace: a, name: b}\n---\n- s3cret\n").starts_with(
            "it holds no credential, only a document that is no mapping (document 2), Deployment a/b (document 1);"
        ));
        assert!(says("auths:\n  ghcr.io: {auth: s3cret}\n").contains("a docker config that is YAML and not JSON"));
        assert!(says("machine: {token: s3cret}\n").contains("only a document without kind;"));
        assert!(says("apiVersion: v1\nkind: List\nitems: []\n").starts_with("it is empty"));
        assert!(says("kind: Secret\n\tdata: s3cret\n").starts_with("it is not YAML (line 2, column 1)"));
        assert!(says("a: s3cret\na: s3cret\n").starts_with("it is not YAML"));
        assert!(
            says("{\"auths\": {\"ghcr.io\": {\"auth\": \"s3cret\"},}}").starts_with("the docker config is not JSON")
        );
        assert!(says("{\"kind\": \"Secret\", \"kind\": \"s3cret\"}").starts_with("the docker config is not JSON"));
    }

    #[test]
    fn k02_bytes_that_are_no_utf8_are_refused() {
        let utf16: Vec<u8> = "\u{feff}{\"auths\":{}}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let error = super::read(&utf16, &[]).unwrap_err();
        assert_eq!(error.to_string(), "it is not UTF-8 text; save it as UTF-8");
    }

    #[test]
    fn k03_an_alias_and_a_merge_key_are_followed() {
        let text = "apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\n\
                    x: &login {username: u, password: p}\n<<: *login\n";
        assert_eq!(one(text).unwrap().kind(), "user and password");
    }

    /// A file that was cut off, or of which a byte is lost, is refused or read, and never shown.
    #[test]
    fn k02_no_damage_makes_an_error_show_a_value() {
        let config = format!(
            r#"{{"auths":{{"ghcr.io":{{"username":"u","password":"s3cret","auth":"{}"}}}}}}"#,
            auth("u:s3cret")
        );
        for text in [
            config.clone(),
            format!(
                "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/dockerconfigjson\nstringData:\n  .dockerconfigjson: '{config}'\n"
            ),
            "apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nusername: u\npassword: s3cret\n".to_owned(),
        ] {
            assert!(one(&text).is_ok(), "{text}");
            for at in 0..text.len() {
                for damaged in [text[..at].to_owned(), format!("{}{}", &text[..at], &text[at + 1..])] {
                    if let Err(error) = one(&damaged) {
                        let shown = format!("{error} {error:?}");
                        assert!(!shown.contains("s3cret") && !shown.contains(&auth("u:s3cret")), "{damaged}: {shown}");
                    }
                }
            }
        }
    }
}
