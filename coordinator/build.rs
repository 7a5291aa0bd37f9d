//! Puts the commit into `--version`.

#![allow(clippy::disallowed_macros, reason = "cargo reads a build script's stdout")]

use std::process::Command;

fn main() {
    // A package without a repository (an unpacked archive) says so instead of failing.
    let given = std::env::var("TALOS_GHCR_COMMIT").ok().filter(|commit| !commit.is_empty());
    let git = || {
        let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = given.or_else(git).unwrap_or_else(|| "unknown commit".into());
    println!("cargo:rustc-env=TALOS_GHCR_COMMIT={commit}");
    println!("cargo:rerun-if-env-changed=TALOS_GHCR_COMMIT");
    println!("cargo:rerun-if-changed=../.git/HEAD");
    println!("cargo:rerun-if-changed=../.git/refs/heads");
}
