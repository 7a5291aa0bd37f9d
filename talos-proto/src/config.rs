//! The talosconfig file: which endpoints, with which certificates.
//!
//! Shape: Talos `pkg/machinery/client/config/config.go` at v1.13.9. Unknown keys are ignored, as talosctl does, and so
//! is whatever is wrong with a context that is not selected. `nodes` only matter where no Kubernetes says which machines
//! there are, so that nothing about them is an error.

mod document;
mod endpoint;
mod select;
mod value;

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

pub use endpoint::{APID_PORT, Endpoint};

/// Why a talosconfig cannot be used: where in the file, what is wrong, and what to do. No value of a key is repeated.
#[derive(Debug, thiserror::Error)]
pub enum TalosConfigError {
    /// No file was named and none stands in the usual places.
    #[error("no talosconfig found (looked at {looked}); name one with --talosconfig or TALOSCONFIG")]
    NotFound {
        /// The places, comma separated.
        looked: String,
    },
    /// The file is there but cannot be read.
    #[error("cannot read talosconfig {file}")]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no talosconfig.
    #[error("talosconfig {file}: {problem}")]
    Document {
        /// The file.
        file: PathBuf,
        /// What it is instead, or on which line YAML ends.
        problem: String,
    },
    /// No context is named, by flag or by `context:`. A single one is not taken silently: talosctl takes none either,
    /// and a file that gains a second one would mean another cluster from one day to the next.
    #[error("talosconfig {file}: {problem}; choose one with --context NAME, the file has: {known}")]
    NoContext {
        /// The file.
        file: PathBuf,
        /// What is empty.
        problem: &'static str,
        /// The names of the contexts in it, comma separated.
        known: String,
    },
    /// The named context is not in the file.
    #[error("talosconfig {file}: {by} names the context {name:?}, the file has: {known}")]
    UnknownContext {
        /// The file.
        file: PathBuf,
        /// What asked for it, `--context` or the file's `context`.
        by: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names of the contexts in it, comma separated.
        known: String,
    },
    /// One value of the selected context is missing or wrong.
    #[error("talosconfig {file}: {path}: {problem}")]
    Value {
        /// The file.
        file: PathBuf,
        /// Where in the file, for instance `contexts.prod.ca`.
        path: String,
        /// What is wrong with it and what would be right; never the value of a key.
        problem: String,
    },
    /// An endpoint that was given in the place of the file's.
    #[error("--endpoints: {problem}")]
    Endpoint {
        /// What is wrong with it and what would be right.
        problem: String,
    },
}

/// Something that is no error, but that somebody should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where in the talosconfig.
    pub path: String,
    /// What was found and what follows.
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)
    }
}

/// The selected context of a talosconfig.
pub struct Context {
    /// Its name.
    pub name: String,
    /// The file it came from, for messages.
    pub file: PathBuf,
    /// Hosts with ports: `10.0.0.2:50000`, `[fd00::2]:50000`, `talos.example.com:50000`; each once.
    pub endpoints: Vec<Endpoint>,
    /// `nodes` as they stand there, addresses or host names, each once.
    pub nodes: Vec<String>,
    /// PEM of the Talos CA.
    pub ca: Vec<u8>,
    /// PEM of the client certificate.
    pub crt: Vec<u8>,
    /// PEM of the client key.
    pub key: Zeroizing<Vec<u8>>,
    findings: Vec<Finding>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name)
            .field("file", &self.file)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Reads the file and selects a context; `endpoints` replace those of the context when there are any.
    ///
    /// # Errors
    /// Any [`TalosConfigError`], naming the file and the path inside it.
    pub fn load(file: &Path, name: Option<&str>, endpoints: &[String]) -> Result<Self, TalosConfigError> {
        let text = std::fs::read(file).map_err(|source| TalosConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(&Zeroizing::new(text), file, name, endpoints)
    }

    /// As [`Context::load`], from the file's bytes; `file` is for messages.
    ///
    /// # Errors
    /// Any [`TalosConfigError`] but `NotFound` and `Read`.
    pub fn parse(text: &[u8], file: &Path, name: Option<&str>, endpoints: &[String]) -> Result<Self, TalosConfigError> {
        select::select(text, file, name, endpoints)
    }

    /// What is odd about the context without being wrong: keys that have no effect here.
    #[must_use]
    pub fn warnings(&self) -> &[Finding] {
        &self.findings
    }
}

/// Which file is read: the flag, else `TALOSCONFIG`, else `~/.talos/config`, else the one mounted into a pod.
///
/// A file that is named must exist: talosctl falls through silently, and an unattended tool would then talk to another
/// cluster (Talos `pkg/machinery/client/config/path.go`).
///
/// # Errors
/// [`TalosConfigError::NotFound`] when none is named and none is there.
pub fn locate(flag: Option<&Path>) -> Result<PathBuf, TalosConfigError> {
    locate_in(flag, |name| env::var_os(name), Path::exists)
}

fn locate_in(
    flag: Option<&Path>,
    env: impl Fn(&str) -> Option<OsString>,
    exists: impl Fn(&Path) -> bool,
) -> Result<PathBuf, TalosConfigError> {
    let env = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = flag.map(Path::to_owned).or_else(|| env("TALOSCONFIG")) {
        return Ok(file);
    }
    let home = env("TALOS_HOME").or_else(|| env("HOME").map(|home| home.join(".talos")));
    let usual = home.map(|home| home.join("config")).into_iter().chain(["/var/run/secrets/talos.dev/config".into()]);
    let usual: Vec<PathBuf> = usual.collect();
    usual.iter().find(|file| exists(file)).cloned().ok_or_else(|| TalosConfigError::NotFound {
        looked: usual.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the file is looked for when the environment and the disk are so.
    fn located(flag: Option<&str>, env: &[(&str, &str)], there: &[&str]) -> Result<String, String> {
        let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        let exists = |file: &Path| there.iter().any(|it| Path::new(it) == file);
        let file = locate_in(flag.map(Path::new), env, exists).map_err(|error| error.to_string())?;
        Ok(file.display().to_string())
    }

    #[test]
    fn p05_a_talosconfig_that_is_named_is_the_one_that_is_read() {
        let home = ("HOME", "/home/a");
        let there = ["/home/a/.talos/config", "/t/config", "/var/run/secrets/talos.dev/config"];
        assert_eq!(located(Some("/f"), &[("TALOSCONFIG", "/e"), home], &there).unwrap(), "/f");
        // It is not there: the error is that, and not another cluster.
        assert_eq!(located(None, &[("TALOSCONFIG", "/e"), home], &there).unwrap(), "/e");
        assert_eq!(located(None, &[("TALOSCONFIG", ""), home], &there).unwrap(), "/home/a/.talos/config");
        assert_eq!(located(None, &[("TALOS_HOME", "/t"), home], &there).unwrap(), "/t/config");
        assert_eq!(located(None, &[home], &there[2..]).unwrap(), "/var/run/secrets/talos.dev/config");
        let error = located(None, &[home], &[]).unwrap_err();
        assert!(error.contains("/home/a/.talos/config, /var/run/secrets/talos.dev/config"), "{error}");
        assert!(error.contains("--talosconfig"), "{error}");
    }

    #[test]
    fn p05_a_talosconfig_that_cannot_be_read_is_named() {
        let error = Context::load(Path::new("/nonexistent/talosconfig"), None, &[]).unwrap_err();
        let words = crate::chain(&error);
        assert!(words.starts_with("cannot read talosconfig /nonexistent/talosconfig: No such file"), "{words}");
    }
}
