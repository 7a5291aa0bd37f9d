//! The edit, against hand-written configs in the shape of each Talos version and in odd forms, and against an
//! independent reader (libyaml, which Talos's own reader descends from).

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::credential::Unusable;
use secrecy::ExposeSecret as _;

const KEY: &str = "talos-ghcr/proof";
const VALUE: &str = r#"{"v":1,"revision":"7c9e","holder":"it's me"}"#;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/machine-configs");
    let mut all: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    all.sort();
    assert!(all.len() > 20);
    all
}

fn fixture(name: &str) -> String {
    let all = corpus();
    let (_, bytes) = all.iter().find(|(stem, _)| stem == name).unwrap();
    String::from_utf8(bytes.clone()).unwrap()
}

fn set(host: &str, credential: Credential) -> Desired {
    [(host.parse().unwrap(), credential)].into_iter().collect()
}

fn new() -> Desired {
    set("ghcr.io", Credential::basic("bot", "fake-new"))
}

fn change(desired: &Desired) -> Change<'_> {
    Change { desired, annotation: (KEY, VALUE), documents: true, node_document: true }
}

fn edit(text: &str, change: &Change<'_>) -> Result<String, ConfigError> {
    let edited = MachineConfig::parse(text.as_bytes())?.edit(change)?;
    Ok(String::from_utf8(edited.bytes.to_vec()).unwrap())
}

/// Edits and asserts what must come out, given as replacements in the old text.
fn assert_edit(old: &str, change: &Change<'_>, replacements: &[(&str, &str)]) {
    let mut expected = old.to_owned();
    for (from, to) in replacements {
        assert_eq!(expected.matches(from).count(), 1, "{from:?} is not there once");
        expected = expected.replacen(from, to, 1);
    }
    assert_eq!(edit(old, change).unwrap(), expected);
}

/// What libyaml reads of the four auth fields that count for `host`.
fn libyaml_auth(bytes: &[u8], host: &str) -> Option<[Option<String>; 4]> {
    let documents = libyaml(bytes);
    let field = |auth: &serde_yaml::Value| {
        AUTH_FIELDS.map(|field| auth.get(field).filter(|v| !v.is_null()).map(|v| v.as_str().unwrap().to_owned()))
    };
    let own = documents.iter().find(|d| {
        d.get("kind").and_then(|k| k.as_str()) == Some("RegistryAuthConfig")
            && d.get("name").and_then(|n| n.as_str()) == Some(host)
    });
    let legacy =
        documents.iter().find_map(|d| d.get("machine")?.get("registries")?.get("config")?.get(host)?.get("auth"));
    own.or(legacy).map(field)
}

fn libyaml(bytes: &[u8]) -> Vec<serde_yaml::Value> {
    use serde::Deserialize as _;
    // This port of libyaml counts a byte order mark as a column and then misses the first mapping; Talos's reader does
    // not (it accepted such a config).
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let documents = serde_yaml::Deserializer::from_slice(bytes);
    let text = || String::from_utf8_lossy(bytes);
    documents
        .map(|document| {
            serde_yaml::Value::deserialize(document).unwrap_or_else(|error| panic!("{error}: {:?}", text()))
        })
        .collect()
}

fn libyaml_annotation(bytes: &[u8]) -> Option<String> {
    let documents = libyaml(bytes);
    let mut found = documents.iter().filter_map(|document| {
        let legacy = document.get("machine").and_then(|machine| machine.get("nodeAnnotations")?.get(KEY));
        let own = document.get("annotations").and_then(|annotations| annotations.get(KEY));
        legacy.or(own).map(|value| value.as_str().unwrap().to_owned())
    });
    let first = found.next();
    assert!(found.next().is_none(), "the annotation is in two places");
    first
}

