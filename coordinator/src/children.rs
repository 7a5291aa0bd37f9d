//! What no program that we start is told: credential plugins of a kubeconfig, and the user's own commands.

use std::ffi::OsStr;

/// Variables of ours: flags, and the credential itself. A child gets those that are made for it.
const OURS: &str = "TALOS_GHCR_";
/// The token that we ask GitHub with; a child that needs one is given it in another way.
const TOKENS: [&str; 2] = ["GH_TOKEN", "GITHUB_TOKEN"];

/// Whether a variable of our environment is kept from every child.
#[must_use]
pub fn is_kept_from(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(OURS.as_bytes()) || TOKENS.iter().any(|token| name == *token)
}
