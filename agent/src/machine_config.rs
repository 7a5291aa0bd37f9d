//! The machine config of a node: what it says about registries and the Node's annotations, and the edit of just that.
//!
//! Talos stores the bytes exactly as they were applied, in several YAML documents, and people keep comments, anchors
//! and layouts in there. So nothing is parsed and written back: places are found in the text, and only these change.

mod edit;
mod error;
mod mapping;
mod scalar;
mod splice;
mod tree;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use zeroize::Zeroizing;

use crate::credential::{Credential, Desired, RegistryHost, Unusable};
use crate::revision::ClusterKey;
use edit::AUTH_FIELDS;
use tree::{Document, Kind, Node};

pub use edit::Change;
pub use error::{At, ConfigError};
pub use splice::{Edited, Splice};

/// A machine config as it was read from a node. Its text is wiped from memory on drop and shown by no `Debug`.
pub struct MachineConfig {
    text: Zeroizing<String>,
    documents: Vec<Named>,
    /// The index of the v1alpha1 document.
    machine: usize,
}

/// A document and what it is.
struct Named {
    tree: Document,
    /// `v1alpha1`, else its `kind`.
    kind: String,
    /// Its `name`, where it has one.
    id: String,
    /// For people.
    name: String,
}

impl fmt::Debug for MachineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.documents.iter().map(|document| document.name.as_str()).collect();
        f.debug_struct("MachineConfig").field("documents", &names).finish_non_exhaustive()
    }
}

impl MachineConfig {
    /// Reads a config.
    ///
    /// # Errors
    /// [`ConfigError`] when it is not YAML, has a key or document twice, or has no v1alpha1 document.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let text = std::str::from_utf8(bytes).map_err(|error| ConfigError::NotUtf8 {
            line: 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count(),
        })?;
        let text = Zeroizing::new(text.to_owned());
        let documents = tree::read(&text)
            .map_err(|error| ConfigError::Yaml { line: error.marker().line(), column: error.marker().col() + 1 })?;
        let documents: Vec<Named> =
            documents.into_iter().enumerate().map(|(n, tree)| Named::new(n + 1, tree)).collect();
        let mut seen = BTreeSet::new();
        for document in &documents {
            document.refuse_duplicate_keys(&document.tree.root, &mut Vec::new())?;
            if !document.kind.is_empty() && !seen.insert((&document.kind, &document.id)) {
                return Err(ConfigError::DuplicateDocument(document.at("", &document.tree.root)));
            }
        }
        let machine = documents.iter().position(|document| document.kind == MACHINE);
        let machine = machine.ok_or(ConfigError::NoMachineDocument)?;
        Ok(Self { text, documents, machine })
    }

    /// The key that this cluster's revisions are made with.
    ///
    /// # Errors
    /// [`ConfigError::NoClusterKey`] when the config has neither `cluster.secret` nor `machine.token`.
    pub fn cluster_key(&self) -> Result<ClusterKey, ConfigError> {
        let text = |path: &[&str]| self.machine().get(path).and_then(Node::text).filter(|text| !text.is_empty());
        let secret = text(&["cluster", "secret"]).or_else(|| text(&["machine", "token"]));
        secret.map(ClusterKey::derive).ok_or(ConfigError::NoClusterKey)
    }

    /// The annotation that this config gives the Node.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<String> {
        let document = self.node_document().and_then(|index| self.documents[index].tree.get(&["annotations", key]));
        let node = document.or_else(|| self.machine().get(&["machine", "nodeAnnotations", key]))?;
        node.text().map(str::to_owned)
    }

    /// The credential that a node with this config uses for `host`: a `RegistryAuthConfig` document's, else that of
    /// `machine.registries.config` (siderolabs/talos v1.13.9, pkg/machinery/config/container/container.go).
    ///
    /// # Errors
    /// [`Unusable`] when the fields give no credential.
    pub fn effective_auth(&self, host: &RegistryHost) -> Result<Credential, Unusable> {
        let (document, node) = match self.auth_document(host.as_str()) {
            Some(index) => (&self.documents[index].tree, self.documents[index].tree.get(&[])),
            None => {
                let path = ["machine", "registries", "config", host.as_str(), "auth"];
                (self.machine(), self.machine().get(&path))
            }
        };
        let Some(node) = node else { return Ok(Credential::None) };
        let field = |key| document.child(node, key, 0).and_then(Node::text).unwrap_or_default();
        let [username, password, auth, identity_token] = AUTH_FIELDS.map(field);
        Credential::effective(username, password, auth, identity_token)
    }

    fn text(&self) -> &str {
        &self.text
    }

    fn documents(&self) -> &[Named] {
        &self.documents
    }

    fn machine_index(&self) -> usize {
        self.machine
    }

    fn machine(&self) -> &Document {
        &self.documents[self.machine].tree
    }

    fn auth_document(&self, host: &str) -> Option<usize> {
        self.documents.iter().position(|document| document.kind == "RegistryAuthConfig" && document.id == host)
    }

    fn node_document(&self) -> Option<usize> {
        self.documents.iter().position(|document| document.kind == "KubeNodeConfig")
    }

    fn at(&self, index: usize, path: &str, node: &Node) -> At {
        self.documents[index].at(path, node)
    }

    /// Every value that an edit has no business with, by document and path: the proof that it left them alone.
    fn values_apart_from(&self, desired: &Desired, annotation: &str) -> BTreeMap<(&str, String), &str> {
        let mut values = BTreeMap::new();
        for document in &self.documents {
            let host = desired.hosts().any(|host| host.as_str() == document.id);
            let ours = |path: &[&str]| match (document.kind.as_str(), path) {
                ("RegistryAuthConfig", [..]) => host,
                ("KubeNodeConfig", ["annotations", key]) | (MACHINE, ["machine", "nodeAnnotations", key]) => {
                    *key == annotation
                }
                (MACHINE, ["machine", "registries", "config", host, "auth", ..]) => {
                    desired.hosts().any(|desired| desired.as_str() == *host)
                }
                _ => false,
            };
            document.collect(&self.text, &document.tree.root, &mut Vec::new(), &ours, &mut values);
        }
        values
    }
}

