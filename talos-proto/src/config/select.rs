//! One context out of the tree of a talosconfig.

use std::path::Path;

use serde_yaml::{Mapping, Value};
use zeroize::Zeroizing;

use super::document::{self, kind};
use super::value;
use super::{Context, Endpoint, Finding, TalosConfigError};

/// A context and where it stands, for the paths of errors.
struct At<'a> {
    file: &'a Path,
    path: String,
    context: &'a Mapping,
}

pub(super) fn select(
    text: &[u8],
    file: &Path,
    name: Option<&str>,
    endpoints: &[String],
) -> Result<Context, TalosConfigError> {
    let tree = document::read(text).map_err(|problem| TalosConfigError::Document { file: file.to_owned(), problem })?;
    let contexts = contexts(&tree, file)?;
    let name = context_name(&tree, file, name, &contexts)?;
    let at_context = format!("contexts.{name}");
    let fault = |problem: String| TalosConfigError::Value { file: file.to_owned(), path: at_context.clone(), problem };
    let empty = Mapping::new();
    let context = match contexts.iter().find(|(known, _)| *known == name) {
        Some((_, Value::Mapping(context))) => context,
        Some((_, Value::Null)) | None => &empty,
        Some((_, other)) => return Err(fault(format!("is {}, not a mapping with `endpoints` and `ca`", kind(other)))),
    };
    let at = At { file, path: at_context.clone(), context };
    let mut findings = Vec::new();
    authentication(&at, &mut findings)?;
    let endpoints = if endpoints.is_empty() { at.endpoints()? } else { given(endpoints)? };
    Ok(Context {
        file: file.to_owned(),
        endpoints,
        nodes: at.nodes(),
        ca: at.pem("ca", "the CA's certificate")?.to_vec(),
        crt: at.pem("crt", "the client's certificate")?.to_vec(),
        key: at.pem("key", "the client's key")?,
        findings,
        name,
    })
}

/// By name, in the order of the file.
fn contexts<'a>(tree: &'a Mapping, file: &Path) -> Result<Vec<(String, &'a Value)>, TalosConfigError> {
    let fault = |problem: String| TalosConfigError::Value { file: file.to_owned(), path: "contexts".into(), problem };
    match tree.get("contexts") {
        Some(Value::Mapping(contexts)) => {
            Ok(contexts.iter().filter_map(|(name, context)| Some((document::name(name)?, context))).collect())
        }
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(other) => Err(fault(format!("is {}, not a mapping of contexts by name", kind(other)))),
    }
}

