//! Credential plugins (`exec`): a program that prints an `ExecCredential`.
//!
//! kube would run it without a time limit, with our whole environment, and show its stdout, which may be a token, when
//! it fails. So it is run here: never interactively, in its own process group, which is killed at the time limit, and
//! without the variables `TALOS_GHCR_*` and the tokens for GitHub. Protocol: client-go `pkg/apis/clientauthentication/v1/types.go`.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use talos_proto::clock::short;

use jiff::Timestamp;
use kube::config::AuthInfo;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use talos_proto::clock::Clock;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::cluster::Cluster;
use super::fields::At;
use super::{KubeconfigError, Sources, pem, user};
use crate::children::is_kept_from;

/// The most that is kept of each stream.
const KEPT: u64 = 1 << 20;
/// The most of stderr that is shown, in characters: its end.
const SHOWN: usize = 2_000;
/// How long stderr may stay open after the end of the plugin: something in the background may hold it.
const STDERR_GRACE: Duration = Duration::from_millis(200);

/// A plugin as the kubeconfig describes it.
pub(super) struct Plugin<'a> {
    at: At<'a>,
    command: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    version: &'a str,
    hint: Option<&'a str>,
    /// `KUBERNETES_EXEC_INFO`.
    info: Json,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    kind: Option<String>,
    api_version: Option<String>,
    status: Option<Status>,
}

#[derive(Deserialize, ZeroizeOnDrop)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

struct Output {
    status: ExitStatus,
    stdout: Zeroizing<Vec<u8>>,
}

impl<'a> Plugin<'a> {
    pub(super) fn read(user: &At<'a>, cluster: &Cluster) -> Result<Option<Self>, KubeconfigError> {
        let Some(at) = user.mapping("exec")? else { return Ok(None) };
        let command =
            at.text("command")?.ok_or_else(|| at.fault("command", "is not set; name the plugin's program"))?;
        // As in client-go, only a name with a slash is a path, and starts at the file; others are looked up in PATH.
        let program = if command.contains('/') { at.resolve(command) } else { PathBuf::from(command) };
        let version = at.text("apiVersion")?.unwrap_or_default();
        if !matches!(version, "client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1") {
            return Err(at.fault("apiVersion", "must be client.authentication.k8s.io/v1 or …/v1beta1"));
        }
        match at.text("interactiveMode")? {
            None | Some("Never" | "IfAvailable") => {}
            Some("Always") => {
                let problem = "Always is not supported: the plugin is given no terminal; log in with it beforehand and \
                               set IfAvailable, or use another context";
                return Err(at.fault("interactiveMode", problem));
            }
            Some(_) => return Err(at.fault("interactiveMode", "must be Never or IfAvailable")),
        }
        let mut environment = Vec::new();
        for variable in at.mappings("env")? {
            let name = variable.text("name")?.ok_or_else(|| variable.fault("name", "is not set"))?;
            if name.contains('=') {
                return Err(variable.fault("name", "has a = in it, which no variable's name has"));
            }
            environment.push((name.to_owned(), variable.exact("value")?.to_owned()));
        }
        let mut spec = json!({ "interactive": false });
        if at.flag("provideClusterInfo")? {
            spec["cluster"] = cluster.info.clone();
        }
        let info = json!({ "apiVersion": version, "kind": "ExecCredential", "spec": spec });
        let (arguments, hint) = (at.texts("args")?, at.text("installHint")?);
        Ok(Some(Self { at, command: command.to_owned(), program, arguments, environment, version, hint, info }))
    }