/// What `kind` is called here for the document that has none, only `version: v1alpha1`.
const MACHINE: &str = "v1alpha1";

impl Named {
    fn new(number: usize, tree: Document) -> Self {
        let field = |key: &str| tree.get(&[key]).and_then(Node::text).unwrap_or_default().to_owned();
        let (kind, id) = (field("kind"), field("name"));
        let (kind, id) = if kind.is_empty() && field("version") == MACHINE {
            (MACHINE.to_owned(), String::new())
        } else {
            (kind, id)
        };
        let name = match (kind.is_empty(), id.is_empty()) {
            (true, _) => format!("number {number}"),
            (_, true) => kind.clone(),
            _ => format!("{kind} {id}"),
        };
        Self { tree, kind, id, name }
    }

    fn at(&self, path: &str, node: &Node) -> At {
        At { document: self.name.clone(), path: path.to_owned(), line: node.place.line }
    }

    fn refuse_duplicate_keys<'n>(&self, node: &'n Node, path: &mut Vec<&'n str>) -> Result<(), ConfigError> {
        match &node.kind {
            Kind::Map { entries, .. } => {
                let mut seen = BTreeSet::new();
                for entry in entries {
                    let key = entry.key.text().unwrap_or_default();
                    path.push(key);
                    if matches!(entry.key.kind, Kind::Scalar { .. }) && !seen.insert(key) {
                        return Err(ConfigError::DuplicateKey(self.at(&path.join("."), &entry.key)));
                    }
                    self.refuse_duplicate_keys(&entry.value, path)?;
                    path.pop();
                }
                Ok(())
            }
            Kind::Sequence(items) => items.iter().try_for_each(|item| self.refuse_duplicate_keys(item, path)),
            Kind::Scalar { .. } | Kind::Alias(_) => Ok(()),
        }
    }

    /// Collects the scalars below `node` that are not ours. Mappings leave no trace of their own, for ours may have
    /// been the first entry of one.
    fn collect<'n>(
        &'n self,
        text: &'n str,
        node: &'n Node,
        path: &mut Vec<Cow<'n, str>>,
        ours: &impl Fn(&[&str]) -> bool,
        values: &mut BTreeMap<(&'n str, String), &'n str>,
    ) {
        if ours(&path.iter().map(Cow::as_ref).collect::<Vec<_>>()) {
            return;
        }
        let value = match &node.kind {
            Kind::Map { entries, .. } => {
                for entry in entries {
                    path.push(Cow::Borrowed(entry.key.text().unwrap_or(&text[entry.key.span.clone()])));
                    self.collect(text, &entry.value, path, ours, values);
                    path.pop();
                }
                return;
            }
            Kind::Sequence(items) => {
                for (n, item) in items.iter().enumerate() {
                    path.push(Cow::Owned(format!("[{n}]")));
                    self.collect(text, item, path, ours, values);
                    path.pop();
                }
                return;
            }
            Kind::Scalar { .. } if node.is_null() => return,
            Kind::Scalar { value, .. } => value.as_str(),
            // By its name: that what it means is unchanged is seen where that stands.
            Kind::Alias(_) => &text[node.span.clone()],
        };
        values.insert((&self.name, path.join("\0")), value);
    }
}

#[cfg(test)]
mod tests;
