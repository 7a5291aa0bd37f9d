//! L: the lease, as the real binary takes it, leaves it alone and gives it back.
//!
//! Every node of a fresh lab is Unproved for the old credential, so that a run with it on one node has a little to
//! write: the lease is needed, a drain or a reboot is not.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lab::faults::When;
use lab::kube::kind::Kind;
use lab::kube::store::micros;
use serde_json::{Value, json};

use crate::harness::{Bed, Ended, ended, eventually, finish, lease_duration};

/// A holder in the form of a CI run's.
const OTHER: &str = "0123456789abcdef-gh17123456789.2-2f1c0f5e-7a0b-4c58-9a3e-1d2c3b4a5968";

/// The default Lease with this spec.
fn lease(spec: &Value) -> Value {
    json!({"metadata": {"namespace": "kube-system", "name": "talos-ghcr"}, "spec": spec})
}

/// A spec that another holds, renewed at `renewed`.
fn held(holder: &str, seconds: u32, renewed: &str) -> Value {
    json!({
        "holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 535,
        "acquireTime": renewed, "renewTime": renewed,
    })
}

impl Bed {
    fn put_lease(&self, object: Value) {
        self.lab.objects().put_lease(object);
    }

    fn lease(&self) -> Option<Arc<Value>> {
        self.lab.objects().get(Kind::Lease, "kube-system", "talos-ghcr")
    }

    /// A run with the old credential on one node, in the environment of a CI job.
    async fn prove(&self, node: &str, more: &[&str]) -> Ended {
        let old = self.lab.credential_file(lab::Held::Old).display().to_string();
        let mut run = self.command_with("run", &[("--credential-file", &old)], &["-n", node]);
        run.args(more);
        if !more.contains(&"--lease-duration") {
            run.args(["--lease-duration", lease_duration()]);
        }
        run.env("GITHUB_SERVER_URL", "https://github.example").env("GITHUB_REPOSITORY", "acme/infra");
        finish(run).await
    }
}