fn assert_reached(name: &str, old: &[u8], change: &Change<'_>) {
    let config = MachineConfig::parse(old).unwrap();
    let edited = config.edit(change).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(edited.keeps_all_else_of(old), "{name}");
    assert_eq!(libyaml_annotation(&edited.bytes).as_deref(), Some(change.annotation.1), "{name}");
    for (host, credential) in change.desired.iter() {
        let [username, password, auth, token] = libyaml_auth(&edited.bytes, host.as_str()).unwrap();
        let (username, password) = (username.as_deref(), password.as_deref());
        match credential {
            Credential::Basic { username: user, password: secret } => {
                if auth.is_none() {
                    assert_eq!((username, password), (Some(user.as_str()), Some(secret.expose_secret())), "{name}");
                }
            }
            Credential::Token(secret) => assert_eq!(
                (username, password, auth.as_deref(), token.as_deref()),
                (None, None, None, Some(secret.expose_secret())),
                "{name}"
            ),
            Credential::None => unreachable!(),
        }
    }
    let again = MachineConfig::parse(&edited.bytes).unwrap().edit(change).unwrap();
    assert!(again.spans.is_empty() && again.bytes == edited.bytes, "{name}: a second edit changes something");
}

#[test]
fn c01_every_config_of_the_corpus_is_edited_and_all_other_bytes_stay() {
    for (name, bytes) in corpus() {
        for desired in [
            new(),
            set("ghcr.io", Credential::token("fake-token")),
            set("new.example.com:5000", Credential::basic("bot", "fake-new")),
            [
                ("ghcr.io".parse().unwrap(), Credential::basic("bot", "fake-new")),
                ("quay.io".parse().unwrap(), Credential::token("fake-token")),
                ("127.0.0.1:5000".parse().unwrap(), Credential::basic("bot", "fake-new")),
            ]
            .into_iter()
            .collect(),
        ] {
            for documents in [true, false] {
                assert_reached(&name, &bytes, &Change { documents, ..change(&desired) });
            }
        }
    }
}

#[test]
fn c01_comments_order_and_layout_stay() {
    assert_edit(
        &fixture("odd-comments"),
        &change(&new()),
        &[
            ("'pu\"ller'", "\"bot\""),
            ("\"p: #x \\u00e9\\n\"", "\"fake-new\""),
            (
                "        # the owner\n",
                "        talos-ghcr/proof: '{\"v\":1,\"revision\":\"7c9e\",\"holder\":\"it''s me\"}'\n        # the owner\n",
            ),
        ],
    );
}

#[test]
fn c01_crlf_stays_crlf() {
    let old = fixture("odd-crlf");
    let desired = set("quay.io", Credential::basic("bot", "fake-new"));
    let new = edit(&old, &change(&desired)).unwrap();
    assert_eq!(new.matches('\n').count(), new.matches("\r\n").count());
    assert!(new.starts_with("version: v1alpha1\r\n"));
    assert!(new.ends_with("---\r\napiVersion: v1alpha1\r\nkind: RegistryAuthConfig\r\nname: quay.io\r\nusername: \"bot\"\r\npassword: \"fake-new\"\r\n"));
}

#[test]
fn c01_a_byte_order_mark_stays_first() {
    assert_edit(
        &fixture("odd-bom-document-first"),
        &Change { annotation: ("a", "b"), ..change(&new()) },
        &[
            ("auth: cHVsbGVyOmZha2Utb2xk", "username: \"bot\"\npassword: \"fake-new\""),
            ("    type: worker", "    nodeAnnotations:\n        a: 'b'\n    type: worker"),
        ],
    );
    let first = "\u{feff}username: a\npassword: b\nkind: RegistryAuthConfig\nname: ghcr.io\n---\nversion: v1alpha1\nmachine: {}\n";
    let token = set("ghcr.io", Credential::token("t"));
    let expected = "\u{feff}identityToken: \"t\"\nkind: RegistryAuthConfig\nname: ghcr.io\n---\nversion: v1alpha1\nmachine: {nodeAnnotations: {a: 'b'}}\n";
    assert_eq!(edit(first, &Change { annotation: ("a", "b"), ..change(&token) }).unwrap(), expected);
}

#[test]
fn c01_a_file_without_final_newline_gets_its_document_on_a_line_of_its_own() {
    let old = fixture("odd-no-final-newline-nothing");
    let new = edit(&old, &change(&new())).unwrap();
    assert!(new.contains("kind: HostnameConfig\nauto: stable\n---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\n"));
    let old = fixture("odd-trailing-separator");
    let new = edit(&old, &change(&self::new())).unwrap();
    assert!(new.ends_with("            service: {}\n---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nusername: \"bot\"\npassword: \"fake-new\"\n"));
}

