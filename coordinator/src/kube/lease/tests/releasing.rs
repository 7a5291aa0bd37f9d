//! Releasing, also while a renewal is in flight.

use talos_proto::permit::Permits;

use super::super::super::api_servers::ReadError;
use super::super::super::testing::Fault;
use super::super::record::EVIDENCE;
use super::*;

fn assert_free(api: &FakeApi) {
    let lease = api.get(LEASE).unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "", "as client-go and the older script read a free lease");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 1);
    assert!(lease["metadata"]["annotations"][EVIDENCE].is_null());
}

/// Acquired 14:54:24, work done 14:56:33.34, a renewal lands 14:56:34, released 14:56:35.19.
#[tokio::test(start_paused = true)]
async fn l07_release_survives_own_renewal() {
    let api = FakeApi::new();
    // The fifth renewal is sent at 129.0 s.
    let timing = Timing::scaled(Duration::from_millis(154_800));
    let lease = acquire(&api.servers(), LeaseOptions { timing, ..options("me") }).await.unwrap();
    api.clock.sleep(s(128)).await;
    assert_eq!(renewals(&api).len(), 4);
    api.fault(1, Fault::Late(s(1)), is_renewal);
    api.fault(1, Fault::ReplyLate(Duration::from_millis(1190)), is_release);
    api.clock.sleep(Duration::from_millis(1340)).await;
    assert_eq!(renewals(&api).len(), 5, "work is done at 129.34 s, the renewal is in flight until 130.0 s");
    assert_eq!(lease.release().await.unwrap(), Release::Freed);
    assert_free(&api);
    let release = api.log().into_iter().find(is_release).unwrap();
    let landed = talos_proto::clock::Moment::from_origin(s(130));
    assert!(release.at >= landed, "the release was sent after the renewal had come back");
    api.clock.sleep(s(1000)).await;
    assert_eq!(renewals(&api).len(), 5);
    assert_free(&api);
}

/// The same, but the renewal takes longer than its call may, and lands when the lease has been released.
#[tokio::test(start_paused = true)]
async fn l08_a_renewal_that_lands_after_the_release_changes_nothing() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.clock.sleep(s(119)).await;
    api.fault(1, Fault::Late(s(10)), is_renewal);
    api.clock.sleep(Duration::from_millis(10_340)).await;
    assert_eq!(lease.release().await.unwrap(), Release::Freed);
    assert!(api.clock.utc() < "2026-11-30T08:02:10Z".parse().unwrap(), "released before the renewal lands");
    api.clock.sleep(s(60)).await;
    assert_free(&api);
}

#[tokio::test(start_paused = true)]
async fn l10_a_lost_reply_of_the_release_is_adopted() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.fault(1, Fault::ReplyLost, is_release);
    assert_eq!(lease.release().await.unwrap(), Release::Freed);
    assert_eq!(api.log().iter().filter(|seen| is_release(seen)).count(), 1);
    assert_free(&api);
}

#[tokio::test(start_paused = true)]
async fn l11_a_release_that_conflicts_is_retried() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    let conflict = json!({ "status": "Failure", "reason": "Conflict", "code": 409, "message": "modified" });
    api.fault(3, Fault::Answer(409, conflict), is_release);
    assert_eq!(lease.release().await.unwrap(), Release::Freed);
    assert_eq!(api.log().iter().filter(|seen| is_release(seen)).count(), 4);
    assert_free(&api);
}

#[tokio::test(start_paused = true)]
async fn l10_a_release_rides_out_an_outage() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.unreachable();
    let healing = async {
        api.clock.sleep(s(150)).await;
        api.heal();
    };
    let (released, ()) = tokio::join!(lease.release(), healing);
    assert_eq!(released.unwrap(), Release::Freed);
    assert_free(&api);
}

#[tokio::test(start_paused = true)]
async fn l10_a_release_rides_out_servers_that_cannot_read_now() {
    for code in [429, 500, 503, 504] {
        let api = FakeApi::new();
        let lease = take(&api, "me").await;
        let away = json!({ "status": "Failure", "code": code, "message": "etcdserver: leader changed" });
        api.fault(3, Fault::Answer(code, away), |seen| seen.method == Method::GET);
        assert_eq!(lease.release().await.unwrap(), Release::Freed, "{code}");
        assert_free(&api);
    }
}

#[tokio::test(start_paused = true)]
async fn l10_a_release_that_may_not_read_is_an_error_at_once() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    let denied = json!({ "status": "Failure", "reason": "Forbidden", "code": 403, "message": "cannot get leases" });
    api.fault(1, Fault::Answer(403, denied), |seen| seen.method == Method::GET);
    assert!(matches!(lease.release().await, Err(ReleaseError::Read(ReadError::Refused(_)))));
}

#[tokio::test(start_paused = true)]
async fn l10_a_release_that_never_gets_through_is_an_error_and_ends() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.unreachable();
    assert!(matches!(lease.release().await, Err(ReleaseError::Read(_))));
    assert!(api.clock.utc() < "2026-11-30T08:03:10Z".parse().unwrap());
}

#[tokio::test(start_paused = true)]
async fn l07_an_empty_lease_counts_as_released() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.edit(LEASE, |lease| lease["spec"]["holderIdentity"] = Value::Null);
    assert_eq!(lease.release().await.unwrap(), Release::AlreadyFree);
    assert!(lease.undo_permit(s(1)).is_err());
    assert_eq!(lease.release().await.unwrap(), Release::AlreadyFree);
}
