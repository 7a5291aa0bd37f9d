//! Why an input gives no credential. Nothing of a value may reach these texts: parsers' own messages quote values, so
//! that only their positions are kept.

use std::fmt;

use super::{RegistryHost, Unusable};

/// What an input was recognised as, by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `{"auths": …}`.
    DockerConfig,
    /// Talos documents of the kind `RegistryAuthConfig`.
    TalosDocuments,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DockerConfig => "the docker config",
            Self::TalosDocuments => "the file of RegistryAuthConfig documents",
        })
    }
}

/// Why an input gives no credential for a host that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// Nothing but white space.
    #[error("it is empty; {EXPECTED}")]
    Blank,
    /// Not UTF-8; a shell on Windows writes UTF-16.
    #[error("it is not UTF-8 text; save it as UTF-8")]
    NotText,
    /// A text without any structure, for instance a token alone.
    #[error("it is a bare text{}; {EXPECTED}", if *.base64 { " (base64 of a docker config: decode it first)" } else { ", and a token or password alone has no user" })]
    Bare {
        /// Whether it decodes to something that looks like a docker config.
        base64: bool,
    },
    /// Not JSON, or a field has another type than docker writes.
    #[error(
        "the docker config is not JSON of the expected shape (line {line}, column {column}): \
         {{\"auths\": {{\"ghcr.io\": {{\"auth\": \"…\"}}}}}}"
    )]
    Json {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// Neither JSON nor YAML.
    #[error("it is not YAML (line {line}, column {column}), nor JSON; {EXPECTED}")]
    Yaml {
        /// From 1; 0 when the parser does not know.
        line: usize,
        /// From 1; 0 when the parser does not know.
        column: usize,
    },
    /// YAML or JSON of other kinds only.
    #[error("it holds no credential, only {}; {EXPECTED}", .found.join(", "))]
    Unrecognised {
        /// The kinds with their places.
        found: Vec<String>,
    },
    /// More than one Secret, or a Secret and Talos documents.
    #[error("it holds more than one credential: {}; give one of them", .found.join(", "))]
    Several {
        /// Each with its place.
        found: Vec<String>,
    },
    /// A Secret of a type that holds no docker config.
    #[error("{secret} has the type {found}; a registry credential has the type kubernetes.io/dockerconfigjson")]
    SecretType {
        /// The Secret and its place.
        secret: String,
        /// Its type.
        found: String,
    },
    /// A Secret in the form from before docker 1.7.
    #[error(
        "{secret} has the legacy type kubernetes.io/dockercfg (.dockercfg), which is not supported; make one of type \
         kubernetes.io/dockerconfigjson: kubectl create secret docker-registry NAME \
         --from-file=.dockerconfigjson=\"$HOME/.docker/config.json\""
    )]
    LegacySecret {
        /// The Secret and its place.
        secret: String,
    },
    /// A value has the wrong shape.
    #[error("{object}: {path}: {problem}")]
    Shape {
        /// The Secret and its place.
        object: String,
        /// Where in it.
        path: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The docker config inside a Secret has a fault.
    #[error("{secret}: {path}: {source}")]
    InSecret {
        /// The Secret and its place.
        secret: String,
        /// Where in it.
        path: String,
        /// The fault.
        source: Box<CredentialError>,
    },
    /// The wanted host is not there.
    #[error("{format} has no entry for {host}; it has {}", list(present))]
    Missing {
        /// What was read.
        format: Format,
        /// The wanted host.
        host: RegistryHost,
        /// The hosts that are there.
        present: Vec<String>,
    },
    /// The host's password is kept by a helper program outside of the file.
    #[error(
        "the docker config keeps the credential of {host} in the helper docker-credential-{helper}, not in the file; \
         run `echo {host} | docker-credential-{helper} get` and put its Username and Secret into a file of the form \
         {{\"auths\": {{\"{host}\": {{\"username\": \"…\", \"password\": \"…\"}}}}}}"
    )]
    InHelper {
        /// The wanted host.
        host: RegistryHost,
        /// The name of `credsStore` or of the host's `credHelpers`.
        helper: String,
    },
    /// The entry of the wanted host gives no credential.
    #[error("{format}: {path} (for {host}): {fault}")]
    Entry {
        /// What was read.
        format: Format,
        /// Where in it.
        path: String,
        /// The wanted host.
        host: RegistryHost,
        /// What is wrong.
        fault: EntryFault,
    },
    /// Two keys that mean the same host (`ghcr.io` and `https://ghcr.io`) with different credentials.
    #[error("the docker config has {count} entries for {host} with different credentials; keep one")]
    Ambiguous {
        /// The wanted host.
        host: RegistryHost,
        /// How many.
        count: usize,
    },
    /// Talos refuses two documents of one kind and name.
    #[error("{} are RegistryAuthConfig documents for {host}; keep one", .places.join(" and "))]
    Repeated {
        /// The wanted host.
        host: RegistryHost,
        /// Where they stand.
        places: Vec<String>,
    },
}

/// What is wrong with the entry of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    /// None of docker's fields.
    #[error("no credential (auth, username and password, or identitytoken)")]
    Empty,
    /// None of Talos's fields.
    #[error("no credential (username and password, auth, or identityToken)")]
    EmptyDocument,
    /// `registrytoken` is a bearer token of docker's own daemon, of minutes; Talos has no field for it.
    #[error("only a registrytoken, which Talos cannot use")]
    RegistryToken,
    /// The fields give no credential.
    #[error("{0}")]
    Unusable(#[from] Unusable),
    /// The user before the colon is empty.
    #[error("an empty username")]
    NoUsername,
    /// The password after the colon is empty, or there is a username alone.
    #[error("an empty password")]
    NoPassword,
    /// `auth` says one thing, `username` and `password` another.
    #[error("it disagrees with itself: auth and username/password differ; keep one")]
    Disagrees,
    /// Talos refuses such a document.
    #[error("username, auth and identityToken exclude each other in a RegistryAuthConfig; keep one")]
    Exclusive,
    /// YAML reads an unquoted `0123` as a number, and the digits as written are lost.
    #[error("{field} is {found}, not text; put it in quotes")]
    NotText {
        /// The field.
        field: &'static str,
        /// Its type.
        found: &'static str,
    },
    /// A value that SOPS has encrypted.
    #[error("its value is encrypted by SOPS; decrypt the file first (sops decrypt)")]
    Encrypted,
}

const EXPECTED: &str = "a credential is a docker config JSON ({\"auths\": …}), a Secret of type \
                        kubernetes.io/dockerconfigjson (YAML or JSON), or Talos RegistryAuthConfig documents (YAML)";

fn list(present: &[String]) -> String {
    if present.is_empty() { "none at all".to_owned() } else { present.join(", ") }
}
