//! The edit: credentials and one annotation into a config, every other byte as it was.

use zeroize::Zeroizing;

use secrecy::ExposeSecret as _;

use super::error::{At, ConfigError};
use super::mapping::{Editor, Goal, line_break};
use super::splice::{Edited, Patch, Pieces};
use super::{MachineConfig, scalar};
use crate::credential::{Credential, Desired, RegistryHost};

/// What a config must say afterwards.
#[derive(Clone, Copy, Debug)]
pub struct Change<'c> {
    /// The credentials, by registry.
    pub desired: &'c Desired,
    /// Key and value of the annotation of the Node.
    pub annotation: (&'c str, &'c str),
    /// Whether this Talos knows `RegistryAuthConfig` documents (1.12 and later).
    pub documents: bool,
    /// Whether this Talos knows `KubeNodeConfig` documents (1.14 and later). One is never made, only used: below 1.14
    /// it would make the whole config unreadable, also after a rollback of an upgrade.
    pub node_document: bool,
}

/// The fields of a registry's auth, in the legacy block and in the document.
pub(super) const AUTH_FIELDS: [&str; 4] = ["username", "password", "auth", "identityToken"];

impl MachineConfig {
    /// Makes the change in the places that count (a document before the legacy block, the annotation where node
    /// fields already are) and leaves every other byte as it is. What is already as wanted is not touched: the same
    /// change made again gives equal bytes.
    ///
    /// The result is read again and checked before it is returned.
    ///
    /// # Errors
    /// [`ConfigError`] when the place is written in a form that cannot be edited without changing others.
    pub fn edit(&self, change: &Change<'_>) -> Result<Edited, ConfigError> {
        let mut pieces = Pieces::new(self.text());
        for (host, credential) in change.desired.iter() {
            // Read again each time: the edit for one host may have made the block that the next one needs.
            let now = Self::parse(pieces.text().as_bytes())?;
            pieces.apply(now.set_credential(host, credential, change.documents)?);
        }
        let now = Self::parse(pieces.text().as_bytes())?;
        pieces.apply(now.set_annotation(change.annotation, change.node_document)?);
        let edited = pieces.finish();
        self.verify(&edited, change)?;
        Ok(edited)
    }

    fn set_credential(
        &self,
        host: &RegistryHost,
        credential: &Credential,
        documents: bool,
    ) -> Result<Vec<Patch>, ConfigError> {
        let set: Vec<(&str, Zeroizing<String>)> = match credential {
            Credential::Basic { username, password } => vec![
                ("username", scalar::double_quoted(username)),
                ("password", scalar::double_quoted(password.expose_secret())),
            ],
            Credential::Token(token) => vec![("identityToken", scalar::double_quoted(token.expose_secret()))],
            Credential::None => return Err(ConfigError::NoCredential(host.clone())),
        };
        if let Some(at) = self.docker_io(host) {
            return Err(ConfigError::DockerIo(at));
        }
        if self.effective_auth(host).is_ok_and(|now| now.same_as(credential)) {
            return Ok(Vec::new());
        }
        let remove: Vec<&str> =
            AUTH_FIELDS.into_iter().filter(|field| !set.iter().any(|(key, _)| key == field)).collect();
        let goal = |path| Goal { path, set: &set, remove: &remove, whole: true };
        let legacy = ["machine", "registries", "config", host.as_str(), "auth"];
        if let Some(index) = self.auth_document(host.as_str()) {
            self.editor(index).reach(&goal(&[]))
        } else if !documents || self.machine().get(&legacy[..4]).is_some() {
            self.editor(self.machine_index()).reach(&goal(&legacy))
        } else {
            Ok(vec![self.append_document(host, &set)])
        }
    }

    fn append_document(&self, host: &RegistryHost, set: &[(&str, Zeroizing<String>)]) -> Patch {
        let line_break = line_break(self.text());
        let mut text = Zeroizing::new(String::new());
        text.reserve(
            128 + host.as_str().len() + set.iter().map(|(key, value)| key.len() + value.len() + 8).sum::<usize>(),
        );
        if !self.text().ends_with('\n') {
            text.push_str(line_break);
        }
        // A separator that ends the text has already begun a document.
        if self.text().lines().last() != Some("---") {
            text.push_str("---");
            text.push_str(line_break);
        }
        let name = scalar::key(host.as_str());
        for (key, value) in [("apiVersion", "v1alpha1"), ("kind", "RegistryAuthConfig"), ("name", name.as_str())]
            .into_iter()
            .chain(set.iter().map(|(key, value)| (*key, value.as_str())))
        {
            for part in [key, ": ", value, line_break] {
                text.push_str(part);
            }
        }
        Patch::insert(self.text().len(), text)
    }

    fn set_annotation(&self, (key, value): (&str, &str), node_document: bool) -> Result<Vec<Patch>, ConfigError> {
        let legacy = ["nodeAnnotations", "nodeLabels", "nodeTaints"].into_iter().find_map(|field| {
            let node = self.machine().get(&["machine", field])?;
            (!node.entries().is_empty()).then(|| self.at(self.machine_index(), &format!("machine.{field}"), node))
        });
        let document = self.node_document();
        let (index, path): (usize, &[&str]) = match (document, legacy) {
            (Some(_), Some(at)) => return Err(ConfigError::NodeFieldsTwice(at)),
            (Some(_), None) if !node_document => return Err(ConfigError::NodeDocumentUnknown),
            (Some(index), None) => (index, &["annotations"]),
            (None, _) => (self.machine_index(), &["machine", "nodeAnnotations"]),
        };
        if self.annotation(key).as_deref() == Some(value) {
            return Ok(Vec::new());
        }
        let set = [(key, scalar::quoted(value))];
        self.editor(index).reach(&Goal { path, set: &set, remove: &[], whole: false })
    }

    fn editor(&self, index: usize) -> Editor<'_> {
        let document = &self.documents()[index];
        Editor { text: self.text(), document: &document.tree, name: &document.name }
    }

    /// A credential under Docker Hub's other name, when its API's name is to be written.
    fn docker_io(&self, host: &RegistryHost) -> Option<At> {
        if host.as_str() != "registry-1.docker.io" {
            return None;
        }
        let path = ["machine", "registries", "config", "docker.io", "auth"];
        let legacy = self.machine().get(&path).map(|node| self.at(self.machine_index(), &path.join("."), node));
        let document = self.auth_document("docker.io");
        document.map(|index| self.at(index, "", &self.documents()[index].tree.root)).or(legacy)
    }

    fn verify(&self, edited: &Edited, change: &Change<'_>) -> Result<(), ConfigError> {
        let broken = |_| ConfigError::Unverified("the result would not be readable");
        let after = Self::parse(&edited.bytes).map_err(broken)?;
        if !edited.keeps_all_else_of(self.text().as_bytes()) {
            return Err(ConfigError::Unverified("bytes outside of the edited places would change"));
        }
        for (host, credential) in change.desired.iter() {
            if !after.effective_auth(host).is_ok_and(|now| now.same_as(credential)) {
                return Err(ConfigError::Unverified("the credential would not be the effective one"));
            }
        }
        if after.annotation(change.annotation.0).as_deref() != Some(change.annotation.1) {
            return Err(ConfigError::Unverified("the annotation would not be the one that was asked for"));
        }
        let (desired, annotation) = (change.desired, change.annotation.0);
        if self.values_apart_from(desired, annotation) != after.values_apart_from(desired, annotation) {
            return Err(ConfigError::Unverified("a value of somebody else would change"));
        }
        Ok(())
    }
}
