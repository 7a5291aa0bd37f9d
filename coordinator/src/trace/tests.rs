use agent::step::Step;

use super::*;

fn clock() -> Clock {
    Clock::paused("2026-11-30T08:00:00Z".parse().unwrap())
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const WORKER: (bool, bool) = (false, false);

#[tokio::test(start_paused = true)]
async fn a_step_ends_with_its_effect_and_its_node_is_busy_until_it_was_looked_at() {
    let clock = clock();
    let trace = Trace::new(clock.clone());
    clock.sleep(s(2)).await;
    let drain = trace.step("w1", WORKER, &Task::Step(Step::Drain));
    clock.sleep(s(5)).await;
    assert_eq!(trace.running().0[0].span, Span { from: s(2), to: None });
    assert_eq!(trace.running().0[0].span.length(trace.running().1), s(5));
    drain.ended(Outcome::Done, None);
    clock.sleep(s(1)).await;
    assert_eq!(trace.running().0.len(), 1, "it is looked at");
    drop(drain);
    assert!(trace.running().0.is_empty());
    let step = &trace.collected().steps[0];
    assert_eq!((step.span, step.looked), (Span { from: s(2), to: Some(s(7)) }, Some(s(8))));
    assert_eq!((step.outcome, step.tries), (Some(Outcome::Done), 1));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_dropped_was_broken_off_and_one_whose_node_went_away_is_no_failure() {
    let clock = clock();
    let trace = Trace::new(clock.clone());
    let boot = trace.step("w1", WORKER, &Task::Step(Step::AwaitBoot));
    clock.sleep(s(3)).await;
    drop(boot);
    let drain = trace.step("w2", WORKER, &Task::Step(Step::Drain));
    drain.ended(Outcome::Failed, Some("404".into()));
    drain.gone("it was deleted");
    drop(drain);
    let steps = trace.collected().steps;
    assert_eq!((steps[0].outcome, steps[0].span.to), (Some(Outcome::BrokenOff), Some(s(3))));
    assert_eq!((steps[1].outcome, steps[1].why.as_deref()), (Some(Outcome::Gone), Some("it was deleted")));
}

#[tokio::test(start_paused = true)]
async fn tries_that_follow_each_other_are_one_step_with_the_last_reason() {
    let clock = clock();
    let trace = Trace::new(clock.clone());
    for try_ in 1..=3 {
        let look = trace.step("w1", WORKER, &Task::Step(Step::LookAgain(format!("reason {try_}"))));
        look.ended(Outcome::Again, Some(format!("reason {try_}")));
        drop(look);
        clock.sleep(s(1)).await;
    }
    drop(trace.step("w2", WORKER, &Task::Step(Step::LookAgain("other".into()))));
    // Another step in between, and a try after a long while, are steps of their own.
    let drain = trace.step("w1", WORKER, &Task::Step(Step::Drain));
    drain.ended(Outcome::Again, Some("no answer".into()));
    drop(drain);
    clock.sleep(s(60)).await;
    drop(trace.step("w1", WORKER, &Task::Step(Step::Drain)));
    let steps = trace.collected().steps;
    let told: Vec<_> = steps.iter().map(|step| (step.node.as_str(), step.task.name(), step.tries)).collect();
    assert_eq!(told, [("w1", "LookAgain", 3), ("w2", "LookAgain", 1), ("w1", "Drain", 1), ("w1", "Drain", 1)]);
    assert_eq!((steps[0].span, steps[0].why.as_deref()), (Span { from: s(0), to: Some(s(2)) }, Some("reason 3")));
}

#[tokio::test(start_paused = true)]
async fn a_phase_counts_the_time_in_which_anything_of_it_goes_on() {
    let clock = clock();
    let trace = Trace::new(clock.clone());
    let inventory = trace.phase(Phase::Inventory);
    clock.sleep(s(1)).await;
    drop(inventory);
    let first = trace.step("w1", WORKER, &Task::Step(Step::Drain));
    clock.sleep(s(2)).await;
    let second = trace.step("w2", WORKER, &Task::Step(Step::Claim));
    let control_plane = trace.step("cp-1", (true, false), &Task::Step(Step::CheckPull));
    clock.sleep(s(2)).await;
    drop((first, control_plane));
    clock.sleep(s(2)).await;
    drop(second);
    clock.sleep(s(10)).await;
    let third = trace.step("w3", WORKER, &Task::Step(Step::Claim));
    let inventory = trace.phase(Phase::Inventory);
    clock.sleep(s(3)).await;
    let collected = trace.collected();
    let told: Vec<_> = collected.phases.iter().map(|it| (it.phase, it.length(collected.now), it.spans.len())).collect();
    assert_eq!(
        told,
        [(Phase::Inventory, s(1 + 3), 2), (Phase::Workers, s(6 + 3), 2), (Phase::Pull, s(2), 1)],
        "two workers at once are counted once, and what goes on is counted until now"
    );
    drop((third, inventory));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_told_from_its_send_to_its_answer() {
    let clock = clock();
    let trace = Trace::new(clock.clone());
    clock.sleep(s(30)).await;
    let sent = clock.now();
    clock.sleep(s(1)).await;
    trace.renewed(sent, None);
    trace.renewed(clock.now(), Some("no answer".into()));
    let renewals = trace.collected().renewals;
    assert_eq!(renewals[0], RenewalSpan { span: Span { from: s(30), to: Some(s(31)) }, why: None });
    assert_eq!(renewals[1].why.as_deref(), Some("no answer"));
}
