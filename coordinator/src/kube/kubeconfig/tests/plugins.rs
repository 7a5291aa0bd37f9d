//! Credential plugins, as real processes.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::*;

/// A fixture whose plugin leaves its traces in a file.
struct Scene {
    folder: tempfile::TempDir,
    sources: Sources,
}

fn scene(fixture: &str, more: &[(&str, &str)]) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("seen").display().to_string();
    let ours = [
        ("TALOS_GHCR_CREDENTIAL", "canary-of-ours"),
        ("TALOS_GHCR_FUTURE", "canary"),
        ("GH_TOKEN", "canary"),
        ("GITHUB_TOKEN", "canary"),
        ("HOME", "/nowhere"),
    ];
    let mut environment = variables(&[&ours, more].concat());
    environment.push(("PLUGIN_SEEN".into(), seen.into()));
    let sources = Sources { environment, ..sources(&fixtures().join(fixture)) };
    Scene { folder, sources }
}

impl Scene {
    async fn load(&self) -> Result<Loaded, KubeconfigError> {
        load(&self.sources, None, &Clock::system()).await
    }

    fn seen(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("seen")).unwrap_or_default()
    }

    fn processes(&self) -> Vec<Pid> {
        self.seen().split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
    }
}

/// Gone, or dead and only not yet waited for by whoever adopted it.
fn is_dead(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    test_kill_process(pid).is_err() || stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[tokio::test]
async fn p05_p06_a_plugin_gets_what_the_kubeconfig_gives_it_and_none_of_our_secrets() {
    let scene = scene("plugin-token.yaml", &[]);
    let loaded = scene.load().await.unwrap();
    assert_eq!(token(&loaded.config.auth_info), "canary-from-plugin");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let seen = scene.seen();
    assert!(seen.contains("LOGIN_FLAVOR=sour") && seen.contains("HOME=/nowhere"), "{seen}");
    assert!(seen.contains("arguments: get-token --cluster=a b"), "{seen}");
    assert!(!seen.contains("TALOS_GHCR_") && !seen.contains("canary"), "{seen}");
    let info = seen.lines().find_map(|line| line.strip_prefix("KUBERNETES_EXEC_INFO=")).unwrap();
    let info: serde_json::Value = serde_json::from_str(info).unwrap();
    assert_eq!(info["kind"], "ExecCredential");
    assert_eq!(info["spec"]["interactive"], false);
    let cluster = &info["spec"]["cluster"];
    assert_eq!(cluster["server"], "https://10.0.0.1:6443/");
    assert_eq!((&cluster["tls-server-name"], &cluster["config"]["audience"]), (&"kubernetes".into(), &"me".into()));
    assert!(cluster["certificate-authority-data"].as_str().unwrap().starts_with("LS0tLS1CRUdJTi"));
}

#[tokio::test]
async fn p05_a_plugins_client_certificate_is_used() {
    let loaded = scene("plugin-certificate.yaml", &[]).load().await.unwrap();
    assert!(loaded.config.auth_info.client_certificate_data.is_some());
    assert!(loaded.config.auth_info.token.is_none());
    connection::client(&loaded.config).unwrap();
}

#[tokio::test]
async fn p05_a_plugin_that_hangs_is_killed_with_its_children_and_its_stderr_shown() {
    let mut scene = scene("plugin-hangs.yaml", &[]);
    scene.sources.plugin_limit = Duration::from_millis(500);
    let error = scene.load().await.err().unwrap();
    assert!(
        shown(&error).ends_with(
            "plugins/hangs.sh was killed: no answer within 0.5s; \
             it says: open https://login.example.com in a browser"
        ),
        "{error}"
    );
    let processes = scene.processes();
    assert_eq!(processes.len(), 2);
    let clock = Clock::system();
    for _ in 0..50 {
        if processes.iter().all(|pid| is_dead(*pid)) {
            return;
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
    panic!("{processes:?} live on");
}

#[tokio::test]
async fn p05_a_plugin_that_leaves_a_daemon_behind_has_answered() {
    let scene = scene("plugin-background.yaml", &[]);
    let loaded = scene.load().await.unwrap();
    let [daemon] = scene.processes()[..] else { panic!("one daemon: {}", scene.seen()) };
    assert!(!is_dead(daemon), "it is the plugin's own and lives on");
    kill_process(daemon, Signal::KILL).unwrap();
    assert_eq!(token(&loaded.config.auth_info), "canary");
}

#[tokio::test]
async fn p05_a_credential_that_is_over_is_asked_for_once_more_and_its_end_is_said() {
    let again = scene("plugin-cached.yaml", &[]);
    let loaded = again.load().await.unwrap();
    assert_eq!(token(&loaded.config.auth_info), "canary-until-2099");
    assert_eq!(again.seen(), "run\nrun\n");
    let [warning] = &loaded.warnings[..] else { panic!("{:?}", loaded.warnings) };
    assert!(
        warning.contains("users[0].user.exec: the credential of plugins/cached.sh is valid until 2099-01-01T00:00:00Z")
    );

    let stuck = scene("plugin-cached.yaml", &[("PLUGIN_STUCK", "1")]);
    let error = stuck.load().await.err().unwrap();
    assert!(
        shown(&error).contains("gave twice a credential that was over at 2020-01-01T00:00:00Z: log in anew"),
        "{error}"
    );
    assert_eq!(stuck.seen(), "run\nrun\n");
}
