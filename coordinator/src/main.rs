//! `talos-ghcr`: see the library's documentation.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A core of this process would hold the credential.
    coordinator::cli::forbid_core_dumps();
    // One provider for the whole process: tonic, kube and the registry client would each look for their own.
    let _ = rustls::crypto::ring::default_provider().install_default();
    coordinator::cli::main()
}
