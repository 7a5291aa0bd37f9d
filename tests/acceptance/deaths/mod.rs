//! X01, X02, X03: whatever befalls a run, at whichever of its mutating requests, one unattended run ends in law S7.

mod case;
mod matrix;
mod request;

use lab::faults::When;
use lab::options::Kubernetes;

use self::case::{Cut, Death};
use self::request::{At, recorded};

/// Labs that run side by side; they wait most of the time.
const AT_ONCE: usize = 5;
/// Points on a real API server, whose lab takes several times as long.
const REAL_POINTS: usize = 8;
/// More requests than a roll of this lab has: where one is not reached, the roll has ended unhurt.
const REQUESTS: u64 = 400;

/// The others, by turns: a kill is at every sort of request.
const OTHERS: [Death; 6] = [
    Death::ReplyLost,
    Death::ApiCut(Cut::Short),
    Death::Stopped,
    Death::ApidCut(Cut::Short),
    Death::ApiCut(Cut::Long),
    Death::ApidCut(Cut::Long),
];
/// One of them at every so many sorts.
const EVERY: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x01_x02_x03_s8_a_death_at_every_sort_of_request_of_a_roll() {
    let mut cases = Vec::new();
    for (index, sort) in recorded().await.into_iter().enumerate() {
        let side = [When::Before, When::After][index % 2];
        cases.push((Death::Kill(side), At::First(sort.clone())));
        if index % EVERY == 1 {
            cases.push((OTHERS[index / EVERY % OTHERS.len()], At::First(sort)));
        }
    }
    if matches!(Kubernetes::from_env(), Ok(Kubernetes::Real(_))) {
        let (kills, others): (Vec<_>, Vec<_>) =
            cases.into_iter().partition(|(death, _)| matches!(death, Death::Kill(_)));
        cases = [spread(&kills, REAL_POINTS / 2), spread(&others, REAL_POINTS / 2)].concat();
    }
    matrix::run(cases, AT_ONCE).await;
}

/// So many of them, from one end of the roll to the other.
fn spread<T: Clone>(cases: &[T], count: usize) -> Vec<T> {
    (0..count).filter_map(|point| cases.get(point * cases.len() / count).cloned()).collect()
}

/// A number that the environment may change.
fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).filter(|number| *number > 0).unwrap_or(otherwise)
}

/// All of it. `CRASH_DEATH` is in the name of the deaths that are tried, `CRASH_REQUEST` one request, `CRASH_EVERY` leaves requests out,
/// `CRASH_AT_ONCE` is how many labs run side by side.
#[ignore = "make crash: the better part of an hour on two cores"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x01_x02_x03_s8_every_death_at_every_request_of_a_roll() {
    let only = std::env::var("CRASH_DEATH").unwrap_or_default();
    let deaths = Death::ALL.into_iter().filter(|death| death.to_string().contains(&only));
    let deaths: Vec<_> = deaths.collect();
    assert!(!deaths.is_empty(), "{only:?} is none of {}", Death::ALL.map(|death| death.to_string()).join(", "));
    let (every, request) = (number("CRASH_EVERY", 1), number("CRASH_REQUEST", 0));
    let mut cases = Vec::new();
    for k in (1..=REQUESTS).filter(|k| request == 0 || *k == request as u64) {
        for (index, death) in deaths.iter().enumerate() {
            // Each kind of death leaves out other ones.
            if request != 0 || (k as usize + index).is_multiple_of(every) {
                cases.push((*death, At::Number(k)));
            }
        }
    }
    matrix::run(cases, number("CRASH_AT_ONCE", AT_ONCE)).await;
}
