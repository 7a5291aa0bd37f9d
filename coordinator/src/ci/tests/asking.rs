//! What is made of each answer, and how often anybody is asked.

use super::*;

type Headers<'h> = &'h [(http::HeaderName, &'h str)];

#[tokio::test(start_paused = true)]
async fn l21_an_answer_is_kept_for_a_while_and_a_death_for_good() {
    let clock = paused();
    let theirs = evidence("17123", "2", "deploy", "r1");
    let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let answers: Answers = {
        let ended = Arc::clone(&ended);
        Arc::new(move |_| {
            let status = if ended.load(Ordering::SeqCst) { "completed" } else { "in_progress" };
            Some(answer(200, &[], &list(status)))
        })
    };
    let (ci, asked) = ci(&clock, Evidence::default(), answers);
    for _ in 0..5 {
        assert!(matches!(ci.life(HOLDER, Some(&theirs)).await, Judged { life: Life::Alive(_), by: By::Ci }));
        clock.sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    ended.store(true, Ordering::SeqCst);
    clock.sleep(FRESH).await;
    for _ in 0..3 {
        assert!(matches!(ci.life(HOLDER, Some(&theirs)).await.life, Life::Dead(_)));
        clock.sleep(LONGEST_PAUSE).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn l21_what_is_not_answered_clearly_is_unknown_with_its_reason() {
    let limited: Headers<'_> = &[(http::HeaderName::from_static("x-ratelimit-remaining"), "0")];
    let cases: &[(u16, Headers<'_>, &str, &str)] = &[
        (401, &[], "{}", "refuses the token"),
        (403, &[], "{}", "actions: read"),
        (403, limited, "{}", "limits our requests (HTTP 403)"),
        (429, &[(RETRY_AFTER, "600")], "{}", "after 600 s"),
        (404, &[], "{}", "HTTP 404"),
        (502, &[], "{}", "HTTP 502"),
        (200, &[], "<html>", "not understood"),
        (200, &[], "{\"jobs\": []}", "not understood"),
        (301, &[(LOCATION, "https://evil.example/x")], "{}", "not shown"),
        (301, &[(LOCATION, "http://api.github.com/x")], "{}", "not shown"),
        (301, &[(LOCATION, "https://api.github.com@evil.example/x")], "{}", "not shown"),
        (301, &[(LOCATION, "//evil.example/x")], "{}", "not shown"),
        (301, &[(LOCATION, "https://api.github.com:444/x")], "{}", "not shown"),
        (301, &[], "{}", "not shown"),
    ];
    for (status, headers, body, says) in cases {
        let made = answer(*status, headers, body);
        let (ci, asked) = ci(&paused(), Evidence::default(), Arc::new(move |_| Some(made.clone())));
        let judged = ci.life(HOLDER, Some(&evidence("17123", "2", "deploy", "r1"))).await;
        let Life::Unknown(why) = &judged.life else { panic!("{status}: {judged:?}") };
        assert!(why.contains(says), "{status} says {says:?}: {why}");
        assert!(!why.contains("canary"), "{why}");
        assert_eq!(asked.load(Ordering::SeqCst), 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn l21_a_limit_is_respected_and_a_silent_server_given_up() {
    let clock = paused();
    let theirs = evidence("17123", "2", "deploy", "r1");
    let (limited, asked) =
        ci(&clock, Evidence::default(), Arc::new(|_| Some(answer(429, &[(RETRY_AFTER, "600")], "{}"))));
    for _ in 0..10 {
        limited.life(HOLDER, Some(&theirs)).await;
        clock.sleep(Duration::from_secs(59)).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let (silent, _) = ci(&clock, Evidence::default(), Arc::new(|_| None));
    let before = clock.now();
    let Life::Unknown(why) = silent.life(HOLDER, Some(&theirs)).await.life else { panic!() };
    assert!(why.contains("did not answer within 5s"), "{why}");
    assert_eq!(clock.now().since(before), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn l21_a_repository_that_was_renamed_is_followed_on_the_same_host() {
    let answers: Answers = Arc::new(|request| {
        Some(match request.uri().path() {
            "/repositories/1/x" => answer(200, &[], &list("completed")),
            _ => answer(301, &[(LOCATION, "https://api.github.com/repositories/1/x")], "{}"),
        })
    });
    let (moved, asked) = ci(&paused(), Evidence::default(), answers);
    let judged = moved.life(HOLDER, Some(&evidence("17123", "2", "deploy", "r1"))).await;
    assert!(matches!(judged.life, Life::Dead(_)), "{judged:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let (round, asked) = ci(
        &paused(),
        Evidence::default(),
        Arc::new(|request| Some(answer(301, &[(LOCATION, request.uri().to_string().as_str())], "{}"))),
    );
    assert!(matches!(round.life(HOLDER, Some(&evidence("17123", "2", "deploy", "r1"))).await.life, Life::Unknown(_)));
    assert_eq!(asked.load(Ordering::SeqCst), 3, "not for ever");
}

#[tokio::test(start_paused = true)]
async fn l21_where_the_job_does_not_tell_the_attempt_is_asked_once() {
    let answers: Answers = Arc::new(|request| {
        let path = request.uri().path();
        assert!(path.starts_with("/repos/acme/infra/actions/runs/17123/attempts/2"), "{path}");
        let whole = json!({"id": 17123, "run_attempt": 2, "status": "completed", "conclusion": "failure"});
        let body = if path.ends_with("/jobs") { json!({"total_count": 0, "jobs": []}) } else { whole };
        Some(answer(200, &[], &body.to_string()))
    });
    let (asks, asked) = ci(&paused(), Evidence::default(), answers);
    let judged = asks.life(HOLDER, Some(&evidence("17123", "2", "deploy", "r1"))).await;
    assert_eq!(judged.life, Life::Dead("its run 17123, attempt 2, has completed (failure)".into()));
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn l29_a_holder_of_this_very_job_or_on_this_machine_is_judged_by_its_process() {
    let never: Answers = Arc::new(|request| panic!("asked: {}", request.uri()));
    let clock = paused();
    let me = evidence("17123", "2", "deploy", "r1");
    let (asks, _) = ci(&clock, me.clone(), Arc::clone(&never));
    let judged = asks.life(HOLDER, Some(&me)).await;
    assert!(matches!(judged, Judged { life: Life::Unknown(_), by: By::Process }), "{judged:?}");
    // A process that can be seen needs no CI.
    let here = Evidence { run: Some("17123".into()), attempt: Some("1".into()), ..Evidence::of_this_process(&clock) };
    assert!(matches!(asks.life(HOLDER, Some(&here)).await, Judged { life: Life::Alive(_), by: By::Process }));
    let dead = Evidence { process_start: Some(1), ..here };
    assert!(matches!(asks.life(HOLDER, Some(&dead)).await, Judged { life: Life::Dead(_), by: By::Process }));
    // Nor does a holder without a run.
    assert!(matches!(asks.life("0123456789abcdef-local-7f", None).await.life, Life::Unknown(_)));
    // The job beside ours in the same attempt is asked for.
    let (asks, asked) = ci(&clock, me, Arc::new(|_| Some(answer(200, &[], &list("completed")))));
    let beside = asks.life(HOLDER, Some(&evidence("17123", "2", "other", "r1"))).await;
    assert!(matches!(beside.life, Life::Dead(_)), "{beside:?}");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
