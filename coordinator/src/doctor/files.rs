//! The files that the flags name: which, who may read them, and what is wrong in them. And the user's own commands.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use talos_proto::chain;
use talos_proto::clock::Clock;
use tokio::process::Command;

use super::validity::validity;
use super::{Check, CredentialSource, Health, Patient};
use crate::commands::quoted;
use crate::hooks::{Hook, Hooks};
use crate::kube::api_servers::{ApiServers, Login};

/// How long `sh` may take to read a command.
const SHELL: Duration = Duration::from_secs(5);

pub(super) async fn look(patient: &Patient, clock: &Clock) -> Vec<Check> {
    let now = clock.utc();
    let mut checks = Vec::new();
    match &patient.talosconfig {
        Ok(context) => {
            let endpoints: Vec<_> = context.endpoints.iter().map(ToString::to_string).collect();
            let words = format!("{}: context {}, endpoints {}", at(&context.file), context.name, endpoints.join(", "));
            checks.push(Check::ok("talosconfig", words));
            let odd = context.warnings().iter().map(|finding| format!("{}: {finding}", at(&context.file)));
            checks.extend(odd.map(|odd| Check::warning("talosconfig", odd)));
            checks.extend(open_to_others("talosconfig", &context.file));
        }
        Err(error) => checks.push(Check::fault("talosconfig", chain(error))),
    }
    match &patient.servers {
        Ok(servers) => checks.extend(kubeconfig(servers, now)),
        Err(error) => checks.push(Check::fault("kubeconfig", chain(error))),
    }
    checks.extend(credential(patient));
    checks.extend(commands(&patient.settings.hooks, clock).await);
    checks
}

fn kubeconfig(servers: &ApiServers, now: Timestamp) -> Vec<Check> {
    let origin = servers.origin();
    let (host, port) = servers.server();
    let server = format!("server {host}:{port}");
    let files: Vec<_> = origin.files.iter().map(|file| at(file)).collect();
    let mut checks = vec![Check::ok(
        "kubeconfig",
        match &origin.context {
            Some(context) => format!("{}: context {context}, {server}", files.join(", ")),
            None => format!("the service account of this pod, {server}"),
        },
    )];
    checks.extend(servers.warnings().iter().map(|odd| Check::warning("kubeconfig", odd.clone())));
    checks.extend(origin.files.iter().filter_map(|file| open_to_others("kubeconfig", file)));
    checks.extend(login(&origin.login, now));
    checks
}

/// Pure. That requests are anonymous is among the kubeconfig's warnings.
fn login(login: &Login, now: Timestamp) -> Option<Check> {
    const NAME: &str = "kubernetes identity";
    let how = login.how.as_ref()?;
    let Some(until) = login.until else {
        let by = if login.by_plugin { ", by a credential plugin" } else { "" };
        return Some(Check::ok(NAME, format!("{how}{by}; it does not say when it runs out")));
    };
    let (health, words) = validity(login.from, until, now);
    // It is made anew for each run.
    if login.by_plugin && health != Health::Fault {
        return Some(Check::ok(NAME, format!("{how}, by a credential plugin, until {until}")));
    }
    let check = Check::new(NAME, health, format!("{how}, {words}"));
    Some(if health == Health::Ok { check } else { check.next("talosctl --nodes CONTROL_PLANE kubeconfig FILE") })
}

fn credential(patient: &Patient) -> Vec<Check> {
    let source = match &patient.credential_source {
        CredentialSource::File(file) => at(file),
        CredentialSource::Stdin => "stdin".to_owned(),
        CredentialSource::Variable(name) => (*name).to_owned(),
    };
    let mut checks = Vec::new();
    match &patient.credential {
        Ok(Some(desired)) => {
            let kinds: Vec<_> = desired.iter().map(|(host, it)| format!("{} for {host}", it.kind())).collect();
            checks.push(Check::ok("credential", format!("{source}: {}", kinds.join(", "))));
        }
        Ok(None) => {
            let words =
                "none was given, which run needs: what the nodes have is not compared with it, and no registry asked";
            let next = format!("--credential-file PATH, or its content in {source}");
            return vec![Check::warning("credential", words).next(next)];
        }
        Err(why) => checks.push(Check::fault("credential", why.clone())),
    }
    if let CredentialSource::File(file) = &patient.credential_source {
        checks.extend(open_to_others("credential", file));
    }
    checks
}

/// A file with a key in it that others of this machine may read.
fn open_to_others(name: &'static str, file: &Path) -> Option<Check> {
    let metadata = std::fs::metadata(file).ok()?;
    let mode = metadata.permissions().mode() & 0o777;
    // What is no file, such as the pipe of a shell's <(…), is gone when it was read.
    let open = metadata.is_file().then(|| readers(mode)).flatten()?;
    let words = format!("{}: {open} may read it (mode {mode:04o}), and there is a secret in it", at(file));
    Some(Check::warning(name, words).next(format!("chmod 600 {}", quoted(&at(file)))))
}

/// Who may read a file of that mode besides its owner.
fn readers(mode: u32) -> Option<&'static str> {
    match (mode & 0o040, mode & 0o004) {
        (_, 0o004) => Some("everybody on this machine"),
        (0o040, _) => Some("its group"),
        _ => None,
    }
}

/// The user's commands: that `sh` is there and can read them. None is run.
async fn commands(hooks: &Hooks, clock: &Clock) -> Vec<Check> {
    let all = [Hook::Check, Hook::Before, Hook::Gate, Hook::After];
    let given: Vec<_> = all.into_iter().filter_map(|hook| Some((hook, hooks.command(hook)?))).collect();
    let mut checks = Vec::new();
    let mut fine = Vec::new();
    for (hook, command) in given {
        match readable(command, clock).await {
            Ok(()) => fine.push(hook.to_string()),
            Err(why) => checks.push(Check::fault("commands", format!("{hook}: {why}"))),
        }
    }
    if !fine.is_empty() {
        checks.insert(0, Check::ok("commands", format!("{}: sh can read them; none was run", fine.join(", "))));
    }
    checks
}

async fn readable(command: &str, clock: &Clock) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut sh = Command::new("sh");
    sh.args(["-n", "-c", command]).env_clear().env("PATH", path).kill_on_drop(true);
    let read = sh.stdin(Stdio::null()).output();
    let output = match clock.timeout(SHELL, read).await {
        Ok(output) => output.map_err(|error| format!("sh cannot be started: {error}"))?,
        Err(_) => return Err(format!("sh did not read it within {SHELL:?}")),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default().trim();
    if output.status.success() { Ok(()) } else { Err(format!("sh cannot read it: {said}")) }
}

fn at(file: &Path) -> String {
    PathBuf::from(file).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_read_a_file_besides_its_owner() {
        let cases = [
            (0o600, None),
            (0o700, None),
            (0o640, Some("its group")),
            (0o644, Some("everybody on this machine")),
            (0o604, Some("everybody on this machine")),
            (0o622, None),
        ];
        for (mode, readers) in cases {
            assert_eq!(super::readers(mode), readers, "{mode:o}");
        }
    }

    #[tokio::test]
    async fn a_command_is_read_by_the_shell_and_not_run() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        let proof = dir.path().join("ran");
        assert_eq!(readable(&format!("touch {}", proof.display()), &clock).await, Ok(()));
        assert!(!proof.exists(), "it was run");
        let why = readable("if true; then", &clock).await.unwrap_err();
        assert!(why.starts_with("sh cannot read it: "), "{why}");
    }
}
