//! Against `fixtures/kubeconfigs`, whose README says what the comments in them mean.

mod plugins;

use std::os::unix::fs::symlink;

use serde::Deserialize;
use talos_proto::clock::Clock;

use super::super::connection;
use super::*;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/kubeconfigs")
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    let path = ("PATH", std::env::var("PATH").unwrap());
    let pairs = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    pairs.chain([(path.0.into(), path.1.into())]).collect()
}

fn sources(file: &Path) -> Sources {
    Sources {
        explicit: Some(file.to_owned()),
        list: None,
        home: None,
        environment: variables(&[("TALOS_GHCR_CREDENTIAL", "canary-of-ours")]),
        plugin_limit: Duration::from_secs(20),
    }
}

async fn read(file: &Path, context: Option<&str>) -> Result<Loaded, KubeconfigError> {
    load(&sources(file), context, &Clock::system()).await
}

async fn fixture(name: &str) -> Loaded {
    read(&fixtures().join(name), None).await.unwrap()
}

/// The whole of an error, as people see it; nothing of it may be secret.
fn shown(error: &KubeconfigError) -> String {
    let text = talos_proto::chain(error);
    assert!(!text.contains("canary") && !format!("{error:?}").contains("canary"), "{text}");
    text
}

/// The values of a comment's key at the head of a fixture, in whatever encoding the file is.
fn head<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let lines = text.lines().map_while(|line| line.trim_start_matches('\u{feff}').strip_prefix("# "));
    lines.filter_map(|line| line.strip_prefix(key).map(str::trim)).collect()
}

#[tokio::test]
async fn p05_each_kubeconfig_is_read_or_refused_as_its_head_says() {
    let mut seen = (0, 0);
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let name = file.file_name().unwrap().display().to_string();
        let bytes: Vec<u8> = std::fs::read(&file).unwrap().into_iter().filter(|byte| *byte != 0).collect();
        let text = String::from_utf8_lossy(&bytes).trim_start_matches('\u{fffd}').to_owned();
        if !head(&text, "alone").is_empty() {
            continue;
        }
        let (says, servers) = (head(&text, "says:"), head(&text, "server:"));
        assert!(says.is_empty() != servers.is_empty(), "{name} says what is expected of it");
        match read(&file, head(&text, "context:").first().copied()).await {
            Ok(loaded) => {
                assert_eq!(loaded.config.cluster_url.to_string(), servers.concat(), "{name}: {says:?}");
                let expected = head(&text, "warns:");
                assert_eq!(loaded.warnings.len(), expected.len(), "{name}: {:?}", loaded.warnings);
                for (warning, expected) in loaded.warnings.iter().zip(expected) {
                    assert!(warning.contains(expected) && warning.contains(&name), "{warning}");
                    assert!(!warning.contains("canary"), "{warning}");
                }
                connection::client(&loaded.config).unwrap_or_else(|error| panic!("{name}: {error}"));
                seen.0 += 1;
            }
            Err(error) => {
                let text = shown(&error);
                assert!(!says.is_empty(), "{text}");
                assert!(text.contains(&name), "{name} is named: {text}");
                says.iter().for_each(|says| assert!(text.contains(says), "{name} says {says}: {text}"));
                seen.1 += 1;
            }
        }
    }
    assert!(seen.0 > 30 && seen.1 > 15, "{seen:?}");
}

#[derive(Deserialize)]
struct Case {
    says: Vec<String>,
    with: String,
}

#[tokio::test]
async fn p05_each_fault_is_named_with_its_path_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for beside in ["pki", "plugins", "token-empty"] {
        symlink(fixtures().join(beside), folder.path().join(beside)).unwrap();
    }
    let sound = (
        "server: https://10.0.0.1:6443\ncertificate-authority: pki/ca.crt\n",
        "client-certificate: pki/client.crt\nclient-key: pki/client.key\n",
    );
    let indented = |lines: &str| lines.lines().fold(String::new(), |text, line| text + "    " + line + "\n");
    for (index, list) in ["clusters", "users"].into_iter().enumerate() {
        let cases = std::fs::read_to_string(fixtures().join(format!("cases/{list}.yaml"))).unwrap();
        let cases: Vec<Case> = serde_yaml::from_str(&cases).unwrap();
        assert!(cases.len() > 20);
        for (number, case) in cases.iter().enumerate() {
            let (cluster, user) = if index == 0 { (&*case.with, sound.1) } else { (sound.0, &*case.with) };
            let text = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters:\n- name: k\n  cluster:\n{}users:\n- name: u\n  user:\n{}",
                indented(cluster),
                indented(user)
            );
            let file = folder.path().join(format!("{list}-{number}"));
            std::fs::write(&file, text).unwrap();
            let Err(error) = read(&file, None).await else { panic!("{} was read", case.with) };
            let text = shown(&error);
            assert!(text.starts_with(&format!("kubeconfig {}: {list}[0].", file.display())), "{text}");
            case.says.iter().for_each(|says| assert!(text.contains(says), "{}says {says}: {text}", case.with));
        }
    }
}

