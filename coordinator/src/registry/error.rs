//! How a preflight ends when it does not pass. No error repeats a header, a body or a part of the credential.

use std::fmt;
use std::time::Duration;
use talos_proto::clock::short;

use agent::credential::RegistryHost;
use agent::image::ImageRef;

/// An error of the transport; kept as it is, because its chain names the cause (DNS, TCP, certificate).
pub type TransportError = Box<dyn std::error::Error + Send + Sync>;

/// Which request of the preflight it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `GET /v2/`, without the credential.
    Challenge,
    /// The login: at the realm that the challenge names, or with Basic at the registry.
    Login {
        /// The host that was asked.
        realm: String,
    },
    /// `HEAD /v2/…/manifests/…`.
    Manifest(Box<ImageRef>),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Challenge => f.write_str("GET /v2/"),
            Self::Login { realm } => write!(f, "the login at {realm}"),
            Self::Manifest(image) => write!(f, "the manifest of {image}"),
        }
    }
}

/// What is wrong with one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageProblem {
    /// Which.
    pub image: ImageRef,
    /// What.
    pub what: ImageFault,
}

/// How a registry refused an image, although it took the credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFault {
    /// 401 or 403: the credential may not read it.
    Denied {
        /// The HTTP status.
        status: u16,
    },
    /// 404: no such image; some registries say so as well of one that the credential may not read.
    NotFound,
}

impl fmt::Display for ImageProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = &self.image;
        match self.what {
            ImageFault::Denied { status } => write!(f, "{image}: the credential may not read it (HTTP {status})"),
            ImageFault::NotFound => {
                write!(f, "{image}: there is no such image, or the credential may not see it (HTTP 404)")
            }
        }
    }
}

/// Why the preflight did not pass. Nothing was written anywhere.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// The trusted roots of this machine could not be loaded.
    #[error("no trusted certificates could be loaded on this machine; SSL_CERT_FILE names a file of them")]
    Roots(#[source] std::io::Error),
    /// No answer because of the network or TLS. This says nothing about the credential.
    #[error("the registry {host} could not be asked ({request}); this says nothing about the credential")]
    Unreachable {
        /// The registry.
        host: RegistryHost,
        /// What was asked.
        request: Request,
        /// The cause.
        #[source]
        source: TransportError,
    },
    /// No answer in time. This says nothing about the credential.
    #[error("the registry {host} did not answer {request} within {}; this says nothing about the credential", short(*after))]
    TimedOut {
        /// The registry.
        host: RegistryHost,
        /// What was asked.
        request: Request,
        /// The limit.
        after: Duration,
    },
    /// The registry refuses the login itself.
    #[error("the registry {host} refuses the credential (HTTP {status} from {realm})")]
    BadCredential {
        /// The registry.
        host: RegistryHost,
        /// 401 or 403.
        status: u16,
        /// The host that said so.
        realm: String,
    },
    /// The login passed, an image did not.
    #[error("the registry {host} takes the credential, but not for every image: {}", list(problems))]
    Images {
        /// The registry.
        host: RegistryHost,
        /// Every image that did not pass, in the order given.
        problems: Vec<ImageProblem>,
    },
    /// 429.
    #[error("the registry {host} answered {request} with a rate limit (HTTP 429){}", wait(retry_after.as_ref()))]
    RateLimited {
        /// The registry.
        host: RegistryHost,
        /// What was asked.
        request: Request,
        /// From its `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The challenge names a realm that the credential is not sent to.
    #[error("the registry {host} asks for the login at {realm}, which is not https; the credential was not sent")]
    InsecureRealm {
        /// The registry.
        host: RegistryHost,
        /// Its realm.
        realm: String,
    },
    /// 401 without a challenge that is understood.
    #[error("the registry {host} asks for a login in a way that is not understood (neither Bearer nor Basic)")]
    Challenge {
        /// The registry.
        host: RegistryHost,
    },
    /// The token endpoint's success holds no token.
    #[error("the registry {host} answered the login at {realm} without a token")]
    NoToken {
        /// The registry.
        host: RegistryHost,
        /// The host that said so.
        realm: String,
    },
    /// 401 for a token that was just given, because of the token itself. This says nothing about the credential.
    #[error(
        "the registry {host} does not take the token that its login gave for {image} (HTTP 401, invalid_token); whether \
         the credential may read it is not known, and the clocks of the registry and of its login may differ"
    )]
    TokenNotTaken {
        /// The registry.
        host: RegistryHost,
        /// What the token was for.
        image: Box<ImageRef>,
    },
    /// An identity token needs a token endpoint.
    #[error("the registry {host} asks for user and password, but the credential is an identity token")]
    TokenForBasic {
        /// The registry.
        host: RegistryHost,
    },
    /// Any other status.
    #[error("the registry {host} answered {request} with HTTP {status}; this says nothing about the credential")]
    Unexpected {
        /// The registry.
        host: RegistryHost,
        /// What was asked.
        request: Request,
        /// The HTTP status.
        status: u16,
    },
    /// An image of a registry that no credential was given for.
    #[error("no credential was given for the registry of the image {image}; add --registry {}", image.host())]
    ForeignImage {
        /// Which.
        image: Box<ImageRef>,
    },
    /// There is nothing to log in with.
    #[error("there is no credential for the registry {host}")]
    NoCredential {
        /// The registry.
        host: RegistryHost,
    },
}

fn list(problems: &[ImageProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn wait(after: Option<&Duration>) -> String {
    after.map_or_else(String::new, |after| format!("; try again in {} s", after.as_secs()))
}
