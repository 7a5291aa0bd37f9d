//! The report of a run: `--report`.

use std::time::Duration;

use lab::Held;
use lab::faults::When::{After, Before};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Bed, Ended, ended, finish, leaks, read};
use crate::scene::{Gate, block_evictions, lease_is_held, only_stale, only_stale_of, signal, two_workers};

/// A run that writes its report to that file of the lab's folder; none was there before.
async fn reported(bed: &Bed, file: &str, more: &[&str]) -> (Ended, String) {
    let path = bed.lab.dir().join(file);
    let ended = bed.run(&[&["--report", &path.display().to_string()], more].concat()).await;
    assert!(!leaks(&bed.lab, &read(&path)));
    (ended, read(&path))
}

fn json_of(text: &str) -> Value {
    let report = serde_json::from_str(text).expect("the report is JSON");
    crate::harness::schemas::check(&report);
    report
}

/// The steps of a node, by name, in order.
fn steps<'a>(report: &'a Value, node: &str) -> Vec<&'a str> {
    let of_node = report["steps"].as_array().unwrap().iter().filter(|step| step["node"] == node);
    of_node.map(|step| step["step"].as_str().unwrap()).collect()
}

fn step<'a>(report: &'a Value, node: &str, name: &str) -> &'a Value {
    let all = report["steps"].as_array().unwrap();
    let found = all.iter().find(|step| step["node"] == node && step["step"] == name);
    found.unwrap_or_else(|| panic!("no {name} of {node}: {report:#}"))
}

