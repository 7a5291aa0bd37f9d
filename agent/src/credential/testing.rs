//! Shortcuts of this room's tests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Credential, CredentialError, Desired, RegistryHost};

pub(super) fn host(text: &str) -> RegistryHost {
    text.parse().unwrap()
}

/// What the input gives for ghcr.io.
pub(super) fn one(text: &str) -> Result<Credential, CredentialError> {
    let ghcr = host("ghcr.io");
    Desired::read(text.as_bytes(), std::slice::from_ref(&ghcr)).map(|desired| desired.get(&ghcr).unwrap().clone())
}

pub(super) fn auth(text: &str) -> String {
    STANDARD.encode(text)
}
