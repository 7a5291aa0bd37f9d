//! The talosconfig file: which endpoints, with which certificates.
//!
//! Shape: Talos `pkg/machinery/client/config/config.go` at v1.13.9. Unknown keys are ignored, as talosctl does.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Why a talosconfig cannot be used. `path` inside the file is spelled as `contexts.prod.ca`.
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
    /// The file is no YAML of that shape.
    #[error("talosconfig {file} is not a talosconfig")]
    Parse {
        /// The file.
        file: PathBuf,
        /// Where and why.
        #[source]
        source: serde_yaml::Error,
    },
    /// No context is named, by flag or by `context:`.
    #[error("talosconfig {file}: no current context (`context` is empty); choose one with --context: {known}")]
    NoContext {
        /// The file.
        file: PathBuf,
        /// The names of the contexts in it.
        known: String,
    },
    /// The named context is not in the file.
    #[error("talosconfig {file}: no context {name:?}; it has: {known}")]
    UnknownContext {
        /// The file.
        file: PathBuf,
        /// The name that was asked for.
        name: String,
        /// The names of the contexts in it.
        known: String,
    },
    /// One value of the selected context is missing or wrong.
    #[error("talosconfig {file}: {path}: {problem}")]
    Value {
        /// The file.
        file: PathBuf,
        /// Where in the file.
        path: String,
        /// What is wrong with it and what would be right; never the value of a key.
        problem: String,
    },
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    context: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Option<RawContext>>,
}

#[derive(Deserialize, Default)]
struct RawContext {
    #[serde(default)]
    endpoints: Option<Vec<String>>,
    #[serde(default)]
    ca: Option<String>,
    #[serde(default)]
    crt: Option<String>,
    #[serde(default)]
    key: Option<String>,
}

/// The selected context of a talosconfig.
#[derive(Debug)]
pub struct Context {
    /// Its name.
    pub name: String,
    /// The file it came from, for messages.
    pub file: PathBuf,
    /// Hosts with ports: `10.0.0.2:50000`, `[fd00::2]:50000`, `talos.example.com:50000`.
    pub endpoints: Vec<Endpoint>,
    /// PEM of the Talos CA.
    pub ca: Vec<u8>,
    /// PEM of the client certificate.
    pub crt: Vec<u8>,
    /// PEM of the client key.
    pub key: zeroize::Zeroizing<Vec<u8>>,
}

/// One endpoint: where apid listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Host name or address, IPv6 without brackets.
    pub host: String,
    /// Port, 50000 unless the endpoint names another.
    pub port: u16,
}

/// apid's port (Talos `pkg/machinery/constants`, `ApidPort`).
pub const APID_PORT: u16 = 50000;

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("is empty".into());
        }
        if text.contains("://") {
            return Err("is a URL; an endpoint is a host or host:port".into());
        }
        if text.contains(',') {
            return Err("holds a comma; give each endpoint its own list entry".into());
        }
        let port = |port: &str| port.parse::<u16>().map_err(|_| format!("{port:?} is not a port"));
        if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or("has no closing bracket")?;
            let port = rest.strip_prefix(':').map_or(Ok(APID_PORT), port)?;
            return Ok(Self { host: host.to_owned(), port });
        }
        match text.split_once(':') {
            // More than one colon and no bracket: a bare IPv6 address.
            Some((_, rest)) if rest.contains(':') => Ok(Self { host: text.to_owned(), port: APID_PORT }),
            Some((host, given)) => Ok(Self { host: host.to_owned(), port: port(given)? }),
            None => Ok(Self { host: text.to_owned(), port: APID_PORT }),
        }
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
    if let Some(file) = flag {
        return Ok(file.to_owned());
    }
    if let Some(file) = env::var_os("TALOSCONFIG").filter(|value| !value.is_empty()) {
        return Ok(file.into());
    }
    let home = env::var_os("TALOS_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".talos")));
    let usual = home.map(|home| home.join("config")).into_iter().chain(["/var/run/secrets/talos.dev/config".into()]);
    let usual: Vec<PathBuf> = usual.collect();
    usual.iter().find(|file| file.exists()).cloned().ok_or_else(|| TalosConfigError::NotFound {
        looked: usual.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", "),
    })
}

