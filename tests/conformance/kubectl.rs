//! kubectl, as the hand of somebody else in the cluster.

use std::path::PathBuf;
use std::process::Stdio;

use lab::real::Programs;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::harness::{Bed, Ended, ended};

/// kubectl with an administrator's kubeconfig, past the lab's listeners.
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// For the cluster of that lab.
    pub fn of(bed: &Bed) -> Self {
        let programs = Programs::find().unwrap_or_else(|missing| panic!("{missing}"));
        let cluster = bed.lab.real().expect("kubectl needs a real cluster");
        let kubeconfig = bed.lab.kubeconfig_for("kubernetes-admin", &["system:masters"], cluster.own_server());
        let kubeconfig = PathBuf::from(bed.write("kubeconfig-kubectl", &kubeconfig));
        Self { program: programs.path("kubectl"), kubeconfig }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("HOME", self.kubeconfig.parent().expect("it is in a folder"));
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Runs it to its end, with a folder of plugins that it finds.
    pub async fn with_plugins(&self, folder: &std::path::Path, args: &[&str]) -> Ended {
        // kubectl looks for a plugin only where its first argument is no flag.
        let mut command = Command::new(&self.program);
        command.env_clear().env("HOME", self.kubeconfig.parent().expect("it is in a folder"));
        command.env("KUBECONFIG", &self.kubeconfig).env("PATH", folder).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        ended(command.spawn().expect("kubectl starts")).await
    }

    /// Runs it to its end with that on its stdin.
    pub async fn fed(&self, args: &[&str], input: &str) -> Ended {
        let mut child = self.command(args).spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("its stdin is a pipe");
        stdin.write_all(input.as_bytes()).await.expect("it reads");
        drop(stdin);
        ended(child).await
    }

    /// Runs it to its end, which must be a good one; gives what it says.
    pub async fn ok(&self, args: &[&str]) -> String {
        self.fed(args, "").await.expect(0).stdout
    }
}

/// A lab with a real cluster.
pub fn real(options: &mut lab::Options) {
    let programs = Programs::find().unwrap_or_else(|missing| panic!("{missing}"));
    options.kubernetes = lab::options::Kubernetes::Real(programs);
}

/// One control plane, and two workers with the old credential.
pub async fn two_workers() -> Bed {
    Bed::new(|options| {
        (options.control_planes, options.workers) = (1, 2);
        real(options);
    })
    .await
}
