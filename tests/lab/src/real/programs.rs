//! Where the programs of a real Kubernetes are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable that names the folder, as in controller-runtime's envtest.
pub const VARIABLE: &str = "KUBEBUILDER_ASSETS";
/// What has to be in it.
const NEEDED: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];

/// A folder with the programs of a Kubernetes control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs(PathBuf);

/// Why there is no real Kubernetes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Missing {
    /// Nobody says where.
    #[error(
        "{VARIABLE} is not set: it names a folder with etcd, kube-apiserver, kube-controller-manager and kubectl. \
         `make conformance` builds one; `tests/conformance/kubernetes/build.sh FOLDER` prints its name"
    )]
    Folder,
    /// One of them is not there.
    #[error(
        "{VARIABLE} names {}, which has no {program}{}", .folder.display(), hint(.program)
    )]
    Program {
        /// The folder.
        folder: PathBuf,
        /// What is not in it.
        program: &'static str,
    },
}

/// setup-envtest brings etcd, kube-apiserver and kubectl only.
fn hint(program: &str) -> &'static str {
    match program {
        "kube-controller-manager" => {
            ". setup-envtest does not bring it: put the one of the same version from the Kubernetes release \
             (https://dl.k8s.io/VERSION/bin/linux/amd64/kube-controller-manager) beside the others"
        }
        "leader-election" => ". Build it from tests/conformance/kubernetes/leader-election",
        _ => "",
    }
}

impl Programs {
    /// The folder that the environment names.
    ///
    /// # Errors
    /// [`Missing`], with how to get them.
    pub fn find() -> Result<Self, Missing> {
        Self::named(std::env::var_os(VARIABLE))
    }

    fn named(folder: Option<OsString>) -> Result<Self, Missing> {
        let folder = PathBuf::from(folder.filter(|folder| !folder.is_empty()).ok_or(Missing::Folder)?);
        match NEEDED.iter().find(|program| !folder.join(program).is_file()) {
            Some(program) => Err(Missing::Program { folder, program }),
            None => Ok(Self(folder)),
        }
    }

    /// The same, if these are in it as well.
    ///
    /// # Errors
    /// [`Missing::Program`].
    pub fn with(self, more: &[&'static str]) -> Result<Self, Missing> {
        match more.iter().find(|program| !self.path(program).is_file()) {
            Some(program) => Err(Missing::Program { folder: self.0, program }),
            None => Ok(self),
        }
    }

    /// The path of one of them.
    #[must_use]
    pub fn path(&self, program: &str) -> PathBuf {
        self.0.join(program)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_how_to_get_it() {
        assert!(Programs::named(None).unwrap_err().to_string().contains("make conformance"));
        let dir = tempfile::tempdir().unwrap();
        for program in ["etcd", "kube-apiserver", "kubectl"] {
            std::fs::write(dir.path().join(program), "").unwrap();
        }
        let folder = || Some(dir.path().as_os_str().to_owned());
        let why = Programs::named(folder()).unwrap_err().to_string();
        assert!(why.contains("has no kube-controller-manager") && why.contains("setup-envtest"), "{why}");
        std::fs::write(dir.path().join("kube-controller-manager"), "").unwrap();
        let programs = Programs::named(folder()).unwrap();
        assert_eq!(programs.path("etcd"), dir.path().join("etcd"));
        assert!(programs.clone().with(&["kubectl"]).is_ok());
        assert!(programs.with(&["leader-election"]).unwrap_err().to_string().contains("Build it from"));
    }
}