/// The name that the flag or the file gives, which must be one of the file's.
fn context_name(
    tree: &Mapping,
    file: &Path,
    flag: Option<&str>,
    contexts: &[(String, &Value)],
) -> Result<String, TalosConfigError> {
    let known = if contexts.is_empty() {
        "none (make one with `talosctl config new` or `talosctl config merge`)".to_owned()
    } else {
        contexts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let none = |problem| TalosConfigError::NoContext { file: file.to_owned(), problem, known: known.clone() };
    let (by, name) = match (flag, tree.get("context")) {
        // An unset variable of a CI job must not select another cluster.
        (Some(flag), _) if flag.trim().is_empty() => return Err(none("--context is empty")),
        (Some(flag), _) => ("--context", flag.to_owned()),
        (None, None) => return Err(none("no current context (`context` is missing)")),
        (None, Some(given)) => match document::name(given) {
            Some(name) if !name.is_empty() => ("`context`", name),
            Some(_) => return Err(none("no current context (`context` is empty)")),
            None if given.is_null() => return Err(none("no current context (`context` is empty)")),
            None => return Err(none("`context` is not the name of a context")),
        },
    };
    if contexts.iter().any(|(known, _)| *known == name) {
        return Ok(name);
    }
    Err(TalosConfigError::UnknownContext { file: file.to_owned(), by, name, known })
}

/// The only way in that is known here is a client certificate. Omni's is a signature of each request, made with a key
/// that its login page hands out (Talos `pkg/machinery/client/config/config.go`, `Auth`).
fn authentication(at: &At<'_>, findings: &mut Vec<Finding>) -> Result<(), TalosConfigError> {
    let get = |key: &str| at.context.get(key).filter(|value| !value.is_null());
    if let Some(cluster) = get("cluster") {
        let cluster = document::name(cluster).unwrap_or_default();
        let problem = format!(
            "is {cluster:?}, which only Omni's endpoint wants to be told with each call, and this tool does not: use a \
             talosconfig of the cluster itself (`omnictl talosconfig --break-glass`)"
        );
        findings.push(Finding { path: at.key("cluster"), problem });
    }
    let Some(auth) = get("auth") else { return Ok(()) };
    let way = match auth {
        Value::Mapping(ways) => ways.keys().find_map(document::name).unwrap_or_default(),
        other => document::name(other).unwrap_or_default(),
    };
    let path = if auth.is_mapping() && !way.is_empty() { at.key(&format!("auth.{way}")) } else { at.key("auth") };
    if get("crt").is_some() && get("key").is_some() {
        findings.push(Finding { path, problem: "has no effect: the client certificate is used".into() });
        return Ok(());
    }
    let problem = match way.as_str() {
        "siderov1" => {
            "Omni's SideroV1 login is not supported, only client certificates: use a talosconfig of the cluster itself \
             (`omnictl talosconfig --break-glass`, or `talosctl config new` at a control plane)"
        }
        _ => "is not supported, only client certificates: make a talosconfig with one (`talosctl config new`)",
    };
    Err(TalosConfigError::Value { file: at.file.to_owned(), path, problem: problem.into() })
}

/// The endpoints of the command line.
fn given(endpoints: &[String]) -> Result<Vec<Endpoint>, TalosConfigError> {
    let parsed = endpoints.iter().map(|text| text.parse().map_err(|problem| TalosConfigError::Endpoint { problem }));
    Ok(each_once(parsed.collect::<Result<Vec<_>, _>>()?))
}

/// Two channels to one endpoint would count it twice where the next one is tried.
fn each_once(endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    let mut seen = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        if !seen.contains(&endpoint) {
            seen.push(endpoint);
        }
    }
    seen
}

impl At<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn fault(&self, key: &str, problem: String) -> TalosConfigError {
        TalosConfigError::Value { file: self.file.to_owned(), path: self.key(key), problem }
    }

    /// `endpoints`, and `target`, which old files have in its place.
    fn endpoints(&self) -> Result<Vec<Endpoint>, TalosConfigError> {
        let list = match self.context.get("endpoints") {
            None | Some(Value::Null) => &Vec::new(),
            Some(Value::Sequence(list)) => list,
            Some(other) => {
                return Err(self.fault("endpoints", format!("is {}: write a list, `[10.0.0.2]`", kind(other))));
            }
        };
        let listed = list.iter().enumerate().map(|(index, value)| (format!("endpoints[{index}]"), value));
        let target = self.context.get("target").filter(|value| !value.is_null());
        let mut endpoints = Vec::new();
        for (key, value) in listed.chain(target.map(|value| ("target".to_owned(), value))) {
            let Value::String(text) = value else {
                return Err(self.fault(&key, format!("is {}: write an address or host name as text", kind(value))));
            };
            endpoints.push(text.parse().map_err(|problem| self.fault(&key, problem))?);
        }
        if endpoints.is_empty() {
            let problem = "is empty: name a control plane's address here or with --endpoints";
            return Err(self.fault("endpoints", problem.into()));
        }
        Ok(each_once(endpoints))
    }

    fn nodes(&self) -> Vec<String> {
        let listed = self.context.get("nodes").and_then(Value::as_sequence).into_iter().flatten();
        let mut nodes: Vec<String> = Vec::new();
        for node in listed.filter_map(Value::as_str).map(str::trim).filter(|node| !node.is_empty()) {
            if !nodes.iter().any(|known| known == node) {
                nodes.push(node.to_owned());
            }
        }
        nodes
    }

    fn pem(&self, key: &str, what: &str) -> Result<Zeroizing<Vec<u8>>, TalosConfigError> {
        match self.context.get(key) {
            Some(Value::String(text)) if !text.trim().is_empty() => {
                value::pem(text).map_err(|problem| self.fault(key, problem.into()))
            }
            None | Some(Value::Null | Value::String(_)) => {
                Err(self.fault(key, format!("is missing: base64 of the PEM text of {what} (`talosctl config new`)")))
            }
            Some(other) => Err(self.fault(key, format!("is {}, not base64 of PEM text", kind(other)))),
        }
    }
}
