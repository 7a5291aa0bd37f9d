//! The preflight: does the registry take the new credential, and may it read the images? Asked from here, with three
//! requests, before anything is written.
//!
//! What leads to which outcome is told apart, because what to do next differs: a registry that cannot be reached says
//! nothing about the credential; a refused login is a bad credential; an image that is refused after a good login is a
//! missing permission. The credential goes to the registry's own host or to the https realm that it names, to no other
//! host on a redirect, and into no log.

mod address;
mod challenge;
mod error;
mod flow;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use agent::credential::{Desired, RegistryHost};
use agent::image::ImageRef;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use talos_proto::clock::Clock;

pub use address::explain;
pub use error::{ImageFault, ImageProblem, PreflightError, Request, TransportError};

/// How the login passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// A token endpoint gave a token for the credential.
    Token,
    /// The registry took user and password.
    Basic,
    /// The registry wants no login at all; the credential was not shown to it, so nothing is proved.
    NotAsked,
}

/// A registry that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Which.
    pub host: RegistryHost,
    /// How.
    pub login: Login,
    /// The images that the credential may read. Without any, only the login was proved.
    pub images: Vec<ImageRef>,
}

/// Every registry passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preflight {
    /// One for each host of the credential, sorted.
    pub registries: Vec<Checked>,
}

impl Preflight {
    /// What was not proved although all passed, for a person to read.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let warning = |checked: &Checked| match (checked.login, checked.images.is_empty()) {
            (Login::NotAsked, _) => {
                Some(format!("the registry {} asks for no login, so that the credential was not tried", checked.host))
            }
            (_, true) => Some(format!(
                "no --image of {} was given: the login was tried, but not whether it may pull anything",
                checked.host
            )),
            _ => None,
        };
        self.registries.iter().filter_map(warning).collect()
    }
}

/// Tries every credential of `desired` at its registry, and every one of `images` with it. Each request has 10 s.
///
/// The trusted certificates are the machine's, or those of `SSL_CERT_FILE`. Proxies are not used.
///
/// # Errors
/// [`PreflightError`] of the first registry that does not pass.
pub async fn preflight(desired: &Desired, images: &[ImageRef], clock: &Clock) -> Result<Preflight, PreflightError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let connector = HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(provider)
        .map_err(PreflightError::Roots)?
        .https_only()
        .enable_http1()
        .build();
    let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
    check_all(&flow::Tower(client), desired, images, clock).await
}

async fn check_all<H: flow::Http>(
    http: &H,
    desired: &Desired,
    images: &[ImageRef],
    clock: &Clock,
) -> Result<Preflight, PreflightError> {
    if let Some(image) = images.iter().find(|image| desired.get(image.host()).is_none()) {
        return Err(PreflightError::ForeignImage { image: Box::new(image.clone()) });
    }
    let mut registries = Vec::new();
    for (host, credential) in desired.iter() {
        let of_host: Vec<&ImageRef> = images.iter().filter(|image| image.host() == host).collect();
        registries.push(flow::Check { http, clock, host, credential }.run(&of_host).await?);
    }
    Ok(Preflight { registries })
}