#[test]
fn c01_separators_in_block_scalars_begin_no_document() {
    let old = fixture("odd-separator-in-block-scalars");
    assert_edit(
        &old,
        &Change { annotation: ("a", "b"), ..change(&new()) },
        &[
            ("username: puller", "username: \"bot\""),
            ("password: |-\n            fake-old", "password: \"fake-new\""),
            ("          auth: >-\n            folded\n            text\n", ""),
            ("machine:\n  type", "machine:\n  nodeAnnotations:\n    a: 'b'\n  type"),
        ],
    );
}

#[test]
fn c01_a_block_scalar_that_an_appended_document_would_lengthen_is_refused() {
    let old = "version: v1alpha1\nmachine:\n  type: |+\n    worker";
    assert_eq!(edit(old, &change(&new())), Err(ConfigError::Unverified("a value of somebody else would change")));
}

#[test]
fn c01_flow_style_is_edited_in_place() {
    assert_edit(
        &fixture("odd-flow"),
        &Change { annotation: ("a", "b"), ..change(&new()) },
        &[
            ("{auth: cHVsbGVyOmZha2Utb2xk}", "{username: \"bot\", password: \"fake-new\"}"),
            ("{lab.example.com/owner", "{a: 'b', lab.example.com/owner"),
        ],
    );
    let token = set("ghcr.io", Credential::token("t"));
    assert_edit(
        &fixture("odd-flow-document"),
        &Change { annotation: ("a", "b"), ..change(&token) },
        &[
            ("username: puller, password: fake-old}", "identityToken: \"t\", }"),
            ("nodeAnnotations: {}", "nodeAnnotations: {a: 'b'}"),
        ],
    );
}

#[test]
fn c01_anchors_that_others_use_are_refused_by_path_and_aliases_are_written_out() {
    let old = fixture("odd-anchors");
    assert_edit(
        &old,
        &Change { annotation: ("example.com/own", "d"), ..change(&new()) },
        &[("*login", "{username: \"bot\", password: \"fake-new\"}"), ("example.com/own: c", "example.com/own: 'd'")],
    );
    let desired = set("other.example.com", Credential::basic("bot", "fake-new"));
    let path = "machine.registries.config.other.example.com.auth".to_owned();
    let at = At { document: "v1alpha1".to_owned(), path, line: 9 };
    assert_eq!(edit(&old, &change(&desired)).unwrap_err(), ConfigError::Shared(at));
    let scalar = "version: v1alpha1\nmachine:\n  registries:\n    config:\n      ghcr.io: {auth: {username: a, password: &p b}}\n      quay.io: {auth: {username: a, password: *p}}\n";
    let error = edit(scalar, &change(&new())).unwrap_err();
    assert!(matches!(&error, ConfigError::Shared(at) if at.path.ends_with("ghcr.io.auth.password")), "{error}");
    let merge = "version: v1alpha1\nx: &x {username: a}\nmachine:\n  registries:\n    config:\n      ghcr.io:\n        auth:\n          <<: *x\n          password: b\n";
    let now = MachineConfig::parse(merge.as_bytes()).unwrap().effective_auth(&"ghcr.io".parse().unwrap()).unwrap();
    assert!(now.same_as(&Credential::basic("a", "b")));
    assert!(matches!(edit(merge, &change(&new())), Err(ConfigError::Shared(at)) if at.path.ends_with("ghcr.io.auth")));
}

#[test]
fn c01_layouts_that_an_edit_would_break_are_refused() {
    let explicit = "version: v1alpha1\n? machine\n: ? nodeAnnotations\n  : ? a\n    : b\n";
    let none = Desired::default();
    let error = edit(explicit, &change(&none)).unwrap_err();
    assert!(matches!(&error, ConfigError::Layout(at) if at.path == "machine.nodeAnnotations.a"), "{error}");
    let list = "version: v1alpha1\nmachine: []\n";
    assert!(matches!(edit(list, &change(&none)), Err(ConfigError::Shape { at, .. }) if at.path == "machine"));
}

