//! What people and machines see of a command, and how it ends when they stop it: L20, P02, P04, P08.

use std::time::Duration;

use futures::FutureExt as _;
use lab::Held;
use lab::faults::When::Before;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Bed, Ended, LIMIT, bare, ended, finish};
use crate::scene::{
    Gate, assert_snapshot, block_evictions, evictions, lease_is_held, requests, side_by_side, signal, two_workers,
};

const WORKER: [&str; 2] = ["-n", "worker-1"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p02_the_help_of_each_command_is_stable() {
    for command in ["", "plan", "run", "verify", "proofs", "fences", "doctor", "completions", "man"] {
        let mut help = bare();
        help.args((!command.is_empty()).then_some(command)).arg("--help").env("COLUMNS", "100");
        let shown = finish(help).await.expect(0);
        assert_eq!(shown.stderr, "");
        let widest = shown.stdout.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{command}: {widest:?}");
        let name = if command.is_empty() { "p02_help".to_owned() } else { format!("p02_help_{command}") };
        assert_snapshot(&name, &shown.stdout);
        // The short one names the same flags.
        let mut short = bare();
        short.args((!command.is_empty()).then_some(command)).arg("-h").env("COLUMNS", "100");
        let short = finish(short).await.expect(0).stdout;
        let flags = |text: &str| -> Vec<String> {
            let words = text.lines().filter_map(|line| line.trim_start().split_once("--"));
            let named = words.filter(|(before, _)| before.len() <= 4);
            named.map(|(_, rest)| rest.split([' ', '=', '[']).next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(flags(&short), flags(&shown.stdout), "{command}");
    }
}

/// No escape sequence and no line that is overwritten.
#[track_caller]
fn assert_plain(what: &str, ended: &Ended) {
    for text in [&ended.stdout, &ended.stderr] {
        assert!(!text.contains(['\u{1b}', '\r', '\u{8}']), "{what}: {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p04_piped_output_has_no_colour_and_progress_is_on_stderr_only() {
    let bed = two_workers().await;
    for command in ["plan", "verify", "proofs", "fences", "doctor"] {
        for format in ["table", "wide", "json", "yaml"] {
            let mut shown = bed.command(command, &["-o", format]);
            shown.env("TERM", "xterm-256color").env("COLORTERM", "truecolor");
            let shown = finish(shown).await;
            assert_plain(&format!("{command} -o {format}"), &shown);
            assert_ne!(shown.stdout, "");
            match format {
                "json" => drop(shown.json()),
                "yaml" => {
                    let document: Value = serde_yaml::from_str(&shown.stdout).expect("one YAML document");
                    assert_eq!(document["schemaVersion"], 1);
                }
                _ => {}
            }
        }
    }
    for wrong in [&["run", "--no-such-flag"][..], &["--help"], &["nonsense"]] {
        let mut product = bare();
        product.args(wrong).env("TERM", "xterm-256color");
        assert_plain(&wrong.join(" "), &finish(product).await);
        // NO_COLOR is a person's word, and counts for more than a CI's CLICOLOR_FORCE.
        let mut product = bare();
        product.args(wrong).env("TERM", "xterm-256color").env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1");
        assert_plain(&format!("NO_COLOR {}", wrong.join(" ")), &finish(product).await);
    }
    let mut run = bed.roll(&["-n", "worker-1", "-o", "json"]);
    run.env("TERM", "xterm-256color");
    let run = finish(run).await.expect(0);
    assert_plain("run", &run);
    // One document and no more, and the way to it elsewhere.
    let document: Value = run.json();
    assert_eq!((&document["kind"], &document["rebooted"][0]), (&"Run".into(), &"worker-1".into()));
    for event in ["lease", "fenced and cordoned", "drained", "reboot asked for", "ready after", "uncordoned"] {
        assert!(run.stderr.contains(event), "{event} is told: {}", run.stderr);
    }
    assert!(!run.stderr.contains("schemaVersion"), "{}", run.stderr);
    let again = bed.run(&WORKER).await.expect(0);
    assert_plain("run again", &again);
    assert!(again.stdout.starts_with("Nothing to do"), "{}", again.stdout);
}

/// Nothing is left of a run that was stopped before its reboot, and the next one does the rest.
async fn assert_given_back_and_finished(bed: &Bed) {
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cordoned, node.fence), (0, false, None));
    assert_eq!(node.configured, Held::New, "a staged config stays");
    assert!(requests(bed, "Reboot", "worker-1").is_empty());
    assert!(!lease_is_held(bed));
    block_evictions(bed, false);
    bed.run(&WORKER).await.expect(0);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.cri_loaded, node.boots, node.cordoned), (Held::New, 1, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p08_the_time_is_up_or_the_job_is_cancelled_in_a_drain_and_all_is_given_back() {
    let timeout = async {
        let bed = two_workers().await;
        block_evictions(&bed, true);
        let stopped = bed.run(&["-n", "worker-1", "--timeout", "3s", "-o", "json"]).await.expect(4);
        assert!(stopped.stderr.contains("--timeout of 3s is over"), "{}", stopped.stderr);
        assert!(stopped.stdout.contains("stopped (--timeout of 3s is over): "), "{}", stopped.stdout);
        assert!(evictions(&bed) > 0, "it was draining: {}", stopped.stderr);
        assert_eq!(stopped.json()["exitCode"], 4);
        assert_given_back_and_finished(&bed).await;
    };
    // As a CI cancels: INT, and TERM a moment later. It is one cancellation.
    let cancelled = async {
        let bed = two_workers().await;
        block_evictions(&bed, true);
        let mut gate = Gate::new(&bed);
        let child = bed.start(&WORKER);
        let held = gate.hold(Before, "POST pods/eviction", 1).await;
        signal(&child, Signal::INT);
        tokio::time::sleep(Duration::from_millis(300)).await;
        signal(&child, Signal::TERM);
        held.release();
        drop(gate);
        ended(child).await.expect(130);
        assert_given_back_and_finished(&bed).await;
    };
    let cases = [("--timeout", timeout.boxed()), ("INT then TERM", cancelled.boxed())];
    side_by_side(cases.into_iter().map(|(name, case)| (name.to_owned(), case)).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l20_a_second_sigterm_ends_the_run_at_once() {
    let bed = two_workers().await;
    block_evictions(&bed, true);
    let mut gate = Gate::new(&bed);
    let mut child = bed.start(&WORKER);
    let held = gate.hold(Before, "POST pods/eviction", 1).await;
    signal(&child, Signal::TERM);
    held.cut();
    // The release of the node is held: the run would wait for it.
    let held = gate.hold(Before, "PATCH nodes", 1).await;
    assert!(child.try_wait().expect("it can be asked").is_none(), "it waits for its calls");
    let asked = tokio::time::Instant::now();
    signal(&child, Signal::TERM);
    let status = tokio::time::timeout(LIMIT, child.wait()).await.expect("it ends").expect("it can be waited for");
    assert_eq!(status.code(), Some(143));
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    held.cut();
    drop(gate);
    // What it could not give back is finished by the next run.
    block_evictions(&bed, false);
    bed.run(&WORKER).await.expect(0);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.cri_loaded, node.boots, node.cordoned, node.fence), (Held::New, 1, false, None));
    assert!(!lease_is_held(&bed));
}
