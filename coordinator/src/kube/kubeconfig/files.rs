//! Finding and reading the files, and the entries of several as one.

use std::io;
use std::path::{Path, PathBuf};

use agent::credential::kind_of;
use serde::Deserialize as _;
use serde_yaml::Value;

use super::fields::At;
use super::{KubeconfigError, Sources};

/// One file as plain YAML.
pub(super) struct File {
    path: PathBuf,
    root: Value,
    documents: usize,
}

/// Where the configuration comes from.
pub(super) enum Found {
    Files(Vec<File>),
    /// The service account of this pod.
    InCluster,
}

/// A list of named entries in a kubeconfig.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    section: &'static str,
    key: &'static str,
    needs: &'static str,
}

impl Entry {
    pub(super) const CONTEXT: Self = Self { section: "contexts", key: "context", needs: "cluster and user" };
    pub(super) const CLUSTER: Self = Self { section: "clusters", key: "cluster", needs: "server" };
    pub(super) const USER: Self = Self { section: "users", key: "user", needs: "" };
}

/// Reads the files that are there. Outside of pods that is at least one; a context can only be asked of a file.
pub(super) fn find(sources: &Sources, context: Option<&str>) -> Result<Found, KubeconfigError> {
    if let Some(path) = &sources.explicit {
        let file = read(path).map_err(|source| KubeconfigError::Read { file: path.clone(), source })?;
        return Ok(Found::Files(vec![parse(path.clone(), &file)?]));
    }
    let listed: Vec<PathBuf> = sources.list.iter().flat_map(std::env::split_paths).collect();
    let listed: Vec<PathBuf> = listed.into_iter().filter(|path| !path.as_os_str().is_empty()).collect();
    let from_list = !listed.is_empty();
    let places = if from_list { listed } else { sources.home.iter().map(|home| home.join(".kube/config")).collect() };
    let mut files = Vec::new();
    for path in &places {
        match read(path) {
            Ok(text) => files.push(parse(path.clone(), &text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(KubeconfigError::Read { file: path.clone(), source }),
        }
    }
    if !files.is_empty() {
        return Ok(Found::Files(files));
    }
    if !from_list && context.is_none() && sources.variable("KUBERNETES_SERVICE_HOST").is_some() {
        return Ok(Found::InCluster);
    }
    let looked: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
    let looked = if looked.is_empty() { "~/.kube/config, but HOME is not set".to_owned() } else { looked.join(", ") };
    Err(KubeconfigError::NotFound { looked, named: from_list })
}

/// Text in the encodings that editors and shells write; PowerShell's `>` writes UTF-16.
fn read(path: &Path) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    let not_text = || io::Error::new(io::ErrorKind::InvalidData, "it is neither UTF-8 nor UTF-16 text");
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
        String::from_utf16(&units).map_err(|_| not_text())
    };
    match bytes.as_slice() {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8(rest.to_vec()).map_err(|_| not_text()),
        _ => String::from_utf8(bytes).map_err(|_| not_text()),
    }
}

fn parse(path: PathBuf, text: &str) -> Result<File, KubeconfigError> {
    let mut documents = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let parsed = Value::deserialize(document).and_then(|mut value| value.apply_merge().map(|()| value));
        match parsed {
            Ok(Value::Null) => {}
            Ok(value) => documents.push(value),
            Err(error) => {
                let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
                let indented_by_tab = text.lines().any(|line| line.trim_start_matches(' ').starts_with('\t'));
                let hint = if indented_by_tab { "; YAML is not indented by tabs" } else { "" };
                return Err(KubeconfigError::Parse { file: path, line, column, hint });
            }
        }
    }
    let count = documents.len();
    let root = documents.into_iter().next().unwrap_or(Value::Null);
    match problem_of(&root) {
        Some(problem) => Err(KubeconfigError::NotAKubeconfig { file: path, problem }),
        None => Ok(File { path, root, documents: count }),
    }
}

fn problem_of(root: &Value) -> Option<String> {
    match root {
        Value::Null => Some("it is empty".to_owned()),
        Value::Mapping(mapping) => {
            if mapping.get("contexts").is_some_and(Value::is_mapping) {
                return Some("contexts is a mapping, as in a talosconfig; give that with --talosconfig".to_owned());
            }
            let other = mapping.get("kind").and_then(Value::as_str).filter(|kind| *kind != "Config")?;
            Some(format!("its kind is {other}; a kubeconfig has kind: Config"))
        }
        other => Some(format!("it is {}, not a mapping with clusters, users and contexts", kind_of(other))),
    }
}

impl File {
    pub(super) fn warning(&self) -> Option<String> {
        let file = self.path.display();
        (self.documents > 1)
            .then(|| format!("kubeconfig {file}: only the first of {} YAML documents is read", self.documents))
    }

    /// The entries of a section, with their indices.
    fn entries(&self, section: &str) -> Result<Vec<(usize, &Value)>, KubeconfigError> {
        match self.root.get(section) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Sequence(entries)) => Ok(entries.iter().enumerate().collect()),
            Some(other) => Err(KubeconfigError::Value {
                file: self.path.clone(),
                path: section.to_owned(),
                problem: format!("is {}, not a list (- name: …)", kind_of(other)),
            }),
        }
    }
}

/// The names of the files, for messages.
pub(super) fn names(files: &[File]) -> String {
    files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The files themselves.
pub(super) fn paths(files: &[File]) -> Vec<PathBuf> {
    files.iter().map(|file| file.path.clone()).collect()
}

/// The context that the first file names which names one.
pub(super) fn current_context(files: &[File]) -> Option<&str> {
    let mut named = files.iter().filter_map(|file| file.root.get("current-context")?.as_str());
    named.find(|name| !name.is_empty())
}

/// The names of a section's entries, for messages.
pub(super) fn known(files: &[File], section: &str) -> String {
    let entries = files.iter().filter_map(|file| file.entries(section).ok()).flatten();
    let mut names: Vec<String> = entries
        .filter_map(|(_, entry)| match entry.get("name")? {
            Value::String(name) => Some(name.clone()),
            Value::Number(number) => Some(format!("{number} (a number; put it in quotes)")),
            _ => None,
        })
        .collect();
    names.sort();
    names.dedup();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The entry of that name in the first file that has it.
pub(super) fn entry<'a>(files: &'a [File], of: Entry, name: &str) -> Result<Option<At<'a>>, KubeconfigError> {
    let Entry { section, key, needs } = of;
    for file in files {
        let mut named = file.entries(section)?;
        named.retain(|(_, entry)| entry.get("name").and_then(Value::as_str) == Some(name));
        let fault = |path: String, problem: String| KubeconfigError::Value { file: file.path.clone(), path, problem };
        match named.as_slice() {
            [] => {}
            [(index, entry)] => {
                let path = format!("{section}[{index}].{key}");
                let mapping = match entry.get(key) {
                    Some(Value::Mapping(mapping)) => Some(mapping),
                    None | Some(Value::Null) if needs.is_empty() => None,
                    None | Some(Value::Null) => return Err(fault(path, format!("is empty; it needs {needs}"))),
                    Some(other) => return Err(fault(path, format!("is {}, not a mapping", kind_of(other)))),
                };
                return Ok(Some(At { file: &file.path, path, mapping }));
            }
            [(first, _), (second, _), ..] => {
                let path = format!("{section}[{first}] and {section}[{second}]");
                return Err(fault(path, format!("both have the name {name:?}; keep one")));
            }
        }
    }
    Ok(None)
}
