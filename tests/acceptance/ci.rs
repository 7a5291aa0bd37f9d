//! The holder of a lease or of a fence is a CI job, and GitHub says whether it still runs: L21 to L23, and what of the
//! token is seen (P06).

mod others;

use std::time::Duration;

use lab::faults::When;
use lab::github::{FORMERLY, Fault, Github, Job};
use lab::kube::kind::Kind;
use lab::kube::store::seconds;
use serde_json::{Value, json};
use talos_proto::clock::Clock;
use tokio::process::Command;

use crate::harness::{Bed, Ended, finish, lease_duration};
use crate::scene::{FENCE, lease_is_held, two_workers};

const RUN: u64 = 17_123_456_789;
/// The holder of the lease, of the second attempt.
const HOLDER: &str = "0123456789abcdef-gh17123456789.2-2f1c0f5e-7a0b-4c58-9a3e-1d2c3b4a5968";
/// One of the first attempt of the same run.
const FIRST: &str = "fedcba9876543210-gh17123456789.1-0a6e2a51-8a0f-4c7a-9a53-54f0a9f4ce10";
const SERVER: &str = "https://github.example";
const TOKEN: &str = "ghs_canary0123456789abcdefABCDEF";
const OURS: (&str, &str) = ("kube-system", "talos-ghcr");

struct Scene {
    bed: Bed,
    github: Github,
    /// Another host, which is never to see the token.
    elsewhere: Github,
}

impl Scene {
    async fn new() -> Self {
        let bed = two_workers().await;
        let [github, elsewhere] = Github::beside(bed.lab.registry(), TOKEN).expect("its addresses are free");
        Self { bed, github, elsewhere }
    }

    /// A run that has a little to write, in a job of our own that may ask GitHub.
    fn prove(&self, more: &[&str]) -> Command {
        let old = self.bed.lab.credential_file(lab::Held::Old).display().to_string();
        let mut run = self.bed.command_with("run", &[("--credential-file", &old)], &["-n", "worker-1"]);
        run.args(["--lease-duration", lease_duration()]).args(more);
        self.with_token(&mut run);
        run
    }

    fn with_token(&self, run: &mut Command) {
        run.env("GITHUB_SERVER_URL", SERVER).env("GITHUB_API_URL", self.github.url()).env("GH_TOKEN", TOKEN);
        run.env("GITHUB_REPOSITORY", lab::github::REPOSITORY).env("TALOS_GHCR_LOG", "trace");
    }

    /// The Lease of that name is held since long, by a job that left evidence or by one that did not.
    fn hold(&self, (namespace, name): (&str, &str), holder: &str, evidence: Option<Value>) {
        let long_ago = "2020-01-01T00:00:00.000000Z";
        let mut lease = json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 6, "leaseTransitions": 535,
                "acquireTime": long_ago, "renewTime": long_ago},
        });
        if let Some(evidence) = evidence {
            lease["metadata"]["annotations"] = json!({"talos-ghcr/holder": evidence.to_string()});
        }
        let objects = self.bed.lab.objects();
        if objects.get(Kind::Namespace, "", namespace).is_none() {
            objects.create(Kind::Namespace, json!({"metadata": {"name": namespace}}));
        }
        // One that is there would keep its annotations.
        objects.remove(Kind::Lease, namespace, name);
        objects.put_lease(lease);
    }

    fn is_proved(&self) -> bool {
        self.bed.truth_of("worker-1").record.is_some_and(|record| record["state"] == "proved")
    }

    /// Nothing was written, and the lease is where it was.
    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(self.bed.writes(), 0, "nothing was written");
        assert_eq!(self.bed.lab.truth().lease.expect("a Lease").holder.as_deref(), Some(HOLDER));
    }
}

/// What a holder leaves in its Lease.
fn evidence(holder: &str, attempt: u32) -> Value {
    json!({"holder": holder, "run": RUN.to_string(), "attempt": attempt.to_string(), "job": "deploy",
        "repository": lab::github::REPOSITORY, "server": SERVER, "runner": "runner-1"})
}

/// A time so long ago, as GitHub writes it.
fn ago(minutes: i64) -> String {
    seconds(Clock::system().utc() - jiff::SignedDuration::from_mins(minutes))
}