/// A file that was cut off, or of which a byte is lost, is refused or read, and never shown.
#[tokio::test]
async fn p05_no_damage_makes_an_error_show_a_value() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    let text = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
        clusters:\n- name: k\n  cluster:\n    server: https://10.0.0.1:6443\n    proxy-url: http://me:canary@proxy:3128\n\
        users:\n- name: u\n  user:\n    token: canary\n    password: canary\n    client-key-data: canary\n";
    for at in 0..text.len() {
        for damaged in [text[..at].to_owned(), format!("{}{}", &text[..at], &text[at + 1..])] {
            std::fs::write(&file, &damaged).unwrap();
            if let Err(error) = read(&file, None).await {
                shown(&error);
            }
        }
    }
}

#[tokio::test]
async fn p05_what_the_selected_context_says_is_what_the_client_gets() {
    let named = fixture("tls-server-name.yaml").await.config;
    assert_eq!(named.tls_server_name.as_deref(), Some("kubernetes.default"));
    assert_eq!(named.root_cert.map(|all| all.len()), Some(1));
    let proxied = fixture("proxy-socks5.yaml").await.config;
    assert_eq!(proxied.proxy_url.unwrap().to_string(), "socks5://127.0.0.1:1080/");
    let insecure = fixture("insecure.yaml").await.config;
    assert!(insecure.accept_invalid_certs);
    // kube reads a token file again each minute; one with a line break it could not send.
    let rotated = fixture("token-file.yaml").await.config.auth_info;
    assert!(rotated.token.is_none() && rotated.token_file.unwrap().ends_with("/token"));
    let trimmed = fixture("token-file-with-line-break.yaml").await.config.auth_info;
    assert_eq!(token(&trimmed), "canary-from-file");
    let acting = fixture("impersonation.yaml").await.config.auth_info;
    assert_eq!((acting.impersonate.as_deref(), acting.impersonate_uid.as_deref()), (Some("jane"), Some("12")));
    assert_eq!(acting.impersonate_groups.unwrap(), ["a", "b"]);
    assert_eq!(acting.impersonate_user_extra.unwrap()["scopes"], ["x"]);
}

fn token(user: &kube::config::AuthInfo) -> &str {
    use secrecy::ExposeSecret as _;
    user.token.as_ref().map(|token| token.expose_secret()).unwrap_or_default()
}

fn listed(files: &[&Path]) -> Sources {
    Sources { explicit: None, list: Some(std::env::join_paths(files).unwrap()), ..sources(Path::new("")) }
}

#[tokio::test]
async fn p05_of_several_files_the_first_that_has_an_entry_wins_and_missing_ones_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        file
    };
    let gone = folder.path().join("gone");
    let one = write("one/config", "contexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: ''\n");
    let two = write(
        "two/config",
        "current-context: a\ncontexts: [{name: a, context: {cluster: b}}, {name: b, context: {cluster: b, user: a}}]\n\
         clusters: [{name: a, cluster: {server: 'https://a:6443'}}]\nusers: [{name: a, user: {tokenFile: token}}]\n",
    );
    write("two/token", "from-two");
    let three = write(
        "three/config",
        "current-context: b\nclusters: [{name: a, cluster: {server: 5}}, {name: b, cluster: {server: 'https://b:6443'}}]\n\
         users: [{name: a, user: {token: other}}]\n",
    );
    let clock = Clock::system();
    let all = listed(&[&gone, Path::new(""), &one, &two, &three]);
    let loaded = load(&all, None, &clock).await.unwrap();
    assert_eq!(loaded.config.cluster_url.to_string(), "https://a:6443/");
    // A relative path starts at the file that it stands in, not at the first one.
    let expected = folder.path().join("two/token").display().to_string();
    assert_eq!(loaded.config.auth_info.token_file, Some(expected));
    assert!(!loaded.files.contains("gone") && loaded.files.contains("three"), "{}", loaded.files);
    let loaded = load(&all, Some("b"), &clock).await.unwrap();
    assert_eq!(loaded.config.cluster_url.to_string(), "https://b:6443/");
    let error = load(&all, Some("c"), &clock).await.err().unwrap();
    assert!(shown(&error).contains("has no context \"c\"; it has: a, b"), "{error}");

    let error = load(&listed(&[&gone]), None, &clock).await.err().unwrap();
    assert_eq!(
        shown(&error),
        format!("no kubeconfig found (looked at {}): name one with --kubeconfig or KUBECONFIG", gone.display())
    );
    let folder_itself = load(&listed(&[folder.path(), &two]), None, &clock).await.err().unwrap();
    assert!(shown(&folder_itself).contains("cannot read the kubeconfig"), "{folder_itself}");
}

