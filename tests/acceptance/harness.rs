//! A lab in this process, the product in another.

#[path = "messages.rs"]
mod messages;
#[path = "schemas.rs"]
pub mod schemas;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lab::kube::kind::Kind;
use lab::options::Kubernetes;
use lab::talos::log::Entry;
use lab::{Lab, Options};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The duration of the lease, with which every time of it scales: long enough that two cores under load renew in time.
///
/// A sixth of it is what a call may take. A real API server sleeps half a second when two writers of a budget's status
/// collide (kubernetes pkg/registry/core/pod/storage/eviction.go, `EvictionsRetry`), which cannot be scaled.
pub fn lease_duration() -> &'static str {
    match Kubernetes::from_env() {
        Ok(Kubernetes::Simulated) => "6s",
        _ => "12s",
    }
}
/// No command of a test takes longer unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Real clusters at once: each is up to six programs, and two cores carry few of them at the pace of these tests.
static REAL_CLUSTERS: Semaphore = Semaphore::const_new(3);

/// A lab and what the product is told of it. Dropping it ends both.
pub struct Bed {
    pub lab: Arc<Lab>,
    _dir: tempfile::TempDir,
    _turn: Option<SemaphorePermit<'static>>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        // A task of the test may still hold the lab.
        self.lab.stop();
    }
}

impl Bed {
    /// Three control planes and three workers of Talos 1.13.9, unless `change` says otherwise; all hold the old
    /// credential. Reboots take half a second.
    pub async fn new(change: impl FnOnce(&mut Options)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut options = Options::new(dir.path());
        options.reboot_time = Duration::from_millis(500);
        options.kubernetes = Kubernetes::from_env().unwrap_or_else(|why| panic!("{why}"));
        change(&mut options);
        let turn = match options.kubernetes {
            Kubernetes::Simulated => None,
            Kubernetes::Real(_) => Some(REAL_CLUSTERS.acquire().await.expect("it is never closed")),
        };
        let lab = Lab::start(options).await.unwrap_or_else(|error| panic!("{}", talos_proto::chain(&error)));
        Self { lab, _dir: dir, _turn: turn }
    }

    /// The default lab.
    pub async fn default() -> Self {
        Self::new(|_| {}).await
    }

    /// The product with the lab's files, the new credential, and `more`.
    pub fn command(&self, command: &str, more: &[&str]) -> Command {
        let mut product = bare();
        product.arg(command).args(self.lab.product_args()).args(more).envs(self.lab.product_env());
        product
    }

    /// Runs a command to its end.
    pub async fn product(&self, command: &str, more: &[&str]) -> Ended {
        finish(self.command(command, more)).await
    }

    /// `run` with the scaled lease, to its end.
    pub async fn run(&self, more: &[&str]) -> Ended {
        finish(self.roll(more)).await
    }

    /// `run` with the scaled lease, not started yet.
    pub fn roll(&self, more: &[&str]) -> Command {
        let mut roll = self.command("run", more);
        roll.args(["--lease-duration", lease_duration()]);
        roll
    }

    /// `run`, started and left to itself; killed when the guard is dropped.
    pub fn start(&self, more: &[&str]) -> Child {
        self.roll(more).kill_on_drop(true).spawn().expect("the product starts")
    }

    /// The product with the lab's files, some of its flags with another value; an empty value leaves the flag out.
    pub fn command_with(&self, command: &str, replaced: &[(&str, &str)], more: &[&str]) -> Command {
        let mut product = bare();
        product.arg(command).envs(self.lab.product_env());
        for pair in self.lab.product_args().chunks(2) {
            let other = replaced.iter().find(|(flag, _)| *flag == pair[0]).map(|(_, value)| *value);
            match other.unwrap_or(&pair[1]) {
                "" => {}
                value => drop(product.args([pair[0].as_str(), value])),
            }
        }
        product.args(more);
        product
    }

    /// [`Bed::command_with`], to its end.
    pub async fn product_with(&self, command: &str, replaced: &[(&str, &str)], more: &[&str]) -> Ended {
        finish(self.command_with(command, replaced, more)).await
    }

