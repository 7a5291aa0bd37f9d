//! A fleet of many workers and three Talos versions: the budget holds, nothing costs more because the fleet is large, and
//! a free slot is used at once.
#![allow(clippy::disallowed_macros, reason = "the figures are for whoever runs the tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lab::talos::log::Entry;
use serde_json::json;

use crate::harness::{Bed, Ended, lease_duration};
use crate::scene::Story;

/// From the start of a CRI process until it is healthy: so long at least a node is disturbed that adopts live.
const HEALTH: Duration = Duration::from_millis(300);
/// So soon after its gates could open a slot is used again.
const SOON: SignedDuration = SignedDuration::from_secs(1);

/// No roll takes longer unless it hangs.
const LONG: Duration = Duration::from_secs(600);
/// Workers of the fleet that a large one is held against.
const SMALL: usize = 9;

/// Three control planes, and workers of three versions in equal parts. Half of the pods of an app may be away, so that
/// the drains of many nodes do not wait for one another.
async fn fleet(workers: usize) -> Bed {
    let third = workers / 3;
    let bed = Bed::new(|options| {
        options.workers = workers;
        let shares = [format!("1.13.9={}", 3 + third), format!("1.12.11={third}"), "1.14.0".to_owned()];
        options.talos = shares.iter().map(|share| share.parse().expect("a share of nodes")).collect();
        options.cri_health = HEALTH;
        // So many heartbeats are most of what this machine does otherwise; who is silent is noticed by another time.
        options.pace.heartbeat = Duration::from_secs(10);
    })
    .await;
    bed.lab.objects().edit_pdb("default", "web", |pdb| pdb["spec"]["maxUnavailable"] = json!("50%"));
    bed
}

/// What the servers saw of a whole roll.
struct Rolled {
    bed: Bed,
    entries: Vec<Entry>,
    run: Ended,
}

impl Rolled {
    /// Rolls a fleet with a tenth of its workers at once, and checks what holds of every roll.
    async fn new(workers: usize, lease: &str) -> Self {
        let bed = fleet(workers).await;
        let (story, before) = (Story::begin(&bed), bed.last_request());
        // Two hundred nodes take longer than any other test may.
        let mut roll = bed.command("run", &["--max-unavailable", "10%", "--lease-duration", lease, "-o", "json"]);
        let output = tokio::time::timeout(LONG, roll.kill_on_drop(true).output()).await.expect("it comes to an end");
        let run = Ended::from(output.expect("the product starts")).expect(0);
        bed.assert_done();
        story.assert_budget((workers / 10).max(1));
        for node in bed.lab.truth().nodes {
            let live = node.talos.starts_with("1.14");
            assert_eq!(node.boots, u32::from(!live), "boots of {} ({})", node.name, node.talos);
            assert!(!live || story.fenced(&node.name).is_empty(), "{} adopts live: it is not cordoned", node.name);
        }
        let entries = bed.lab.log().all().into_iter().filter(|entry| entry.seq > before).collect();
        Self { bed, entries, run }
    }

    /// Requests for each node, by what was asked, to Talos and to Kubernetes.
    fn cost_of_a_node(&self) -> BTreeMap<String, f64> {
        let nodes = self.bed.lab.talos().nodes().len();
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| !entry.server.starts_with("registry")) {
            *counts.entry(entry.method.clone()).or_default() += 1;
        }
        let nodes = f64::from(u32::try_from(nodes).expect("a lab is small"));
        counts.into_iter().map(|(method, count)| (method, f64::from(count) / nodes)).collect()
    }

    /// When each worker's disruption began and ended at the earliest, by what was asked of it and took effect.
    fn disruptions(&self, live: bool) -> Vec<(Timestamp, Timestamp)> {
        let nodes = self.bed.lab.truth().nodes.into_iter();
        let workers = nodes.filter(|node| node.name.starts_with("worker-") && node.talos.starts_with("1.14") == live);
        let names: BTreeSet<String> = workers.map(|node| node.name).collect();
        let mut spans: BTreeMap<&str, (Timestamp, Timestamp)> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.landed.is_some()) {
            let node = match live {
                true if entry.method.ends_with("/ApplyConfiguration") => entry.target.as_str(),
                false if entry.method == "PATCH nodes" => {
                    entry.target.split('?').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default()
                }
                _ => continue,
            };
            let Some(name) = names.get(node) else { continue };
            let span = spans.entry(name).or_insert((entry.at, entry.at + HEALTH));
            if !live {
                span.1 = entry.at;
            }
        }
        assert_eq!(spans.len(), names.len(), "each was disturbed once");
        let mut spans: Vec<_> = spans.into_values().collect();
        spans.sort();
        spans
    }
}