#[tokio::test]
async fn p05_in_a_pod_its_service_account_is_used_unless_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let in_pod = |list: Option<&str>| Sources {
        explicit: None,
        list: list.map(Into::into),
        home: Some(folder.path().to_owned()),
        environment: variables(&[("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")]),
        plugin_limit: Duration::from_secs(1),
    };
    let clock = Clock::system();
    assert!(matches!(files::find(&in_pod(None), None), Ok(Found::InCluster)));
    assert!(matches!(files::find(&in_pod(Some("")), None), Ok(Found::InCluster)));
    let error = load(&in_pod(Some("/nowhere/config")), None, &clock).await.err().unwrap();
    assert!(shown(&error).contains("looked at /nowhere/config"), "{error}");
    let error = load(&in_pod(None), Some("prod"), &clock).await.err().unwrap();
    assert!(shown(&error).contains("no kubeconfig found"), "a context is a file's: {error}");
    // Here, where no service account is mounted.
    let error = load(&in_pod(None), None, &clock).await.err().unwrap();
    assert!(shown(&error).contains("service account of this pod cannot be used"), "{error}");
    std::fs::create_dir(folder.path().join(".kube")).unwrap();
    std::fs::copy(fixtures().join("token.yaml"), folder.path().join(".kube/config")).unwrap();
    let outside = Sources { environment: Vec::new(), ..in_pod(None) };
    assert!(matches!(files::find(&in_pod(None), None), Ok(Found::Files(_))));
    assert!(matches!(files::find(&outside, Some("prod")), Ok(Found::Files(files)) if files.len() == 1));
}

#[tokio::test]
async fn p05_the_environments_proxy_is_used_unless_it_excepts_the_server() {
    let file = fixtures().join("token.yaml");
    let with = |pairs: &[(&str, &str)]| Sources { environment: variables(pairs), ..sources(&file) };
    let clock = Clock::system();
    let proxy = "http://proxy.example.com:3128";
    for (pairs, expected) in [
        (&[("HTTPS_PROXY", proxy)][..], Some("http://proxy.example.com:3128/")),
        (&[("https_proxy", "proxy.example.com:3128")], Some("http://proxy.example.com:3128/")),
        (&[("HTTPS_PROXY", proxy), ("NO_PROXY", "example.com, 10.0.0.0/8")], None),
        (&[("HTTPS_PROXY", proxy), ("no_proxy", "proxy.example.com")], Some("http://proxy.example.com:3128/")),
        (&[("HTTP_PROXY", proxy), ("HTTPS_PROXY", "")], None),
    ] {
        let config = load(&with(pairs), None, &clock).await.unwrap().config;
        assert_eq!(config.proxy_url.map(|url| url.to_string()).as_deref(), expected, "{pairs:?}");
        let named = Sources { explicit: Some(fixtures().join("proxy-http.yaml")), ..with(pairs) };
        let config = load(&named, None, &clock).await.unwrap().config;
        assert_eq!(config.proxy_url.unwrap().host(), Some("proxy.example.com"), "the kubeconfig's own always counts");
    }
    let error = load(&with(&[("HTTPS_PROXY", "ftp://me:canary@x")]), None, &clock).await.err().unwrap();
    assert!(shown(&error).starts_with("HTTPS_PROXY in the environment: has a scheme that is not supported"), "{error}");
}
