//! Taking the lease: free, held, dead, odd.

use talos_proto::permit::Permits as _;

use super::super::super::testing::Fault;
use super::super::record::EVIDENCE;
use super::*;
use crate::ci::tests::{evidence, says};

#[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
fn held(holder: &str, duration: Value) -> Value {
    json!({ "holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": 4,
        "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z" })
}

async fn refused(api: &FakeApi, options: LeaseOptions) -> HeldByAnother {
    match acquire(&api.servers(), options).await {
        Err(AcquireError::HeldByAnother(held)) => *held,
        other => panic!("{:?}", other.map(|lease| lease.holder().to_owned())),
    }
}

/// A child of this process that has ended, as evidence.
fn dead_process() -> Evidence {
    let clock = talos_proto::clock::Clock::system();
    Evidence { process_start: Some(1), ..Holder::this_process("r", &clock).evidence }
}

fn put_with_evidence(api: &FakeApi, evidence: &Evidence) {
    put(api, held("other", json!(180)));
    let mut value = serde_json::to_value(evidence).unwrap();
    value["holder"] = json!("other");
    api.edit(LEASE, |lease| lease["metadata"]["annotations"] = json!({ EVIDENCE: value.to_string() }));
}

#[tokio::test(start_paused = true)]
async fn l02_an_absent_lease_is_created() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    let stored = spec(&api);
    assert_eq!((stored["holderIdentity"].as_str(), lease.epoch()), (Some("me"), 0));
    assert_eq!(stored["leaseDurationSeconds"], 180);
    assert_eq!(stored["renewTime"], "2026-11-30T08:00:00.000000Z");
    assert_eq!(api.get(LEASE).unwrap()["metadata"]["uid"], lease.uid());
}

