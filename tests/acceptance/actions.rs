//! Inside of GitHub Actions: P03.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab::Held;
use lab::cluster::USER;
use tokio::process::Command;

use crate::action::runner::written;
use crate::harness::{Bed, Ended, bare, finish, read};
use crate::scene::{only_stale, two_workers};

/// `run` as a step of a workflow.
fn step(bed: &Bed, more: &[&str]) -> Command {
    let mut run = bed.roll(more);
    run.env("GITHUB_ACTIONS", "true");
    for (variable, file) in [("GITHUB_OUTPUT", "output"), ("GITHUB_STEP_SUMMARY", "summary")] {
        run.env(variable, bed.write(file, ""));
    }
    run
}

/// The commands that the runner obeys, with their values decoded: none while it was told to stop.
pub fn obeyed(ended: &Ended) -> Vec<(String, String)> {
    let mut stopped: Option<String> = None;
    let mut commands = Vec::new();
    for line in ended.stderr.lines().chain(ended.stdout.lines()) {
        let Some((name, value)) = line.strip_prefix("::").and_then(|rest| rest.split_once("::")) else { continue };
        match &stopped {
            Some(token) if name == token => stopped = None,
            Some(_) => {}
            None if name == "stop-commands" => stopped = Some(value.to_owned()),
            None => {
                let value = value.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%");
                commands.push((name.to_owned(), value));
            }
        }
    }
    commands
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_in_actions_secrets_are_masked_first_and_outputs_and_a_summary_are_written() {
    let bed = only_stale(&["worker-1"]).await;
    // What others print is no command.
    let evil = "echo '::error::evil'; echo '::add-mask::e'; echo '::set-output name=changed::no'";
    let done = finish(step(&bed, &["--before-command", evil])).await.expect(0);
    let both = STANDARD.encode(format!("{USER}:{}", bed.lab.new_password()));
    let first: Vec<&str> = done.stderr.lines().take(2).collect();
    let masks = [format!("::add-mask::{}", bed.lab.new_password()), format!("::add-mask::{both}")];
    assert_eq!(first, masks, "before anything else");
    let rest: String = done.stderr.lines().skip(2).collect();
    assert!(!rest.contains(bed.lab.new_password()) && !rest.contains(&both), "nowhere else");
    assert!(!done.stdout.contains(bed.lab.new_password()));
    let names: Vec<String> = obeyed(&done).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["add-mask", "add-mask", "group", "endgroup"], "{}", done.stderr);
    let outputs = written(&bed.lab.dir().join("output"));
    let of = |name: &str| outputs.get(name).map(String::as_str);
    assert_eq!((of("changed"), of("rebooted"), of("unproved")), (Some("true"), Some("worker-1"), Some("")));
    assert_eq!(of("revision").map(str::len), Some(32));
    let summary = read(&bed.lab.dir().join("summary"));
    assert!(
        summary.starts_with("### talos-ghcr run: done") && summary.contains("| worker-1 | rebooted | "),
        "{summary}"
    );
    let away = summary.lines().find_map(|line| line.strip_prefix("| worker-1 | rebooted | "));
    assert!(away.is_some_and(|away| away.ends_with("s |")), "how long it was away: {summary}");
    assert!(summary.contains("| workers | ") && summary.contains("| lease | "), "how long each phase took: {summary}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_in_actions_a_failure_explains_itself_in_one_annotation() {
    let bed = two_workers().await;
    bed.lab.registry().revoke(USER, bed.lab.new_password());
    let failed = finish(step(&bed, &[])).await.expect(1);
    let errors: Vec<_> = obeyed(&failed).into_iter().filter(|(name, _)| name.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "{}", failed.stderr);
    for words in ["exit code 1", "the credential was written nowhere", "Next: "] {
        assert!(errors[0].1.contains(words), "{words}: {errors:?}");
    }
    assert!(bed.lab.truth().nodes.iter().all(|node| node.configured == Held::Old));
    // Before anything is known as well.
    let mut unread = step(&bed, &[]);
    unread.arg("--context").arg("nobody");
    let unread = finish(unread).await;
    let errors: Vec<_> = obeyed(&unread).into_iter().filter(|(name, _)| name.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "{}", unread.stderr);
    assert!(errors[0].1.contains("nobody"), "{errors:?}");
    // The steps after it can read that nothing was changed.
    let outputs = written(&bed.lab.dir().join("output"));
    assert_eq!(outputs.get("changed").map(String::as_str), Some("false"), "{outputs:?}");
    assert!(read(&bed.lab.dir().join("summary")).contains("failed before it began"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_in_actions_what_only_looks_masks_too_and_says_what_does_not_hold() {
    let bed = two_workers().await;
    let mut verify = bed.command("verify", &["-n", "worker-1"]);
    verify.env("GITHUB_ACTIONS", "true");
    let differs = finish(verify).await.expect(2);
    let told = obeyed(&differs);
    let names: Vec<&str> = told.iter().map(|(name, _)| name.split(' ').next().expect("a name")).collect();
    assert_eq!(names, ["add-mask", "add-mask", "error"], "{}", differs.stderr);
    assert!(told[2].1.starts_with("worker-1: configured: another credential for"), "{told:?}");

    let mut typed = bare();
    typed.args(["run", "--drain-timeout", "10"]).env("GITHUB_ACTIONS", "true");
    let typed = finish(typed).await.expect(64);
    assert!(obeyed(&typed).iter().any(|(name, text)| name.starts_with("error") && text.contains("--drain-timeout")));
}
