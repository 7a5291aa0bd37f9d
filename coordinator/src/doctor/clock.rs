//! This machine's clock against each node's: records and fences carry times, and certificates are judged by them.
//!
//! Talos's own service of time asks a time server instead of telling the node's clock, so the kernel is asked: what
//! `/proc/stat` (`btime`, whole seconds) and `/proc/uptime` say makes the wall clock, to half a second. Reading them needs
//! os:admin; else the header `Date` of a control plane's API server serves, which is cut off to a second too.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use talos_proto::node::Node;
use talos_proto::{Talos, chain};

use super::{Check, kubernetes, plural};
use crate::inventory::{Context, Inventory};
use crate::kube::nodes::NodeView;
use futures::StreamExt as _;

const NAME: &str = "clocks";
/// From here on a difference is worth a word.
const WORTH_A_WORD: SignedDuration = SignedDuration::from_secs(5);
const NOT_ADMIN: &str = "reading it needs os:admin";
/// Nodes that are asked at once.
const AT_ONCE: usize = 8;
/// Half of the second that both sources cut off.
const HALF: SignedDuration = SignedDuration::from_millis(500);

/// How far a node's clock is ahead of this machine's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Skew {
    /// Negative when it is behind.
    pub(super) ahead: SignedDuration,
    /// It may be off by that much either way.
    pub(super) within: SignedDuration,
}

/// What was seen of one node's clock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    pub(super) node: String,
    /// What talosctl calls it: its address.
    target: String,
    pub(super) skew: Result<Skew, String>,
    /// Talos says that it is not synchronised yet.
    pub(super) unsynchronised: bool,
}

/// Asks each node that answers.
pub(super) async fn ask(context: &Context, inventory: &Inventory) -> Vec<Reading> {
    let admin = context.is_admin();
    let asked = inventory.snapshot.nodes.iter().filter_map(|node| Some((node, node.facts()?, node.address()?)));
    let asked = asked.map(|(node, facts, address)| {
        let unmet = facts.machine.seen().map(|machine| machine.unmet.as_slice()).unwrap_or_default();
        let unsynchronised = unmet.iter().any(|condition| condition == "time");
        let target = context.talos.node(address);
        async move {
            let skew = if admin { skew(&target).await } else { Err(NOT_ADMIN.to_owned()) };
            Reading { node: node.name().to_owned(), target: address.to_string(), skew, unsynchronised }
        }
    });
    let mut readings: Vec<_> = futures::stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    readings.sort_by(|a, b| a.node.cmp(&b.node));
    readings
}

/// Asks the machines behind the endpoints, where nobody tells which nodes there are: a clock that is off is a reason why
/// nobody is trusted.
pub(super) async fn ask_endpoints(talos: &Talos, admin: bool) -> Vec<Reading> {
    let asked = talos.endpoints().into_iter().filter_map(|endpoint| Some((talos.at(&endpoint)?, endpoint.host)));
    let asked = asked.map(|(machine, host)| async move {
        let skew = if admin { skew(&machine).await } else { Err(NOT_ADMIN.to_owned()) };
        Reading { node: host.clone(), target: host, skew, unsynchronised: false }
    });
    futures::future::join_all(asked).await
}

async fn skew(node: &Node) -> Result<Skew, String> {
    let clock = node.talos().clock();
    let stat = node.read_file("/proc/stat").await.map_err(|error| chain(&error))?;
    let (begun, sent) = (clock.now(), clock.utc());
    let uptime = node.read_file("/proc/uptime").await.map_err(|error| chain(&error))?;
    let took = clock.now().since(begun);
    let shown = wall_clock(&stat, &uptime).ok_or("its /proc/stat and /proc/uptime do not tell the time")?;
    Ok(compared(shown + HALF, sent, took))
}

/// The wall clock without its fraction of a second: the boot's beginning and what has passed since. Pure.
fn wall_clock(stat: &[u8], uptime: &[u8]) -> Option<Timestamp> {
    let stat = std::str::from_utf8(stat).ok()?;
    let booted: i64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let up: f64 = std::str::from_utf8(uptime).ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    let up = SignedDuration::try_from(Duration::try_from_secs_f64(up).ok()?).ok()?;
    Timestamp::from_second(booted).ok()?.checked_add(up).ok()
}