#[test]
fn c02_a_duplicate_key_or_document_is_refused_and_named() {
    for (text, path, line) in [
        (
            "version: v1alpha1\nmachine:\n  registries:\n    config:\n      ghcr.io: {}\n      'ghcr.io': {auth: {}}\n",
            "machine.registries.config.ghcr.io",
            6,
        ),
        ("version: v1alpha1\nmachine: {}\ncluster: {a: [{b: 1, b: 2}]}\n", "cluster.a.b", 3),
        ("version: v1alpha1\nmachine: {}\nmachine: {}\n", "machine", 3),
    ] {
        let at = At { document: "v1alpha1".to_owned(), path: path.to_owned(), line };
        assert_eq!(MachineConfig::parse(text.as_bytes()).unwrap_err(), ConfigError::DuplicateKey(at), "{text}");
    }
    let document = "---\nkind: RegistryAuthConfig\nname: ghcr.io\npassword: canary\n";
    let text = format!("version: v1alpha1\nmachine: {{}}\n{document}{document}");
    let error = MachineConfig::parse(text.as_bytes()).unwrap_err();
    assert!(
        matches!(&error, ConfigError::DuplicateDocument(at) if at.document == "RegistryAuthConfig ghcr.io" && at.line == 8)
    );
    let twice = "version: v1alpha1\nmachine: {}\n---\nversion: v1alpha1\n";
    assert!(matches!(MachineConfig::parse(twice.as_bytes()), Err(ConfigError::DuplicateDocument(_))));
}

#[test]
fn c02_what_is_no_config_is_told_apart_and_repeats_no_value() {
    for (bytes, expected) in [
        (&b"version: v1alpha1\nmachine: \xff"[..], ConfigError::NotUtf8 { line: 2 }),
        (b"a: \"canary", ConfigError::Yaml { line: 1, column: 4 }),
        (b"machine: *canary", ConfigError::Yaml { line: 1, column: 10 }),
        (b"", ConfigError::NoMachineDocument),
        (b"kind: RegistryAuthConfig\nname: canary\n", ConfigError::NoMachineDocument),
    ] {
        let error = MachineConfig::parse(bytes).unwrap_err();
        match (&error, &expected) {
            (ConfigError::Yaml { line: 1, .. }, ConfigError::Yaml { .. }) => {}
            _ => assert_eq!(error, expected),
        }
        assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
    }
    let config = MachineConfig::parse(b"version: v1alpha1\nmachine: {token: canary}\n").unwrap();
    assert!(!format!("{config:?}").contains("canary"));
}

#[test]
fn c03_the_form_that_is_in_use_is_edited() {
    let annotated =
        |name: &str| fixture(name).replace("        node.kubernetes.io", "        x: y\n        node.kubernetes.io");
    for name in ["1.11-control-plane-legacy", "1.13-control-plane-legacy"] {
        let new = edit(&annotated(name), &change(&new())).unwrap();
        assert!(
            new.contains("                    username: \"bot\"\n                    password: \"fake-new\"\n"),
            "{name}"
        );
        assert!(!new.contains("RegistryAuthConfig"), "{name}");
    }
    for name in ["1.12-control-plane-document", "1.13-control-plane-document", "1.14-control-plane-node-document"] {
        let new = edit(&fixture(name), &change(&new())).unwrap();
        assert!(new.contains("name: ghcr.io\nusername: \"bot\"\npassword: \"fake-new\"\n"), "{name}");
        assert!(!new.contains("    registries:\n        config:"), "{name}");
    }
}

#[test]
fn c03_neither_form_in_use_becomes_a_document_from_1_12_and_the_legacy_block_below() {
    let old = fixture("1.13-worker-nothing");
    let with_document = edit(&old, &change(&new())).unwrap();
    assert!(with_document.ends_with(
        "---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nusername: \"bot\"\npassword: \"fake-new\"\n"
    ));
    assert_edit(
        &old,
        &Change { annotation: ("a", "b"), documents: false, ..change(&new()) },
        &[(
            "    type: worker\n",
            "    nodeAnnotations:\n        a: 'b'\n    registries:\n        config:\n            ghcr.io:\n                auth:\n                    username: \"bot\"\n                    password: \"fake-new\"\n    type: worker\n",
        )],
    );
}

#[test]
fn c03_a_legacy_host_with_tls_alone_gets_its_login_there() {
    let old = "version: v1alpha1\nmachine:\n  registries:\n    config:\n      ghcr.io:\n        tls:\n          insecureSkipVerify: true\n";
    assert_edit(
        old,
        &Change { annotation: ("a", "b"), ..change(&new()) },
        &[
            (
                "        tls:",
                "        auth:\n          username: \"bot\"\n          password: \"fake-new\"\n        tls:",
            ),
            ("  registries:", "  nodeAnnotations:\n    a: 'b'\n  registries:"),
        ],
    );
}