    /// The product with the old credential, which every node of a fresh lab has configured and loaded.
    pub async fn product_with_old(&self, command: &str, more: &[&str]) -> Ended {
        let old = self.lab.credential_file(lab::Held::Old).display().to_string();
        let mut product = self.command_with(command, &[("--credential-file", &old)], more);
        if command == "run" && !more.contains(&"--lease-duration") {
            product.args(["--lease-duration", lease_duration()]);
        }
        finish(product).await
    }

    /// A lab that is converged, though on the old credential: all its nodes are proved, which takes neither a drain nor
    /// a reboot. The Lease is there and free.
    pub async fn proved(change: impl FnOnce(&mut Options)) -> Self {
        let bed = Self::new(change).await;
        bed.prove_old().await;
        bed
    }

    /// Proves the old credential on all nodes of a fresh lab, and counts from zero.
    pub async fn prove_old(&self) {
        self.product_with_old("run", &[]).await.expect(0);
        self.lab.reset_counters();
    }

    /// Verifies a node again and again, against one of the credentials, until its row has `value` at a JSON pointer:
    /// Talos needs a moment to render a change. Gives the row.
    pub async fn verified(&self, credential: lab::Held, node: &str, pointer: &str, value: &str) -> serde_json::Value {
        let file = self.lab.credential_file(credential).display().to_string();
        self.verified_with(&[("--credential-file", &file)], node, pointer, value).await
    }

    /// As [`Bed::verified`], with some of the lab's flags replaced.
    pub async fn verified_with(
        &self,
        replaced: &[(&str, &str)],
        node: &str,
        pointer: &str,
        value: &str,
    ) -> serde_json::Value {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let document = self.product_with("verify", replaced, &["-o", "json"]).await.json();
            let row = row(&document, node);
            if row.pointer(pointer).is_some_and(|found| found == value) {
                return row.clone();
            }
            assert!(tokio::time::Instant::now() < deadline, "{pointer} is never {value}: {row:#}");
        }
    }

    /// A file beside the lab's own, that only its owner reads.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.lab.dir().join(name);
        std::fs::write(&path, text).expect("the lab's folder can be written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
        path.display().to_string()
    }

    /// The machine config of a node, active now.
    pub fn config(&self, node: &str) -> String {
        String::from_utf8(self.lab.node(node).machine_config()).expect("a machine config is text")
    }

    /// The machine config of a node with the new password in the place of the old one.
    pub fn config_with_new(&self, node: &str) -> String {
        self.config(node).replace(self.lab.old_password(), self.lab.new_password())
    }

    /// Somebody else applies a machine config.
    pub fn apply(&self, node: &str, config: &str) {
        self.lab.node(node).apply_foreign(config.as_bytes()).expect("the node takes its machine config");
    }

    /// Cuts a node's power and waits until it is back and Kubernetes knows its new boot.
    pub async fn power_cycle(&self, node: &str) {
        let before = self.lab.node(node).boots();
        self.lab.power_cycle(node);
        eventually(&format!("{node} is back"), || self.lab.node(node).boots() > before && self.is_up(node)).await;
    }

    /// Whether a node answers, its Node is Ready and Kubernetes knows its boot.
    pub fn is_up(&self, name: &str) -> bool {
        let node = self.lab.node(name);
        let Some(seen) = self.lab.objects().get(Kind::Node, "", name) else { return false };
        let known = seen["status"]["nodeInfo"]["bootID"] == node.boot_id().as_str();
        known && node.is_up() && lab::kube::is_ready(&seen)
    }

    /// What is really so of one node.
    pub fn truth_of(&self, node: &str) -> lab::truth::NodeTruth {
        self.lab.truth().nodes.into_iter().find(|truth| truth.name == node).expect("a test names a node of its lab")
    }

    /// The requests since `from` (the number of a log entry) that change stored state, in their order: `METHOD target`,
    /// a gRPC method without its service.
    pub fn writes_since(&self, from: u64) -> Vec<String> {
        self.lab.log().writes().iter().filter(|entry| entry.seq > from).map(in_words).collect()
    }

    /// The number of the last request so far.
    pub fn last_request(&self) -> u64 {
        *self.lab.log().watch().borrow()
    }

    /// All requests to all servers since the counters were reset.
    pub fn requests(&self) -> u64 {
        self.lab.counters().values().map(|counters| counters.reads + counters.writes).sum()
    }

    /// Law S7: every live node holds the new credential, loaded and proved, and nothing of ours is left.
    pub fn assert_done(&self) {
        let truth = self.lab.truth();
        for node in &truth.nodes {
            let name = &node.name;
            assert_eq!(node.configured, lab::Held::New, "{name} is configured");
            assert_eq!(node.cri_loaded, lab::Held::New, "containerd of {name} has loaded");
            assert!(node.fence.is_none(), "no fence is left on {name}: {:?}", node.fence);
            assert!(!node.cordoned, "{name} is schedulable");
        }
        assert!(
            !truth.lease.as_ref().is_some_and(lab::truth::LeaseTruth::is_held),
            "the lease is free: {:?}",
            truth.lease
        );
        assert_eq!(truth.unexpected, Vec::<String>::new(), "the product asks only for what the lab knows");
    }

    /// Requests that changed stored state, in Kubernetes and in Talos, since the counters were reset.
    pub fn writes(&self) -> u64 {
        let truth = self.lab.truth();
        truth.total("kubernetes/").writes + truth.total("talos/").writes
    }
}

