//! The judgement as a table, and whom the token is shown.

mod asking;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use http::header::{AUTHORIZATION, LOCATION, RETRY_AFTER};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::judge::{Attempt, Finding, Jobs, of_attempt, of_jobs};
use super::*;

const HOLDER: &str = "0123456789abcdef-gh17123.2-7f";
const TOKEN: &str = "ghs_canary";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn environment(pairs: &[(&str, &str)]) -> Environment {
    Environment::read(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
}

pub(crate) fn evidence(run: &str, attempt: &str, job: &str, runner: &str) -> Evidence {
    Evidence {
        run: Some(run.into()),
        attempt: Some(attempt.into()),
        job: Some(job.into()),
        runner: Some(runner.into()),
        repository: Some("acme/infra".into()),
        server: Some("https://github.com".into()),
        ..Evidence::default()
    }
}

fn place(job: Option<&str>, runner: Option<&str>) -> Place {
    Place {
        api: "https://api.github.com".into(),
        repository: "acme/infra".into(),
        run: 17123,
        attempt: 2,
        job: job.map(str::to_owned),
        runner: runner.map(str::to_owned),
    }
}

fn job(name: &str, runner: &str, status: &str) -> Value {
    let completed = (status == "completed").then_some("2026-11-30T08:00:00Z");
    json!({"run_id": 17123, "run_attempt": 2, "name": name, "runner_name": runner, "status": status,
        "conclusion": completed.map(|_| "cancelled"), "started_at": "2026-11-30T07:00:00Z", "completed_at": completed})
}

fn jobs(all: &[Value]) -> Jobs {
    serde_json::from_value(json!({"total_count": all.len(), "jobs": all})).unwrap()
}

fn find(place: &Place, all: &[Value], ours: bool) -> Finding {
    of_jobs(place, &jobs(all), ours, at("2026-11-30T08:12:00Z"))
}

#[test]
fn l21_l22_which_job_of_an_attempt_a_holder_was() {
    let known = place(Some("deploy"), Some("r1"));
    let old = place(None, None);
    let done = |name: &str, runner: &str| job(name, runner, "completed");
    let busy = |name: &str, runner: &str| job(name, runner, "in_progress");
    // What is listed, for whom, in our own attempt or not, and what is found: ended, runs, or open.
    let cases: &[(&str, &Place, &[Value], bool, char)] = &[
        ("its job has ended", &known, &[done("deploy", "r1")], false, 'e'),
        ("its job runs", &known, &[busy("deploy", "r1")], false, 'r'),
        ("another name, its runner", &known, &[done("Deploy to prod", "r1"), busy("Heal", "r2")], true, 'e'),
        ("another name, its runner, runs", &known, &[busy("Deploy to prod", "r1"), done("Heal", "r2")], false, 'r'),
        ("the heal job on the same runner", &known, &[done("deploy", "r1"), busy("heal", "r1")], true, 'e'),
        ("the same, by names that tell nothing", &known, &[done("Roll", "r1"), busy("Heal", "r1")], true, 'o'),
        (
            "of a matrix, on its runner",
            &known,
            &[done("deploy (prod, 1)", "r1"), busy("deploy (dev, 1)", "r2")],
            false,
            'e',
        ),
        ("of a matrix, both on its runner", &known, &[done("deploy (a)", "r1"), busy("deploy (b)", "r1")], false, 'o'),
        ("of a reusable workflow", &known, &[done("prod / deploy", "r1"), busy("prod / heal", "r1")], true, 'e'),
        ("a longer name is another job", &known, &[done("deploy-2", "r1"), busy("Roll", "r1")], false, 'o'),
        ("no job on its runner", &known, &[done("deploy", "r9"), busy("heal", "r2")], false, 'o'),
        ("all have ended, none on its runner", &known, &[done("deploy", "r9")], false, 'e'),
        ("it waits again", &known, &[job("deploy", "r1", "queued")], false, 'r'),
        ("nothing is listed", &known, &[], false, 'o'),
        ("the old script's, all have ended", &old, &[done("deploy", "r1"), done("heal", "r2")], false, 'e'),
        ("the old script's, one runs", &old, &[done("deploy", "r1"), busy("heal", "r2")], false, 'r'),
        ("the old script's, one waits", &old, &[done("deploy", "r1"), job("heal", "", "waiting")], false, 'o'),
        ("the old script's, in our own attempt", &old, &[done("deploy", "r1"), busy("heal", "r2")], true, 'o'),
    ];
    for (name, place, all, ours, expected) in cases {
        let found = find(place, all, *ours);
        let seen = match &found {
            Finding::Ended(_) => 'e',
            Finding::Runs(_) => 'r',
            Finding::Open(_) => 'o',
        };
        assert_eq!(seen, *expected, "{name}: {found:?}");
    }
}

#[test]
fn l21_the_words_name_the_job_and_its_times() {
    let known = place(Some("deploy"), Some("r1"));
    let Finding::Ended(why) = find(&known, &[job("deploy", "r1", "completed")], false) else { panic!() };
    assert_eq!(why, "its job \"deploy\" of run 17123, attempt 2, completed 12m00s ago (cancelled)");
    let Finding::Runs(why) = find(&known, &[job("deploy", "r1", "in_progress")], false) else { panic!() };
    assert_eq!(
        why,
        "its job \"deploy\" of run 17123, attempt 2, is in progress, started 1h12m ago; GitHub ends it at \
         2026-11-30 13:00Z, unless its timeout-minutes says otherwise"
    );
    // What others chose breaks no line, which a CI would read as a command.
    let Finding::Ended(why) = find(&known, &[job("deploy\n::error::x", "r1", "completed")], false) else { panic!() };
    assert!(!why.contains('\n'), "{why}");
}

#[test]
fn l23_a_job_of_another_attempt_or_run_does_not_count_and_a_long_list_does_not_tell() {
    let known = place(Some("deploy"), Some("r1"));
    let mut earlier = job("deploy", "r1", "completed");
    earlier["run_attempt"] = json!(1);
    assert!(matches!(find(&known, &[earlier.clone(), job("deploy", "r1", "in_progress")], false), Finding::Runs(_)));
    assert!(matches!(find(&known, &[earlier], false), Finding::Open(_)));
    let mut other = job("deploy", "r1", "completed");
    other["run_id"] = json!(1);
    assert!(matches!(find(&known, &[other], false), Finding::Open(_)));
    let mut long = jobs(&[job("deploy", "r1", "completed")]);
    long.total_count = 101;
    assert!(matches!(of_jobs(&known, &long, false, Timestamp::UNIX_EPOCH), Finding::Open(_)));
}

#[test]
fn l21_l23_a_whole_attempt_counts_only_when_it_has_completed_and_is_the_one_asked_for() {
    let whole = |id: u64, number: u32, status: Value| {
        let attempt: Attempt =
            serde_json::from_value(json!({"id": id, "run_attempt": number, "status": status, "conclusion": null}))
                .unwrap();
        matches!(of_attempt(&place(None, None), &attempt), Finding::Ended(_))
    };
    assert!(whole(17123, 2, json!("completed")));
    for status in [json!("in_progress"), json!("queued"), json!("waiting"), json!("requested"), Value::Null] {
        assert!(!whole(17123, 2, status));
    }
    assert!(!whole(17123, 1, json!("completed")) && !whole(9, 2, json!("completed")));
}

#[test]
fn p06_the_token_goes_only_where_our_own_environment_says() {
    let theirs = evidence("17123", "2", "deploy", "r1");
    let of = |pairs: &[(&str, &str)], evidence: &Evidence| environment(pairs).place(HOLDER, Some(evidence));
    let at_github = of(&[("GITHUB_TOKEN", TOKEN)], &theirs).unwrap().unwrap();
    assert_eq!(at_github, place(Some("deploy"), Some("r1")));
    // Another server than ours, however it is written.
    for server in ["https://github.evil", "http://github.com", "https://github.com.evil", "https://github.com@evil"] {
        let evil = Evidence { server: Some(server.into()), ..theirs.clone() };
        assert!(of(&[("GH_TOKEN", TOKEN)], &evil).is_err(), "{server}");
    }
    let own = [("GH_TOKEN", TOKEN), ("GITHUB_SERVER_URL", "https://git.example/")];
    let enterprise = Evidence { server: Some("https://git.example".into()), ..theirs.clone() };
    for (api, fine) in [
        ("https://git.example/api/v3/", true),
        ("http://git.example/api/v3", false),
        ("https://user@git.example/api/v3", false),
        ("git.example", false),
        ("https://git.example/api?to=", false),
    ] {
        let all = [&own[..], &[("GITHUB_API_URL", api)]].concat();
        let found = of(&all, &enterprise);
        assert_eq!(found.is_ok(), fine, "{api}: {found:?}");
        assert!(of(&all, &theirs).is_err(), "github.com is not our server there");
        if let Ok(Some(place)) = found {
            assert_eq!(place.api, "https://git.example/api/v3");
        }
    }
    assert!(of(&own, &enterprise).is_err(), "its API is not known");
    assert!(of(&[("GH_TOKEN", TOKEN), ("GITHUB_API_URL", "https://x")], &theirs).is_err());
    // What would be another path of the API.
    for repository in ["", "infra", "acme/", "acme/infra/actions", "acme/..", "acme/in?fra", "acme/in%2ffra", "../x"] {
        let odd = Evidence { repository: Some(repository.into()), ..theirs.clone() };
        assert!(of(&[("GH_TOKEN", TOKEN)], &odd).is_err(), "{repository}");
    }
    for (run, attempt) in [("1/../2", "1"), ("-1", "1"), ("1", "x"), ("", "1")] {
        assert!(of(&[("GH_TOKEN", TOKEN)], &evidence(run, attempt, "deploy", "r1")).is_err(), "{run}.{attempt}");
    }
    assert!(!format!("{:?}", environment(&[("GH_TOKEN", TOKEN)])).contains("canary"));
}

#[test]
fn l27_a_holder_without_evidence_is_asked_for_in_our_own_repository() {
    let own = [("GH_TOKEN", TOKEN), ("GITHUB_REPOSITORY", "acme/infra")];
    assert_eq!(environment(&own).place(HOLDER, None), Ok(Some(place(None, None))));
    assert_eq!(environment(&own).place("0123456789abcdef-local-7f", None), Ok(None));
    assert!(environment(&own[..1]).place(HOLDER, None).is_err(), "in no repository");
    assert!(environment(&own[1..]).place(HOLDER, None).unwrap_err().contains("GH_TOKEN"));
}

type Answers = Arc<dyn Fn(&Request<Full<Bytes>>) -> Option<Response<Bytes>> + Send + Sync>;

/// One that answers so, and counts; `None` never answers.
fn ci(clock: &Clock, me: Evidence, answers: Answers) -> (Ci, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let transport: Transport = Arc::new(move |request| {
        count.fetch_add(1, Ordering::SeqCst);
        assert_eq!(request.headers()[AUTHORIZATION], format!("Bearer {TOKEN}"));
        let answer = answers(&request);
        async move {
            match answer {
                Some(answer) => Ok(answer),
                None => std::future::pending().await,
            }
        }
        .boxed()
    });
    (Ci::new(environment(&[("GH_TOKEN", TOKEN)]), me, clock.clone(), transport), asked)
}

fn answer(status: u16, headers: &[(http::HeaderName, &str)], body: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_owned()));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

/// One that finds the job `deploy` of run 17123.2 on the runner `r1` so.
pub(crate) fn says(clock: &Clock, status: &'static str) -> Arc<Ci> {
    Arc::new(ci(clock, Evidence::default(), Arc::new(move |_| Some(answer(200, &[], &list(status))))).0)
}

fn list(status: &str) -> String {
    json!({"total_count": 1, "jobs": [job("deploy", "r1", status)]}).to_string()
}

fn paused() -> Clock {
    Clock::paused(at("2026-11-30T08:12:00Z"))
}
