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
