//! ApplyConfiguration: what counts as its success, and that no word of its answers is ever kept. C08, C13, C14.

use std::time::Duration;

use prost::Message as _;
use tonic::Code;

use super::memory::{Answer, Asked, Wire, node};
use crate::error::{CallError, Why, chain};
use crate::node::Apply;
use crate::permit::Permit;
use crate::proto::common;
use crate::proto::machine::apply_configuration_request::Mode;
use crate::proto::machine::{ApplyConfiguration, ApplyConfigurationRequest, ApplyConfigurationResponse};

/// As Talos 1.13 refuses a TRY or a NO_REBOOT of what needs a reboot (talos-captures, write.jsonl), with two passwords.
const DIFF: &str = "this config change can't be applied in immediate mode\n\
                    diff:\n-          password: old-1f0c\n+          password: new-7b3e\n";
/// What must not be found anywhere.
const WORDS: [&str; 4] = ["old-1f0c", "new-7b3e", "password", "immediate mode"];

const NO_REBOOT: Apply = Apply::NoReboot;
const TRY: Apply = Apply::Try(Duration::from_secs(300));

async fn apply(
    mode: Apply,
    answers: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> (Result<(), CallError>, Wire) {
    let (node, wire) = node(answers, |target| target);
    let clock = node.talos().clock();
    let permit = Permit::until(clock.clone(), clock.now() + Duration::from_secs(600));
    (node.apply_configuration(permit, b"machine: {}\n", mode, Duration::from_secs(20)).await, wire)
}

fn applied(mode: Mode) -> ApplyConfiguration {
    ApplyConfiguration { mode: mode.into(), mode_details: DIFF.into(), ..ApplyConfiguration::default() }
}

fn refused_inside(mode: Mode) -> ApplyConfiguration {
    let metadata = common::Metadata { hostname: "10.0.0.5".into(), error: DIFF.into() };
    ApplyConfiguration { metadata: Some(metadata), ..applied(mode) }
}

async fn answered(mode: Apply, messages: Vec<ApplyConfiguration>) -> Result<(), CallError> {
    let reply = ApplyConfigurationResponse { messages }.encode_to_vec();
    let (outcome, wire) = apply(mode, move |_| Answer::one(reply.clone())).await;
    assert_eq!(wire.asked().len(), 1, "sent once, whatever the answer is");
    outcome
}

/// Whoever prints it in any way prints nothing of the answer.
#[track_caller]
fn assert_silent(error: &CallError) {
    for shown in [chain(error), error.to_string(), format!("{error:?}"), format!("{error:#?}")] {
        let found = WORDS.into_iter().find(|words| shown.contains(words));
        assert_eq!(found, None, "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn c08_c14_no_word_of_a_refused_apply_is_kept() {
    let codes = (1..=16).map(Code::from).filter(|code| *code != Code::Ok);
    // apid and grpc-go put their own words before those of the node, and some codes are told apart by them.
    let wraps = ["", "rpc error: desc = ", "message length too large: ", "Timeout expired: ", "is not supported: "];
    for code in codes {
        for wrap in wraps {
            for mode in [NO_REBOOT, TRY] {
                let words = format!("{wrap}{DIFF}");
                let (outcome, wire) = apply(mode, move |_| Answer::refusal_saying(code, &words)).await;
                let error = outcome.expect_err("it was refused");
                assert_silent(&error);
                assert!(chain(&error).contains("ApplyConfiguration of 10.0.0.5"), "{}", chain(&error));
                assert_eq!(wire.asked().len(), 1, "{code:?}: a write is not sent again");
            }
        }
    }
    let (outcome, _) = apply(TRY, |_| Answer::refusal_saying(Code::InvalidArgument, DIFF)).await;
    let why = outcome.expect_err("it was refused").why;
    assert!(matches!(why, Why::Refused { code: Code::InvalidArgument, message: None }), "{why:?}");
}

#[tokio::test(start_paused = true)]
async fn c13_the_mode_that_was_asked_for_is_a_success_and_nothing_else() {
    for (mode, right) in [(NO_REBOOT, Mode::NoReboot), (TRY, Mode::Try)] {
        answered(mode, vec![applied(right)]).await.expect("it says what was asked for");
        // 0 is REBOOT: also what a reply says that holds no mode.
        for wrong in
            [Mode::Reboot, Mode::Auto, Mode::NoReboot, Mode::Staged, Mode::Try].into_iter().filter(|it| *it != right)
        {
            let error = answered(mode, vec![applied(wrong)]).await.expect_err("another mode was used");
            assert!(matches!(error.why, Why::Reply { .. }), "{mode:?} answered as {wrong:?}: {:?}", error.why);
            assert_silent(&error);
        }
        let unheard_of = ApplyConfiguration { mode: 77, ..applied(right) };
        answered(mode, vec![unheard_of]).await.expect_err("no mode that is known");
    }
}

#[tokio::test(start_paused = true)]
async fn c13_a_refusal_inside_an_ok_reply_is_a_refusal() {
    for (mode, said) in [(NO_REBOOT, Mode::NoReboot), (TRY, Mode::Try)] {
        let error = answered(mode, vec![refused_inside(said)]).await.expect_err("it was refused");
        assert!(matches!(error.why, Why::Refused { message: None, .. }), "{:?}", error.why);
        assert_silent(&error);
    }
}

#[tokio::test(start_paused = true)]
async fn c13_no_answer_or_two_in_one_reply_are_no_success() {
    let right = || applied(Mode::NoReboot);
    for messages in [vec![], vec![right(), right()], vec![right(), refused_inside(Mode::NoReboot)]] {
        let error = answered(NO_REBOOT, messages).await.expect_err("one node was asked");
        assert!(matches!(error.why, Why::Reply { .. }), "{:?}", error.why);
        assert_silent(&error);
    }
}

#[tokio::test(start_paused = true)]
async fn c05_an_apply_is_never_a_dry_run_and_only_a_try_is_rolled_back() {
    for (mode, wire_mode, rollback) in [(NO_REBOOT, Mode::NoReboot, None), (TRY, Mode::Try, Some(300))] {
        let reply = ApplyConfigurationResponse { messages: vec![applied(wire_mode)] }.encode_to_vec();
        let (outcome, wire) = apply(mode, move |_| Answer::one(reply.clone())).await;
        outcome.expect("it is applied");
        let asked = wire.asked();
        let [asked] = asked.as_slice() else { panic!("{asked:?}") };
        let request = ApplyConfigurationRequest::decode(asked.message.as_slice()).expect("an apply");
        assert_eq!((request.mode(), request.dry_run), (wire_mode, false));
        assert_eq!(request.try_mode_timeout.map(|after| after.seconds), rollback);
        assert_eq!(request.data, b"machine: {}\n");
    }
}
