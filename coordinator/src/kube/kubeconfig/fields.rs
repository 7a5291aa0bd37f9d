//! Values of a mapping, with their paths for messages.

use std::path::{Path, PathBuf};

use agent::credential::kind_of;
use serde_yaml::{Mapping, Value};

use super::KubeconfigError;

/// A mapping in a file, and where it stands.
#[derive(Clone)]
pub(super) struct At<'a> {
    pub(super) file: &'a Path,
    /// `clusters[0].cluster`.
    pub(super) path: String,
    /// Nothing when only the key is there (`user:`).
    pub(super) mapping: Option<&'a Mapping>,
}

impl<'a> At<'a> {
    /// The path of a key.
    pub(super) fn path_of(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    /// A fault of a key's value.
    pub(super) fn fault(&self, key: &str, problem: impl Into<String>) -> KubeconfigError {
        KubeconfigError::Value { file: self.file.to_owned(), path: self.path_of(key), problem: problem.into() }
    }

    /// A warning about a key's value.
    pub(super) fn note(&self, key: &str, note: &str) -> String {
        format!("kubeconfig {}: {}: {note}", self.file.display(), self.path_of(key))
    }

    /// A value; null is absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.mapping?.get(key).filter(|value| !value.is_null())
    }

    /// A text without the white space around it; empty is absent.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, KubeconfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.trim()).filter(|text| !text.is_empty())),
            Some(other) => Err(self.fault(key, not_text(other))),
        }
    }

    /// A text exactly as it is written; absent is empty.
    pub(super) fn exact(&self, key: &str) -> Result<&'a str, KubeconfigError> {
        match self.get(key) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(self.fault(key, not_text(other))),
        }
    }

    /// A boolean; absent is false.
    pub(super) fn flag(&self, key: &str) -> Result<bool, KubeconfigError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.fault(key, format!("is {}; write true or false, without quotes", kind_of(other)))),
        }
    }

    /// A list of texts; absent is empty.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, KubeconfigError> {
        let items = self.list(key)?.iter().enumerate();
        let text = |(index, item): (usize, &Value)| match item {
            Value::String(text) => Ok(text.clone()),
            other => Err(self.fault(&format!("{key}[{index}]"), not_text(other))),
        };
        items.map(text).collect()
    }

    /// A list of mappings; absent is empty.
    pub(super) fn mappings(&self, key: &str) -> Result<Vec<At<'a>>, KubeconfigError> {
        let items = self.list(key)?.iter().enumerate();
        let at = |(index, item): (usize, &'a Value)| self.at(&format!("{key}[{index}]"), item);
        items.map(at).collect()
    }

    fn list(&self, key: &str) -> Result<&'a [Value], KubeconfigError> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Sequence(items)) => Ok(items),
            Some(other) => Err(self.fault(key, format!("is {}, not a list", kind_of(other)))),
        }
    }

    /// A mapping in this one.
    pub(super) fn mapping(&self, key: &str) -> Result<Option<At<'a>>, KubeconfigError> {
        self.get(key).map(|value| self.at(key, value)).transpose()
    }

    fn at(&self, key: &str, value: &'a Value) -> Result<At<'a>, KubeconfigError> {
        match value {
            Value::Mapping(mapping) => Ok(At { file: self.file, path: self.path_of(key), mapping: Some(mapping) }),
            other => Err(self.fault(key, format!("is {}, not a mapping", kind_of(other)))),
        }
    }

    /// A file's name, from the folder of the file that names it.
    pub(super) fn resolve(&self, name: &str) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(name)
    }

    /// A file that is named here.
    pub(super) fn read_file(&self, key: &str, name: &str) -> Result<Vec<u8>, KubeconfigError> {
        let path = self.resolve(name);
        std::fs::read(&path).map_err(|error| {
            let hint = if name.starts_with('~') { "; ~ is not expanded: write the whole path" } else { "" };
            self.fault(key, format!("the file {} cannot be read: {error}{hint}", path.display()))
        })
    }
}

fn not_text(value: &Value) -> String {
    match value {
        Value::Number(_) | Value::Bool(_) => format!("is {}, not text; put it in quotes", kind_of(value)),
        other => format!("is {}, not text", kind_of(other)),
    }
}
