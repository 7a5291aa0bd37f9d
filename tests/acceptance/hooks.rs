//! The user's own commands: H01 to H05.

use std::time::Duration;

use futures::FutureExt as _;
use lab::Held;
use rustix::process::Signal;

use crate::harness::{Bed, Ended, ended, eventually, leaks};
use crate::scene::{Gate, Story, lease_is_held, only_stale, requests, side_by_side, signal, two_workers};
use lab::faults::When::Before;

/// What the commands of a test leave in the lab's folder, one line each.
struct Notes<'a> {
    bed: &'a Bed,
}

impl Notes<'_> {
    fn path(&self, name: &str) -> String {
        self.bed.lab.dir().join(name).display().to_string()
    }

    /// A command that notes a line and does something else then.
    fn command(&self, line: &str, then: &str) -> String {
        format!("echo \"{line}\" >> {}; {then}", self.path("notes"))
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("notes")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

const AFTER: &str = "after $TALOS_GHCR_RESULT changed=$TALOS_GHCR_CHANGED";

/// A cluster that is done, so that nothing but a command can find something.
async fn done_bed() -> Bed {
    let bed = Bed::proved(|options| (options.control_planes, options.workers) = (1, 1)).await;
    bed.lab.reset_counters();
    bed
}

async fn run_old(bed: &Bed, more: &[String]) -> Ended {
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    bed.product_with_old("run", &more).await
}

fn flags(pairs: &[(&str, String)]) -> Vec<String> {
    pairs.iter().flat_map(|(flag, value)| [format!("--{flag}-command"), value.clone()]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h01_the_check_is_asked_where_nothing_differs_and_its_answer_decides() {
    let bed = done_bed().await;
    let notes = Notes { bed: &bed };
    // Clean: nothing is written, nothing else is called.
    let all = |code: u8| {
        flags(&[
            ("check", notes.command("check", &format!("exit {code}"))),
            ("before", notes.command("before", "")),
            ("after", notes.command(AFTER, "")),
        ])
    };
    let done = run_old(&bed, &all(0)).await.expect(0);
    assert!(done.stdout.contains("Nothing to do"), "{}", done.stdout);
    assert_eq!((notes.lines(), bed.writes()), (vec!["check".to_owned()], 0));
    // Neither clean nor drift: a fault, and nothing is written.
    for (code, words) in [(3, "--check-command ended with exit code 3"), (1, "ended with exit code 1")] {
        let failed = run_old(&bed, &all(code)).await.expect(1);
        assert!(failed.stderr.contains(words), "{}", failed.stderr);
        assert_eq!(bed.writes(), 0);
    }
    // The plan asks, too, and calls nothing else.
    let before = notes.lines().len();
    let more = all(10);
    let more: Vec<&str> = more.iter().map(String::as_str).chain(["--detailed-exitcode"]).collect();
    let plan = bed.product_with_old("plan", &more).await.expect(2);
    assert!(plan.stdout.contains("--check-command finds something to do"), "{}", plan.stdout);
    assert_eq!((notes.lines().split_off(before), bed.writes()), (vec!["check".to_owned()], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h01_h02_drift_takes_the_lease_and_calls_the_rest_until_the_check_is_content() {
    let bed = done_bed().await;
    let notes = Notes { bed: &bed };
    let mended = notes.path("mended");
    // Asked until the after-command has mended it, which takes it two rounds.
    let check = notes.command("check", &format!("test -e {mended} || exit 10"));
    let after =
        notes.command(AFTER, &format!("test -e {mended}.half || {{ touch {mended}.half; exit 10; }}; touch {mended}"));
    let before = notes.command("before", "");
    let all = flags(&[("check", check), ("before", before), ("after", after)]);
    let done = run_old(&bed, &all).await.expect(0);
    assert!(done.stderr.contains("lease kube-system/talos-ghcr taken"), "{}", done.stderr);
    assert!(done.stderr.contains("asks for one more round"), "{}", done.stderr);
    let lines = notes.lines();
    let calls: Vec<&str> = lines.iter().map(String::as_str).filter(|line| *line != "check").collect();
    assert_eq!(calls, ["before", "after done changed=false", "after done changed=false"]);
    assert_eq!(lines.last().map(String::as_str), Some("check"), "what it was for is looked at in the end");
    assert!(!lease_is_held(&bed));
    assert!(bed.lab.truth().nodes.iter().all(|node| node.boots == 0 && node.fence.is_none()));

    // Never content: a fault that says so.
    std::fs::remove_file(&mended).expect("it is there");
    let never = flags(&[("check", "exit 10".to_owned()), ("after", "true".to_owned())]);
    let failed = run_old(&bed, &never).await.expect(1);
    assert!(failed.stderr.contains("--check-command still finds something to do"), "{}", failed.stderr);
    assert!(!lease_is_held(&bed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h02_the_after_command_is_called_at_whatever_end_once_the_before_command_was() {
    let done = async {
        let bed = only_stale(&["worker-1"]).await;
        let notes = Notes { bed: &bed };
        let held = format!("test -s {}", notes.path("kubeconfig"));
        let all = flags(&[("before", notes.command("before", &held)), ("after", notes.command(AFTER, ""))]);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        bed.run(&all).await.expect(0);
        assert_eq!(notes.lines(), ["before", "after done changed=true"]);
        assert_eq!(bed.truth_of("worker-1").boots, 1);
    };
    let before_fails = async {
        let bed = two_workers().await;
        let notes = Notes { bed: &bed };
        let all = flags(&[("before", notes.command("before", "exit 7")), ("after", notes.command(AFTER, ""))]);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let failed = bed.run(&all).await.expect(1);
        assert!(
            failed.stderr.contains("--before-command ended with exit code 7; nothing was changed"),
            "{}",
            failed.stderr
        );
        assert_eq!(notes.lines(), ["before", "after failed changed=false"]);
        assert!(bed.lab.truth().nodes.iter().all(|node| node.configured == Held::Old && node.boots == 0));
        assert!(!lease_is_held(&bed));
    };
    let after_fails = async {
        let bed = only_stale(&["worker-1"]).await;
        let notes = Notes { bed: &bed };
        let all = flags(&[("after", notes.command(AFTER, "exit 4"))]);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let failed = bed.run(&all).await.expect(1);
        assert!(failed.stderr.contains("--after-command ended with exit code 4"), "{}", failed.stderr);
        assert_eq!(notes.lines(), ["after done changed=true"]);
        assert!(!lease_is_held(&bed));
    };
    let stopped = async {
        let bed = only_stale(&["worker-1"]).await;
        let notes = Notes { bed: &bed };
        let mut gate = Gate::new(&bed);
        let all = flags(&[("before", notes.command("before", "")), ("after", notes.command(AFTER, ""))]);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let child = bed.start(&all);
        let held = gate.hold(Before, "eviction", 1).await;
        signal(&child, Signal::TERM);
        drop(gate);
        held.release();
        ended(child).await.expect(143);
        assert_eq!(notes.lines(), ["before", "after stopped changed=true"]);
        assert!(!lease_is_held(&bed) && bed.truth_of("worker-1").fence.is_none());
    };
    let refused = async {
        let bed = two_workers().await;
        let notes = Notes { bed: &bed };
        bed.lab.registry().revoke(lab::cluster::USER, bed.lab.new_password());
        let all = flags(&[("before", notes.command("before", "")), ("after", notes.command(AFTER, ""))]);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        bed.run(&all).await.expect(1);
        assert_eq!(notes.lines(), Vec::<String>::new(), "neither is called before the lease is taken");
    };
    let cases = [
        ("done", done.boxed()),
        ("the before-command fails", before_fails.boxed()),
        ("the after-command fails", after_fails.boxed()),
        ("stopped by a signal", stopped.boxed()),
        ("refused", refused.boxed()),
    ];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

/// The process that a command has left its number of in a file.
fn runs(notes: &Notes<'_>, file: &str) -> bool {
    let text = std::fs::read_to_string(notes.path(file)).unwrap_or_default();
    let Some(pid) = text.trim().parse().ok().and_then(rustix::process::Pid::from_raw) else { return false };
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // A zombie has been killed.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Runs for ever, with a child that does not die with its shell.
fn endless(notes: &Notes<'_>) -> String {
    format!("sleep 1000 & echo $! > {}; echo $$ > {}; wait", notes.path("child"), notes.path("shell"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h03_a_command_that_takes_too_long_or_outlives_the_lease_or_us_is_killed_with_all_that_it_started() {
    let too_long = async {
        let bed = two_workers().await;
        let notes = Notes { bed: &bed };
        let all = ["--before-command", &endless(&notes), "--hook-timeout", "1s"];
        let failed = bed.run(&all).await.expect(1);
        assert!(failed.stderr.contains("--before-command was killed after 1s (--hook-timeout)"), "{}", failed.stderr);
        eventually("all of it is gone", || !runs(&notes, "child") && !runs(&notes, "shell")).await;
        assert!(bed.lab.truth().nodes.iter().all(|node| node.configured == Held::Old));
        assert!(!lease_is_held(&bed));
    };
    let lapsed = async {
        let bed = two_workers().await;
        let notes = Notes { bed: &bed };
        let child = bed.start(&["--before-command", &endless(&notes)]);
        eventually("it runs", || runs(&notes, "child")).await;
        let server = bed.lab.server("cp-1").cloned().expect("it serves");
        server.cut_off(true);
        eventually("all of it is gone", || !runs(&notes, "child") && !runs(&notes, "shell")).await;
        server.cut_off(false);
        let lost = ended(child).await.expect(5);
        assert!(lost.stderr.contains("--before-command was killed: the lease had lapsed"), "{}", lost.stderr);
        assert!(bed.lab.truth().nodes.iter().all(|node| node.configured == Held::Old));
    };
    let killed = async {
        let bed = two_workers().await;
        let notes = Notes { bed: &bed };
        let child = bed.start(&["--before-command", &endless(&notes)]);
        eventually("it runs", || runs(&notes, "child")).await;
        crate::scene::kill(child).await;
        eventually("all of it is gone", || !runs(&notes, "child") && !runs(&notes, "shell")).await;
    };
    let stopped_twice = async {
        let bed = two_workers().await;
        let notes = Notes { bed: &bed };
        let child = bed.start(&["--after-command", &endless(&notes)]);
        eventually("the after-command runs", || runs(&notes, "child")).await;
        signal(&child, Signal::INT);
        tokio::time::sleep(Duration::from_millis(200)).await;
        signal(&child, Signal::INT);
        ended(child).await.expect(130);
        eventually("all of it is gone", || !runs(&notes, "child") && !runs(&notes, "shell")).await;
    };
    let cases = [
        ("too long", too_long.boxed()),
        ("the lease lapsed", lapsed.boxed()),
        ("we are killed", killed.boxed()),
        ("stopped twice", stopped_twice.boxed()),
    ];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h04_a_command_is_given_no_secret_and_its_output_goes_to_stderr_alone() {
    let bed = only_stale(&["worker-1"]).await;
    let notes = Notes { bed: &bed };
    let look = |name: &str| {
        format!(
            "env > {0}/{name}.env; tr '\\0' '\\n' < /proc/$PPID/cmdline > {0}/{name}.parent; echo said-by-{name}; echo told-by-{name} >&2",
            bed.lab.dir().display()
        )
    };
    let password = bed.lab.new_password();
    let auths = std::fs::read_to_string(bed.lab.credential_file(Held::New)).expect("it is there");
    let all = flags(&[
        ("check", look("check")),
        ("before", look("before")),
        ("gate", look("gate")),
        ("after", look("after")),
    ]);
    let mut run = bed.roll(&all.iter().map(String::as_str).collect::<Vec<_>>());
    run.env("GH_TOKEN", "canary-token").env("GITHUB_TOKEN", "canary-token").env("TALOS_GHCR_CREDENTIAL", &auths);
    run.env("MY_DOCKER_CONFIG", &auths).env("MY_PASSWORD", format!("x{password}y")).env("MY_OWN", "kept");
    let done = crate::harness::finish(run).await.expect(0);
    for name in ["check", "before", "gate", "after"] {
        let environment = std::fs::read_to_string(notes.path(&format!("{name}.env"))).expect("it was called");
        for secret in ["canary-token", password, "MY_PASSWORD", "MY_DOCKER_CONFIG", "TALOS_GHCR_CREDENTIAL"] {
            assert!(!environment.contains(secret), "{name} is given {secret}");
        }
        assert!(
            environment.contains("MY_OWN=kept") && environment.contains(&format!("TALOS_GHCR_HOOK={name}")),
            "{name}"
        );
        assert_eq!(environment.contains("TALOS_GHCR_NODE=worker-1"), name == "gate", "{name}");
        for line in [format!("--{name}-command: said-by-{name}"), format!("--{name}-command: told-by-{name}")] {
            assert!(done.stderr.contains(&line), "{line}: {}", done.stderr);
        }
        assert!(!done.stdout.contains("said-by"), "{}", done.stdout);
    }
    assert!(!leaks(&bed.lab, &done.stderr) && !leaks(&bed.lab, &done.stdout));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h05_a_gate_that_a_command_keeps_closed_is_waited_for_within_its_budget_and_says_so() {
    let opens = async {
        let bed = only_stale(&["worker-1"]).await;
        let notes = Notes { bed: &bed };
        let story = Story::begin(&bed);
        let open = notes.path("open");
        let gate = notes.command("gate $TALOS_GHCR_NODE", &format!("test -e {open}"));
        let child = bed.start(&["--gate-command", &gate, "--gate-timeout", "30s"]);
        eventually("it was asked twice", || notes.lines().len() >= 2).await;
        assert!(story.fenced("worker-1").is_empty(), "nothing is disturbed behind a closed gate");
        std::fs::write(&open, "").expect("the lab's folder can be written");
        let done = ended(child).await.expect(0);
        let words = "gate closed: --gate-command ended with exit code 1; waiting up to";
        assert_eq!(done.stderr.matches(words).count(), 1, "said once: {}", done.stderr);
        assert!(notes.lines().iter().all(|line| line == "gate worker-1"), "{:?}", notes.lines());
        assert_eq!(bed.truth_of("worker-1").boots, 1);
    };
    let stays_closed = async {
        let bed = only_stale(&["worker-1"]).await;
        let stopped = bed.run(&["--gate-command", "exit 1", "--gate-timeout", "1s"]).await.expect(4);
        assert!(stopped.stderr.contains("gate: --gate-command ended with exit code 1"), "{}", stopped.stderr);
        let node = bed.truth_of("worker-1");
        assert_eq!((node.boots, node.fence, node.cordoned), (0, None, false));
        assert!(requests(&bed, "Reboot", "worker-1").is_empty() && !lease_is_held(&bed));
    };
    // Open for the claim, closed when the reboot is to be asked for: the node is given back.
    let closes = async {
        let bed = only_stale(&["worker-1"]).await;
        let notes = Notes { bed: &bed };
        let first = notes.path("first");
        let gate = format!("test -e {first} && exit 1; touch {first}");
        bed.run(&["--gate-command", &gate, "--gate-timeout", "1s"]).await.expect(4);
        let node = bed.truth_of("worker-1");
        assert_eq!((node.boots, node.fence, node.cordoned), (0, None, false));
    };
    let cases = [("opens", opens.boxed()), ("stays closed", stays_closed.boxed()), ("closes", closes.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

/// Somebody who always wants one more round gets as many as are allowed, and the run says what it ended by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h02_a_run_that_is_never_done_ends_after_max_rounds_and_gives_the_lease_back() {
    let bed = done_bed().await;
    let notes = Notes { bed: &bed };
    let mut all = flags(&[("check", notes.command("look", "exit 10")), ("after", notes.command("after", "exit 10"))]);
    all.extend(["--max-rounds".to_owned(), "6".to_owned()]);
    let failed = run_old(&bed, &all).await.expect(1);
    let looks = notes.lines().iter().filter(|line| *line == "look").count();
    assert_eq!(looks, 6, "{}", failed.stderr);
    assert!(failed.stdout.contains("Left: run: not done after 6 rounds (--max-rounds)"), "{}", failed.stdout);
    assert!(!lease_is_held(&bed));
    let few = run_old(&bed, &["--max-rounds".to_owned(), "3".to_owned()]).await.expect(64);
    assert!(few.stderr.contains("3 is not in 4.."), "{}", few.stderr);
}
