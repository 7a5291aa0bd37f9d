//! P01, P05 and W02: what is wrong with the command line or a file is said before anything is asked.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Span;
use lab::pki::{Ca, Pair, talosconfig};

use crate::harness::{Bed, Ended, bare, finish, read};

/// The product with these arguments alone, against no lab.
async fn alone(arguments: &[&str]) -> Ended {
    let mut product = bare();
    product.args(arguments);
    finish(product).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p01_usage_errors_are_64_and_no_connection_is_made() {
    let bed = Bed::default().await;
    let wrong: &[(&str, &[&str], &str)] = &[
        ("run", &["--no-such-flag"], "--no-such-flag"),
        ("run", &["surplus"], "surplus"),
        ("run", &["--max-unavailable", "0"], "--max-unavailable"),
        ("run", &["--max-unavailable", "101%"], "--max-unavailable"),
        ("run", &["--max-unavailable", "many"], "--max-unavailable"),
        ("run", &["--lease-duration", "1s"], "lease-duration"),
        ("run", &["--lease-duration", "soon"], "--lease-duration"),
        ("run", &["--lease", "talos-ghcr"], "--lease"),
        ("run", &["--lease", "a/b/c"], "--lease"),
        ("run", &["--takeover", "perhaps"], "--takeover"),
        ("run", &["--timeout=-1s"], "--timeout"),
        ("run", &["--report", "roll.xml"], "--report"),
        ("plan", &["-o", "xml"], "--output"),
        ("verify", &["--claims", "loaded,sworn"], "--claims"),
        ("verify", &["--registry", "not a host"], "--registry"),
    ];
    for (command, more, named) in wrong {
        let ended = bed.product(command, more).await.expect(64);
        assert!(ended.stderr.contains(named), "{command} {more:?} names {named}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{command} {more:?}: nothing on stdout");
    }
    // The image's registry is not managed.
    let foreign = bed.product_with("run", &[("--image", "ghcr.io/a/b:1")], &[]).await.expect(64);
    assert!(foreign.stderr.contains("--image") && foreign.stderr.contains("ghcr.io/a/b:1"), "{}", foreign.stderr);
    // No credential at all; `verify` can do without.
    for command in ["run", "plan"] {
        let ended = bed.product_with(command, &[("--credential-file", "")], &[]).await.expect(64);
        let ways = ["--credential-file", "TALOS_GHCR_CREDENTIAL", "stdin"];
        assert!(ways.iter().all(|way| ended.stderr.contains(way)), "{}", ended.stderr);
    }
    for arguments in [&["no-such-command"][..], &[]] {
        alone(arguments).await.expect(64);
    }
    assert_eq!((bed.requests(), bed.lab.truth().lease), (0, None));
    for asked in [&["--help"][..], &["--version"], &["run", "--help"]] {
        assert_ne!(alone(asked).await.expect(0).stdout, "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p05_a_file_that_is_missing_or_broken_is_named_and_no_connection_is_made() {
    let bed = Bed::default().await;
    let nowhere = bed.lab.dir().join("nowhere").display().to_string();
    let no_yaml = bed.write("no-yaml", "contexts: [\n");
    let empty = bed.write("empty", "");
    let no_server = bed.write(
        "no-server",
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
         clusters: [{name: c, cluster: {}}]\nusers: [{name: u, user: {}}]\n",
    );
    let no_context = bed.write("no-context", "context: gone\ncontexts: {here: {endpoints: [127.0.0.1]}}\n");
    let cases: &[(&str, &str, &str)] = &[
        ("--talosconfig", &nowhere, "No such file"),
        ("--talosconfig", &no_yaml, ""),
        ("--talosconfig", &no_context, "gone"),
        ("--kubeconfig", &nowhere, "No such file"),
        ("--kubeconfig", &no_yaml, ""),
        ("--kubeconfig", &empty, ""),
        ("--kubeconfig", &no_server, "server"),
        ("--credential-file", &nowhere, "No such file"),
    ];
    for (flag, file, says) in cases {
        for command in ["plan", "run"] {
            let ended = bed.product_with(command, &[(flag, file)], &[]).await.expect(1);
            assert!(ended.stderr.contains(*file), "{command} {flag} names {file}: {}", ended.stderr);
            assert!(ended.stderr.contains(says), "{command} {flag} {file} says {says}: {}", ended.stderr);
        }
    }
    let ended = bed.product("plan", &["--context", "gone"]).await.expect(1);
    assert!(ended.stderr.contains("gone") && ended.stderr.contains("has: lab"), "{}", ended.stderr);
    let ended = bed.product("plan", &["--kube-context", "gone"]).await.expect(1);
    assert!(ended.stderr.contains("gone"), "{}", ended.stderr);
    assert_eq!(bed.requests(), 0);
}

/// The talosconfig of the lab with another client, or another authority, or both.
fn with_identity(bed: &Bed, name: &str, client: &Pair, ca: Option<&Ca>) -> String {
    let lab = read(&bed.lab.dir().join("talosconfig"));
    let other = Ca::talos();
    let endpoints = vec![bed.lab.node("cp-1").address().to_string()];
    let mut text = talosconfig("lab", &endpoints, ca.unwrap_or(&other), client);
    if ca.is_none() {
        let line = |text: &str| text.lines().find(|line| line.trim_start().starts_with("ca: ")).unwrap().to_owned();
        text = text.replace(&line(&text), &line(&lab));
    }
    bed.write(name, &text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w02_a_client_certificate_that_cannot_work_is_named_before_anything_is_dialled() {
    let bed = Bed::default().await;
    let ca = Ca::talos();
    let expired = with_identity(&bed, "expired", &ca.client_for("", &["os:admin"], Span::new().days(-3)), None);
    let server = with_identity(&bed, "server", &ca.server(&["node".to_owned()]), None);
    let key = read(std::path::Path::new(&expired)).replace("key: ", "key: bm90IGEga2V5 #");
    let no_key = bed.write("no-key", &key);
    let cases: &[(&str, &[&str])] = &[
        (&expired, &["contexts.lab.crt", "expired", "talosctl config new"]),
        (&server, &["contexts.lab.crt", "clientAuth"]),
        (&no_key, &["contexts.lab.key"]),
    ];
    for (file, says) in cases {
        for command in ["plan", "verify", "run"] {
            let ended = bed.product_with(command, &[("--talosconfig", file)], &[]).await.expect(1);
            assert!(ended.stderr.contains(*file), "{command} names {file}: {}", ended.stderr);
            assert!(says.iter().all(|says| ended.stderr.contains(says)), "{command} says {says:?}: {}", ended.stderr);
        }
    }
    assert_eq!(bed.requests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w02_another_authority_is_named_as_such_and_nothing_is_written() {
    let bed = Bed::default().await;
    // Another cluster's talosconfig altogether: its authority did not sign the node's certificate.
    let other = Ca::talos();
    let talosconfig = with_identity(&bed, "other-cluster", &other.client("", &["os:admin"]), Some(&other));
    // And the same for the API server.
    let kubeconfig = read(&bed.lab.dir().join("kubeconfig"));
    let line = kubeconfig.lines().find(|line| line.contains("certificate-authority-data")).unwrap();
    let foreign = STANDARD.encode(Ca::new("kubernetes", "kubernetes").cert_pem().replace('\r', ""));
    let foreign = kubeconfig.replace(line.trim(), &format!("certificate-authority-data: {foreign}"));
    let kubeconfig = bed.write("other-kubeconfig", &foreign);
    for (flag, file) in [("--talosconfig", &talosconfig), ("--kubeconfig", &kubeconfig)] {
        for command in ["plan", "run"] {
            let ended = bed.product_with(command, &[(flag, file)], &["--gate-timeout", "2s"]).await.expect(1);
            assert!(ended.stderr.to_lowercase().contains("certificate"), "{command} {flag}: {}", ended.stderr);
            assert!(!ended.stderr.contains("trying for"), "no certificate is waited for: {}", ended.stderr);
        }
    }
    let truth = bed.lab.truth();
    assert_eq!((bed.writes(), truth.total("talos/").reads, truth.lease), (0, 0, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w02_a_client_that_the_clusters_authority_did_not_sign_is_named_as_such() {
    let bed = Bed::default().await;
    // The right authority, and a certificate of another: the node hangs up in the handshake, which over the wire looks
    // like a node that is down.
    let stranger = with_identity(&bed, "stranger", &Ca::talos().client("", &["os:admin"]), None);
    for command in ["plan", "run"] {
        let ended = bed.product_with(command, &[("--talosconfig", &stranger)], &[]).await.expect(1);
        assert!(ended.stderr.to_lowercase().contains("certificate"), "{command} says why: {}", ended.stderr);
    }
    let truth = bed.lab.truth();
    assert_eq!((bed.writes(), truth.total("talos/").reads, truth.lease), (0, 0, None));
}
