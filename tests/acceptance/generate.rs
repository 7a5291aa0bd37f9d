//! What is made from the flags: completions, manual pages, and the name that kubectl knows us by.

use std::os::unix::fs::symlink;
use std::process::Stdio;

use tokio::process::Command;

use crate::harness::{bare, finish};

async fn made(args: &[&str]) -> String {
    let mut product = bare();
    product.args(args);
    let made = finish(product).await.expect(0);
    assert_eq!(made.stderr, "", "{args:?}");
    made.stdout
}

/// What bash offers for the last of these words, with our script loaded.
async fn offered(script: &str, words: &[&str]) -> Vec<String> {
    let ask = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _talos__ghcr talos-ghcr \"{}\" \"{}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2]
    );
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-c", &ask]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(bash).await.expect(0).stdout.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bash_completes_commands_flags_and_values() {
    let script = made(&["completions", "bash"]).await;
    assert_eq!(offered(&script, &["talos-ghcr", "ver"]).await, ["verify"]);
    assert_eq!(offered(&script, &["talos-ghcr", "run", "--max-un"]).await, ["--max-unavailable"]);
    assert_eq!(offered(&script, &["talos-ghcr", "run", "--takeover", "v"]).await, ["verified"]);
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = made(&["completions", shell]).await;
        assert!(script.contains("max-unavailable") && script.contains("proofs"), "{shell}");
    }
    let mut unknown = bare();
    unknown.args(["completions", "tcsh"]);
    let unknown = finish(unknown).await.expect(64);
    assert!(unknown.stderr.contains("bash, elvish, fish, powershell, zsh"), "{}", unknown.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pages = folder.path().join("man1");
    assert_eq!(made(&["man", pages.to_str().expect("UTF-8")]).await, "");
    let commands = ["", "-plan", "-run", "-verify", "-proofs", "-fences", "-doctor", "-completions", "-man"];
    for command in commands {
        let name = format!("talos-ghcr{command}");
        let page = std::fs::read_to_string(pages.join(format!("{name}.1"))).expect("a page");
        assert!(page.contains(&format!(".TH {name} 1")), "{page}");
        assert!(page.contains(".SH \"EXIT STATUS\"") && page.contains("another holds the lease"), "{page}");
    }
    assert_eq!(std::fs::read_dir(&pages).expect("the folder").count(), commands.len());
    let run = std::fs::read_to_string(pages.join("talos-ghcr-run.1")).expect("a page");
    assert!(run.contains("TALOS_GHCR_MAX_UNAVAILABLE"), "the variables are said");
    assert_eq!(made(&["man"]).await, std::fs::read_to_string(pages.join("talos-ghcr.1")).expect("a page"));

    let mut lost = bare();
    lost.args(["man", "/proc/self/none"]);
    let lost = finish(lost).await.expect(1);
    assert!(lost.stderr.contains("/proc/self/none cannot be made; name a folder"), "{}", lost.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_a_plugin_of_kubectl_it_says_the_name_that_was_typed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let link = folder.path().join("kubectl-talos_ghcr");
    symlink(env!("CARGO_BIN_EXE_talos-ghcr"), &link).expect("a link");
    let mut plugin = Command::new(&link);
    plugin.args(["run", "--no-such-flag"]).env_clear().stdout(Stdio::piped()).stderr(Stdio::piped());
    let wrong = finish(plugin).await.expect(64);
    assert!(wrong.stderr.contains("Usage: kubectl talos-ghcr run"), "{}", wrong.stderr);
}
