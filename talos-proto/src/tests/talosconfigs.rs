//! The talosconfigs of `fixtures/talosconfigs`: what works, and what each fault is called.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use serde_yaml::Value;

use crate::chain;
use crate::clock::Clock;
use crate::config::Context;
use crate::identity::{ADMIN, Identity};
use crate::{Talos, channel::Routing};

/// All certificates are valid then.
const NOW: &str = "2026-06-01T03:00:00Z";

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/talosconfigs").join(file)
}

fn load(file: &str, context: Option<&str>) -> Result<Context, String> {
    Context::load(&path(file), context, &[]).map_err(|error| chain(&error))
}

fn identity(context: &Context, now: &str) -> Result<Identity, String> {
    Identity::from_context(context, now.parse().unwrap()).map_err(|error| chain(&error))
}

/// What a context of a file comes to, until a channel could be opened.
fn open(file: &str, context: Option<&str>) -> Result<Identity, String> {
    let context = load(file, context)?;
    identity(&context, NOW)
}

fn endpoints(file: &str, context: Option<&str>) -> Vec<String> {
    load(file, context).unwrap().endpoints.iter().map(ToString::to_string).collect()
}

/// The names of the contexts of a file.
fn contexts(file: &str) -> Vec<String> {
    let tree: Value = serde_yaml::from_slice(&std::fs::read(path(file)).unwrap()).unwrap();
    tree["contexts"].as_mapping().unwrap().keys().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Each context of the file is in the table, and its error begins with its path and says these words.
fn each_fault_is_named(file: &str, table: &[(&str, &str, &str)]) {
    let named: BTreeSet<_> = table.iter().map(|(context, ..)| (*context).to_owned()).collect();
    assert_eq!(named, contexts(file).into_iter().collect(), "each context of {file} is tried");
    for (context, at, words) in table {
        let error = open(file, Some(context)).err().unwrap_or_else(|| panic!("{context} is accepted"));
        let place = format!("contexts.{context}{at}: ");
        let said = error.split_once(&place).map(|(_, problem)| problem);
        assert!(said.is_some_and(|problem| problem.contains(words)), "{context}: {error}");
    }
}

#[test]
fn w02_a_context_is_read_however_its_file_is_saved() {
    let all = ["10.0.0.2:50000", "[fd00::2]:50000", "[fd00::3]:50001", "talos.example.com:50000"];
    for file in ["good.yaml", "crlf.yaml", "bom.yaml"] {
        // `nodes`, keys of the future, and the contexts that are broken do not matter; 10.0.0.2 stands there twice.
        assert_eq!(endpoints(file, None), all, "{file}");
        assert!(open(file, None).unwrap().has_role(ADMIN), "{file}");
        // As `talosctl config merge` names the context of a second cluster.
        assert_eq!(load(file, Some("prod-1")).unwrap().name, "prod-1", "{file}");
        assert_eq!(endpoints(file, Some("target")), ["10.0.0.7:50000"], "{file}");
    }
    for (context, endpoint) in [("wrapped", "10.0.0.2:50000"), ("shared", "10.0.0.3:50000")] {
        assert_eq!(endpoints("wrapped.yaml", Some(context)), [endpoint]);
        open("wrapped.yaml", Some(context)).unwrap();
    }
}

/// Where a kubeconfig says which machines there are nobody needs them, so that nothing about them is an error.
#[test]
fn w02_nodes_are_read_as_far_as_they_are_text() {
    let text = std::fs::read_to_string(path("good.yaml")).unwrap();
    let nodes = |written: &str| {
        let text = text.replacen("nodes: [10.9.9.9]", &format!("nodes: {written}"), 1);
        Context::parse(text.as_bytes(), Path::new("talosconfig"), None, &[]).unwrap().nodes
    };
    assert_eq!(nodes("[10.9.9.9]"), ["10.9.9.9"]);
    assert_eq!(nodes("[' 10.0.0.2 ', fd00::2, worker-1, 10.0.0.2, '', 7, ~]"), ["10.0.0.2", "fd00::2", "worker-1"]);
    for none in ["[]", "~", "10.0.0.2", "{a: b}"] {
        assert_eq!(nodes(none), Vec::<String>::new(), "{none}");
    }
}

#[test]
fn p05_what_is_wrong_with_the_whole_file_is_named() {
    for (file, words) in [
        ("tab.yaml", "tab.yaml: line 4: a tab indents nothing in YAML: use spaces"),
        ("utf16.yaml", "utf16.yaml: is UTF-16, as PowerShell's `>` writes: save it as UTF-8"),
        ("two-documents.yaml", "several YAML documents (`---`): join talosconfigs with `talosctl config merge`"),
        ("joined.yaml", "join talosconfigs with `talosctl config merge`"),
    ] {
        let error = load(file, None).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn p05_the_context_must_be_named_and_there() {
    for (file, context, words) in [
        // One context only, and still no guess.
        (
            "no-context.yaml",
            None,
            "no current context (`context` is missing); choose one with --context NAME, the file has: prod",
        ),
        (
            "good.yaml",
            Some(""),
            "--context is empty; choose one with --context NAME, the file has: prod, prod-1, target, dev, broken, 1",
        ),
        (
            "good.yaml",
            Some("Prod"),
            "--context names the context \"Prod\", the file has: prod, prod-1, target, dev, broken, 1",
        ),
        ("values.yaml", None, "`context` names the context \"gone\", the file has: null, text"),
        (
            "good.yaml",
            Some("dev"),
            "contexts.dev.endpoints: is empty: name a control plane's address here or with --endpoints",
        ),
        ("good.yaml", Some("1"), "contexts.1.endpoints: is empty"),
    ] {
        let error = load(file, context).unwrap_err();
        assert!(error.contains(words), "{file} {context:?}: {error}");
    }
    assert!(load("no-context.yaml", Some("prod")).is_ok());
    let text = |context: &str| format!("{context}contexts: {{a: {{endpoints: [10.0.0.2]}}, 1: ~}}\n");
    for (line, words) in [
        ("context: ''\n", "`context` is empty"),
        ("context: ~\n", "`context` is empty"),
        ("context: [a]\n", "`context` is not the name of a context"),
        ("context: 1\n", "contexts.1.endpoints: is empty"),
        ("context: a\n", "contexts.a.ca: is missing"),
    ] {
        let error = Context::parse(text(line).as_bytes(), Path::new("t"), None, &[]).unwrap_err().to_string();
        assert!(error.starts_with("talosconfig t: ") && error.contains(words), "{error}");
    }
    let error = Context::parse(b"contexts: {}\n", Path::new("t"), None, &[]).unwrap_err().to_string();
    assert!(error.ends_with("none (make one with `talosctl config new` or `talosctl config merge`)"), "{error}");
}

#[test]
fn p05_endpoints_of_the_command_line_replace_those_of_the_file() {
    let given = |endpoints: &[&str]| {
        let endpoints: Vec<_> = endpoints.iter().map(|it| (*it).to_owned()).collect();
        Context::load(&path("good.yaml"), None, &endpoints).map_err(|error| error.to_string())
    };
    let context = given(&["10.0.0.9", " 10.0.0.9:50000 ", "cp-1:443"]).unwrap();
    let endpoints: Vec<_> = context.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["10.0.0.9:50000", "cp-1:443"]);
    // The fault is not the file's.
    let error = given(&["https://10.0.0.9"]).unwrap_err();
    assert_eq!(
        error,
        "--endpoints: \"https://10.0.0.9\" is a URL: write the host alone, \"10.0.0.9\" (the port is 50000 by default)"
    );
}

#[test]
#[rustfmt::skip]
fn p05_each_fault_of_a_plain_value_is_named_with_its_path() {
    each_fault_is_named("values.yaml", &[
        ("null", ".endpoints", "is empty"),
        ("text", "", "is a text, not a mapping with `endpoints` and `ca`"),
        ("no-endpoints", ".endpoints", "is empty: name a control plane's address here or with --endpoints"),
        ("empty-endpoints", ".endpoints", "is empty"),
        ("text-endpoints", ".endpoints", "is a text: write a list, `[10.0.0.2]`"),
        ("number-endpoint", ".endpoints[0]", "is a number: write an address"),
        ("empty-endpoint", ".endpoints[1]", "is empty: name a control plane's address or remove the entry"),
        ("comma-endpoint", ".endpoints[0]", "holds a comma: give each endpoint its own list entry"),
        ("url-endpoint", ".endpoints[0]", "is a URL: write the host alone, \"10.0.0.2:50000\""),
        ("colons-endpoint", ".endpoints[0]", "has too many colons"),
        ("bare-v6-endpoint", ".endpoints[0]", "an IPv6 address with a port as [fd00::2]:50000"),
        ("url-target", ".target", "is a URL"),
        ("ca-missing", ".ca", "is missing: base64 of the PEM text of the CA's certificate"),
        ("ca-empty", ".ca", "is missing"),
        ("ca-number", ".ca", "is a number, not base64 of PEM text"),
        ("ca-percent", ".ca", "is not base64"),
        ("ca-path", ".ca", "is a path, and the content is wanted: base64 of it (`base64 -w0 FILE`)"),
        ("ca-pem", ".ca", "is PEM itself: write its base64"),
        ("ca-twice", ".ca", "is base64 of base64: decode it once"),
        ("ca-no-pem", ".ca", "is base64, but of no PEM text"),
        ("ca-sops", ".ca", "is encrypted by SOPS: decrypt the file first"),
        ("ca-template", ".ca", "is a placeholder that nothing has filled in"),
        ("no-client", ".crt", "is missing: base64 of the PEM text of the client's certificate (`talosctl config new`)"),
        ("siderov1", ".auth.siderov1", "Omni's SideroV1 login is not supported, only client certificates: use a talosconfig of the cluster itself (`omnictl talosconfig --break-glass`"),
        ("siderov1-text", ".auth", "Omni's SideroV1 login is not supported"),
        ("basic", ".auth.basic", "is not supported, only client certificates: make a talosconfig with one (`talosctl config new`)"),
    ]);
}

#[test]
#[rustfmt::skip]
fn w02_each_fault_of_a_certificate_or_key_is_named_before_anything_is_dialled() {
    each_fault_is_named("certificates.yaml", &[
        ("ca-is-a-key", ".ca", "holds no certificate, but ED25519 PRIVATE KEY: were two values exchanged?"),
        ("ca-is-the-client", ".ca", "is not a CA's certificate but that of a server or client"),
        ("ca-is-junk", ".ca", "certificate 1 in it is not X.509"),
        ("ca-is-cut", ".ca", "is broken PEM (a BEGIN line without its END"),
        ("crt-is-the-key", ".crt", "holds no certificate, but ED25519 PRIVATE KEY"),
        ("crt-is-the-ca", ".crt", "is a CA's certificate, not a client's: were `ca` and `crt` exchanged?"),
        ("crt-is-indented", ".crt", "is PEM whose lines are indented: remove the blanks before -----BEGIN"),
        ("crt-backwards", ".crt", "the client's own must be the first of the chain"),
        ("key-is-the-crt", ".key", "but CERTIFICATE: were two values exchanged?"),
        ("key-is-public", ".key", "but PUBLIC KEY: were two values exchanged?"),
        ("key-of-another", ".key", "does not belong to the certificate in contexts.key-of-another.crt: take both from one file"),
        ("key-of-another-kind", ".key", "does not belong to the certificate"),
        ("key-of-another-curve", ".key", "does not belong to the certificate"),
        ("key-of-another-rsa", ".key", "does not belong to the certificate"),
        ("key-of-another-p256", ".key", "does not belong to the certificate"),
        ("key-of-a-later", ".key", "belongs to a later certificate of contexts.key-of-a-later.crt"),
        ("key-encrypted", ".key", "is encrypted with a passphrase, which nobody could enter: decrypt it (`openssl pkey -in KEY`)"),
        ("key-encrypted-sec1", ".key", "is encrypted with a passphrase"),
        ("key-p521", ".key", "is no key that TLS can use: Ed25519, ECDSA P-256 or P-384, RSA from 2048 bits"),
        ("key-rsa1024", ".key", "is no key that TLS can use"),
        ("usage-both", ".crt", "has the extended key usage serverAuth and clientAuth, and Talos >= 1.12 accepts exactly clientAuth"),
        ("usage-server", ".crt", "has the extended key usage serverAuth, and"),
        ("usage-none", ".crt", "has the extended key usage (none), and"),
    ]);
}

#[test]
fn w02_an_expired_certificate_and_one_of_the_future_are_named() {
    let context = load("good.yaml", None).unwrap();
    let expired = identity(&context, "2027-01-01T00:00:01Z").unwrap_err();
    assert_eq!(
        expired,
        "contexts.prod.crt: the client certificate expired at 2027-01-01T00:00:00Z; make a new one with `talosctl config new`"
    );
    let early = identity(&context, "2025-12-31T23:59:59Z").unwrap_err();
    assert_eq!(
        early,
        "contexts.prod.crt: the client certificate is not valid before 2026-01-01T00:00:00Z; is this machine's clock right?"
    );
    for valid in ["2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"] {
        identity(&context, valid).unwrap();
    }
}

/// Until a channel that would use them: tonic and ring take every form.
#[test]
fn w02_every_kind_of_key_loads() {
    let names = contexts("keys.yaml");
    assert_eq!(names.len(), 10);
    for name in names {
        let context = load("keys.yaml", Some(&name)).unwrap();
        let identity = identity(&context, NOW).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(identity.warnings(), [], "{name}");
        let key = PrivateKeyDer::from_pem_slice(&identity.key).unwrap();
        rustls::crypto::ring::sign::any_supported_type(&key).unwrap_or_else(|error| panic!("{name}: {error}"));
        let clock = Clock::system();
        // A lazy channel belongs to a runtime, though it dials nothing.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        Talos::new(&identity, &context.endpoints, Routing::Auto, clock)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// `(context, now, path, words)` of each warning, none for what is in order.
#[test]
fn w02_what_works_but_is_odd_is_a_warning() {
    let late = "2026-12-11T12:00:00Z";
    #[rustfmt::skip]
    let table: &[(&str, &str, &str, &[&str])] = &[
        ("good.yaml", "prod", NOW, &[]),
        ("good.yaml", "prod", late, &["contexts.prod.crt: the client certificate expires in 20 days (2027-01-01T00:00:00Z): make a new one with `talosctl config new`"]),
        ("good.yaml", "prod-1", NOW, &["contexts.prod-1.crt: the client certificate was not issued by contexts.prod-1.ca: unless Talos's CA is being rotated, they are of two clusters"]),
        // Six hours are its life: half of it left is no news, the last half hour is.
        ("odd.yaml", "pod", NOW, &[]),
        ("odd.yaml", "pod", "2026-06-01T05:30:00Z", &["contexts.pod.crt: the client certificate expires in 30 minutes"]),
        ("odd.yaml", "two-roles", NOW, &[]),
        ("odd.yaml", "no-role", NOW, &["contexts.no-role.crt: the client certificate names no Talos role (an O such as os:admin)"]),
        ("odd.yaml", "other-ca", NOW, &["contexts.other-ca.crt: the client certificate was not issued by contexts.other-ca.ca"]),
        ("odd.yaml", "cluster", NOW, &["contexts.cluster.cluster: is \"prod\", which only Omni's endpoint wants to be told"]),
        ("odd.yaml", "auth-and-crt", NOW, &["contexts.auth-and-crt.auth.siderov1: has no effect: the client certificate is used"]),
    ];
    for (file, name, now, expected) in table {
        let context = load(file, Some(name)).unwrap();
        let identity = identity(&context, now).unwrap();
        let said: Vec<_> = context.warnings().iter().chain(identity.warnings()).map(ToString::to_string).collect();
        assert_eq!(said.len(), expected.len(), "{name}: {said:?}");
        for (said, expected) in said.iter().zip(*expected) {
            assert!(said.starts_with(expected), "{name}: {said}");
        }
    }
    let roles = open("odd.yaml", Some("two-roles")).unwrap().roles;
    assert_eq!(roles.into_iter().collect::<Vec<_>>(), ["os:etcd:backup", "os:reader"]);
}

/// Whatever is wrong, no line of a key is repeated, nor by `Debug`.
#[test]
fn s09_no_error_and_no_debug_shows_a_key() {
    let (mut shown, mut secrets) = (String::new(), BTreeSet::from(["canary-password".to_owned()]));
    for file in ["good.yaml", "keys.yaml", "certificates.yaml", "values.yaml", "odd.yaml"] {
        let tree: Value = serde_yaml::from_slice(&std::fs::read(path(file)).unwrap()).unwrap();
        for (name, context) in tree["contexts"].as_mapping().unwrap() {
            if let Some(key) = context.get("key").and_then(Value::as_str) {
                secrets.extend([key[..32].to_owned(), key[key.len() / 2..key.len() / 2 + 32].to_owned()]);
            }
            let Some(name) = name.as_str() else { continue };
            match Context::load(&path(file), Some(name), &[]) {
                Ok(context) => {
                    let bytes = format!("{:?}", context.key.as_slice());
                    secrets
                        .extend([bytes[1..80].to_owned(), String::from_utf8_lossy(&context.key[40..70]).into_owned()]);
                    shown += &format!("{context:?} {:?}", context.warnings());
                    let identity = Identity::from_context(&context, NOW.parse::<Timestamp>().unwrap());
                    shown += &format!("{identity:?}");
                    shown += &identity.map_or_else(|error| chain(&error), |it| format!("{:?}", it.warnings()));
                }
                Err(error) => shown += &format!("{error:?} {}", chain(&error)),
            }
        }
    }
    assert!(secrets.len() > 50 && shown.len() > 5_000);
    for secret in secrets {
        assert!(!shown.contains(&secret), "a key was shown: {secret}");
    }
}