/// What was shown at some moment between the question and the answer.
fn compared(shown: Timestamp, sent: Timestamp, took: Duration) -> Skew {
    let half = SignedDuration::try_from(took / 2).unwrap_or(SignedDuration::MAX);
    Skew { ahead: shown.duration_since(sent.saturating_add(half).unwrap_or(sent)), within: HALF.saturating_add(half) }
}

/// No node could be asked, for that reason.
pub(super) fn untold(nodes: &[NodeView], why: &str) -> Vec<Reading> {
    let untold = |node: &NodeView| Reading {
        node: node.name.clone(),
        target: node.internal_ip.map_or_else(|| node.name.clone(), |ip| ip.to_string()),
        skew: Err(why.to_owned()),
        unsynchronised: false,
    };
    nodes.iter().map(untold).collect()
}

/// Where the node itself does not tell, its API server's answer does.
pub(super) fn by_servers(readings: &mut [Reading], seen: &kubernetes::Seen, nodes: &[NodeView]) {
    for greeting in seen.servers.iter().flatten() {
        let Some(node) = nodes.iter().find(|node| greeting.ip.is_some() && node.internal_ip == greeting.ip) else {
            continue;
        };
        let Some(date) = greeting.date else { continue };
        let skew = compared(date + HALF, greeting.asked, greeting.took);
        match readings.iter_mut().find(|reading| reading.node == node.name) {
            Some(reading) if reading.skew.is_err() => reading.skew = Ok(skew),
            _ => {}
        }
    }
}

/// What follows. Pure.
pub(super) fn checks(readings: &[Reading], without: Option<&str>) -> Vec<Check> {
    if readings.is_empty() {
        return vec![Check::not_looked_at(NAME, without.unwrap_or("no node tells its time"))];
    }
    let told: Vec<_> = readings.iter().filter_map(|it| Some((it, it.skew.as_ref().ok()?))).collect();
    let off: Vec<_> = told.iter().filter(|(_, skew)| skew.ahead.abs() >= WORTH_A_WORD).collect();
    let fine: Vec<_> = told.iter().filter(|(_, skew)| skew.ahead.abs() < WORTH_A_WORD).collect();
    let mut checks = Vec::new();
    if let Some(most) = fine.iter().map(|(_, skew)| skew.ahead.abs().saturating_add(skew.within)).max() {
        let nodes = plural(fine.len(), "node");
        checks.push(Check::ok(NAME, format!("{nodes}: within {} of this machine's", seconds(most))));
    }
    let all_ahead = off.iter().all(|(_, skew)| skew.ahead.is_positive());
    let all_behind = off.iter().all(|(_, skew)| skew.ahead.is_negative());
    if off.len() > 1 && fine.is_empty() && (all_ahead || all_behind) {
        // That all are wrong alike is less likely than that one is.
        let (_, least) = off.iter().min_by_key(|(_, skew)| skew.ahead.abs()).copied().unwrap_or(off[0]);
        let side = if all_ahead { "behind" } else { "ahead of" };
        let words = format!(
            "this machine's is {} {side} those of all {} that tell (within {})",
            seconds(least.ahead.abs()),
            plural(off.len(), "node"),
            seconds(least.within)
        );
        checks.push(Check::warning(NAME, words).next("set this machine's clock: timedatectl"));
    } else {
        for (Reading { node, target, .. }, skew) in off {
            let side = if skew.ahead.is_positive() { "ahead of" } else { "behind" };
            let (by, within) = (seconds(skew.ahead.abs()), seconds(skew.within));
            checks.push(Check::warning(NAME, format!("{node}: {by} {side} this machine's (within {within})")).next(
                format!(
                    "see which time server it follows: talosctl -n {target} get timestatus; talosctl -n {target} time"
                ),
            ));
        }
    }
    for reading in readings.iter().filter(|reading| reading.unsynchronised) {
        let words = format!("{}: Talos says that it is not synchronised", reading.node);
        let next = format!("talosctl -n {} get timestatus", reading.target);
        checks.push(Check::warning(NAME, words).next(next));
    }
    let mut untold: Vec<(&str, Vec<&str>)> = Vec::new();
    for reading in readings {
        let Err(why) = &reading.skew else { continue };
        match untold.iter_mut().find(|(known, _)| known == why) {
            Some((_, nodes)) => nodes.push(&reading.node),
            None => untold.push((why, vec![&reading.node])),
        }
    }
    checks.extend(
        untold.into_iter().map(|(why, nodes)| Check::not_looked_at(NAME, &format!("{}: {why}", nodes.join(", ")))),
    );
    checks
}

