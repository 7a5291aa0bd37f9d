//! `talos-ghcr-lab` as a person uses it: the process, its files, and what it prints.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A lab that is killed when a test fails.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
    }
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_talos-ghcr-lab"))
}

/// Starts one and reads what it prints until it is ready.
fn up(dir: &Path) -> (Up, Vec<String>) {
    let mut command = program();
    command.args(["up", "--control-planes", "1", "--workers", "1", "--dir"]).arg(dir).stdout(Stdio::piped());
    let mut lab = command.spawn().expect("the lab starts");
    let stdout = BufReader::new(lab.stdout.take().expect("it has a stdout"));
    let mut lines = Vec::new();
    for line in stdout.lines() {
        lines.push(line.expect("its output can be read"));
        if lines.last().is_some_and(|line| line.starts_with("ready: ")) {
            break;
        }
    }
    (Up(lab), lines)
}

#[test]
fn it_says_its_nodes_points_a_shell_at_itself_and_ends_when_it_is_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    // A shell reads this name in a file.
    let place = dir.path().join("it's a lab");
    let (mut lab, lines) = up(&place);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("cp-1 ") && lines[1].starts_with("worker-1 "), "{lines:?}");

    let mut shell = Command::new("sh");
    shell.args(["-ec", r#". "$1/env"; cat "$KUBECONFIG" "$SSL_CERT_FILE" > /dev/null; echo "$TALOSCONFIG|$TALOS_GHCR_CREDENTIAL_FILE|$TALOS_GHCR_IMAGE|$TALOS_GHCR_REGISTRY""#, "sh"]);
    let said = shell.arg(&place).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8(said.stdout).unwrap();
    let [talosconfig, credential, image, registry] = &said.trim().split('|').collect::<Vec<_>>()[..] else {
        panic!("{said}")
    };
    let place = place.canonicalize().unwrap();
    assert_eq!(Path::new(talosconfig), place.join("talosconfig"));
    assert_eq!(Path::new(credential), place.join("credential-new.json"));
    assert!(image.starts_with(&format!("{registry}/")), "{image} is of {registry}");

    let truth = program().args(["truth", "--dir"]).arg(&place).output().unwrap();
    let truth: serde_json::Value = serde_json::from_slice(&truth.stdout).expect("one JSON document");
    assert_eq!(truth["nodes"][1]["name"], "worker-1");

    kill_process(Pid::from_child(&lab.0), Signal::INT).unwrap();
    assert!(lab.0.wait().unwrap().success());
    assert!(!place.join("ready").exists(), "nobody takes it for a lab that is up");
    let truth = program().args(["truth", "--dir"]).arg(&place).output().unwrap();
    assert!(!truth.status.success() && String::from_utf8_lossy(&truth.stderr).contains("no lab answers in"));
}
