//! Why a kubeconfig cannot be used.

use std::path::PathBuf;

/// Why a kubeconfig cannot be used: the file, the path in it, and what would be right. Never a value that may be
/// secret.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// No file is there, and this is no pod.
    #[error("no kubeconfig found (looked at {looked}): name one with --kubeconfig or KUBECONFIG")]
    NotFound {
        /// The places, comma separated.
        looked: String,
        /// `KUBECONFIG` names them: somebody expects a kubeconfig there.
        named: bool,
    },
    /// The file cannot be read.
    #[error("cannot read the kubeconfig {}: name another with --kubeconfig or KUBECONFIG", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no YAML. The parser's own words are left out, since they can quote a value.
    #[error("the kubeconfig {} is not YAML (line {line}, column {column}){hint}", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// From 1; 0 when the parser does not know.
        line: usize,
        /// From 1; 0 when the parser does not know.
        column: usize,
        /// The likely cause.
        hint: &'static str,
    },
    /// The file is YAML, but something else.
    #[error("{} is not a kubeconfig: {problem}", file.display())]
    NotAKubeconfig {
        /// The file.
        file: PathBuf,
        /// What it is.
        problem: String,
    },
    /// Neither a flag nor the file selects a context.
    #[error("the kubeconfig {files} has no current-context: choose one with --kube-context; it has: {known}")]
    NoContext {
        /// The files.
        files: String,
        /// The names that are there.
        known: String,
    },
    /// The selected context is not there.
    #[error("the kubeconfig {files} has no context {name:?}{origin}; it has: {known} (choose with --kube-context)")]
    UnknownContext {
        /// The files.
        files: String,
        /// The selected name.
        name: String,
        /// Where it was selected, when not by a flag.
        origin: &'static str,
        /// The names that are there.
        known: String,
    },
    /// A value of the selected context, cluster or user is missing or wrong.
    #[error("kubeconfig {}: {path}: {problem}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// Where in the file.
        path: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The credential plugin gave no credential.
    #[error("kubeconfig {}: {path}: the credential plugin {command} {problem}{stderr}", file.display())]
    Plugin {
        /// The file.
        file: PathBuf,
        /// Where in the file.
        path: String,
        /// The program.
        command: String,
        /// What it did.
        problem: String,
        /// What it wrote there, introduced; empty when it wrote nothing.
        stderr: String,
    },
    /// A proxy variable of the environment is wrong.
    #[error("{variable} in the environment: {problem}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A pod's own service account cannot be used.
    #[error(
        "there is no kubeconfig, and the service account of this pod cannot be used: \
         name a kubeconfig with --kubeconfig, or mount the token (automountServiceAccountToken)"
    )]
    InCluster {
        /// What is missing.
        #[source]
        source: kube::config::InClusterError,
    },
    /// All was read, but no client can be made of it.
    #[error("no client can be made from the kubeconfig {files}")]
    Client {
        /// The files.
        files: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
}
