//! Many cases side by side, and the table of what came of them.
#![allow(clippy::disallowed_macros, reason = "the table is for whoever runs the tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::case::{Death, Outcome, suffer};
use super::request::At;
use crate::scene::panic_text;

/// What became of all cases of one kind of death.
#[derive(Default)]
struct Row {
    points: u32,
    same_run: u32,
    next_run: u32,
    gave_up: u32,
    unhurt: u32,
    refused: Vec<String>,
    failed: Vec<String>,
}

/// Cases, begun in their order.
struct Queue {
    cases: std::vec::IntoIter<(Death, At)>,
    /// From which request on a roll with that death ended unhurt.
    unhurt: BTreeMap<String, u64>,
    rows: BTreeMap<String, Row>,
}

impl Queue {
    /// The next one that is not beyond the end of the roll.
    fn next(&mut self) -> Option<(Death, At)> {
        let unhurt = &self.unhurt;
        self.cases.find(|(death, at)| match at {
            At::Number(number) => unhurt.get(&death.to_string()).is_none_or(|from| number < from),
            At::First(_) => true,
        })
    }

    fn note(&mut self, death: Death, at: &At, outcome: Result<Outcome, String>) {
        let row = self.rows.entry(death.to_string()).or_default();
        row.points += 1;
        match outcome {
            Ok(Outcome::SameRun) => row.same_run += 1,
            Ok(Outcome::NextRun) => row.next_run += 1,
            Ok(Outcome::GaveUp(_)) => row.gave_up += 1,
            Ok(Outcome::Refused(step)) => row.refused.push(format!("{death}, {at}: {step}")),
            Ok(Outcome::Unhurt) => {
                row.unhurt += 1;
                if let At::Number(number) = at {
                    let from = self.unhurt.entry(death.to_string()).or_insert(*number);
                    *from = (*from).min(*number);
                }
            }
            Err(why) => row.failed.push(format!("{death}, {at}: {why}")),
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the cases, so many labs at once, prints the table, and fails when any of them broke a law.
pub async fn run(cases: Vec<(Death, At)>, at_once: usize) {
    let begun = Instant::now();
    let queue = Queue { cases: cases.into_iter(), unhurt: BTreeMap::new(), rows: BTreeMap::new() };
    let queue = Arc::new(Mutex::new(queue));
    let mut lanes = JoinSet::new();
    for _ in 0..at_once {
        let queue = Arc::clone(&queue);
        lanes.spawn(async move {
            loop {
                let Some((death, at)) = lock(&queue).next() else { return };
                let begun = Instant::now();
                let outcome = tokio::spawn(Box::pin(suffer(death, at.clone()))).await;
                let outcome = outcome.map_err(panic_text);
                println!("{death}, {at}: {} after {:.1} s", word(&outcome), begun.elapsed().as_secs_f64());
                lock(&queue).note(death, &at, outcome);
            }
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane.expect("a lane runs to its end");
    }
    let queue = lock(&queue);
    println!("\n{}\n{:.0} s, {at_once} labs at once", table(&queue.rows), begun.elapsed().as_secs_f64());
    let failed: Vec<_> = queue.rows.values().flat_map(|row| &row.failed).map(String::as_str).collect();
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
}

fn word(outcome: &Result<Outcome, String>) -> String {
    match outcome {
        Ok(Outcome::Unhurt) => "unhurt".to_owned(),
        Ok(Outcome::SameRun) => "finished by itself".to_owned(),
        Ok(Outcome::NextRun) => "finished by the next run".to_owned(),
        Ok(Outcome::GaveUp(why)) => format!("ended itself ({why}), finished by the next run"),
        Ok(Outcome::Refused(step)) => format!("refused: {step}"),
        Err(why) => format!("FAILED: {why}"),
    }
}

fn table(rows: &BTreeMap<String, Row>) -> String {
    let mut text = format!(
        "{:<26} {:>6} {:>9} {:>9} {:>9} {:>8} {:>7} {:>7} {:>7}\n",
        "DEATH", "POINTS", "CONVERGED", "SAME RUN", "NEXT RUN", "GAVE UP", "UNHURT", "REFUSED", "FAILED"
    );
    let ordered = Death::ALL.iter().filter_map(|death| rows.get_key_value(&death.to_string()));
    for (name, row) in ordered {
        let Row { points, same_run, next_run, gave_up, unhurt, refused, failed } = row;
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{name:<26} {points:>6} {:>9} {same_run:>9} {next_run:>9} {gave_up:>8} {unhurt:>7} {:>7} {:>7}",
            same_run + next_run + gave_up + unhurt,
            refused.len(),
            failed.len()
        );
    }
    for step in rows.values().flat_map(|row| &row.refused) {
        let _ = writeln!(text, "a human must act: {step}");
    }
    text
}
