//! From the bytes of a machine config to what it means, with the refusals of real Talos (variants.jsonl).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_yaml::{Mapping, Value};

use super::documents::{Document, split};
use super::{Auth, Effective, Mirror};
use crate::talos::version::Version;

/// A machine config that a node does not take; the text is the status message of `InvalidArgument`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Documents whose content means nothing to the lab, and the first minor version of Talos 1 that knows them
/// (`pkg/machinery/config/types` at the tags).
const OTHER_KINDS: [(&str, u16); 19] = [
    ("EventSinkConfig", 0),
    ("ExtensionServiceConfig", 0),
    ("HostnameConfig", 12),
    ("ImageVerificationConfig", 13),
    ("KmsgLogConfig", 0),
    ("KubeSpanEndpointsConfig", 0),
    ("LinkConfig", 12),
    ("NetworkDefaultActionConfig", 0),
    ("NetworkRuleConfig", 0),
    ("OOMConfig", 12),
    ("PCIDriverRebindConfig", 10),
    ("ResolverConfig", 12),
    ("SideroLinkConfig", 0),
    ("StaticHostConfig", 12),
    ("SwapVolumeConfig", 11),
    ("TimeSyncConfig", 12),
    ("TrustedRootsConfig", 0),
    ("UserVolumeConfig", 10),
    ("VolumeConfig", 0),
];