/// The product without any argument, and without what the machine's environment would tell it.
pub fn bare() -> Command {
    clean(env!("CARGO_BIN_EXE_talos-ghcr"))
}

/// A program in an environment that says nothing but where programs are.
pub fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", "/nonexistent");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The exit code, -1 for a signal.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Asserts the exit code, showing all that was said otherwise.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Stdout as a document, of the shape that its schema says.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        let document = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}\n{}\n{}", self.stdout, self.stderr));
        schemas::check(&document);
        document
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        messages::collect(&stderr, &stdout);
        Self { status: output.status, stdout: stdout.into_owned(), stderr: stderr.into_owned() }
    }
}

/// A request as `METHOD target`, a gRPC method without its service.
pub fn in_words(entry: &Entry) -> String {
    format!("{} {}", entry.method.rsplit('/').next().unwrap_or_default(), entry.target)
}

/// Runs to the end, within [`LIMIT`].
pub async fn finish(mut command: Command) -> Ended {
    let child = command.kill_on_drop(true).spawn().expect("the product starts");
    ended(child).await
}

/// Waits for a started one; what it has said is shown when it does not end in time. A test that has taken one of its
/// pipes reads it itself.
pub async fn ended(mut child: Child) -> Ended {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let said = async { tokio::join!(read_all(out, &mut stdout), read_all(err, &mut stderr), child.wait()).2 };
    let status = tokio::time::timeout(LIMIT, said).await;
    let Ok(status) = status else {
        let [stdout, stderr] = [&stdout, &stderr].map(|said| String::from_utf8_lossy(said));
        panic!("it does not end in {LIMIT:?}:\n{stdout}\n{stderr}")
    };
    Output { status: status.expect("it can be waited for"), stdout, stderr }.into()
}

async fn read_all(from: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    if let Some(mut from) = from {
        from.read_to_end(into).await.expect("its output can be read");
    }
}

/// Waits in real time until `condition` holds of the lab; panics with `what` when it does not within [`LIMIT`].
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether a text holds a secret of the lab.
pub fn leaks(lab: &Lab, text: &str) -> bool {
    [lab.old_password(), lab.new_password()].iter().any(|secret| text.contains(secret))
}

/// The row of a node in the JSON of `plan` and `verify`.
#[track_caller]
pub fn row<'a>(document: &'a serde_json::Value, node: &str) -> &'a serde_json::Value {
    let rows = document["nodes"].as_array().expect("the document lists nodes");
    rows.iter().find(|row| row["name"] == node).unwrap_or_else(|| panic!("no row of {node}: {document:#}"))
}

/// Reads a file of the lab's folder.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