#[test]
fn c04_a_document_that_overrides_the_legacy_block_is_the_one_that_is_edited() {
    let old = fixture("1.13-worker-both");
    let config = MachineConfig::parse(old.as_bytes()).unwrap();
    let now = config.effective_auth(&"ghcr.io".parse().unwrap()).unwrap();
    assert!(now.same_as(&Credential::basic("puller", "fake-document")));
    let new = edit(&old, &change(&new())).unwrap();
    assert!(new.contains("password: fake-old\n") && !new.contains("fake-document"));
    // The legacy block already says it, yet does not count.
    let desired = set("ghcr.io", Credential::basic("puller", "fake-old"));
    assert!(edit(&old, &change(&desired)).unwrap().ends_with("username: \"puller\"\npassword: \"fake-old\"\n"));
}

#[test]
fn c03_a_credential_that_is_there_in_another_form_is_left_in_that_form() {
    for name in ["odd-flow", "odd-bom-document-first", "odd-no-final-newline"] {
        let old = fixture(name);
        let desired = set("ghcr.io", Credential::basic("puller", "fake-old"));
        let edited = MachineConfig::parse(old.as_bytes()).unwrap().edit(&change(&desired)).unwrap();
        assert_eq!(edited.spans.len(), 1, "{name}: only the annotation");
    }
}

#[test]
fn c10_the_annotation_goes_where_node_fields_are_and_never_to_both() {
    let none = Desired::default();
    for (name, old, new) in [
        ("1.14-control-plane-node-document", "kind: KubeNodeConfig\n", None),
        ("1.14-worker-node-document", "  # who pays for it\n", Some("  a: 'b'\n  # who pays for it\n")),
        ("1.14-worker-nothing", "    type: worker\n", Some("    nodeAnnotations:\n        a: 'b'\n    type: worker\n")),
        (
            "1.13-control-plane-legacy",
            "        lab.example.com/owner",
            Some("        a: 'b'\n        lab.example.com/owner"),
        ),
        (
            "1.12-control-plane-document",
            "    type: controlplane\n",
            Some("    nodeAnnotations:\n        a: 'b'\n    type: controlplane\n"),
        ),
    ] {
        let text = fixture(name);
        let change = Change { annotation: ("a", "b"), ..change(&none) };
        match new {
            Some(new) => assert_edit(&text, &change, &[(old, new)]),
            None => {
                let new = edit(&text, &change).unwrap();
                assert!(new.contains("---\nannotations:\n    a: 'b'\napiVersion: v1alpha1\nkind: KubeNodeConfig\n"));
                assert!(!new.contains("nodeAnnotations"));
            }
        }
    }
    let both =
        fixture("1.14-worker-node-document").replace("    type: worker", "    nodeLabels: {a: b}\n    type: worker");
    assert!(
        matches!(edit(&both, &change(&none)), Err(ConfigError::NodeFieldsTwice(at)) if at.path == "machine.nodeLabels")
    );
    let old_talos = Change { node_document: false, ..change(&none) };
    assert_eq!(edit(&fixture("1.14-worker-node-document"), &old_talos), Err(ConfigError::NodeDocumentUnknown));
}