#[tokio::test(start_paused = true)]
async fn l09_a_lease_that_was_deleted_is_created_when_no_holder_can_have_a_permit_any_more() {
    // Something says that it was there, or it goes while its holder is watched.
    for watched in [false, true] {
        let api = FakeApi::new();
        let first = take(&api, "first").await;
        let expected = (!watched).then(|| "cp-1 carries a record".to_owned());
        if !watched {
            api.delete(LEASE);
        }
        let deleted = {
            let (api, clock) = (api.clone(), api.clock.clone());
            async move {
                clock.sleep(s(10)).await;
                if watched {
                    api.delete(LEASE);
                }
                clock.now()
            }
        };
        let (told, progress) = recorded();
        let options = LeaseOptions { expected, progress, ..options("second") };
        let servers = api.servers();
        let began = api.clock.now();
        let (second, gone) = tokio::join!(acquire(&servers, options), deleted);
        let since = api.clock.now().since(if watched { gone } else { began });
        assert!(since >= s(120) && since <= s(131), "watched {watched}: {since:?}");
        assert!(first.permit(s(1)).is_err(), "the first has noticed");
        assert_eq!(second.unwrap().epoch(), 0);
        let told = told.lock().unwrap();
        assert!(told.iter().any(|told| matches!(told, LeaseProgress::Deleted { .. })), "{told:?}");
        let created = api.log().iter().filter(|seen| seen.method == Method::POST).count();
        assert_eq!(created, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn l02_a_free_lease_is_taken_with_its_transitions_counted() {
    let free = [
        (json!({}), 1),
        (json!({ "holderIdentity": null }), 1),
        (json!({ "holderIdentity": "", "leaseTransitions": 6, "leaseDurationSeconds": 1 }), 7),
        (json!({ "leaseTransitions": i32::MAX }), 1),
    ];
    for (before, epoch) in free {
        let api = FakeApi::new();
        put(&api, before);
        let lease = take(&api, "me").await;
        assert_eq!(lease.epoch(), epoch);
        assert_eq!(spec(&api)["leaseTransitions"], epoch);
        assert_eq!(spec(&api)["holderIdentity"], "me");
        assert_eq!(api.writes().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn l02_a_lost_reply_of_the_acquisition_is_adopted() {
    let api = FakeApi::new();
    put(&api, json!({ "leaseTransitions": 2 }));
    api.fault(1, Fault::ReplyLost, on_lease(&Method::PATCH));
    let lease = take(&api, "me").await;
    assert_eq!((lease.epoch(), api.writes().len()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn l03_a_holder_that_renews_while_watched_refuses() {
    let api = FakeApi::new();
    let other = take(&api, "0123456789abcdef-gh17123.2-7f").await;
    let writes = api.writes().len();
    let held = refused(&api, options("me")).await;
    assert_eq!(held.record.holder.as_deref(), Some(other.holder()));
    assert_eq!((held.record.transitions, held.record.duration), (Some(0), Some(s(180))));
    assert!(held.why.contains("renewed the lease while we watched"), "{held}");
    assert!(held.to_string().contains("transitions 0"), "{held}");
    assert!(api.writes()[writes..].iter().all(is_renewal), "nothing but the holder's renewals was written");
}

#[tokio::test(start_paused = true)]
async fn l03_a_holder_that_is_known_alive_refuses_at_once() {
    let api = FakeApi::new();
    let clock = talos_proto::clock::Clock::system();
    let evidence = Evidence {
        run: Some("17123".to_owned()),
        attempt: Some("2".to_owned()),
        repository: Some("o/r".to_owned()),
        ..Holder::this_process("r", &clock).evidence
    };
    put_with_evidence(&api, &evidence);
    let began = api.clock.now();
    let held = refused(&api, options("me")).await;
    assert_eq!(api.clock.now().since(began), Duration::ZERO);
    assert_eq!(held.record.run_link().as_deref(), Some("https://github.com/o/r/actions/runs/17123/attempts/2"));
    assert!(held.age.is_some());
    assert!(api.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn l04_an_unknown_holder_is_watched_for_its_duration_and_grace() {
    let api = FakeApi::new();
    put(&api, held("other", json!(180)));
    let (told, progress) = recorded();
    let began = api.clock.now();
    let lease = acquire(&api.servers(), LeaseOptions { progress, ..options("me") }).await.unwrap();
    let took = api.clock.now().since(began);
    assert!(took >= s(300) && took < s(306), "{took:?}");
    assert_eq!(lease.epoch(), 5);
    let told = told.lock().unwrap();
    assert!(matches!(&told[0], LeaseProgress::Watching { left, .. } if *left == s(300)));
    assert!(matches!(told.last().unwrap(), LeaseProgress::TakingOver { .. }));
}

#[tokio::test(start_paused = true)]
async fn l04_a_holder_known_dead_is_taken_over_after_one_more_read() {
    let api = FakeApi::new();
    put_with_evidence(&api, &dead_process());
    let began = api.clock.now();
    take(&api, "me").await;
    let took = api.clock.now().since(began);
    assert!(took >= s(16) && took < s(17), "what it had sent has landed by then: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn l21_a_holder_whose_job_has_ended_is_taken_when_two_renewals_would_have_been_seen() {
    let api = FakeApi::new();
    put_with_evidence(&api, &evidence("17123", "2", "deploy", "r1"));
    let asks = |api: &FakeApi, status| LeaseOptions { ci: Some(says(&api.clock, status)), ..options("me") };
    let (told, progress) = recorded();
    let began = api.clock.now();
    acquire(&api.servers(), LeaseOptions { progress, ..asks(&api, "completed") }).await.unwrap();
    let took = api.clock.now().since(began);
    assert!(took >= s(60) && took < s(61), "{took:?}");
    let first = told.lock().unwrap()[0].clone();
    assert!(matches!(&first, LeaseProgress::TakingOver { why, .. } if why.contains("its job \"deploy\"")), "{first:?}");

    // A runner that the server has lost goes on, and renews.
    let api = FakeApi::new();
    put_with_evidence(&api, &evidence("17123", "2", "deploy", "r1"));
    let alive = {
        let api = api.clone();
        async move {
            api.clock.sleep(s(30)).await;
            api.edit(LEASE, |lease| lease["spec"]["renewTime"] = json!("2020-01-01T00:00:30.000000Z"));
        }
    };
    let (held, ()) = tokio::join!(refused(&api, asks(&api, "completed")), alive);
    assert!(held.why.contains("renewed the lease while we watched"), "{held}");
    assert!(api.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn l21_a_holder_whose_job_runs_is_left_alone_however_old_its_record() {
    let api = FakeApi::new();
    put_with_evidence(&api, &evidence("17123", "2", "deploy", "r1"));
    let began = api.clock.now();
    let ci = Some(says(&api.clock, "in_progress"));
    let held = refused(&api, LeaseOptions { ci, ..options("me") }).await;
    assert!(held.why.contains("in progress"), "{held}");
    assert_eq!((api.clock.now().since(began), api.writes().len()), (Duration::ZERO, 0));
}

#[tokio::test(start_paused = true)]
async fn l04_a_late_renewal_of_a_dead_holder_is_seen() {
    let api = FakeApi::new();
    put_with_evidence(&api, &dead_process());
    let late = {
        let api = api.clone();
        async move {
            api.clock.sleep(s(4)).await;
            api.edit(LEASE, |lease| lease["spec"]["renewTime"] = json!("2020-01-01T00:00:09.000000Z"));
        }
    };
    let (refused, ()) = tokio::join!(refused(&api, options("me")), late);
    assert!(refused.why.contains("renewed"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn l04_evidence_of_an_earlier_holder_is_not_believed() {
    let api = FakeApi::new();
    put_with_evidence(&api, &dead_process());
    api.edit(LEASE, |lease| lease["spec"]["holderIdentity"] = json!("a-tool-that-leaves-annotations"));
    let began = api.clock.now();
    take(&api, "me").await;
    assert!(api.clock.now().since(began) >= s(300));
}

#[tokio::test(start_paused = true)]
async fn l05_time_without_an_answer_does_not_count() {
    let api = FakeApi::new();
    put(&api, held("other", json!(180)));
    let outage = {
        let api = api.clone();
        async move {
            api.clock.sleep(s(100)).await;
            api.unreachable();
            api.clock.sleep(s(90)).await;
            api.heal();
        }
    };
    let began = api.clock.now();
    let (_, ()) = tokio::join!(take(&api, "me"), outage);
    let took = api.clock.now().since(began);
    assert!(took >= s(390) && took < s(405), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn l06_odd_durations_are_watched_within_bounds() {
    for (duration, expected) in [(json!(0), 300), (json!(-1), 300), (json!(1), 135), (json!(i32::MAX), 720)] {
        let api = FakeApi::new();
        put(&api, held("other", duration.clone()));
        let began = api.clock.now();
        take(&api, "me").await;
        let took = api.clock.now().since(began);
        assert!(took >= s(expected) && took < s(expected + 6), "{duration}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn l06_missing_times_and_transitions_are_taken_over_too() {
    let api = FakeApi::new();
    put(&api, json!({ "holderIdentity": "other", "renewTime": "2099-01-01T00:00:00.000000Z" }));
    let lease = take(&api, "me").await;
    assert_eq!(lease.epoch(), 1);
}

#[tokio::test(start_paused = true)]
async fn l24_of_two_that_start_together_exactly_one_holds() {
    let api = FakeApi::new();
    let (servers, other) = (api.servers(), api.servers());
    let (first, second) = tokio::join!(acquire(&servers, options("a")), acquire(&other, options("b")));
    assert_eq!(usize::from(first.is_ok()) + usize::from(second.is_ok()), 1);
    let holder = first.or(second).map(|lease| lease.holder().to_owned()).unwrap();
    assert_eq!(spec(&api)["holderIdentity"], holder);
}

#[tokio::test(start_paused = true)]
async fn l25_a_missing_right_is_said() {
    let api = FakeApi::new();
    let denied = json!({ "status": "Failure", "reason": "Forbidden", "code": 403, "message": "cannot create" });
    api.fault(1, Fault::Answer(403, denied), |seen| seen.method == Method::POST);
    let error = acquire(&api.servers(), options("me")).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, AcquireError::Write { .. }));
    assert!(error.to_string().contains("kube-system/talos-ghcr"));
}

#[tokio::test(start_paused = true)]
async fn l33_wait_zero_refuses_at_first_sight() {
    let api = FakeApi::new();
    put(&api, held("other", json!(180)));
    let began = api.clock.now();
    let held = refused(&api, LeaseOptions { wait: Some(Duration::ZERO), ..options("me") }).await;
    assert_eq!(api.clock.now().since(began), Duration::ZERO);
    assert!(held.why.contains("--lease-wait 0"), "{held}");
}

#[tokio::test(start_paused = true)]
async fn l33_wait_goes_on_until_the_holder_releases() {
    let api = FakeApi::new();
    let other = take(&api, "other").await;
    let releasing = async {
        api.clock.sleep(s(200)).await;
        other.release().await.unwrap();
    };
    let servers = api.servers();
    let (lease, ()) = tokio::join!(acquire(&servers, LeaseOptions { wait: Some(s(600)), ..options("me") }), releasing);
    assert_eq!(lease.unwrap().epoch(), 1);
    assert!(api.clock.utc() < "2026-11-30T08:03:30Z".parse().unwrap());
}

#[tokio::test(start_paused = true)]
async fn l33_takeover_never_leaves_a_dead_holder() {
    let api = FakeApi::new();
    put_with_evidence(&api, &dead_process());
    let held = refused(&api, LeaseOptions { takeover: Takeover::Never, ..options("me") }).await;
    assert!(held.why.contains("--takeover never"), "{held}");
    put(&api, json!({ "holderIdentity": "unknown" }));
    let held = refused(&api, LeaseOptions { takeover: Takeover::Verified, ..options("me") }).await;
    assert!(held.why.contains("--takeover verified"), "{held}");
}