/// What of the v1alpha1 document may change while the node runs, on Talos <= 1.13 (talos.md 4.3).
const LIVE_MACHINE_FIELDS: [&str; 19] = [
    "ca",
    "acceptedCAs",
    "time",
    "certSANs",
    "install",
    "network",
    "sysfs",
    "sysctls",
    "logging",
    "controlPlane",
    "kubelet",
    "kernel",
    "registries",
    "pods",
    "seccompProfiles",
    "nodeAnnotations",
    "nodeLabels",
    "nodeTaints",
    "features",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    kind: Option<String>,
    version: Option<String>,
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct V1Alpha1 {
    machine: Option<Machine>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Machine {
    registries: Option<Registries>,
    node_annotations: Option<BTreeMap<String, Option<String>>>,
    node_labels: Option<BTreeMap<String, Option<String>>>,
    node_taints: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Registries {
    mirrors: Option<BTreeMap<String, LegacyMirror>>,
    config: Option<BTreeMap<String, Option<LegacyRegistry>>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LegacyMirror {
    endpoints: Option<Vec<String>>,
    override_path: Option<bool>,
    skip_fallback: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LegacyRegistry {
    auth: Option<AuthFields>,
    tls: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TlsDocument {
    client_identity: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AuthFields {
    username: Option<String>,
    password: Option<String>,
    auth: Option<String>,
    identity_token: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MirrorDocument {
    endpoints: Option<Vec<MirrorEndpoint>>,
    skip_fallback: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MirrorEndpoint {
    url: String,
    override_path: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KubeNode {
    annotations: Option<BTreeMap<String, Option<String>>>,
}

impl From<AuthFields> for Auth {
    fn from(fields: AuthFields) -> Self {
        Self {
            username: fields.username.unwrap_or_default(),
            password: fields.password.unwrap_or_default(),
            auth: fields.auth.unwrap_or_default(),
            identity_token: fields.identity_token.unwrap_or_default(),
        }
    }
}

/// What the documents say, before they are put together.
#[derive(Default)]
struct Parts {
    machine: Option<(Machine, Value)>,
    auths: BTreeMap<String, Auth>,
    mirrors: BTreeMap<String, Mirror>,
    tls_hosts: BTreeSet<String>,
    tls_without_identity: bool,
    node: Option<KubeNode>,
}

pub(super) fn parse(bytes: &[u8], version: &Version) -> Result<Effective, Refused> {
    let text = std::str::from_utf8(bytes).map_err(|_| Refused("decode error: yaml: invalid UTF-8".to_owned()))?;
    let documents = split(text);
    if documents.is_empty() {
        return Err(Refused("config not found".to_owned()));
    }
    let mut parts = Parts::default();
    let mut seen = BTreeSet::new();
    for document in documents {
        read(document, version, &mut seen, &mut parts)?;
    }
    let Some((machine, whole)) = parts.machine else {
        return Err(Refused("the applied machine configuration doesn't contain v1alpha1 config".to_owned()));
    };
    let annotations = annotations(&machine, parts.node)?;
    let Registries { mirrors, config } = machine.registries.unwrap_or_default();
    let (mut auths, mut tls_hosts) = (BTreeMap::new(), parts.tls_hosts);
    for (host, registry) in config.unwrap_or_default() {
        let Some(LegacyRegistry { auth, tls }) = registry else { continue };
        if tls.is_some() {
            tls_hosts.insert(host.clone());
        }
        auths.extend(auth.map(|auth| (host, Auth::from(auth))));
    }
    auths.append(&mut parts.auths);
    let mut all_mirrors: BTreeMap<_, _> =
        mirrors.unwrap_or_default().into_iter().map(|(host, mirror)| (host, Mirror::from(mirror))).collect();
    all_mirrors.append(&mut parts.mirrors);
    let stops_rendering = parts.tls_without_identity && version.fails_on_tls_without_identity();
    let mirrors = all_mirrors;
    Ok(Effective { auths, mirrors, tls_hosts, stops_rendering, annotations, fixed: fixed(whole) })
}

impl From<LegacyMirror> for Mirror {
    fn from(mirror: LegacyMirror) -> Self {
        let override_path = mirror.override_path.unwrap_or_default();
        Self {
            endpoints: mirror.endpoints.unwrap_or_default().into_iter().map(|url| (url, override_path)).collect(),
            skip_fallback: mirror.skip_fallback.unwrap_or_default(),
        }
    }
}

fn read(
    document: Document<'_>,
    version: &Version,
    seen: &mut BTreeSet<String>,
    parts: &mut Parts,
) -> Result<(), Refused> {
    let whole: Value = serde_yaml::from_str(document.text).map_err(|error| undecodable(&error, document, version))?;
    let header: Header = typed(document, "")?;
    let kind = match (&header.kind, &header.version) {
        (Some(kind), _) => kind.as_str(),
        (None, Some(_)) => "",
        (None, None) => {
            return Err(Refused(format!("error decoding document /v1alpha1/ (line {}): missing kind", document.line)));
        }
    };
    let name = header.name.unwrap_or_default();
    let title = if kind.is_empty() { "/v1alpha1/".to_owned() } else { format!("v1alpha1/{kind}/{name}") };
    if !seen.insert(title.clone()) {
        return Err(Refused(format!("duplicate document {title} is not allowed (line {})", document.line)));
    }
    match kind {
        "" => {
            let V1Alpha1 { machine } = typed(document, &title)?;
            parts.machine = Some((machine.unwrap_or_default(), whole));
        }
        "RegistryAuthConfig" if version.has_registry_documents() => {
            let known = ["apiVersion", "kind", "name", "username", "password", "auth", "identityToken"];
            no_others(&whole, &known, &title, document.line)?;
            let auth = Auth::from(typed::<AuthFields>(document, &title)?);
            one_kind(&auth, &name)?;
            parts.auths.insert(name, auth);
        }
        "RegistryMirrorConfig" if version.has_registry_documents() => {
            let mirror: MirrorDocument = typed(document, &title)?;
            let endpoints = mirror.endpoints.unwrap_or_default();
            parts.mirrors.insert(
                name,
                Mirror {
                    endpoints: endpoints
                        .into_iter()
                        .map(|endpoint| (endpoint.url, endpoint.override_path.unwrap_or_default()))
                        .collect(),
                    skip_fallback: mirror.skip_fallback.unwrap_or_default(),
                },
            );
        }
        "RegistryTLSConfig" if version.has_registry_documents() => {
            let tls: TlsDocument = typed(document, &title)?;
            parts.tls_without_identity |= tls.client_identity.is_none();
            parts.tls_hosts.insert(name);
        }
        "KubeNodeConfig" if version.adopts_live() => parts.node = Some(typed(document, &title)?),
        other if OTHER_KINDS.iter().any(|(kind, since)| *kind == other && version.at_least(*since)) => {}
        unknown => {
            return Err(Refused(format!(
                "error decoding document {title} (line {}): {unknown:?} \"v1alpha1\": not registered",
                document.line
            )));
        }
    }
    Ok(())
}

fn typed<'de, T: Deserialize<'de>>(document: Document<'de>, title: &str) -> Result<T, Refused> {
    serde_yaml::from_str(document.text)
        .map_err(|error| Refused(format!("error decoding document {title} (line {}): {error}", document.line)))
}

/// A duplicated key has a text of its own (variant 27); everything else is "decode error", worded by the YAML library
/// of the version (write.jsonl of both beds).
fn undecodable(error: &serde_yaml::Error, document: Document<'_>, version: &Version) -> Refused {
    let text = error.to_string();
    let line = document.line - 1 + error.location().map_or(1, |location| location.line());
    Refused(if let Some((_, key)) = text.split_once("duplicate entry with key \"") {
        let key = key.split('"').next().unwrap_or_default();
        let (first, second) = twice(document, key).unwrap_or((line, line));
        format!(
            "error decoding document /v1alpha1/ (line {}): error decoding  to *v1alpha1.Config: yaml: construct \
             errors:\n  line {second}: mapping key {key:?} already defined at line {first}",
            document.line
        )
    } else if version.adopts_live() {
        format!("decode error: go-yaml load error in parser at L{line}.C1: {text}")
    } else {
        format!("decode error: yaml: {text}")
    })
}

/// The lines of a key that stands there twice, as deep.
fn twice(document: Document<'_>, key: &str) -> Option<(usize, usize)> {
    let is_key = |line: &str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.starts_with(':'));
    let mut lines = document.text.lines().enumerate().filter(|(_, line)| is_key(line));
    let depth = |line: &str| line.len() - line.trim_start().len();
    let (first, at) = lines.next()?;
    let (second, _) = lines.find(|(_, line)| depth(line) == depth(at))?;
    Some((document.line + first, document.line + second))
}

fn no_others(whole: &Value, known: &[&str], title: &str, line: usize) -> Result<(), Refused> {
    let others: Mapping = whole
        .as_mapping()
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.as_str().is_none_or(|key| !known.contains(&key)))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    let others = serde_yaml::to_string(&others).unwrap_or_default();
    Err(Refused(format!(
        "error decoding document {title} (line {line}): unknown keys found during decoding:\n{others}"
    )))
}

/// Variants 07 and 08.
fn one_kind(auth: &Auth, name: &str) -> Result<(), Refused> {
    let basic = !auth.username.is_empty() || !auth.password.is_empty();
    let (encoded, token) = (!auth.auth.is_empty(), !auth.identity_token.is_empty());
    let kinds = match (basic, encoded, token) {
        (_, true, _) if basic || token => "auth, username/password or identityToken",
        (true, false, true) => "username/password or identityToken",
        _ => return Ok(()),
    };
    Err(Refused(format!(
        "1 error occurred:\n\t* RegistryAuthConfig/{name}: only one of {kinds} authentication can be specified\n\n"
    )))
}

/// A KubeNodeConfig together with any legacy node field is refused (talos-captures point 33).
fn annotations(machine: &Machine, node: Option<KubeNode>) -> Result<BTreeMap<String, String>, Refused> {
    let text = |map: &BTreeMap<String, Option<String>>| {
        map.iter().map(|(key, value)| (key.clone(), value.clone().unwrap_or_default())).collect()
    };
    let Some(node) = node else {
        return Ok(machine.node_annotations.as_ref().map(text).unwrap_or_default());
    };
    let fields = [
        ("nodeLabels", &machine.node_labels),
        ("nodeAnnotations", &machine.node_annotations),
        ("nodeTaints", &machine.node_taints),
    ];
    // Talos stops at the first (v1.14/variants.jsonl, where two are set).
    match fields.iter().find(|(_, map)| map.as_ref().is_some_and(|map| !map.is_empty())) {
        None => Ok(node.annotations.as_ref().map(text).unwrap_or_default()),
        Some((field, _)) => {
            Err(Refused(format!("1 error occurred:\n\t* .machine.{field} is already set in v1alpha1 config\n\n")))
        }
    }
}

fn fixed(mut whole: Value) -> Value {
    if let Some(document) = whole.as_mapping_mut() {
        document.remove("debug");
        document.remove("cluster");
        if let Some(machine) = document.get_mut("machine").and_then(Value::as_mapping_mut) {
            for field in LIVE_MACHINE_FIELDS {
                machine.remove(field);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn with(documents: &str) -> String {
        format!("version: v1alpha1\nmachine:\n    type: worker\ncluster: {{}}\n---\n{documents}")
    }

    fn auth(rest: &str) -> String {
        with(&format!("apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\n{rest}"))
    }

    fn refused(text: &str) -> String {
        parse(text.as_bytes(), &version("1.13.9")).unwrap_err().0
    }

    #[test]
    fn refusals_have_the_texts_of_the_recordings() {
        assert_eq!(
            refused(&auth("username: a\nidentityToken: t\n")),
            "1 error occurred:\n\t* RegistryAuthConfig/ghcr.io: only one of username/password or identityToken \
             authentication can be specified\n\n"
        );
        assert_eq!(
            refused(&auth("username: a\nauth: t\n")),
            "1 error occurred:\n\t* RegistryAuthConfig/ghcr.io: only one of auth, username/password or identityToken \
             authentication can be specified\n\n"
        );
        let twice = auth("username: a\n---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nauth: x\n");
        assert_eq!(refused(&twice), "duplicate document v1alpha1/RegistryAuthConfig/ghcr.io is not allowed (line 11)");
        assert_eq!(
            refused(&with("apiVersion: v1alpha1\nkind: NoSuchKind\nname: x\n")),
            "error decoding document v1alpha1/NoSuchKind/x (line 6): \"NoSuchKind\" \"v1alpha1\": not registered"
        );
        assert_eq!(
            refused(&auth("username: a\nnope: 1\n")),
            "error decoding document v1alpha1/RegistryAuthConfig/ghcr.io (line 6): unknown keys found during \
             decoding:\nnope: 1\n"
        );
        assert_eq!(refused(""), "config not found");
        assert_eq!(refused("hello: world\n"), "error decoding document /v1alpha1/ (line 1): missing kind");
        let key =
            "version: v1alpha1\nmachine:\n    registries:\n        config:\n            a: {}\n            a: {}\n";
        assert!(
            refused(key).starts_with("error decoding document /v1alpha1/ (line 1): error decoding  to *v1alpha1.C")
        );
    }

    #[test]
    fn a_document_beats_the_legacy_block_and_numbers_stay_text() {
        let text = "version: v1alpha1\nmachine:\n    registries:\n        config:\n            ghcr.io:\n                \
                    auth: &a {username: u, password: legacy}\n            other.io:\n                auth: *a\n            \
                    empty.io:\n                auth: {}\n            tls.io:\n                tls: {}\n---\n\
                    apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nusername: 0123\npassword: 12345\n";
        let effective = parse(text.as_bytes(), &version("1.13.9")).unwrap();
        assert_eq!(effective.auths["ghcr.io"].basic(), Some(("0123".into(), "12345".into())));
        assert_eq!(effective.auths["other.io"].basic(), Some(("u".into(), "legacy".into())));
        assert_eq!(effective.auths["empty.io"], Auth::default());
        assert!(!effective.auths.contains_key("tls.io"));
    }

    #[test]
    fn node_annotations_come_from_one_form_only() {
        let legacy = "version: v1alpha1\nmachine:\n    nodeAnnotations:\n        a: b\n";
        let node = "---\napiVersion: v1alpha1\nkind: KubeNodeConfig\nannotations:\n    c: d\n";
        let parse = |text: &str| super::parse(text.as_bytes(), &version("1.14.0"));
        assert_eq!(parse(legacy).unwrap().annotations["a"], "b");
        assert_eq!(parse(&format!("version: v1alpha1\nmachine: {{}}\n{node}")).unwrap().annotations["c"], "d");
        let labels = format!("version: v1alpha1\nmachine:\n    nodeLabels: {{x: \"\"}}\n{node}");
        assert_eq!(
            parse(&labels).unwrap_err().0,
            "1 error occurred:\n\t* .machine.nodeLabels is already set in v1alpha1 config\n\n"
        );
        assert!(refused(&format!("{legacy}{node}")).ends_with("\"KubeNodeConfig\" \"v1alpha1\": not registered"));
    }

    #[test]
    fn documents_that_a_version_does_not_know_make_the_whole_config_invalid() {
        let text = auth("username: a\n");
        for older in ["1.9.6", "1.10.9", "1.11.6"] {
            let refused = parse(text.as_bytes(), &version(older)).unwrap_err().0;
            let expected = "error decoding document v1alpha1/RegistryAuthConfig/ghcr.io (line 6): \
                            \"RegistryAuthConfig\" \"v1alpha1\": not registered";
            assert_eq!(refused, expected, "{older}");
        }
        assert!(parse(text.as_bytes(), &version("1.12.0")).is_ok());
    }

    #[test]
    fn a_tls_document_without_identity_stops_the_rendering_of_two_releases() {
        let tls = |rest: &str| with(&format!("apiVersion: v1alpha1\nkind: RegistryTLSConfig\nname: a.io\n{rest}"));
        let stops = |text: &str, at: &str| parse(text.as_bytes(), &version(at)).unwrap().stops_rendering;
        let without = tls("insecureSkipVerify: true\n");
        assert!(stops(&without, "1.12.0") && stops(&without, "1.12.1"));
        assert!(!stops(&without, "1.12.2") && !stops(&without, "1.13.9"));
        assert!(!stops(&tls("clientIdentity: {cert: a, key: b}\n"), "1.12.0"));
    }

    #[test]
    fn only_some_machine_fields_are_live() {
        let base = "version: v1alpha1\nmachine:\n    type: worker\n    nodeLabels: {}\n";
        let one = parse(base.as_bytes(), &version("1.13.9")).unwrap();
        let two = parse(format!("{base}    certSANs: [a]\n").as_bytes(), &version("1.13.9")).unwrap();
        let three = parse(format!("{base}    env: {{FOO: bar}}\n").as_bytes(), &version("1.13.9")).unwrap();
        assert_eq!(one.fixed, two.fixed);
        assert_ne!(one.fixed, three.fixed);
    }
}