#[test]
fn c10_an_annotation_that_is_there_is_replaced_where_it_stands() {
    let old = fixture("odd-multiline-scalars");
    let config = MachineConfig::parse(old.as_bytes()).unwrap();
    assert_eq!(config.annotation(KEY).as_deref(), Some(r#"{"v":1, "old":true}"#));
    assert_eq!(config.annotation("example.com/keep").as_deref(), Some("text\n"));
    assert_edit(
        &old,
        &Change { annotation: (KEY, "{}"), ..change(&Desired::default()) },
        &[("talos-ghcr/proof: >-\n            {\"v\":1,\n            \"old\":true}\n", "talos-ghcr/proof: '{}'\n")],
    );
}

#[test]
fn c11_docker_io_beside_its_api_name_is_refused_and_a_lonely_password_named() {
    let desired = set("docker.io", Credential::basic("bot", "fake-new"));
    for text in [
        "version: v1alpha1\nmachine:\n  registries: {config: {docker.io: {auth: {username: a, password: b}}}}\n",
        "version: v1alpha1\nmachine: {}\n---\nkind: RegistryAuthConfig\nname: docker.io\nusername: a\n",
    ] {
        assert!(matches!(edit(text, &change(&desired)), Err(ConfigError::DockerIo(_))));
    }
    let lonely = "version: v1alpha1\nmachine: {}\n---\nkind: RegistryAuthConfig\nname: ghcr.io\npassword: lonely\n";
    let config = MachineConfig::parse(lonely.as_bytes()).unwrap();
    assert_eq!(config.effective_auth(&"ghcr.io".parse().unwrap()).err(), Some(Unusable::PasswordWithoutUsername));
    assert!(edit(lonely, &change(&new())).is_ok());
}

#[test]
fn the_cluster_key_is_the_secret_else_the_token() {
    let revision =
        |text: &str| MachineConfig::parse(text.as_bytes()).unwrap().cluster_key().map(|key| key.revision(&new()));
    let of = |secret: &str| Ok(ClusterKey::derive(secret).revision(&new()));
    assert_eq!(revision("version: v1alpha1\nmachine: {token: t}\ncluster: {secret: s}\n"), of("s"));
    assert_eq!(revision("version: v1alpha1\nmachine: {token: 007}\ncluster: {secret: ''}\n"), of("007"));
    assert_eq!(revision("version: v1alpha1\nmachine: {}\n"), Err(ConfigError::NoClusterKey));
}

#[test]
fn a_credential_of_none_is_never_written() {
    let none = set("ghcr.io", Credential::None);
    let error = edit(&fixture("1.13-control-plane-legacy"), &change(&none)).unwrap_err();
    assert_eq!(error, ConfigError::NoCredential("ghcr.io".parse().unwrap()));
}

fn credentials() -> impl Strategy<Value = Credential> {
    let text = || prop_oneof![any::<String>(), "[ -~]{1,40}", "0[0-9]{3,8}", "(yes|no|null|~|true) ?"];
    let some = || text().prop_filter("not empty", |text| !text.is_empty());
    prop_oneof![
        (some(), some()).prop_map(|(username, password)| Credential::basic(username, password)),
        some().prop_map(Credential::token),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c12_any_credential_and_annotation_arrive_unchanged_in_any_config(
        credential in credentials(),
        annotation in any::<String>(),
        host in prop_oneof![Just("ghcr.io"), Just("quay.io"), Just("127.0.0.1:5000"), Just("new.example.com")],
        documents in any::<bool>(),
    ) {
        let desired = set(host, credential);
        for (name, bytes) in corpus() {
            let change = Change { desired: &desired, annotation: (KEY, &annotation), documents, node_document: true };
            assert_reached(&name, &bytes, &change);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in ".{0,200}") {
        let text = format!("version: v1alpha1\nmachine:\n  {text}\n");
        let edited = MachineConfig::parse(text.as_bytes()).and_then(|config| config.edit(&change(&new())));
        prop_assert!(edited.map_or(true, |edited| edited.keeps_all_else_of(text.as_bytes())));
    }
}

#[test]
fn c01_five_mebibytes_of_inline_files_stay_as_they_are() {
    let line = format!("                {}\n", "---: not a separator, # not a comment ".repeat(3));
    let content = line.repeat(5 * 1024 * 1024 / line.len() + 1);
    let text = fixture("1.13-control-plane-document");
    let files = format!(
        "machine:\n    files:\n        - path: /var/etc/big\n          op: create\n          content: |\n{content}"
    );
    assert!(text.contains("\nmachine:\n"), "the fixture begins its machine section so");
    let big = text.replacen("machine:\n", &files, 1);
    let desired = new();
    let edited = MachineConfig::parse(big.as_bytes()).unwrap().edit(&change(&desired)).unwrap();
    assert!(edited.keeps_all_else_of(big.as_bytes()));
    let after = MachineConfig::parse(&edited.bytes).unwrap();
    assert!(
        after
            .effective_auth(&"ghcr.io".parse().unwrap())
            .unwrap()
            .same_as(desired.get(&"ghcr.io".parse().unwrap()).unwrap())
    );
    assert_eq!(after.annotation(KEY).as_deref(), Some(VALUE));
}