fn seconds(length: SignedDuration) -> String {
    format!("{:.1} s", length.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Health;

    fn reading(node: &str, millis: i64) -> Reading {
        let skew = Skew { ahead: SignedDuration::from_millis(millis), within: SignedDuration::from_millis(510) };
        Reading { node: node.into(), target: "10.0.0.1".into(), skew: Ok(skew), unsynchronised: false }
    }

    fn said(readings: &[Reading]) -> Vec<(Health, String)> {
        checks(readings, None).into_iter().map(|check| (check.health, check.detail)).collect()
    }

    #[test]
    fn the_kernel_tells_the_wall_clock() {
        let stat = b"cpu  1 2 3 4\ncpu0 1 2 3 4\nintr 5\nctxt 6\nbtime 1796040000\nprocesses 7\n";
        let shown = wall_clock(stat, b"100.25 399.9\n").unwrap();
        assert_eq!(shown, Timestamp::from_millisecond(1_796_040_100_250).unwrap());
        for (stat, uptime) in
            [(&b""[..], &b"1.0 2.0"[..]), (stat, b""), (stat, b"-1 2"), (b"btime x", b"1 2"), (stat, b"nan 1")]
        {
            assert_eq!(wall_clock(stat, uptime), None);
        }
        let sent = shown - SignedDuration::from_secs(10);
        let skew = compared(shown, sent, Duration::from_secs(2));
        assert_eq!(skew, Skew { ahead: SignedDuration::from_secs(9), within: SignedDuration::from_millis(1_500) });
    }

    #[test]
    fn a_clock_that_is_off_is_named_from_five_seconds_on() {
        let fine = [reading("cp-1", 120), reading("worker-1", -4_990)];
        assert_eq!(said(&fine), [(Health::Ok, "2 nodes: within 5.5 s of this machine's".to_owned())]);
        let off = [reading("cp-1", 0), reading("worker-1", 5_000), reading("worker-2", -61_000)];
        let words = [
            (Health::Ok, "1 node: within 0.5 s of this machine's"),
            (Health::Warning, "worker-1: 5.0 s ahead of this machine's (within 0.5 s)"),
            (Health::Warning, "worker-2: 61.0 s behind this machine's (within 0.5 s)"),
        ];
        assert_eq!(said(&off), words.map(|(health, words)| (health, words.to_owned())));
    }

    #[test]
    fn where_all_nodes_are_off_alike_this_machine_is() {
        let all = said(&[reading("cp-1", 7_000), reading("cp-2", 7_200)]);
        let words = "this machine's is 7.0 s behind those of all 2 nodes that tell (within 0.5 s)";
        assert_eq!(all, [(Health::Warning, words.to_owned())]);
        assert_eq!(said(&[reading("cp-1", 7_000), reading("cp-2", -7_200)]).len(), 2);
        // Of one alone nobody can tell.
        assert!(said(&[reading("cp-1", 7_000)])[0].1.starts_with("cp-1: 7.0 s ahead"));
    }

    #[test]
    fn what_was_not_told_is_said() {
        let mut reader = reading("cp-1", 0);
        reader.skew = Err("reading it needs os:admin".into());
        reader.unsynchronised = true;
        let said = said(&[reader.clone(), Reading { node: "cp-2".into(), unsynchronised: false, ..reader }]);
        assert_eq!(said[0].1, "cp-1: Talos says that it is not synchronised");
        assert_eq!(said[1].1, "not looked at: cp-1, cp-2: reading it needs os:admin");
        assert_eq!(checks(&[], Some("no"))[0].detail, "not looked at: no");
    }
}
