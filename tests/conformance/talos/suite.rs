//! What the suite was given, and the product run with it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, MutexGuard};

use super::cluster::Cluster;
use super::secrets::Secrets;
use crate::harness::Ended;

/// What must be given, and what it is for.
const NEEDED: [(&str, &str); 3] = [
    ("TALOSCONFIG", "the talosconfig of the cluster"),
    ("KUBECONFIG", "its kubeconfig"),
    (
        "TALOS_GHCR_CREDENTIAL_FILE",
        "the credential that the nodes are compared with, and that the second part rolls out",
    ),
];
/// A second credential, which makes the second part repeatable and lets it kill a run.
const OTHER: &str = "TALOS_GHCR_OTHER_CREDENTIAL_FILE";
/// What would make the suite look at less than the whole cluster, or at another one.
const REFUSED: [&str; 7] = [
    "TALOS_GHCR_TALOSCONFIG",
    "TALOS_GHCR_KUBECONFIG",
    "TALOS_GHCR_NODES",
    "TALOS_GHCR_EXCLUDE",
    "TALOS_GHCR_CLAIMS",
    "TALOS_GHCR_MISSING_PROOF",
    "TALOS_GHCR_DETAILED_EXITCODE",
];
const README: &str = "tests/conformance/talos/README.md says how to run this suite";
/// For each node: draining, rebooting and gates at the product's own budgets, and a bit.
const LIMIT_PER_NODE: Duration = Duration::from_secs(2400);
/// For a command that only looks.
const LOOK_LIMIT: Duration = Duration::from_secs(300);