/// The refusal of a run: exit 3, and everything that a human needs to know of the holder.
#[track_caller]
fn assert_refused(bed: &Bed, refused: Ended) -> String {
    let said = refused.expect(3).stderr;
    let record = bed.lease().expect("it is held");
    let time = format!("renewTime {}", record["spec"]["renewTime"].as_str().unwrap_or_default());
    let seconds = format!("duration {}s", record["spec"]["leaseDurationSeconds"]);
    // Where the holder goes on renewing, time and version have moved on.
    let (time, version) = match &said {
        said if said.contains("while we watched") => ("renewTime 20".to_owned(), "resourceVersion ".to_owned()),
        _ => (time, format!("resourceVersion {}", record["metadata"]["resourceVersion"].as_str().unwrap_or_default())),
    };
    let parts =
        [OTHER, "kube-system/talos-ghcr", "transitions 535", "s ago", "same_holder=false", &time, &seconds, &version];
    for part in parts {
        assert!(said.contains(part), "the refusal says {part:?}: {said}");
    }
    assert!(said.contains("https://github.example/acme/infra/actions/runs/17123456789/attempts/2"), "{said}");
    assert_eq!(bed.writes(), 0, "nothing was written");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l01_nothing_to_do_takes_no_lease_and_only_reads() {
    let bed = Bed::proved(|_| {}).await;
    bed.lab.objects().remove(Kind::Lease, "kube-system", "talos-ghcr");
    let run = bed.product_with_old("run", &["-o", "json"]).await.expect(0);
    assert_eq!(run.json()["result"], "nothing-to-do");
    assert_eq!(bed.lab.truth().lease, None, "none was created");
    assert_eq!(bed.writes(), 0);
    // While another holds it: nothing to do is nothing to do, and a warning names the holder.
    bed.put_lease(lease(&held(OTHER, 600, &micros(Timestamp::now()))));
    let run = bed.product_with_old("run", &[]).await.expect(0);
    assert!(run.stderr.contains("warning") && run.stderr.contains(OTHER), "{}", run.stderr);
    assert_eq!(bed.writes(), 0);
    assert_eq!(bed.lab.truth().lease.unwrap().holder.as_deref(), Some(OTHER), "it is left to its holder");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l02_a_lease_that_is_free_in_any_way_is_taken_and_given_back() {
    let bed = Bed::default().await;
    let free = [
        ("cp-1", None, 0),
        ("cp-2", Some(json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 41})), 42),
        ("cp-3", Some(json!({"holderIdentity": null, "leaseTransitions": 41})), 42),
        ("worker-1", Some(json!({})), 1),
        ("worker-2", Some(Value::Null), 1),
    ];
    for (node, spec, transitions) in free {
        bed.lab.objects().remove(Kind::Lease, "kube-system", "talos-ghcr");
        if let Some(spec) = &spec {
            bed.put_lease(lease(spec));
        }
        let from = bed.last_request();
        let done = bed.prove(node, &[]).await.expect(0);
        assert_eq!(bed.truth_of(node).record.expect("a record")["state"], "proved", "{node}");
        // Taken before the first write, given back after the last.
        let writes = bed.writes_since(from);
        let taken = if spec.is_none() { "POST leases" } else { "PATCH leases" };
        let is = |write: Option<&String>, method: &str| write.is_some_and(|write| write.starts_with(method));
        assert!(is(writes.first(), taken) && is(writes.last(), "PATCH leases"), "{taken}: {writes:#?}");
        let object = bed.lease().expect("the Lease stays");
        let spec = &object["spec"];
        assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&json!(""), &json!(1)), "{node}");
        assert_eq!(spec["leaseTransitions"], transitions, "{node}: {}", done.stderr);
        for field in ["acquireTime", "renewTime"] {
            let time = spec[field].as_str().unwrap_or_default();
            let digits = time.split_once('.').map_or("", |(_, rest)| rest.trim_end_matches('Z'));
            assert!(digits.len() == 6 && time.parse::<Timestamp>().is_ok(), "{field} is a MicroTime: {time:?}");
        }
    }
    assert_eq!(bed.lab.unexpected(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l03_a_holder_who_renews_while_watched_is_left_alone() {
    let bed = Bed::default().await;
    let lab = Arc::clone(&bed.lab);
    let renewing = tokio::spawn(async move {
        loop {
            lab.objects().put_lease(lease(&held(OTHER, 30, &micros(Timestamp::now()))));
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    eventually("it is held", || bed.lease().is_some()).await;
    let refused = bed.prove("worker-1", &["-o", "json"]).await;
    assert_eq!((&refused.json()["exitCode"], &refused.json()["changed"]), (&3.into(), &false.into()));
    let said = assert_refused(&bed, refused);
    assert!(said.contains("renewed the lease while we watched"), "{said}");
    renewing.abort();
    let _ = renewing.await;

    // L33: at first sight, and by policy, without any watch.
    for (more, why) in [
        (&["--lease-wait", "0"][..], "--lease-wait 0"),
        (&["--takeover", "never"], "--takeover never"),
        (&["--takeover", "verified"], "--takeover verified"),
    ] {
        let said = assert_refused(&bed, bed.prove("worker-1", more).await);
        assert!(said.contains(why) && !said.contains("taken over unless"), "{said}");
    }
    assert_eq!(bed.truth_of("worker-1").record, None);
    assert_eq!(bed.lab.truth().lease.unwrap().holder.as_deref(), Some(OTHER));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l33_lease_wait_goes_on_waiting_for_a_holder_who_lives() {
    let bed = Bed::default().await;
    let lab = Arc::clone(&bed.lab);
    let renewing = tokio::spawn(async move {
        // Alive for some renewals, then it gives the lease back as it should.
        for _ in 0..5 {
            lab.objects().put_lease(lease(&held(OTHER, 30, &micros(Timestamp::now()))));
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let mut free = held("", 1, &micros(Timestamp::now()));
        free["leaseTransitions"] = json!(535);
        lab.objects().put_lease(lease(&free));
    });
    eventually("it is held", || bed.lease().is_some()).await;
    let done = bed.prove("worker-1", &["--lease-wait", "60s"]).await.expect(0);
    assert!(done.stderr.contains("who lives"), "{}", done.stderr);
    renewing.await.expect("the other holder ends in order");
    assert_eq!(bed.lab.truth().lease.unwrap().transitions, 536);
    assert_eq!(bed.truth_of("worker-1").record.expect("a record")["state"], "proved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l04_an_unknown_holder_is_watched_for_its_duration_and_grace_however_old_its_record() {
    let bed = Bed::default().await;
    // Its own duration of 2 s counts as 3 s, the duration of ours, and the grace is two thirds of that.
    bed.put_lease(lease(&held(OTHER, 2, "2020-01-01T00:00:00.000000Z")));
    let from = bed.last_request();
    let done = bed.prove("worker-1", &["--lease-duration", "3s"]).await.expect(0);
    assert!(done.stderr.contains(OTHER) && done.stderr.contains("taken over unless"), "a countdown: {}", done.stderr);
    let entries = bed.lab.log().all();
    let mut leases = entries
        .iter()
        .filter(|entry| entry.seq > from && entry.method.ends_with("leases") && entry.target.contains("kube-system"));
    let first = leases.next().expect("the lease is read");
    let taken = leases.find(|entry| entry.write).expect("the lease is taken");
    let watched = taken.at.duration_since(first.at);
    assert!(watched >= jiff::SignedDuration::from_secs(5), "watched for {watched:?} only");
    let mutations = bed.lab.log().writes();
    let earlier = mutations.iter().filter(|entry| entry.seq > from && entry.seq < taken.seq);
    assert_eq!(earlier.count(), 0, "nothing is written before");
    let lease = bed.lab.truth().lease.unwrap();
    assert_eq!((lease.is_held(), lease.transitions), (false, 536));
    assert_eq!(bed.truth_of("worker-1").record.expect("a record")["state"], "proved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l18_after_a_kill_nothing_renews_and_the_next_run_takes_over() {
    let bed = Bed::default().await;
    let old = bed.lab.credential_file(lab::Held::Old).display().to_string();
    let command = || {
        let mut run = bed.command_with("run", &[("--credential-file", &old)], &["-n", "worker-1"]);
        run.args(["--lease-duration", lease_duration()]).kill_on_drop(true);
        run
    };
    // The first mutation is the lease, the second is held before it is applied: the process dies in between.
    let mut point = bed.lab.faults().crash_point_from_now(2, When::Before);
    let mut child = command().spawn().expect("the product starts");
    point.reached().await.expect("it writes");
    child.kill().await.expect("it is killed");
    point.cut();
    let left = bed.lab.truth().lease.expect("a Lease");
    assert!(left.is_held());
    let done = finish(command()).await.expect(0);
    assert!(done.stderr.contains("taking the lease of") && done.stderr.contains("is gone"), "{}", done.stderr);
    let after = bed.lab.truth().lease.expect("a Lease");
    assert_eq!((after.is_held(), after.transitions), (false, left.transitions + 1));
    assert_eq!(bed.truth_of("worker-1").record.expect("a record")["state"], "proved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l24_of_two_runs_started_together_only_one_writes_at_a_time() {
    let bed = Bed::default().await;
    let old = bed.lab.credential_file(lab::Held::Old).display().to_string();
    let start = || {
        let mut run = bed.command_with("run", &[("--credential-file", &old)], &["--lease-duration", lease_duration()]);
        run.kill_on_drop(true).spawn().expect("the product starts")
    };
    let (one, other) = (start(), start());
    let (one, other) = tokio::join!(ended(one), ended(other));
    let mut codes = [one.code(), other.code()];
    codes.sort_unstable();
    // The second one finds the first alive, or comes when all is done.
    assert!(codes == [0, 3] || codes == [0, 0], "{codes:?}\n{}\n{}", one.stderr, other.stderr);
    let applied = bed.lab.log().writes().into_iter().filter(|entry| entry.method.ends_with("ApplyConfiguration"));
    assert_eq!(applied.count(), 6, "each node's record is written once");
    let truth = bed.lab.truth();
    assert!(!truth.lease.expect("a Lease").is_held());
    assert!(truth.nodes.iter().all(|node| node.record.as_ref().is_some_and(|record| record["state"] == "proved")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l27_while_the_old_script_holds_its_lease_nothing_is_written() {
    let bed = Bed::default().await;
    let legacy = |holder: &str| {
        let spec = held(holder, 180, &micros(Timestamp::now()));
        json!({"metadata": {"namespace": "flux-system", "name": "ghcr-auth-refresh"}, "spec": spec})
    };
    bed.put_lease(legacy(OTHER));
    let refused = bed.prove("worker-1", &[]).await.expect(3);
    for part in ["flux-system/ghcr-auth-refresh", OTHER, "actions/runs/17123456789/attempts/2"] {
        assert!(refused.stderr.contains(part), "the refusal says {part:?}: {}", refused.stderr);
    }
    let truth = bed.lab.truth();
    assert_eq!((bed.writes(), truth.lease), (0, None));
    // Another name for it, and it is no matter.
    bed.put_lease(legacy(""));
    bed.prove("worker-1", &[]).await.expect(0);
    assert_eq!(bed.truth_of("worker-1").record.expect("a record")["state"], "proved");
    // Nothing to do is not held up by it.
    bed.put_lease(legacy(OTHER));
    bed.lab.reset_counters();
    bed.prove("worker-1", &[]).await.expect(0);
    assert_eq!(bed.writes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l12_a_run_whose_lease_was_taken_says_what_stands_in_it() {
    let bed = Bed::default().await;
    let mut gate = crate::scene::Gate::new(&bed);
    let mut run = bed.roll(&["-n", "worker-1", "-o", "json"]);
    run.env("GITHUB_SERVER_URL", "https://github.example").env("GITHUB_REPOSITORY", "acme/infra");
    let child = run.kill_on_drop(true).spawn().expect("the product starts");
    let claim = gate.hold_fence(When::Before, "worker-1", None).await;
    let time = micros(Timestamp::now());
    bed.put_lease(lease(&held(OTHER, 30, &time)));
    drop(gate);
    let lost = ended(child).await.expect(5);
    claim.cut();
    let record = bed.lease().expect("it is held");
    let version = format!("resourceVersion {}", record["metadata"]["resourceVersion"].as_str().unwrap_or_default());
    let link = "run https://github.example/acme/infra/actions/runs/17123456789/attempts/2";
    let time = format!("renewTime {time}");
    for part in [OTHER, "same_holder=false", "transitions 535", &time, "duration 30s", &version, link] {
        assert!(lost.stderr.contains(part), "{part}: {}", lost.stderr);
        let document = lost.json();
        let left = document["left"][""].as_str().unwrap_or_default();
        assert!(left.contains(part), "{part}: {document:#}");
    }
    assert_eq!(bed.truth_of("worker-1").fence, None);
}
