//! The images of a node's CRI containerd, in its two namespaces; they outlive a boot.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use talos_proto::proto::common::ContainerdNamespace;
use talos_proto::proto::machine::ImageServiceListResponse;

use crate::talos::cosi::store::timestamp;

/// A namespace of the containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Namespace {
    /// `system`: where no application's image is.
    System,
    /// `k8s.io`: what the kubelet uses.
    Cri,
}

impl Namespace {
    pub(crate) fn from_proto(namespace: ContainerdNamespace) -> Option<Self> {
        match namespace {
            ContainerdNamespace::NsSystem => Some(Self::System),
            ContainerdNamespace::NsCri => Some(Self::Cri),
            ContainerdNamespace::NsUnknown => None,
        }
    }
}

/// An image reference, taken apart as containerd does with a fully qualified one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Registry host, with its port.
    pub host: String,
    /// Path in the registry.
    pub repository: String,
    /// Tag or digest.
    pub reference: String,
}

impl Reference {
    /// `None` for what containerd calls an invalid reference format.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, rest) = text.split_once('/')?;
        let (repository, reference) = match rest.split_once('@') {
            Some((repository, digest)) => (repository, digest),
            None => rest.rsplit_once(':').unwrap_or((rest, "latest")),
        };
        let is_part = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
        };
        let is_host = is_part(&host.replace(':', "."));
        let valid = is_host && repository.split('/').all(is_part) && !reference.is_empty();
        valid.then(|| Self {
            host: host.to_owned(),
            repository: repository.to_owned(),
            reference: reference.to_owned(),
        })
    }

    /// The name that pins the digest.
    pub fn pinned(&self, digest: &str) -> String {
        format!("{}/{}@{digest}", self.host, self.repository)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.reference.contains(':') { '@' } else { ':' };
        write!(f, "{}/{}{sign}{}", self.host, self.repository, self.reference)
    }
}

/// Image names and what they stand for.
#[derive(Default)]
pub(crate) struct Images(BTreeMap<(Namespace, String), (String, Timestamp)>);

impl Images {
    /// The digest of an image that is there.
    pub fn digest(&self, namespace: Namespace, name: &str) -> Option<&str> {
        self.0.get(&(namespace, name.to_owned())).map(|(digest, _)| digest.as_str())
    }

    /// A pull leaves three names, in the `cri` namespace also the digest of the image's config (pull-system.jsonl).
    pub fn add(&mut self, namespace: Namespace, reference: &Reference, digest: &str, at: Timestamp) {
        let mut names = vec![reference.to_string(), reference.pinned(digest), digest.to_owned()];
        if namespace == Namespace::Cri {
            let config = Sha256::digest(format!("config of {digest}"));
            names.push(format!("sha256:{}", config.iter().map(|byte| format!("{byte:02x}")).collect::<String>()));
        }
        for name in names {
            self.0.insert((namespace, name), (digest.to_owned(), at));
        }
    }

    /// Removes one name; the others stay, and with them the content.
    pub fn remove(&mut self, namespace: Namespace, name: &str) -> bool {
        self.0.remove(&(namespace, name.to_owned())).is_some()
    }

    /// In the order of the names, as List answers.
    pub fn list(&self, namespace: Namespace) -> Vec<ImageServiceListResponse> {
        let managed = || [("io.cri-containerd.image".to_owned(), "managed".to_owned())].into();
        let image =
            |((_, name), (digest, at)): (&(Namespace, String), &(String, Timestamp))| ImageServiceListResponse {
                name: name.clone(),
                digest: digest.clone(),
                size: 41_611,
                created_at: Some(timestamp(*at)),
                labels: if namespace == Namespace::Cri { managed() } else { Default::default() },
            };
        self.0.iter().filter(|((in_namespace, _), _)| *in_namespace == namespace).map(image).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart() {
        let reference = Reference::parse("127.1.1.5:5000/lab/app:0").unwrap();
        assert_eq!((reference.host.as_str(), reference.repository.as_str()), ("127.1.1.5:5000", "lab/app"));
        assert_eq!(reference.to_string(), "127.1.1.5:5000/lab/app:0");
        assert_eq!(Reference::parse("ghcr.io/a/b").unwrap().reference, "latest");
        assert_eq!(Reference::parse("ghcr.io/a/b@sha256:00").unwrap().to_string(), "ghcr.io/a/b@sha256:00");
        for bad in ["UPPER//bad", "ghcr.io", "ghcr.io/a//b", "ghcr.io/a:"] {
            assert_eq!(Reference::parse(bad), None, "{bad}");
        }
    }
}
