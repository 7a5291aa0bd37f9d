//! N: what is concluded of a node from what it really has, and that nothing more is done than that needs.

use std::time::Duration;

use jiff::SignedDuration;
use lab::Held;

use crate::harness::{Bed, eventually, row};

/// The position of the first write that begins so; panics when there is none.
#[track_caller]
fn position(writes: &[String], begins: &str) -> usize {
    let found = writes.iter().position(|write| write.starts_with(begins));
    found.unwrap_or_else(|| panic!("no {begins} in {writes:#?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n01_configured_loaded_and_proved_is_current_and_nothing_is_written() {
    let bed = Bed::proved(|_| {}).await;
    let verified = bed.product_with_old("verify", &["-o", "json"]).await.expect(0).json();
    for node in &bed.lab.truth().nodes {
        let row = row(&verified, &node.name);
        assert_eq!(row["verdict"], "Current", "{row:#}");
        for claim in ["configured", "loaded", "pull", "proof"] {
            assert_eq!(row["claims"][claim]["answer"], "true", "{claim} of {row:#}");
            assert_ne!(row["claims"][claim]["evidence"], "", "{claim} of {row:#}");
        }
        assert_eq!(node.boots, 0, "{} was not rebooted for its proof", node.name);
    }
    let run = bed.product_with_old("run", &["-o", "json"]).await.expect(0).json();
    assert_eq!((&run["result"], &run["changed"]), (&"nothing-to-do".into(), &false.into()));
    assert_eq!(bed.writes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n02_a_record_is_not_believed_when_the_config_differs() {
    let bed = Bed::proved(|_| {}).await;
    // The credential alone is changed: the record still says that the old one is proved.
    bed.apply("worker-1", &bed.config_with_new("worker-1"));
    assert_eq!(bed.truth_of("worker-1").record.expect("the record stays")["state"], "proved");
    let drifted = bed.verified(Held::Old, "worker-1", "/verdict", "Drifted").await;
    assert_eq!(drifted["claims"]["configured"]["answer"], "false");
    let reason = drifted["reason"].as_str().unwrap();
    assert!(reason.starts_with("another credential for"), "{drifted:#}");
    // Somebody undid it, and may do so again: when it was proved last tells who.
    assert!(reason.contains("; changed back since the proof of 20"), "{drifted:#}");
    let verified = bed.product_with_old("verify", &["-o", "json"]).await.expect(2).json();
    assert_eq!(row(&verified, "worker-2")["verdict"], "Current");
    let plan = bed.product_with_old("plan", &["-o", "json"]).await.expect(0).json();
    assert_eq!(row(&plan, "worker-1")["steps"][0], "write credential");
    assert_eq!(row(&plan, "worker-2")["steps"], serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n03_a_credential_that_somebody_else_staged_is_recorded_pulled_and_then_adopted() {
    let bed = Bed::default().await;
    bed.apply("worker-1", &bed.config_with_new("worker-1"));
    let stale = bed.verified(Held::New, "worker-1", "/verdict", "Stale").await;
    for (claim, answer) in [("configured", "true"), ("loaded", "false"), ("proof", "false")] {
        assert_eq!(stale["claims"][claim]["answer"], answer, "{claim} of {stale:#}");
    }
    assert!(stale["reason"].as_str().unwrap().contains("cri.toml changed"), "{stale:#}");
    assert_eq!((bed.truth_of("worker-1").cri_loaded, bed.truth_of("worker-1").record), (Held::Old, None));

    let from = bed.last_request();
    bed.run(&["-n", "worker-1"]).await.expect(0);
    let writes = bed.writes_since(from);
    let recorded = position(&writes, "ApplyConfiguration worker-1");
    let pulled = position(&writes, "Pull worker-1");
    let fenced = position(&writes, "PATCH nodes");
    let rebooted = position(&writes, "Reboot worker-1");
    assert!(recorded < pulled && pulled < fenced && fenced < rebooted, "{writes:#?}");
    let node = bed.truth_of("worker-1");
    assert_eq!((node.cri_loaded, node.boots, node.cordoned, &node.fence), (Held::New, 1, false, &None));
    assert_eq!(node.record.expect("a record")["state"], "proved");
    assert!(bed.lab.truth().nodes.iter().all(|node| node.name == "worker-1" || node.boots == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n04_a_fresh_node_without_a_record_is_proved_and_neither_drained_nor_rebooted() {
    let bed = Bed::default().await;
    // As an autoscaler brings it: booted with the new credential in its machine config.
    bed.apply("worker-1", &bed.config_with_new("worker-1"));
    bed.power_cycle("worker-1").await;
    let verified = bed.product("verify", &["-n", "worker-1", "-o", "json"]).await.expect(2).json();
    let fresh = row(&verified, "worker-1");
    assert_eq!(fresh["verdict"], "Unproved", "{fresh:#}");
    for (claim, answer) in [("configured", "true"), ("loaded", "true"), ("pull", "unknown"), ("proof", "false")] {
        assert_eq!(fresh["claims"][claim]["answer"], answer, "{claim} of {fresh:#}");
    }

    let from = bed.last_request();
    bed.run(&["-n", "worker-1"]).await.expect(0);
    let writes = bed.writes_since(from);
    assert!(position(&writes, "Pull worker-1") < position(&writes, "ApplyConfiguration worker-1"), "{writes:#?}");
    let disruptive = |write: &&String| ["PATCH nodes", "Reboot", "POST pods"].iter().any(|it| write.starts_with(it));
    assert_eq!(writes.iter().find(disruptive), None, "{writes:#?}");
    let node = bed.truth_of("worker-1");
    assert_eq!((node.boots, node.cordoned), (1, false), "only its own first boot");
    assert_eq!(node.record.expect("a record")["state"], "proved");
    bed.lab.reset_counters();
    bed.run(&["-n", "worker-1"]).await.expect(0);
    assert_eq!(bed.writes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n17_a_change_that_was_changed_back_is_loaded_because_the_record_names_the_process() {
    let bed = Bed::proved(|_| {}).await;
    // Changed and changed back.
    let proved = bed.config("worker-1");
    bed.apply("worker-1", &bed.config_with_new("worker-1"));
    // A TRY that is rolled back.
    let tried = bed.config_with_new("worker-2");
    bed.lab.node("worker-2").try_foreign(tried.as_bytes(), Duration::from_secs(3)).expect("the node takes it");
    // Asked for the new credential the times count: cri.toml is newer than the CRI process from then on.
    for node in ["worker-1", "worker-2"] {
        bed.verified(Held::New, node, "/claims/loaded/answer", "false").await;
    }
    bed.apply("worker-1", &proved);
    eventually("the TRY is rolled back", || bed.truth_of("worker-2").configured == Held::Old).await;

    for node in ["worker-1", "worker-2"] {
        let current = bed.verified(Held::Old, node, "/verdict", "Current").await;
        let evidence = current["claims"]["loaded"]["evidence"].as_str().unwrap();
        assert!(evidence.starts_with("the record proves CRI process"), "{node}: {evidence}");
    }
    bed.lab.reset_counters();
    let run = bed.product_with_old("run", &["-o", "json"]).await.expect(0).json();
    assert_eq!(run["result"], "nothing-to-do");
    assert_eq!((bed.writes(), bed.lab.truth().boot_order), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n18_after_an_ordinary_reboot_there_is_no_persistent_config_and_nothing_to_do() {
    let bed = Bed::proved(|_| {}).await;
    bed.power_cycle("worker-1").await;
    bed.power_cycle("cp-2").await;
    bed.product_with_old("verify", &[]).await.expect(0);
    bed.lab.reset_counters();
    let run = bed.product_with_old("run", &["-o", "json"]).await.expect(0).json();
    assert_eq!(run["result"], "nothing-to-do");
    assert_eq!((bed.writes(), bed.lab.truth().boot_order), (0, vec!["worker-1".to_owned(), "cp-2".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n22_a_clock_that_was_stepped_back_before_the_change_does_not_make_it_look_loaded() {
    let bed = Bed::default().await;
    // The node booted an hour ago by its old clock: whatever is written now is older than its CRI process.
    bed.lab.node("worker-1").set_clock_offset(SignedDuration::from_hours(-2));
    bed.run(&["-n", "worker-1"]).await.expect(0);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.configured, node.cri_loaded, node.boots), (Held::New, Held::New, 1));
    assert_eq!(node.record.expect("a record")["state"], "proved");
    bed.lab.reset_counters();
    bed.run(&["-n", "worker-1"]).await.expect(0);
    assert_eq!((bed.writes(), bed.truth_of("worker-1").boots), (0, 1));
}

/// What flags left out is a human's choice and no failure; but success does not speak of it, so it is counted, and named
/// where it is not current.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s7_what_flags_leave_out_is_named_where_it_is_not_current_and_fails_nothing() {
    let bed = Bed::proved(|options| (options.control_planes, options.workers) = (1, 4)).await;
    bed.apply("worker-2", &bed.config_with_new("worker-2"));
    bed.verified(Held::Old, "worker-2", "/verdict", "Drifted").await;
    bed.lab.node("worker-3").stop();
    let flags = ["--exclude", "worker-1,worker-2,worker-3"];
    let document = [&flags[..], &["-o", "json"]].concat();
    let expected = serde_json::json!({"current": 1, "notCurrent": {"worker-2": "Drifted", "worker-3": "Blocked"}});
    let words =
        "Left out by --nodes or --exclude: 3 nodes, 2 of them not current: worker-2 (Drifted), worker-3 (Blocked)";
    for command in ["plan", "run"] {
        let json = bed.product_with_old(command, &document).await.expect(0).json();
        assert_eq!(json["leftOut"], expected, "{command}: {json:#}");
        let text = bed.product_with_old(command, &flags).await.expect(0).stdout;
        assert!(text.contains(words) && text.contains("Nothing to do"), "{command}: {text}");
    }
    assert_eq!(bed.writes(), 0);
    // All others are left out by naming one, and nobody is left out by naming none.
    let one = bed.product_with_old("plan", &["-n", "worker-4", "-o", "json"]).await.expect(0).json();
    assert_eq!(one["leftOut"]["current"], 2, "{one:#}");
    let none = bed.product_with_old("plan", &["-o", "json"]).await.expect(0).json();
    assert_eq!(none["leftOut"], serde_json::json!({"current": 0, "notCurrent": {}}));
}