fn phase(report: &Value, name: &str) -> f64 {
    let found = report["phases"].as_array().unwrap().iter().find(|phase| phase["phase"] == name);
    found.unwrap_or_else(|| panic!("no phase {name}: {report:#}"))["seconds"].as_f64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_of_a_roll_has_each_step_the_renewals_the_outage_and_the_verdicts() {
    // The kubeconfig names cp-1. It is dark for longer than from one renewal to the next.
    let dark = |options: &mut lab::Options| options.reboot_time = Duration::from_millis(1500);
    let bed = only_stale_of(&["worker-1", "cp-1"], dark).await;
    let (done, text) = reported(&bed, "roll.json", &["-o", "json"]).await;
    let done = done.expect(0).json();
    let report = json_of(&text);
    assert_eq!(
        (&report["schemaVersion"], &report["kind"], &report["exitCode"]),
        (&json!(1), &json!("Report"), &json!(0))
    );
    assert_eq!(report["run"], done, "the document of the run is in it as it was printed");
    let turn = ["Claim", "Drain", "Reboot", "AwaitBoot", "AwaitReady", "Release", "WriteProof"];
    for node in ["worker-1", "cp-1"] {
        let steps = steps(&report, node);
        assert!(steps.ends_with(&turn), "{node}: {steps:?}");
        assert_eq!(step(&report, node, "AwaitBoot")["outcome"], "done");
        // So long a reboot takes in this lab.
        assert!(step(&report, node, "AwaitBoot")["seconds"].as_f64().unwrap() > 1.0);
    }
    let end_of = |step: &Value| step["offsetSeconds"].as_f64().unwrap() + step["seconds"].as_f64().unwrap();
    let worker_done = end_of(step(&report, "worker-1", "Release"));
    assert!(worker_done <= step(&report, "cp-1", "Claim")["offsetSeconds"].as_f64().unwrap());
    let seconds = report["seconds"].as_f64().unwrap();
    for name in ["inventory", "registry", "lease", "workers", "controlPlanes", "proof", "release"] {
        assert!((0.0..=seconds).contains(&phase(&report, name)), "{name}");
    }
    assert!(phase(&report, "workers") > 1.0 && phase(&report, "controlPlanes") > 1.0);
    let renewals = report["renewals"].as_array().unwrap();
    assert!(!renewals.is_empty() && renewals.iter().any(|renewal| renewal["renewed"] == true), "{renewals:?}");
    // The API server of a control plane is away while it boots, and was seen back.
    let own = format!("{}:6443", bed.lab.node("cp-1").address());
    let outages = report["outages"].as_array().unwrap();
    let outage = outages.iter().find(|outage| outage["server"] == own.as_str());
    assert!(outage.is_some_and(|outage| outage["until"].is_string()), "{own}: {outages:?}");
    let verdicts: Vec<_> = report["nodes"].as_array().unwrap().iter().map(|node| &node["verdict"]).collect();
    assert_eq!(verdicts, [&json!("Current"); 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_a_roll_shows_its_nodes_and_asks_for_nothing() {
    let bed = only_stale(&["worker-1"]).await;
    let (done, page) = reported(&bed, "roll.html", &[]).await;
    done.expect(0);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("<h1>talos-ghcr run: done</h1>"));
    for node in ["worker-1", "worker-2", "cp-1"] {
        assert!(
            page.contains(&format!("<th scope=\"row\" title=\"{node}\">")),
            "{node} has a row: it was proved at least"
        );
    }
    for bar in ["cordon", "drain", "reboot", "ready", "proof"] {
        assert!(page.contains(&format!("<i class=\"{bar}\" style=\"left:")), "{bar}");
    }
    for never in ["<script", "<link", "<img", "url(", "http://", "https://"] {
        assert!(!page.contains(never), "{never}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_fails_or_has_nothing_to_do_writes_its_report_too() {
    let bed = only_stale(&["worker-1"]).await;
    block_evictions(&bed, true);
    let (stopped, text) = reported(&bed, "stopped.json", &["--drain-timeout", "1s"]).await;
    stopped.expect(4);
    let report = json_of(&text);
    let drain = step(&report, "worker-1", "Drain");
    assert_eq!(drain["outcome"], "failed");
    assert!(drain["why"].as_str().unwrap().contains("default/web"), "{drain}");
    assert_eq!((&report["exitCode"], &report["run"]["exitCode"]), (&json!(4), &json!(4)));
    assert_eq!(step(&report, "worker-1", "Release")["outcome"], "done");
    block_evictions(&bed, false);
    // Another holds the lease: refused before anything is done to a node.
    let mut gate = Gate::new(&bed);
    let holder = bed.start(&[]);
    let held = gate.hold(Before, "POST pods/eviction", 1).await;
    let (refused, text) = reported(&bed, "refused.json", &["--lease-wait", "0"]).await;
    refused.expect(3);
    let report = json_of(&text);
    assert_eq!((&report["exitCode"], &report["steps"]), (&json!(3), &json!([])));
    assert_eq!(report["nodes"].as_array().unwrap().len(), 5, "what was seen is in it all the same");
    held.release();
    drop(gate);
    ended(holder).await.expect(0);
    let (idle, text) = reported(&bed, "idle.json", &[]).await;
    idle.expect(0);
    let report = json_of(&text);
    assert_eq!(
        (&report["result"], &report["steps"], &report["renewals"]),
        (&json!("nothing-to-do"), &json!([]), &json!([]))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_a_signal_stops_writes_its_report_and_one_that_a_second_signal_ends_too() {
    let bed = two_workers().await;
    let worker = ["-n", "worker-1"];
    block_evictions(&bed, true);
    for signals in [1, 2] {
        let file = bed.lab.dir().join(format!("{signals}.json"));
        let mut gate = Gate::new(&bed);
        let child = bed.start(&[&worker[..], &["--report", &file.display().to_string()]].concat());
        let eviction = gate.hold(After, "POST pods/eviction", 1).await;
        signal(&child, Signal::TERM);
        if signals == 2 {
            // What undoes is held, so that the first signal alone does not end it.
            tokio::time::sleep(Duration::from_millis(300)).await;
            signal(&child, Signal::TERM);
        } else {
            eviction.release();
            drop(gate);
        }
        ended(child).await.expect(143);
        let report = json_of(&read(&file));
        assert_eq!(report["exitCode"], 143);
        let Some(last) = report["steps"].as_array().unwrap().last() else { panic!("{report:#}") };
        assert_eq!((&last["node"], &last["step"]), (&json!("worker-1"), &json!("Release")), "{signals} signals");
        if signals == 2 {
            assert_eq!((&report["run"], &last["outcome"]), (&json!(null), &json!("brokenOff")));
            assert!(report["result"].as_str().unwrap().contains("repeated signal"), "{report:#}");
        } else {
            assert!(report["result"].as_str().unwrap().starts_with("stopped"), "{report:#}");
            assert!(!lease_is_held(&bed));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_cannot_be_written_is_said_before_anything_is_asked() {
    let bed = two_workers().await;
    for (file, code, says) in [("roll.txt", 64, ".json"), ("nowhere/roll.json", 1, "cannot be written")] {
        let path = bed.lab.dir().join(file).display().to_string();
        let ended = bed.run(&["--report", &path]).await.expect(code);
        assert!(ended.stderr.contains("--report") && ended.stderr.contains(says), "{}", ended.stderr);
        assert!(ended.stderr.contains(&path), "{}", ended.stderr);
    }
    assert_eq!(bed.requests(), 0);
    // By its variable, where empty is none; and one that became unwritable meanwhile fails a run that is done.
    let mut roll = bed.roll(&["-n", "worker-1"]);
    roll.env("TALOS_GHCR_REPORT", "");
    finish(roll).await.expect(0);
    let folder = bed.lab.dir().join("gone");
    std::fs::create_dir(&folder).unwrap();
    let mut roll = bed.roll(&["-n", "worker-2", "--before-command", &format!("rmdir {}", folder.display())]);
    roll.env("TALOS_GHCR_REPORT", folder.join("roll.json"));
    let failed = finish(roll).await.expect(1);
    assert!(failed.stderr.contains("cannot be written"), "{}", failed.stderr);
    assert!(failed.stdout.contains("Left: run: --report"), "{}", failed.stdout);
    assert_eq!(bed.truth_of("worker-2").cri_loaded, Held::New, "the work is done all the same");
}