/// One cluster cannot be looked at by one test while another changes it.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// What the suite was given.
pub struct Suite {
    pub cluster: Cluster,
    pub secrets: Secrets,
    /// `TALOS_GHCR_CREDENTIAL_FILE`.
    pub credential: PathBuf,
    /// `TALOS_GHCR_OTHER_CREDENTIAL_FILE`.
    pub other: Option<PathBuf>,
    files: [(&'static str, OsString); 2],
    _alone: MutexGuard<'static, ()>,
}

impl Suite {
    /// From the environment. Panics with what is missing.
    pub async fn begin() -> Self {
        let alone = ONE_AT_A_TIME.lock().await;
        // What the product says starts on a line of its own, after libtest's.
        println!();
        let missing: Vec<_> = NEEDED.iter().filter(|(name, _)| variable(name).is_none()).collect();
        let list = missing.iter().map(|(name, what)| format!("\n  {name}: {what}")).collect::<String>();
        assert!(missing.is_empty(), "these variables are missing:{list}\n{README}");
        for name in REFUSED {
            assert!(
                variable(name).is_none(),
                "unset {name}: the suite is about the whole cluster of KUBECONFIG\n{README}"
            );
        }
        let [talosconfig, kubeconfig, credential] = NEEDED.map(|(name, _)| variable(name).expect("it was looked at"));
        let talosconfig = absolute(&talosconfig);
        let kubeconfigs: Vec<PathBuf> = std::env::split_paths(&kubeconfig)
            .filter(|path| !path.as_os_str().is_empty())
            .map(|p| absolute(&p))
            .collect();
        let credential = absolute(&credential);
        let other = variable(OTHER).map(|path| absolute(&path));
        let mut secrets = Secrets::default();
        for file in kubeconfigs.iter().chain([&talosconfig, &credential]).chain(&other) {
            secrets.learn(&file.display().to_string(), &read(file));
        }
        assert!(secrets.count() > 0, "the files hold no secret, so nothing could be said of leaks\n{README}");
        let cluster = Cluster::connect(&kubeconfigs).await;
        let files = [
            ("TALOSCONFIG", talosconfig.into_os_string()),
            ("KUBECONFIG", std::env::join_paths(kubeconfigs).expect("they came from such a list")),
        ];
        Self { cluster, secrets, credential, other, files, _alone: alone }
    }

    /// The product, with the environment that it was given: proxies, exec plugins, `SSL_CERT_FILE`, its own variables.
    fn command(&self, credential: &Path, command: &str, more: &[&str]) -> Command {
        let mut product = Command::new(env!("CARGO_BIN_EXE_talos-ghcr"));
        product.arg(command).args(more).envs(self.files.iter().map(|(name, value)| (name, value)));
        product.arg("--credential-file").arg(credential);
        product.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        product
    }

    /// Runs a command that only looks, and checks what holds for every command.
    pub async fn look(&self, command: &str, more: &[&str]) -> Ended {
        self.look_with(&self.credential, command, more).await
    }

    /// [`Suite::look`] with one of the credentials.
    pub async fn look_with(&self, credential: &Path, command: &str, more: &[&str]) -> Ended {
        let output = self.command(credential, command, more).output();
        let output = tokio::time::timeout(LOOK_LIMIT, output).await;
        let output = output.unwrap_or_else(|_| panic!("{command} takes longer than {LOOK_LIMIT:?}"));
        self.checked(command, output.expect("the product starts"))
    }

    /// [`Suite::look`] with everything in its log.
    pub async fn look_traced(&self, command: &str) -> Ended {
        let mut product = self.command(&self.credential, command, &["-o", "json"]);
        let output = tokio::time::timeout(LOOK_LIMIT, product.env("TALOS_GHCR_LOG", "trace").output()).await;
        let output = output.unwrap_or_else(|_| panic!("{command} takes longer than {LOOK_LIMIT:?}"));
        self.checked(command, output.expect("the product starts"))
    }

    /// Starts `run`, which changes the cluster. A credential that a node had before is what a repeated suite comes with.
    pub fn start_run(&self, credential: &Path) -> Child {
        let mut run = self.command(credential, "run", &["--allow-older", "--yes", "-o", "json"]);
        run.spawn().expect("the product starts")
    }

    /// Follows a run, line by line as it is said, until it ends or `until` holds of a line: then it is killed, with no
    /// chance to tidy up.
    pub async fn follow(&self, mut run: Child, nodes: usize, until: impl Fn(&str) -> bool) -> Ended {
        let mut said = BufReader::new(run.stderr.take().expect("it is piped")).lines();
        let mut stdout = run.stdout.take().expect("it is piped");
        let limit = LIMIT_PER_NODE * u32::try_from(nodes.max(1)).expect("a cluster has fewer nodes");
        let following = async {
            let mut stderr = String::new();
            while let Some(line) = said.next_line().await.expect("stderr can be read") {
                self.assert_no_secret("run", &line);
                println!("    {line}");
                stderr.push_str(&line);
                stderr.push('\n');
                if until(&line) {
                    run.start_kill().expect("it runs");
                    println!("    (killed here)");
                    break;
                }
            }
            let mut document = Vec::new();
            stdout.read_to_end(&mut document).await.expect("stdout can be read");
            let status = run.wait().await.expect("it was started");
            Output { status, stdout: document, stderr: stderr.into_bytes() }
        };
        let output = tokio::time::timeout(limit, following).await;
        self.checked("run", output.unwrap_or_else(|_| panic!("the run takes longer than {limit:?}")))
    }

    /// Runs `run` to its end.
    pub async fn run(&self, credential: &Path, nodes: usize) -> Ended {
        self.follow(self.start_run(credential), nodes, |_| false).await
    }

    /// What holds for every command, however it ends.
    fn checked(&self, command: &str, output: Output) -> Ended {
        let ended = Ended::from(output);
        self.assert_no_secret(command, &ended.stdout);
        self.assert_no_secret(command, &ended.stderr);
        assert!(!ended.stderr.contains("panicked at"), "{command} panics:\n{}", ended.stderr);
        ended
    }

    /// The output is not shown, for it holds the secret.
    fn assert_no_secret(&self, command: &str, text: &str) {
        if let Some(what) = self.secrets.found_in(text) {
            panic!("an output of {command} holds {what}");
        }
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A relative path is one from the root of the repository, where `make` is called; cargo runs tests elsewhere.
fn absolute(path: &Path) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}\n{README}", file.display()))
}