fn job(name: &str, runner: &str, status: &str) -> Job {
    let completed = (status == "completed").then(|| ago(12));
    Job { name: name.into(), runner: runner.into(), status: status.into(), started: ago(90), completed }
}

/// Nothing that was said shows the token.
#[track_caller]
fn told(ended: Ended, code: i32) -> String {
    let ended = ended.expect(code);
    assert!(!ended.stdout.contains("canary") && !ended.stderr.contains("canary"), "the token is shown");
    // What people see, without what was logged.
    ended
        .stderr
        .lines()
        .filter(|line| !line.contains(" TRACE ") && !line.contains(" DEBUG "))
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l21_p06_a_job_that_has_completed_is_taken_over_and_the_token_is_seen_by_github_alone() {
    let scene = Scene::new().await;
    // Nobody is asked while nothing is held.
    told(finish(scene.prove(&["--missing-proof", "report"])).await, 0);
    assert_eq!(scene.github.seen(), []);
    scene.github.put(RUN, 2, vec![job("deploy", "runner-1", "completed"), job("test", "runner-2", "in_progress")]);
    scene.hold(OURS, HOLDER, Some(evidence(HOLDER, 2)));
    // Nor by a run that has nothing to do.
    told(finish(scene.prove(&["--missing-proof", "report"])).await, 0);
    assert_eq!(scene.github.seen(), []);
    scene.bed.lab.reset_counters();

    let mut point = scene.bed.lab.faults().crash_point_from_now(2, When::Before);
    let child = scene.prove(&[]).kill_on_drop(true).spawn().expect("the product starts");
    let arguments = format!("/proc/{}/cmdline", child.id().expect("it runs"));
    // What it logs is read meanwhile, or it would wait for that.
    let ending = tokio::spawn(crate::harness::ended(child));
    point.reached().await.expect("it writes");
    let arguments = std::fs::read(arguments).expect("it runs");
    assert!(!String::from_utf8_lossy(&arguments).contains("canary"));
    point.release();
    let said = told(ending.await.expect("it ends in order"), 0);
    let words = "its job \"deploy\" of run 17123456789, attempt 2, completed 12m";
    assert!(said.contains("taking the lease of") && said.contains(words), "{said}");
    assert!(!said.contains("taken over unless"), "without the long watch: {said}");
    assert!(scene.is_proved() && !lease_is_held(&scene.bed));
    let seen = scene.github.seen();
    assert_eq!(seen.len(), 1, "asked once: {seen:?}");
    assert_eq!(seen[0].target, format!("/repos/acme/infra/actions/runs/{RUN}/attempts/2/jobs?per_page=100"));
    assert_eq!(seen[0].authorization, Some(format!("Bearer {TOKEN}")));
    for kind in [Kind::Lease, Kind::Node] {
        let objects = scene.bed.lab.objects().list(kind);
        assert!(!objects.iter().any(|object| object.to_string().contains("canary")), "an object holds the token");
    }
    assert_eq!(scene.bed.lab.unexpected(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_l21_fences_asks_for_the_holders_job_and_says_what_it_is() {
    let scene = Scene::new().await;
    scene.hold(OURS, HOLDER, Some(evidence(HOLDER, 2)));
    let fences = || {
        let mut fences = scene.bed.command("fences", &[]);
        scene.with_token(&mut fences);
        finish(fences)
    };
    let cases = [
        ("completed", "dead: its job \"deploy\" of run 17123456789, attempt 2, completed", "takes the Lease"),
        (
            "in_progress",
            "alive: its job \"deploy\" of run 17123456789, attempt 2, is in progress",
            "refuses with exit 3",
        ),
    ];
    for (status, evidence, next) in cases {
        scene.github.put(RUN, 2, vec![job("deploy", "runner-1", status)]);
        let shown = fences().await.expect(0);
        for part in [evidence, next] {
            assert!(shown.stdout.contains(part), "{part:?}: {}", shown.stdout);
        }
        assert!(!shown.stdout.contains("canary") && !shown.stderr.contains("canary"), "the token is shown");
    }
    assert_eq!(scene.github.seen().len(), 2, "once each");
    assert_eq!(scene.bed.writes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l21_a_job_that_runs_is_left_alone_though_its_lease_has_expired() {
    let scene = Scene::new().await;
    scene.hold(OURS, HOLDER, Some(evidence(HOLDER, 2)));
    for status in ["in_progress", "queued", "waiting"] {
        scene.github.put(RUN, 2, vec![job("deploy", "runner-1", status)]);
        let said = told(finish(scene.prove(&[])).await, 3);
        let words = format!("of run 17123456789, attempt 2, is {}", status.replace('_', " "));
        for part in [HOLDER, &words, "timeout-minutes", "/acme/infra/actions/runs/17123456789/attempts/2"] {
            assert!(said.contains(part), "it says {part:?}: {said}");
        }
        scene.assert_untouched();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l21_what_github_does_not_tell_is_unknown_and_the_rule_of_time_decides() {
    let scene = Scene::new().await;
    scene.hold(OURS, HOLDER, Some(evidence(HOLDER, 2)));
    scene.github.put(RUN, 2, vec![job("deploy", "runner-1", "completed")]);
    let cases = [
        (Fault::Answer(403), "actions: read"),
        (Fault::Answer(404), "HTTP 404"),
        (Fault::Answer(502), "HTTP 502"),
        (Fault::Limited(403), "limits our requests (HTTP 403)"),
        (Fault::Limited(429), "after 60 s"),
        (Fault::Page, "not understood"),
        (Fault::Slow(Duration::from_secs(60)), "did not answer within 5s"),
        (Fault::Redirect(scene.elsewhere.host()), "not shown"),
    ];
    for (fault, says) in cases {
        scene.github.fault(Some(fault.clone()));
        let said = told(finish(scene.prove(&["--lease-wait", "0"])).await, 3);
        assert!(said.contains("not known to be alive or dead") && said.contains(says), "{fault:?}: {said}");
        assert_eq!(scene.github.seen().len(), 1, "{fault:?}");
        scene.assert_untouched();
    }
    assert_eq!(scene.elsewhere.seen(), [], "what GitHub redirects to is not asked");
    scene.github.fault(None);

    // A holder whose server is not ours: our token is not for it, whatever a Lease says.
    let mut foreign = evidence(HOLDER, 2);
    foreign["server"] = json!(scene.elsewhere.url());
    scene.hold(OURS, HOLDER, Some(foreign));
    let said = told(finish(scene.prove(&["--lease-wait", "0"])).await, 3);
    assert!(said.contains("another server"), "{said}");
    // Without a token, or with one that is refused.
    scene.hold(OURS, HOLDER, Some(evidence(HOLDER, 2)));
    let mut without = scene.prove(&["--lease-wait", "0"]);
    without.env_remove("GH_TOKEN");
    let said = told(finish(without).await, 3);
    assert!(said.contains("no GH_TOKEN or GITHUB_TOKEN"), "{said}");
    assert_eq!((scene.github.seen(), scene.elsewhere.seen()), (vec![], vec![]));
    let mut refused = scene.prove(&["--lease-wait", "0"]);
    refused.env("GH_TOKEN", "another-canary");
    let said = told(finish(refused).await, 3);
    assert!(said.contains("refuses the token"), "{said}");
    scene.assert_untouched();
    // It is asked once in the whole watch, and then time has told.
    scene.github.fault(Some(Fault::Answer(502)));
    let _ = scene.github.seen();
    let said = told(finish(scene.prove(&[])).await, 0);
    assert!(said.contains("taken over unless") && said.contains("HTTP 502"), "{said}");
    assert_eq!(scene.github.seen().len(), 1);
    assert!(scene.is_proved());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l21_a_repository_that_was_renamed_is_found_where_the_same_host_says() {
    let scene = Scene::new().await;
    let mut formerly = evidence(HOLDER, 2);
    formerly["repository"] = json!(FORMERLY);
    scene.hold(OURS, HOLDER, Some(formerly));
    scene.github.put(RUN, 2, vec![job("deploy", "runner-1", "completed")]);
    let said = told(finish(scene.prove(&[])).await, 0);
    assert!(said.contains("completed 12m"), "{said}");
    assert_eq!(scene.github.seen().len(), 2);
    assert!(scene.is_proved());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l22_the_heal_job_of_the_same_run_knows_the_dead_deploy_job() {
    let scene = Scene::new().await;
    scene.hold(OURS, HOLDER, Some(evidence(HOLDER, 2)));
    let heal = |runner: &str| {
        let mut run = scene.prove(&[]);
        run.env("GITHUB_ACTIONS", "true").env("GITHUB_RUN_ID", RUN.to_string()).env("GITHUB_RUN_ATTEMPT", "2");
        run.env("GITHUB_JOB", "heal").env("RUNNER_NAME", runner);
        run
    };
    // The names are not the keys: its runner tells. The run itself is in progress, for we are in it.
    scene.github.put(
        RUN,
        2,
        vec![job("Deploy to production", "runner-1", "completed"), job("Heal what is left", "runner-2", "in_progress")],
    );
    let said = told(finish(heal("runner-2")).await, 0);
    assert!(said.contains("its job \"Deploy to production\" of run 17123456789, attempt 2, completed"), "{said}");
    assert!(scene.is_proved());

    // A matrix whose other leg still runs on the same runner does not tell.
    scene.hold(OURS, HOLDER, Some(evidence(HOLDER, 2)));
    let matrix = vec![job("deploy (a)", "runner-1", "completed"), job("deploy (b)", "runner-1", "in_progress")];
    scene.github.put(RUN, 2, matrix);
    scene.bed.lab.reset_counters();
    let mut look = heal("runner-2");
    look.args(["--lease-wait", "0", "-n", "worker-2"]);
    let said = told(finish(look).await, 3);
    assert!(said.contains("2 jobs of run 17123456789") && said.contains("not all have completed"), "{said}");
    scene.assert_untouched();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l23_what_the_first_attempt_left_is_judged_by_the_first_attempt() {
    let scene = Scene::new().await;
    scene.hold(OURS, FIRST, Some(evidence(FIRST, 1)));
    put_fence(&scene.bed, OURS);
    scene.github.put(RUN, 1, vec![job("deploy", "runner-1", "completed")]);
    scene.github.put(RUN, 2, vec![job("deploy", "runner-1", "in_progress")]);
    let mut again = scene.prove(&[]);
    again.env("GITHUB_ACTIONS", "true").env("GITHUB_RUN_ID", RUN.to_string()).env("GITHUB_RUN_ATTEMPT", "2");
    again.env("GITHUB_JOB", "deploy").env("RUNNER_NAME", "runner-1");
    let said = told(finish(again).await, 0);
    assert!(said.contains("of run 17123456789, attempt 1, completed"), "{said}");
    assert!(said.to_lowercase().contains("adopted the fence of") && said.contains(FIRST), "{said}");
    assert!(scene.github.seen().iter().all(|seen| seen.target.contains("/attempts/1")));
    let node = scene.bed.truth_of("worker-1");
    assert_eq!((node.fence, node.cordoned), (None, false));
    assert!(scene.is_proved() && !lease_is_held(&scene.bed));
}

/// A fence of [`FIRST`] on the first worker, under that Lease, with its cordon.
fn put_fence(bed: &Bed, lease: (&str, &str)) -> Value {
    let (name, now) = ("worker-1", seconds(Clock::system().utc()));
    let objects = bed.lab.objects();
    let uid = objects.get(Kind::Node, "", name).expect("the Node")["metadata"]["uid"].clone();
    let fence = json!({
        "v": 1, "holder": FIRST, "lease": format!("{}/{}", lease.0, lease.1),
        "leaseUid": "5e0d4f1e-6a5c-4a53-8c6c-0b1f4a3f2d10", "epoch": 535, "node": name, "uid": uid,
        "step": "claimed", "stepSince": now, "boot": bed.lab.node(name).boot_id(), "rebootCalls": 0,
        "cordonedBefore": false, "revision": "00112233445566778899aabbccddeeff", "since": now,
    });
    objects.edit_node(name, |node| {
        node["metadata"]["annotations"][FENCE] = json!(fence.to_string());
        node["spec"]["unschedulable"] = json!(true);
    });
    fence
}
