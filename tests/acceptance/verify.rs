//! V: what `verify` and `plan` say, and their exit codes.

use jiff::Timestamp;
use lab::Held;

use crate::harness::{Bed, row};
use crate::scene::assert_snapshot;

/// A document with everything that differs from lab to lab in words: addresses, times, revisions, holders.
fn redacted(bed: &Bed, text: &str) -> String {
    let [a, b, c, _] = bed.lab.node("cp-1").address().octets();
    let text = text.replace(&format!("{a}.{b}.{c}."), "10.0.0.");
    let is_part = |char: char| char.is_ascii_alphanumeric() || "-:.".contains(char);
    let mut out = String::new();
    for piece in text.split_inclusive(|char| !is_part(char)) {
        let (token, end) = piece.split_at(piece.rfind(is_part).map_or(0, |at| at + 1));
        let word = token.trim_end_matches(['.', ':']);
        let hex = |length| word.len() == length && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let redacted = match word {
            _ if word.contains("-local-") => "<holder>",
            _ if hex(32) => "<revision>",
            _ if hex(16) => "<rev16>",
            _ if word.contains('T') && word.parse::<Timestamp>().is_ok() => "<time>",
            _ => word,
        };
        out.push_str(redacted);
        out.push_str(&token[word.len()..]);
        out.push_str(end);
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v01_table_and_json_are_stable() {
    let bed = Bed::new(|options| options.talos = vec!["1.13.9=5".parse().unwrap(), "1.14.0=1".parse().unwrap()]).await;
    let without_record = [bed.config("worker-1"), bed.config("worker-2")];
    let other = without_record[1].replace(bed.lab.old_password(), bed.lab.new_password());
    bed.prove_old().await;
    // One node of each kind: somebody else's staged config, no record, changed and changed back without a record,
    // another credential; cp-1 and cp-3 stay current.
    bed.lab.node("cp-2").stage_foreign(bed.config_with_new("cp-2").as_bytes()).expect("the node takes it");
    bed.apply("worker-1", &without_record[0]);
    bed.apply("worker-2", &other);
    bed.verified(Held::New, "worker-2", "/verdict", "Stale").await;
    bed.apply("worker-2", &without_record[1]);
    bed.apply("worker-3", &bed.config_with_new("worker-3"));
    for (node, verdict) in [("worker-1", "Unproved"), ("worker-2", "Stale"), ("worker-3", "Drifted")] {
        bed.verified(Held::Old, node, "/verdict", verdict).await;
    }
    for command in ["verify", "plan"] {
        let exit = if command == "verify" { 2 } else { 0 };
        for format in ["table", "json"] {
            let shown = bed.product_with_old(command, &["-o", format]).await.expect(exit);
            let again = bed.product_with_old(command, &["-o", format]).await.expect(exit);
            assert_eq!(shown.stdout, again.stdout, "{command} says the same of the same cluster");
            assert_eq!(shown.stderr, "", "{command} has nothing else to say");
            assert_snapshot(&format!("v01_{command}_{format}"), &redacted(&bed, &shown.stdout));
        }
    }
    assert_eq!(bed.lab.unexpected(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v02_v05_exit_codes_and_an_unreachable_node_is_a_row() {
    let bed = Bed::proved(|_| {}).await;
    bed.product_with_old("verify", &[]).await.expect(0);
    let differs = bed.product("verify", &["-o", "json"]).await.expect(2).json();
    assert_eq!(differs["summary"]["drifted"], 6);
    bed.product("plan", &["--detailed-exitcode"]).await.expect(2);
    bed.product("plan", &[]).await.expect(0);
    bed.product_with_old("plan", &["--detailed-exitcode"]).await.expect(0);

    bed.lab.node("worker-3").stop();
    let verified = bed.product_with_old("verify", &["-o", "json"]).await.expect(1).json();
    let dead = row(&verified, "worker-3");
    assert_eq!((&dead["verdict"], &dead["claims"]), (&"Blocked".into(), &serde_json::Value::Null));
    assert!(dead["reason"].as_str().unwrap().starts_with("unreachable: "), "{dead:#}");
    let current = |row: &&serde_json::Value| row["verdict"] == "Current";
    assert_eq!(verified["nodes"].as_array().unwrap().iter().filter(current).count(), 5, "the others are looked at");
    let table = bed.product_with_old("verify", &[]).await.expect(1).stdout;
    assert!(table.lines().any(|line| line.starts_with("worker-3: unreachable: ")), "{table}");
    let plan = bed.product_with_old("plan", &["-o", "json"]).await.expect(0).json();
    assert_eq!((&row(&plan, "worker-3")["verdict"], &plan["summary"]["blocked"]), (&"Blocked".into(), &1.into()));
    bed.product_with_old("verify", &["--exclude", "worker-3"]).await.expect(0);
    assert_eq!(bed.writes(), 0, "looking writes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v06_a_claim_that_was_not_seen_is_exit_2_unless_it_need_not_be() {
    let bed =
        Bed::proved(|options| options.talos = vec!["1.13.9=5".parse().unwrap(), "1.14.0=1".parse().unwrap()]).await;
    let reader = bed.lab.dir().join("talosconfig-reader").display().to_string();
    let old = bed.lab.credential_file(Held::Old).display().to_string();
    let replaced = [("--talosconfig", reader.as_str()), ("--credential-file", &old)];
    // Without os:admin the record is what the node sees on its Node, where it shows a moment later.
    for node in bed.lab.truth().nodes {
        bed.verified_with(&replaced, &node.name, "/claims/proof/answer", "true").await;
    }
    let verified = bed.product_with("verify", &replaced, &["-o", "json"]).await.expect(2).json();
    for node in bed.lab.truth().nodes {
        let claims = &row(&verified, &node.name)["claims"];
        for (claim, answer) in [("configured", "unknown"), ("loaded", "true"), ("proof", "true")] {
            assert_eq!(claims[claim]["answer"], answer, "{claim} of {}: {claims:#}", node.name);
        }
    }
    bed.product_with("verify", &replaced, &["--claims", "loaded,proof"]).await.expect(0);
    // A claim that was seen not to hold is exit 2 however it is asked for.
    bed.apply("worker-1", &bed.config_with_new("worker-1"));
    bed.verified(Held::New, "worker-1", "/claims/loaded/answer", "false").await;
    bed.product("verify", &["-n", "worker-1", "--claims", "loaded"]).await.expect(2);
    assert_eq!((bed.writes(), bed.lab.unexpected()), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v06_without_a_credential_to_compare_with_the_record_still_answers() {
    let bed = Bed::proved(|_| {}).await;
    let nothing = [("--credential-file", "")];
    let verified = bed.product_with("verify", &nothing, &["-o", "json"]).await.expect(2).json();
    assert_eq!(verified["revision"], serde_json::Value::Null, "there is nothing to have a revision");
    let claims = &row(&verified, "worker-1")["claims"];
    for (claim, answer) in [("configured", "unknown"), ("loaded", "true"), ("proof", "true")] {
        assert_eq!(claims[claim]["answer"], answer, "{claim} of {claims:#}");
    }
    bed.product_with("verify", &nothing, &["--claims", "loaded,proof"]).await.expect(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w02_a_lesser_role_says_what_it_did_not_look_at() {
    let bed = Bed::default().await;
    for role in ["reader", "operator"] {
        let file = bed.lab.dir().join(format!("talosconfig-{role}")).display().to_string();
        let replaced = [("--talosconfig", file.as_str())];
        for command in ["plan", "verify"] {
            let shown = bed.product_with(command, &replaced, &["-o", "json"]).await.json();
            let warning = shown["warnings"][0].as_str().unwrap_or_default().to_owned();
            assert!(warning.contains(&format!("os:{role}")) && warning.contains("\"configured\" cannot"), "{warning}");
            let configured = &row(&shown, "worker-1")["claims"]["configured"];
            assert_eq!(configured["answer"], "unknown", "{configured}");
            assert!(configured["evidence"].as_str().unwrap().contains("not permitted"), "{configured}");
            let table = bed.product_with(command, &replaced, &[]).await.stdout;
            assert!(table.contains("\"configured\" cannot be looked at"), "{table}");
        }
    }
    assert_eq!((bed.writes(), bed.lab.unexpected()), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w02_a_lesser_role_is_refused_by_run_before_any_write() {
    let bed = Bed::new(|options| (options.control_planes, options.workers) = (1, 1)).await;
    for role in ["reader", "operator"] {
        let file = bed.lab.dir().join(format!("talosconfig-{role}")).display().to_string();
        let replaced = [("--talosconfig", file.as_str())];
        // With its usual budget a run that waited for a certificate to change would wait for ten minutes.
        let refused = bed.product_with("run", &replaced, &["--gate-timeout", "2s"]).await.expect(1);
        assert!(refused.stderr.contains("os:admin"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("trying again"), "it is not waited for: {}", refused.stderr);
    }
    assert_eq!((bed.writes(), bed.lab.truth().lease), (0, None));
    assert_eq!(bed.lab.counters()["registry"].reads, 0, "the credential was not shown to the registry either");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v03_junit_has_a_suite_for_each_node_and_a_case_for_each_claim() {
    let bed = Bed::proved(|options| (options.control_planes, options.workers) = (1, 2)).await;
    bed.apply("worker-1", &bed.config_with_new("worker-1"));
    bed.verified(Held::New, "worker-1", "/verdict", "Stale").await;
    bed.lab.node("worker-2").cut_off_apid(true);
    let file = bed.lab.dir().join("verify.xml");
    let path = file.display().to_string();
    let shown = bed.product("verify", &["--junit", &path]).await.expect(1);
    let xml = std::fs::read_to_string(&file).expect("it was written");
    assert!(xml.starts_with("<?xml") && xml.contains(r#"<testsuites name="talos-ghcr verify" tests="12""#), "{xml}");
    for node in ["cp-1", "worker-1", "worker-2"] {
        assert_eq!(xml.matches(&format!(r#"<testsuite name="{node}" tests="4""#)).count(), 1, "{xml}");
        for claim in ["configured", "loaded", "pull", "proof"] {
            let case = format!(r#"<testcase name="{claim}" classname="{node}""#);
            assert_eq!(xml.matches(&case).count(), 1, "{case}: {xml}");
        }
    }
    let suite =
        |node: &str| xml.split("<testsuite ").find(|suite| suite.contains(&format!("name=\"{node}\""))).unwrap();
    // The old credential is loaded and proved on cp-1, another one is asked for; worker-1 has it and has not loaded it.
    assert!(suite("cp-1").contains("<failure message=\"another credential"), "{xml}");
    assert!(suite("worker-1").contains("failures=\"2\""), "{xml}");
    // A node that could not be asked has four errors, but what was not asked for is skipped.
    assert!(suite("worker-2").contains("errors=\"3\"") && suite("worker-2").contains("<skipped"), "{xml}");
    assert!(!shown.stdout.contains("<testsuite"), "the table is for people");
    let nowhere = bed.product("verify", &["--junit", "/nowhere/verify.xml"]).await.expect(1);
    assert!(nowhere.stderr.contains("--junit: /nowhere/verify.xml cannot be written"), "{}", nowhere.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v04_proofs_say_what_was_proved_when_by_whom_in_which_boot_and_whether_it_holds() {
    let bed = Bed::proved(|options| (options.control_planes, options.workers) = (1, 3)).await;
    // A later boot of the same config holds it still; another config does not; a record that was wiped is none.
    let before = bed.lab.node("worker-1").boots();
    bed.lab.power_cycle("worker-1");
    crate::harness::eventually("it is back", || {
        let node = bed.lab.node("worker-1");
        node.boots() > before && node.is_up() && bed.truth_of("worker-1").cri_loaded == Held::Old
    })
    .await;
    let written: serde_json::Value = bed.truth_of("worker-1").record.expect("a record");
    bed.apply("worker-2", &bed.config_with_new("worker-2"));
    bed.verified(Held::New, "worker-2", "/verdict", "Stale").await;
    let config = bed.config("worker-3");
    let wiped: Vec<&str> = config.lines().filter(|line| !line.contains("talos-ghcr/proof")).collect();
    bed.apply("worker-3", &(wiped.join("\n") + "\n"));
    // No credential is needed.
    let proofs = |more: &'static [&'static str]| bed.product_with("proofs", &[("--credential-file", "")], more);
    crate::harness::eventually("Talos shows it", || bed.truth_of("worker-3").record.is_none()).await;
    let document = proofs(&["-o", "json"]).await.expect(0).json();
    let of = |node: &str| document["nodes"].as_array().unwrap().iter().find(|row| row["node"] == node).unwrap().clone();
    for (node, state, holds) in [("cp-1", "proved", true), ("worker-1", "proved", true), ("worker-2", "proved", false)]
    {
        assert_eq!((&of(node)["state"], &of(node)["holds"]), (&state.into(), &holds.into()), "{node}: {document:#}");
    }
    assert_eq!((&of("worker-3")["state"], &of("worker-3")["holds"]), (&"none".into(), &false.into()), "{document:#}");
    for (field, of_record) in [("revision", "revision"), ("at", "at"), ("holder", "holder"), ("boot", "boot")] {
        assert_eq!(of("worker-1")[field], written[of_record], "{field}");
    }
    assert_ne!(
        of("worker-1")["boot"],
        bed.lab.node("worker-1").boot_id().as_str(),
        "the boot of the proof, not of now"
    );
    assert_eq!(of("worker-1")["criPid"], written["cri"]["pid"]);
    let table = proofs(&[]).await.expect(0).stdout;
    assert!(table.starts_with("NODE ") && table.contains("2 of 4 proofs hold."), "{table}");
    assert!(table.contains("worker-2: "), "why it does not: {table}");
    assert_eq!(bed.writes(), 0);
    // A node that cannot be asked is a row, and a failure.
    bed.lab.node("worker-1").cut_off_apid(true);
    let failed = proofs(&["-o", "json"]).await.expect(1).json();
    let row = failed["nodes"].as_array().unwrap().iter().find(|row| row["node"] == "worker-1").unwrap().clone();
    assert_eq!((&row["state"], &row["holds"]), (&"unknown".into(), &serde_json::Value::Null), "{row:#}");
}
