//! Renewing: the grid, outages, losing it, permits.

use talos_proto::permit::{NoPermit, Permits};

use super::super::super::testing::Fault;
use super::*;

fn lost_to(lease: &HeldLease) -> Option<String> {
    match &*lease.state().borrow() {
        LeaseState::Lost { holder } => Some(holder.clone()),
        _ => None,
    }
}

fn state(lease: &HeldLease) -> LeaseState {
    lease.state().borrow().clone()
}

#[tokio::test(start_paused = true)]
async fn l09_a_deleted_lease_is_lost_and_never_created_again() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.delete(LEASE);
    api.clock.sleep(s(100)).await;
    assert_eq!(lost_to(&lease).as_deref(), Some("nobody"));
    assert!(matches!(lease.permit(s(1)), Err(NoPermit::Lost { .. })));
    assert_eq!(api.get(LEASE), None);
    assert_eq!(lease.release().await.unwrap(), Release::Gone);
    assert_eq!(api.get(LEASE), None);
}

#[tokio::test(start_paused = true)]
async fn l09_a_lease_made_anew_is_not_ours() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    let before = spec(&api);
    api.delete(LEASE);
    put(&api, before);
    api.clock.sleep(s(31)).await;
    assert_eq!(lost_to(&lease).as_deref(), Some("me"));
}

#[tokio::test(start_paused = true)]
async fn l12_taken_by_another_mid_run() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.edit(LEASE, |lease| {
        lease["spec"]["holderIdentity"] = json!("thief");
        lease["spec"]["leaseTransitions"] = json!(1);
    });
    api.clock.sleep(s(31)).await;
    assert_eq!(lost_to(&lease).as_deref(), Some("thief"));
    assert_eq!(lease.permit(s(1)).unwrap_err(), NoPermit::Lost { holder: "thief".to_owned() });
    assert!(lease.undo_permit(s(1)).is_err());
    let writes = api.writes().len();
    api.clock.sleep(s(300)).await;
    assert_eq!(lease.release().await.unwrap(), Release::TakenBy { holder: "thief".to_owned() });
    assert_eq!(api.writes().len(), writes);
}

#[tokio::test(start_paused = true)]
async fn l13_an_outage_of_45_seconds_is_ridden_out() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.clock.sleep(s(20)).await;
    api.unreachable();
    let mut states = lease.state();
    for _ in 0..45 {
        api.clock.sleep(s(1)).await;
        assert!(lease.permit(s(8)).is_ok());
    }
    api.heal();
    api.clock.sleep(s(60)).await;
    assert!(!states.has_changed().unwrap() && *states.borrow_and_update() == LeaseState::Held);
    assert_eq!(lease.release().await.unwrap(), Release::Freed);
}

#[tokio::test(start_paused = true)]
async fn l14_an_outage_longer_than_the_duration_lapses_and_heals() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.unreachable();
    api.clock.sleep(s(119)).await;
    assert_eq!(state(&lease), LeaseState::Held);
    api.clock.sleep(s(2)).await;
    assert_eq!(state(&lease), LeaseState::Lapsed);
    assert_eq!(lease.permit(s(1)).unwrap_err(), NoPermit::Lapsed);
    assert_eq!(lease.undo_permit(s(1)).unwrap_err(), NoPermit::Lapsed);
    api.clock.sleep(s(200)).await;
    api.heal();
    api.clock.sleep(s(6)).await;
    assert_eq!(state(&lease), LeaseState::Held);
    assert!(lease.permit(s(8)).is_ok());
    assert_eq!(spec(&api)["leaseTransitions"], lease.epoch());
}

