//! References to container images, as `--image` takes them.

use std::fmt;
use std::str::FromStr;

use crate::credential::RegistryHost;

/// `ghcr.io/acme/app:1.4.2`, `127.0.0.1:5000/app@sha256:…`. The registry is always written out: `acme/app` could mean
/// any.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageRef {
    host: RegistryHost,
    /// The host as it was written: Docker Hub's images are `docker.io/…` although its API is elsewhere.
    written_host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// Why a text is no image reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// No registry before the first `/`.
    #[error("an image must be written with its registry, like ghcr.io/acme/app:1.4.2")]
    NoRegistry,
    /// What stands before the first `/` is no registry host.
    #[error("the registry of an image is not a host")]
    Host(#[source] crate::credential::HostError),
    /// The part between registry and tag.
    #[error("the repository of an image has only lower case letters, digits, dots, dashes, underscores and slashes")]
    Repository,
    /// The part after the colon.
    #[error("the tag of an image has at most 128 letters, digits, dots, dashes and underscores")]
    Tag,
    /// The part after the `@`.
    #[error("the digest of an image is sha256: and 64 lower case hex digits")]
    Digest,
}

impl ImageRef {
    /// The registry that serves it.
    #[must_use]
    pub fn host(&self) -> &RegistryHost {
        &self.host
    }

    /// The repository within the registry: `acme/app`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// What the registry's API is asked for: the digest, else the tag, else `latest`.
    #[must_use]
    pub fn reference(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.written_host, self.repository)?;
        match (&self.tag, &self.digest) {
            (None, None) => f.write_str(":latest"),
            (tag, digest) => {
                tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
                digest.iter().try_for_each(|digest| write!(f, "@{digest}"))
            }
        }
    }
}

impl FromStr for ImageRef {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let (written_host, rest) = text.split_once('/').ok_or(ImageError::NoRegistry)?;
        if !written_host.contains(['.', ':']) && written_host != "localhost" {
            return Err(ImageError::NoRegistry);
        }
        let host = written_host.parse().map_err(ImageError::Host)?;
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (rest, None),
        };
        let (repository, tag) = match rest.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        let part = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_'))
        };
        if !repository.split('/').all(part) {
            return Err(ImageError::Repository);
        }
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if tag.is_some_and(|tag| {
            tag.is_empty() || tag.len() > 128 || !tag.chars().all(word) || tag.starts_with(['.', '-'])
        }) {
            return Err(ImageError::Tag);
        }
        let hex = |digest: &str| digest.len() == 64 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digest.is_some_and(|digest| !digest.strip_prefix("sha256:").is_some_and(hex)) {
            return Err(ImageError::Digest);
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok(Self {
            host,
            written_host: written_host.to_owned(),
            repository: repository.to_owned(),
            tag: owned(tag),
            digest: owned(digest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_taken_apart_and_written_in_full() {
        let digest = format!("sha256:{}", "0af9".repeat(16));
        for (text, host, repository, reference, shown) in [
            ("ghcr.io/acme/app:1.4.2", "ghcr.io", "acme/app", "1.4.2", "ghcr.io/acme/app:1.4.2"),
            ("ghcr.io/acme/app", "ghcr.io", "acme/app", "latest", "ghcr.io/acme/app:latest"),
            ("127.0.0.1:5000/app:v1", "127.0.0.1:5000", "app", "v1", "127.0.0.1:5000/app:v1"),
            ("localhost/a/b_c/d-e", "localhost", "a/b_c/d-e", "latest", "localhost/a/b_c/d-e:latest"),
            ("docker.io/library/nginx:1", "registry-1.docker.io", "library/nginx", "1", "docker.io/library/nginx:1"),
            (
                &format!("ghcr.io/acme/app:1@{digest}"),
                "ghcr.io",
                "acme/app",
                &digest,
                &format!("ghcr.io/acme/app:1@{digest}"),
            ),
        ] {
            let image: ImageRef = text.parse().unwrap();
            assert_eq!(
                (image.host().as_str(), image.repository(), image.reference(), image.to_string().as_str()),
                (host, repository, reference, shown)
            );
        }
    }

    #[test]
    fn what_is_no_reference_is_refused_by_part() {
        for (text, error) in [
            ("app:1", ImageError::NoRegistry),
            ("acme/app:1", ImageError::NoRegistry),
            ("u:p@ghcr.io/app", ImageError::Host(crate::credential::HostError::UserInfo)),
            ("https://ghcr.io/app", ImageError::Host(crate::credential::HostError::Port)),
            ("ghcr.io/", ImageError::Repository),
            ("ghcr.io/Acme/app", ImageError::Repository),
            ("ghcr.io/acme//app", ImageError::Repository),
            ("ghcr.io/acme/../app", ImageError::Repository),
            ("ghcr.io/acme/app:", ImageError::Tag),
            ("ghcr.io/acme/app:a b", ImageError::Tag),
            ("ghcr.io/acme/app@sha256:abc", ImageError::Digest),
        ] {
            assert_eq!(text.parse::<ImageRef>(), Err(error), "{text}");
        }
    }
}
