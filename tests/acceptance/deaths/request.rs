//! What sort a mutating request is: a sample holds each sort of a recorded roll once, and one that is new is in it by
//! itself.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use lab::Lab;
use lab::faults::{CrashPoint, Mutation, When};
use lab::truth::NodeTruth;

use super::case::{ENDPOINT, FIRST, scene};
use crate::harness::{Bed, LIMIT, ended};
use crate::scene::lease_is_held;

/// More requests than any roll of these tests makes.
const MANY: u64 = 500;

/// Who is asked for what, and at which point of the way of the node or the Lease that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sort(String);

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Sort {
    /// Of a request that has arrived and changed nothing yet.
    fn of(bed: &Bed, mutation: &Mutation) -> Self {
        let (server, rest) = mutation.what.split_once(' ').unwrap_or((&mutation.what, ""));
        let server = server.split('/').next().unwrap_or_default();
        let (method, target) = rest.rsplit_once(' ').unwrap_or((rest, ""));
        let name = target.rsplit('/').next().unwrap_or_default();
        let node = bed.lab.truth().nodes.into_iter().find(|node| node.name == name);
        let phase = match &node {
            Some(node) => phase_of_node(bed, method, node),
            None if method.ends_with("leases") => phase_of_lease(bed).to_owned(),
            None => String::new(),
        };
        Self(format!("{server} {method} {phase}").trim_end().to_owned())
    }
}

fn phase_of_node(bed: &Bed, method: &str, node: &NodeTruth) -> String {
    let place = if node.name == ENDPOINT { ", endpoint node" } else { "" };
    let step = |field: &Option<serde_json::Value>, key: &str| {
        field.as_ref().and_then(|value| value[key].as_str()).unwrap_or("none").to_owned()
    };
    if method == "Reboot" || method.ends_with("nodes") {
        return format!("(fence: {}{place})", step(&node.fence, "step"));
    }
    let applied = |entry: &lab::talos::log::Entry| entry.method.ends_with("/ApplyConfiguration");
    if !bed.lab.log().effects().iter().any(applied) {
        return "(the first of all)".to_owned();
    }
    let live = if bed.lab.node(&node.name).version().adopts_live() { ", live" } else { "" };
    let trial = if bed.lab.node(&node.name).is_on_trial() { ", on trial" } else { "" };
    format!("(record: {}{trial}{live})", step(&node.record, "state"))
}

fn phase_of_lease(bed: &Bed) -> &'static str {
    let proved = |node: &NodeTruth| node.record.as_ref().is_some_and(|record| record["state"] == "proved");
    match bed.lab.truth() {
        truth if truth.lease.is_none() => "(absent)",
        _ if !lease_is_held(bed) => "(free)",
        truth if truth.nodes.iter().all(proved) => "(held, all done)",
        _ => "(held)",
    }
}

/// Which request is meant.
#[derive(Clone, Debug)]
pub enum At {
    /// The one with that number, from 1.
    Number(u64),
    /// The first of that sort.
    First(Sort),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "request {number}"),
            Self::First(sort) => write!(f, "{sort}"),
        }
    }
}

/// Will hold that request.
pub struct Watch {
    lab: Arc<Lab>,
    at: At,
    when: When,
    points: VecDeque<CrashPoint>,
}

impl Watch {
    /// Before the run is started.
    pub fn arm(bed: &Bed, at: At, when: When) -> Self {
        let faults = bed.lab.faults();
        let first = faults.mutations();
        let numbers = match &at {
            At::Number(number) => *number..=*number,
            At::First(_) => 1..=MANY,
        };
        // A request of some sort is known as such while it has changed nothing.
        let side = if matches!(at, At::Number(_)) { when } else { When::Before };
        let points = numbers.map(|k| faults.crash_point(first + k, side)).collect();
        Self { lab: Arc::clone(&bed.lab), at, when, points }
    }

    /// Waits until it is held; never ends where no such request comes. What else is held is free then.
    pub async fn reached(&mut self, bed: &Bed) -> (CrashPoint, Mutation) {
        while let Some(mut point) = self.points.pop_front() {
            let Some(mutation) = point.reached().await else { break };
            match &self.at {
                At::Number(_) => return (point, mutation),
                At::First(sort) if Sort::of(bed, &mutation) == *sort => {
                    if self.when == When::Before {
                        self.points.clear();
                        return (point, mutation);
                    }
                    let mut after = self.lab.faults().crash_point(mutation.number, When::After);
                    point.release();
                    after.reached().await;
                    self.points.clear();
                    return (after, mutation);
                }
                At::First(_) => point.release(),
            }
        }
        std::future::pending().await
    }
}

/// The sorts of all mutating requests of an unhurt roll, in the order in which they came first.
pub async fn recorded() -> Vec<Sort> {
    let bed = scene().await;
    let faults = bed.lab.faults();
    let first = faults.mutations();
    let mut points: VecDeque<_> = (1..=MANY).map(|k| faults.crash_point(first + k, When::Before)).collect();
    let mut child = bed.start_as(FIRST, &[]);
    let mut sorts: Vec<Sort> = Vec::new();
    while let Some(mut point) = points.pop_front() {
        let mutation = tokio::select! {
            mutation = tokio::time::timeout(LIMIT, point.reached()) => mutation.expect("a roll goes on"),
            _ = child.wait() => break,
        };
        let sort = Sort::of(&bed, &mutation.expect("the lab runs"));
        if !sorts.contains(&sort) {
            sorts.push(sort);
        }
        point.release();
    }
    ended(child).await.expect(0);
    bed.assert_done();
    sorts
}