#[tokio::test(start_paused = true)]
async fn l15_taken_during_the_outage_is_lost() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    api.unreachable();
    api.clock.sleep(s(320)).await;
    api.edit(LEASE, |lease| lease["spec"]["holderIdentity"] = json!("next"));
    api.heal();
    api.clock.sleep(s(6)).await;
    assert_eq!(lost_to(&lease).as_deref(), Some("next"));
    api.clock.sleep(s(300)).await;
    assert!(matches!(lease.permit(s(1)), Err(NoPermit::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn l16_slow_renewals_stay_on_the_grid_and_count_from_the_send() {
    let api = FakeApi::new();
    api.fault(usize::MAX, Fault::ReplyLate(s(7)), is_renewal);
    let lease = take(&api, "me").await;
    api.clock.sleep(s(125)).await;
    assert_eq!(renewals(&api), [s(30), s(60), s(90), s(120)]);
    api.heal();
    api.unreachable();
    // The renewal in flight was sent at 120 s and answered at 127 s: its deadline is 240 s.
    api.clock.sleep(s(114)).await;
    assert_eq!(state(&lease), LeaseState::Held);
    api.clock.sleep(s(2)).await;
    assert_eq!(state(&lease), LeaseState::Lapsed);
}

#[tokio::test(start_paused = true)]
async fn l16_renewals_of_20_seconds_are_found_landed_by_reading() {
    let api = FakeApi::new();
    api.fault(usize::MAX, Fault::ReplyLate(s(20)), is_renewal);
    let lease = take(&api, "me").await;
    for _ in 0..400 {
        api.clock.sleep(s(1)).await;
        assert!(lease.permit(s(8)).is_ok(), "at {}", api.clock.utc());
    }
    let grid: Vec<_> = (1..=13).map(|n| s(30 * n)).collect();
    assert_eq!(renewals(&api), grid);
}

#[tokio::test(start_paused = true)]
async fn l17_after_a_stop_beyond_the_duration_nothing_is_granted() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    let permit = lease.permit(s(8)).unwrap();
    // Time goes by at one stroke; whatever the writer does when it wakes up has had no answer yet.
    api.fault(usize::MAX, Fault::Late(s(1)), |_| true);
    tokio::time::advance(s(500)).await;
    assert!(matches!(permit.spend(s(8)), Err(NoPermit::TooLate { .. })));
    assert_eq!(lease.permit(s(1)).unwrap_err(), NoPermit::Lapsed);
    assert_eq!(lease.undo_permit(s(1)).unwrap_err(), NoPermit::Lapsed);
    api.clock.sleep(s(2)).await;
    assert!(lease.permit(s(1)).is_ok(), "nobody came in between: renewed, and ours again");
}

#[tokio::test(start_paused = true)]
async fn l26_labels_by_another_tool_do_not_disturb() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    let label = |api: &FakeApi| {
        let number = api.log().len().to_string();
        api.edit(LEASE, |lease| lease["metadata"]["labels"] = json!({ "x": number }));
    };
    api.fault(usize::MAX, Fault::Meanwhile(Arc::new(label)), on_lease(&Method::PATCH));
    api.clock.sleep(s(100)).await;
    assert_eq!(renewals(&api), [s(30), s(60), s(90)]);
    assert_eq!(lease.release().await.unwrap(), Release::Freed);
}

#[tokio::test(start_paused = true)]
async fn l32_no_permit_outlives_what_another_could_take_over() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    let timing = *lease.timing();
    assert!(matches!(lease.permit(timing.longest_call() + s(1)), Err(NoPermit::TooLate { .. })));
    api.unreachable();
    // 120 s deadline less 15 s margin less 8 s of the call.
    api.clock.sleep(s(96)).await;
    assert!(lease.permit(s(8)).is_ok());
    api.clock.sleep(s(2)).await;
    assert!(matches!(lease.permit(s(8)), Err(NoPermit::TooLate { .. })));
    assert!(timing.renew_deadline + timing.longest_call() * 2 <= timing.watch(Some(timing.duration)));
}

#[tokio::test(start_paused = true)]
async fn l19_a_stop_refuses_steps_and_lets_undo() {
    let api = FakeApi::new();
    let lease = take(&api, "me").await;
    lease.request_stop();
    assert_eq!(lease.permit(s(1)).unwrap_err(), NoPermit::Stopping);
    assert!(lease.undo_permit(s(1)).is_ok());
    lease.release().await.unwrap();
    assert_eq!(lease.undo_permit(s(1)).unwrap_err(), NoPermit::Released);
}

#[tokio::test(start_paused = true)]
async fn l18_nothing_renews_after_the_handle_is_gone() {
    let api = FakeApi::new();
    drop(take(&api, "me").await);
    api.clock.sleep(s(1000)).await;
    assert!(renewals(&api).is_empty());
    assert_eq!(spec(&api)["holderIdentity"], "me");
}