/// The most that went on at once.
fn at_once(spans: &[(Timestamp, Timestamp)]) -> usize {
    let going_on = |at: Timestamp| spans.iter().filter(|(from, to)| *from <= at && at < *to).count();
    spans.iter().map(|(from, _)| going_on(*from)).max().unwrap_or(0)
}

fn sorted(durations: impl Iterator<Item = SignedDuration>) -> Vec<SignedDuration> {
    let mut durations: Vec<_> = durations.collect();
    durations.sort();
    durations
}

/// What nine of ten do not exceed: beside other tests this machine is sometimes away for longer.
fn nine_of_ten(sorted: &[SignedDuration]) -> SignedDuration {
    sorted[sorted.len() * 9 / 10]
}

/// The roll of a fleet of so many workers beside that of a small one.
async fn a_large_fleet(workers: usize, lease: &str) {
    let (small, large) = tokio::join!(Rolled::new(SMALL, lease), Rolled::new(workers, lease));
    let budget = workers / 10;

    // As many at once as may be, whatever they are, and never more: the reboots and the restarts of CRI together.
    let (reboots, live) = (large.disruptions(false), large.disruptions(true));
    let all: Vec<_> = reboots.iter().chain(&live).copied().collect();
    assert!(at_once(&all) <= budget, "{} at once", at_once(&all));
    assert_eq!(at_once(&reboots), budget);
    assert!(at_once(&live) > 1, "one after the other: {live:?}");

    // What grows with the square of the fleet would cost a node of the large one many times as much.
    let (few, many) = (small.cost_of_a_node(), large.cost_of_a_node());
    for (method, cost) in &many {
        let before = few.get(method).copied().unwrap_or_default();
        println!("{method:50} {cost:8.2} for each node, {before:8.2} in the small fleet");
        assert!(*cost <= 2.0 * before + 1.0, "{method}: {cost:.2} for each node, {before:.2} in the small fleet");
    }

    // A slot that is free is used at once, while there is somebody to use it.
    let mut free: Vec<Timestamp> = reboots.iter().map(|(_, to)| *to).collect();
    free.sort();
    let begun: Vec<Timestamp> = reboots.iter().map(|(from, _)| *from).collect();
    let idle = sorted(begun[budget..].iter().zip(&free).map(|(from, free)| from.duration_since(*free)));
    // The gates are passed by one node after the other, so that no two take one place.
    let turns = begun[budget - 1..].windows(2).zip(&free);
    let turns = sorted(turns.map(|(pair, free)| pair[1].duration_since(pair[0].max(*free))));
    println!(
        "{workers} workers in {} s; nine of ten free slots were used after {:?}, nine of ten turns at the gates took {:?}",
        large.run.json()["seconds"],
        nine_of_ten(&idle),
        nine_of_ten(&turns)
    );
    // Neither process is optimised, a list of two hundred Nodes is half a megabyte, and other tests run beside: what is
    // held here is what a gate that is asked too seldom would show. On a machine of its own it is within SOON.
    let beside_others = 5 * SOON;
    assert!(nine_of_ten(&turns) <= beside_others, "turns at the gates took {turns:?}");
    assert!(budget > 10 || nine_of_ten(&idle) <= beside_others, "slots were free for {idle:?}");

    // Every list is asked for in pages.
    let lists: Vec<_> = large.entries.iter().filter(|entry| entry.method.starts_with("LIST ")).collect();
    assert!(!lists.is_empty() && lists.iter().all(|entry| entry.target.contains("limit=")), "{lists:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_o10_a_roll_of_sixty_workers_keeps_the_budget_and_costs_no_more_for_each_node() {
    a_large_fleet(60, lease_duration()).await;
}

/// `make fleet`: too much for every run of the tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: make fleet"]
async fn s1_o10_a_roll_of_two_hundred_workers_keeps_the_budget_and_costs_no_more_for_each_node() {
    a_large_fleet(200, "60s").await;
}