impl Context {
    /// Reads the file and selects a context; `endpoints` replace those of the context when there are any.
    ///
    /// # Errors
    /// Any [`TalosConfigError`], naming the file and the path inside it.
    pub fn load(file: &Path, name: Option<&str>, endpoints: &[String]) -> Result<Self, TalosConfigError> {
        let text = std::fs::read(file).map_err(|source| TalosConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(&text, file, name, endpoints)
    }

    /// As [`Context::load`], from the file's bytes; `file` is for messages.
    ///
    /// # Errors
    /// Any [`TalosConfigError`] but `NotFound` and `Read`.
    pub fn parse(text: &[u8], file: &Path, name: Option<&str>, endpoints: &[String]) -> Result<Self, TalosConfigError> {
        let parsed: File =
            serde_yaml::from_slice(text).map_err(|source| TalosConfigError::Parse { file: file.to_owned(), source })?;
        let known = || {
            let names: Vec<_> = parsed.contexts.keys().map(String::as_str).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let name = name
            .or(parsed.context.as_deref())
            .filter(|name| !name.is_empty())
            .ok_or_else(|| TalosConfigError::NoContext { file: file.to_owned(), known: known() })?;
        let raw = parsed.contexts.get(name).ok_or_else(|| TalosConfigError::UnknownContext {
            file: file.to_owned(),
            name: name.to_owned(),
            known: known(),
        })?;
        let value = |path: String, problem: String| TalosConfigError::Value { file: file.to_owned(), path, problem };
        let empty = RawContext::default();
        let raw = raw.as_ref().unwrap_or(&empty);
        let at = |key: &str| format!("contexts.{name}.{key}");
        let pem = |key: &str, given: &Option<String>| {
            let given = given.as_deref().map(str::trim).filter(|text| !text.is_empty());
            let given = given.ok_or_else(|| value(at(key), "is missing (base64 of a PEM text)".into()))?;
            // Wrapped base64 is common in hand-edited files; Go's decoder ignores line breaks as well.
            let joined: String = given.split_ascii_whitespace().collect();
            STANDARD.decode(joined).map_err(|_| value(at(key), "is not base64".into()))
        };
        let given = if endpoints.is_empty() { raw.endpoints.clone().unwrap_or_default() } else { endpoints.to_vec() };
        if given.is_empty() {
            let problem = "is empty: name a control plane's address here or with --endpoints";
            return Err(value(at("endpoints"), problem.into()));
        }
        let endpoints = given
            .iter()
            .enumerate()
            .map(|(index, text)| text.parse().map_err(|problem| value(at(&format!("endpoints[{index}]")), problem)))
            .collect::<Result<Vec<Endpoint>, _>>()?;
        Ok(Self {
            name: name.to_owned(),
            file: file.to_owned(),
            endpoints,
            ca: pem("ca", &raw.ca)?,
            crt: pem("crt", &raw.crt)?,
            key: zeroize::Zeroizing::new(pem("key", &raw.key)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, name: Option<&str>) -> Result<Context, TalosConfigError> {
        Context::parse(text.as_bytes(), Path::new("talosconfig"), name, &[])
    }

    const GOOD: &str = "context: prod\ncontexts:\n  prod:\n    endpoints: [10.0.0.2, 'fd00::2', '[fd00::3]:50001']\n    ca: Y2E=\n    crt: Y3J0\n    key: a2V5\n    future: {x: 1}\n  dev: ~\n";

    #[test]
    fn a_context_is_selected_and_decoded() {
        let context = parse(GOOD, None).unwrap();
        assert_eq!((context.ca.as_slice(), context.crt.as_slice()), (&b"ca"[..], &b"crt"[..]));
        let endpoints: Vec<_> = context.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(endpoints, ["10.0.0.2:50000", "[fd00::2]:50000", "[fd00::3]:50001"]);
    }

    #[test]
    fn each_fault_names_its_place() {
        let cases = [
            (GOOD.replace("context: prod", "context: ''"), None, "no current context"),
            (GOOD.to_owned(), Some("nope"), "no context \"nope\"; it has: dev, prod"),
            (GOOD.to_owned(), Some("dev"), "contexts.dev.endpoints: is empty"),
            (GOOD.replace("Y2E=", "'%'"), None, "contexts.prod.ca: is not base64"),
            (GOOD.replace("    key: a2V5\n", ""), None, "contexts.prod.key: is missing"),
            (GOOD.replace("10.0.0.2,", "'10.0.0.2,10.0.0.3',"), None, "contexts.prod.endpoints[0]: holds a comma"),
            (GOOD.replace("10.0.0.2,", "'https://10.0.0.2',"), None, "endpoints[0]: is a URL"),
        ];
        for (text, name, expected) in cases {
            let error = parse(&text, name).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should say {expected}");
        }
    }
}
