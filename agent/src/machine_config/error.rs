//! What can be wrong with a machine config. No error repeats a value of it, for nearly all of them are secret.

use std::fmt;

use crate::credential::RegistryHost;

/// A place in a machine config, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// `v1alpha1`, `RegistryAuthConfig ghcr.io`, `document 3`.
    pub document: String,
    /// `machine.registries.config.ghcr.io.auth`; empty for the document itself.
    pub path: String,
    /// From 1.
    pub line: usize,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{} of ", self.path)?;
        }
        write!(f, "the document {} (line {})", self.document, self.line)
    }
}

/// Why a machine config cannot be read or edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Talos reads UTF-8 only.
    #[error("the machine config is not UTF-8 (line {line})")]
    NotUtf8 {
        /// From 1.
        line: usize,
    },
    /// Not YAML.
    #[error("the machine config is not YAML (line {line}, column {column})")]
    Yaml {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// The same key twice in one mapping; which one counts is anybody's guess.
    #[error("the machine config has a key twice: {0}")]
    DuplicateKey(At),
    /// Two documents of one kind and name; Talos refuses them.
    #[error("the machine config has a document twice: {0}")]
    DuplicateDocument(At),
    /// No document with `version: v1alpha1`, which every Talos config has.
    #[error("the machine config has no v1alpha1 document (`version: v1alpha1` with `machine` and `cluster`)")]
    NoMachineDocument,
    /// Neither `cluster.secret` nor `machine.token`.
    #[error("the machine config has neither cluster.secret nor machine.token, so no revision can be made")]
    NoClusterKey,
    /// Something else stands where a mapping or a text must be.
    #[error("the machine config has something else than {expected} at {at}")]
    Shape {
        /// Where.
        at: At,
        /// What must be there.
        expected: &'static str,
    },
    /// An anchor, alias, merge key or tag: an edit here would change other places too, or be changed by them.
    #[error(
        "the machine config cannot be edited safely at {0}: an anchor, alias, merge key or tag is used there; \
         write it out in full"
    )]
    Shared(At),
    /// A layout that can be read but that an edit would break (`? key`, a mapping on the line of its `---`).
    #[error("the machine config is laid out in a form that is not edited at {0}; write it as `key: value` lines")]
    Layout(At),
    /// [`crate::credential::Credential::None`] cannot be written.
    #[error("there is no credential to write for {0}")]
    NoCredential(RegistryHost),
    /// Talos renders `docker.io` and `registry-1.docker.io` into one entry of containerd, either of which may win.
    #[error("the machine config has a credential for docker.io at {0}; rename it to registry-1.docker.io")]
    DockerIo(At),
    /// `KubeNodeConfig` and legacy node fields together are refused by Talos.
    #[error("the machine config has both a KubeNodeConfig document and {0}; Talos refuses that")]
    NodeFieldsTwice(At),
    /// A Talos below 1.14 does not know the document.
    #[error("the machine config has a KubeNodeConfig document, which this Talos version does not know")]
    NodeDocumentUnknown,
    /// The edit was checked and is not what was wanted, so that nothing was changed.
    #[error("the machine config could not be edited: {0}")]
    Unverified(&'static str),
}
