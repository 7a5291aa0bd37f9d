//! A release in a folder, packed by what packs the real ones.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::action::runner::root;
use crate::harness::{clean, finish, read};

/// A script that becomes a program.
pub fn program(path: &str) -> String {
    format!("#!/bin/sh\nexec '{path}' \"$@\"\n")
}

/// Writes a file that can be run.
pub fn executable(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder can be made");
    std::fs::write(path, text).expect("it can be written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// Archive and sums of this tree's version, for x86-64.
pub struct Release {
    dir: PathBuf,
}

impl Release {
    /// With this script in the place of the binary.
    pub async fn new(dir: &Path, script: &str) -> Self {
        let dir = dir.to_owned();
        let stage = dir.with_extension("stage");
        executable(&stage.join("talos-ghcr"), script);
        let release = Self { dir };
        let mut pack = clean("bash");
        pack.arg(root().join("ci/pack.sh")).arg(&release.dir).args([&release.version(), "amd64"]).arg(&stage);
        pack.env("SOURCE_DATE_EPOCH", "1800000000");
        finish(pack).await.expect(0);
        release
    }

    /// The version of this tree.
    pub fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    /// The archive's name.
    pub fn name(&self) -> String {
        format!("talos-ghcr_{}_linux_amd64.tar.gz", self.version())
    }

    /// The archive.
    pub fn archive(&self) -> PathBuf {
        self.dir.join(self.name())
    }

    /// Its SHA-256, as the release says.
    pub fn sum(&self) -> String {
        let sums = read(&self.dir.join("SHA256SUMS"));
        let line = sums.lines().find_map(|line| line.strip_suffix(&format!("  {}", self.name())));
        line.expect("the sums name the archive").to_owned()
    }

    /// Where a runner gets it.
    pub fn url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// Puts other bytes in the archive's place and leaves the sums as they are.
    pub fn spoil(&self, bytes: &[u8]) {
        std::fs::write(self.archive(), bytes).expect("it can be written");
    }
}
