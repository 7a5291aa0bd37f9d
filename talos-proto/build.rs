//! Compiles the protos with protox, so that no protoc is needed.

#![allow(clippy::disallowed_macros, reason = "cargo reads a build script's stdout")]

use std::error::Error;

/// Messages that hold a credential or a whole machine config: no derived `Debug` may print them.
const SECRET: [&str; 6] = [
    "machine.ApplyConfigurationRequest",
    "machine.ApplyConfiguration",
    "resource.config.MachineConfigSpec",
    "talos.resource.definitions.cri.RegistryAuthConfig",
    "cosi.resource.Spec",
    "common.Data",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let definitions =
        ["cluster", "cri", "cri_v1_11", "enums", "etcd", "files", "k8s", "network", "runtime", "v1alpha1"]
            .map(|name| format!("definitions/{name}.proto"));
    let files = ["machine.proto", "image.proto", "cosi.proto", "resource_config.proto"]
        .map(String::from)
        .into_iter()
        .chain(definitions);
    let descriptors = protox::compile(files, ["proto"])?;
    let mut config = tonic_prost_build::Config::new();
    config.skip_debug(SECRET);
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .include_file("protos.rs")
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}