    /// Runs it and takes over what it prints. A plugin may print what it had cached and what is over by now: it is run
    /// once more then. Answers when the credential is over, if it says so.
    pub(super) async fn log_in(
        &self,
        sources: &Sources,
        clock: &Clock,
        user: &mut AuthInfo,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Timestamp>, KubeconfigError> {
        let mut status = self.run(sources, clock).await?;
        let mut until = self.until(&status)?;
        if until.is_some_and(|until| until <= clock.utc()) {
            status = self.run(sources, clock).await?;
            until = self.until(&status)?;
        }
        if let Some(until) = until {
            if until <= clock.utc() {
                return Err(self.failed(&format!("gave twice a credential that was over at {until}: log in anew"), ""));
            }
            let (file, path) = (self.at.file.display(), &self.at.path);
            warnings.push(format!(
                "kubeconfig {file}: {path}: the credential of {} is valid until {until} and not renewed before a run ends",
                self.command
            ));
        }
        let set =
            |text: &Option<String>| text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        let (token, certificate, key) =
            (set(&status.token), set(&status.client_certificate_data), set(&status.client_key_data));
        match (&certificate, &key) {
            (Some(certificate), Some(key)) => {
                let certificate = pem::Source::given("(plugin).status.clientCertificateData", certificate);
                let key = pem::Source::given("(plugin).status.clientKeyData", key);
                pem::identity(&self.at, &certificate, &key, clock.utc(), user)?;
            }
            (None, None) if token.is_some() => {}
            (None, None) => return Err(self.failed("answered with neither status.token nor a client certificate", "")),
            _ => return Err(self.failed("answered with half of status.clientCertificateData and clientKeyData", "")),
        }
        if let Some(token) = token {
            user.token = Some(user::checked(&self.at, "(plugin).status.token", &Zeroizing::new(token))?);
        }
        Ok(until)
    }

    fn until(&self, status: &Status) -> Result<Option<Timestamp>, KubeconfigError> {
        let Some(text) = &status.expiration_timestamp else { return Ok(None) };
        let until =
            text.parse().map_err(|_| self.failed("answered with an expirationTimestamp that is not RFC 3339", ""))?;
        Ok(Some(until))
    }

    async fn run(&self, sources: &Sources, clock: &Clock) -> Result<Status, KubeconfigError> {
        let mut child = self.spawn(&sources.environment).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let hint = self.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                let place = if self.command.contains('/') {
                    format!("there is no {}", self.program.display())
                } else {
                    "it is not in PATH".to_owned()
                };
                self.failed(&format!("is not installed: {place}{hint}"), "")
            }
            _ => self.failed(&format!("cannot be started: {error}"), ""),
        })?;
        let group = Pid::from_child(&child);
        let errors = Arc::new(Mutex::new(Vec::new()));
        let said = || String::from_utf8_lossy(&errors.lock().unwrap_or_else(PoisonError::into_inner)).into_owned();
        let stderr = child.stderr.take().map(|stderr| keep(stderr, Arc::clone(&errors)));
        let mut work = tokio::task::spawn_blocking(move || collect(child, stderr.as_ref()));
        let Ok(done) = clock.timeout(sources.plugin_limit, &mut work).await else {
            // It may have ended just now.
            let _ = kill_process_group(group, Signal::KILL);
            let _ = clock.timeout(Duration::from_secs(2), work).await;
            return Err(self.failed(&format!("was killed: no answer within {}", short(sources.plugin_limit)), &said()));
        };
        let output = done.map_err(io::Error::from).flatten();
        let output = output.map_err(|error| self.failed(&format!("cannot be read: {error}"), &said()))?;
        if !output.status.success() {
            return Err(self.failed(&format!("failed ({})", output.status), &said()));
        }
        self.parse(&output.stdout).map_err(|problem| self.failed(&problem, &said()))
    }

    fn spawn(&self, environment: &[(OsString, OsString)]) -> io::Result<Child> {
        let passed = environment.iter().filter(|(name, _)| !is_kept_from(name));
        Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(passed.map(|(name, value)| (name, value)))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", self.info.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    }

    /// The answer, JSON or YAML, for client-go reads both. Its text is never part of a message.
    fn parse(&self, stdout: &[u8]) -> Result<Status, String> {
        let answer: Answer = serde_json::from_slice(stdout)
            .or_else(|_| serde_yaml::from_slice(stdout))
            .map_err(|_| "answered on stdout with what is no ExecCredential".to_owned())?;
        if answer.kind.as_deref().is_some_and(|kind| kind != "ExecCredential") {
            return Err("answered with another kind than ExecCredential".to_owned());
        }
        if answer.api_version.as_deref().is_some_and(|version| version != self.version) {
            return Err(format!("answered with another apiVersion than {}, which is asked for", self.version));
        }
        answer.status.ok_or_else(|| "answered without a status".to_owned())
    }

    fn failed(&self, problem: &str, stderr: &str) -> KubeconfigError {
        KubeconfigError::Plugin {
            file: self.at.file.to_owned(),
            path: self.at.path.clone(),
            command: self.command.clone(),
            problem: problem.to_owned(),
            stderr: introduced(stderr),
        }
    }
}

/// The end of stderr in one line.
fn introduced(stderr: &str) -> String {
    let lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" | ");
    let line: Vec<char> = line.chars().filter(|it| !it.is_control()).collect();
    let end: String = line[line.len().saturating_sub(SHOWN)..].iter().collect();
    if end.is_empty() { String::new() } else { format!("; it says: {end}") }
}

/// Reads a stream on a thread of its own into `into`; the receiver hears when it has ended.
fn keep(mut stream: impl Read + Send + 'static, into: Arc<Mutex<Vec<u8>>>) -> Receiver<()> {
    let (ended, hears) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&buffer[..count]);
            let excess = kept.len().saturating_sub(SHOWN * 8);
            kept.drain(..excess);
        }
        // Nobody may be listening any more.
        let _ = ended.send(());
    });
    hears
}

/// Waits for the end.
fn collect(mut child: Child, stderr: Option<&Receiver<()>>) -> io::Result<Output> {
    let mut stdout = Zeroizing::new(Vec::new());
    if let Some(mut stream) = child.stdout.take() {
        stream.by_ref().take(KEPT).read_to_end(&mut stdout)?;
        io::copy(&mut stream, &mut io::sink())?;
    }
    let status = child.wait()?;
    if let Some(stderr) = stderr {
        let _ = stderr.recv_timeout(STDERR_GRACE);
    }
    Ok(Output { status, stdout })
}
