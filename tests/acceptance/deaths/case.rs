//! One case: a roll of three control planes and three workers, one of them Live, is hurt at one of its mutating
//! requests; and what must hold afterwards.

use std::fmt;
use std::time::Duration;

use lab::Held;
use lab::faults::{CrashPoint, Mutation, When};
use rustix::process::Signal;
use serde_json::Value;
use tokio::process::Child;

use super::request::{At, Watch};
use crate::harness::{Bed, Ended, ended, finish, lease_duration};
use crate::scene::{Story, kill, lease_is_held, signal};

/// The client that is hurt, and the one that comes after it.
pub const FIRST: &str = "first";
pub const NEXT: &str = "next";
/// The node behind the kubeconfig's address.
pub const ENDPOINT: &str = "cp-1";
/// Words of a refusal that names what a human must do.
const HUMAN_STEPS: [&str; 5] = ["--reboot-again", "--allow-older", "--escalate-reboot", "--recover-fences", "kubectl "];

/// What befalls a run at a mutating request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// SIGKILL, on that side of the effect.
    Kill(When),
    /// The effect is there and the connection is closed without a reply; the client lives on.
    ReplyLost,
    /// No API server of the cluster is reached for a while, shorter than the lease or longer.
    ApiCut(Cut),
    /// No node's Talos API is.
    ApidCut(Cut),
    /// SIGSTOP, with the request cut, until the lease is another's and all is done; then SIGCONT.
    Stopped,
}

/// For how long something is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The lease outlives it.
    Short,
    /// It does not.
    Long,
}

impl Cut {
    fn length(self) -> Duration {
        let lease = lease_time();
        match self {
            Self::Short => lease / 3,
            Self::Long => lease * 5 / 4,
        }
    }
}

/// The duration of the lease as a time.
fn lease_time() -> Duration {
    let seconds = lease_duration().trim_end_matches('s').parse().expect("it is in seconds");
    Duration::from_secs(seconds)
}

impl Death {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Kill(When::Before),
        Self::Kill(When::After),
        Self::ReplyLost,
        Self::ApiCut(Cut::Short),
        Self::ApiCut(Cut::Long),
        Self::ApidCut(Cut::Short),
        Self::ApidCut(Cut::Long),
        Self::Stopped,
    ];

    /// On which side of its effect the request is held.
    fn side(self) -> When {
        match self {
            Self::Kill(when) => when,
            Self::ReplyLost => When::After,
            Self::ApiCut(_) | Self::ApidCut(_) | Self::Stopped => When::Before,
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill(When::Before) => "killed before it",
            Self::Kill(When::After) => "killed after it",
            Self::ReplyLost => "reply lost",
            Self::ApiCut(Cut::Short) => "API cut",
            Self::ApiCut(Cut::Long) => "API cut beyond the lease",
            Self::ApidCut(Cut::Short) => "apid cut",
            Self::ApidCut(Cut::Long) => "apid cut beyond the lease",
            Self::Stopped => "stopped beyond the lease",
        })
    }
}

/// How a case ended, where no law was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request never came: the roll ended as any other.
    Unhurt,
    /// The run that was hurt finished.
    SameRun,
    /// The next one did.
    NextRun,
    /// The run that was hurt ended by itself with a documented code, as it says there, and the next one finished.
    GaveUp(String),
    /// It refused, and said what a human must do.
    Refused(String),
}

/// All six nodes hold the old credential; `worker-3` adopts a new one live.
pub async fn scene() -> Bed {
    Bed::new(|options| {
        options.talos = vec!["1.13.9=5".parse().unwrap(), "1.14.0=1".parse().unwrap()];
        options.cri_health = Duration::from_millis(100);
        options.reboot_time = Duration::from_millis(400);
    })
    .await
}

/// Hurts a run there, lets the next one finish where it has to, and holds both to the laws.
pub async fn suffer(death: Death, at: At) -> Outcome {
    let bed = scene().await;
    let story = Story::begin(&bed);
    let mut watch = Watch::arm(&bed, at, death.side());
    let mut child = bed.start_as(FIRST, &["-o", "json"]);
    let held = tokio::select! {
        held = watch.reached(&bed) => Some(held),
        _ = child.wait() => None,
    };
    drop(watch);
    let outcome = match held {
        None => {
            let done = ended(child).await.expect(0);
            assert_endpoint_last(&done);
            bed.assert_done();
            bed.assert_released_last(FIRST);
            Outcome::Unhurt
        }
        Some(held) => hurt(&bed, death, child, held).await,
    };
    if !matches!(outcome, Outcome::Refused(_)) {
        assert_one_boot_each(&bed);
    }
    // A node that is left out of a run for its own failure is not among those that its order is about.
    if !matches!(outcome, Outcome::Refused(_) | Outcome::GaveUp(_)) {
        let order = bed.lab.truth().boot_order;
        assert_eq!(order.last().map(String::as_str), Some(ENDPOINT), "{order:?}");
    }
    story.assert_budget(1);
    bed.assert_one_changes_things_at_a_time();
    assert_eq!(bed.lab.unexpected(), Vec::<String>::new());
    outcome
}

async fn hurt(bed: &Bed, death: Death, child: Child, (point, mutation): (CrashPoint, Mutation)) -> Outcome {
    match death {
        Death::Kill(_) => {
            kill(child).await;
            point.cut();
            next_run(bed).await
        }
        Death::ReplyLost => {
            point.cut();
            let done = ended(child).await.expect(0);
            assert_endpoint_last(&done);
            bed.assert_done();
            Outcome::SameRun
        }
        Death::ApiCut(cut) => {
            let servers: Vec<_> = control_planes(bed).filter_map(|name| bed.lab.server(&name).cloned()).collect();
            servers.iter().for_each(|server| server.cut_off(true));
            cut_where(point, mutation.what.starts_with("kubernetes/"));
            tokio::time::sleep(cut.length()).await;
            servers.iter().for_each(|server| server.cut_off(false));
            rides_out(bed, child).await
        }
        Death::ApidCut(cut) => {
            bed.lab.talos().nodes().iter().for_each(|node| node.cut_off_apid(true));
            cut_where(point, mutation.what.starts_with("talos/"));
            tokio::time::sleep(cut.length()).await;
            bed.lab.talos().nodes().iter().for_each(|node| node.cut_off_apid(false));
            rides_out(bed, child).await
        }
        Death::Stopped => stopped(bed, child, point).await,
    }
}

fn control_planes(bed: &Bed) -> impl Iterator<Item = String> {
    let names = bed.lab.talos().nodes().iter().map(|node| node.name().to_owned());
    names.filter(|name| name.starts_with("cp-"))
}

/// A request to what is cut off is lost with its connection, any other goes on.
fn cut_where(point: CrashPoint, lost: bool) {
    if lost { point.cut() } else { point.release() }
}

/// The run that is hurt finishes, or ends with a documented code and the next one does.
async fn rides_out(bed: &Bed, child: Child) -> Outcome {
    let run = ended(child).await;
    if run.code() == 0 {
        assert_endpoint_last(&run);
        bed.assert_done();
        return Outcome::SameRun;
    }
    assert_documented(&run, &[1, 4, 5]);
    assert_endpoint_last(&run);
    match next_run(bed).await {
        Outcome::NextRun => Outcome::GaveUp(in_short(&run)),
        other => other,
    }
}

/// The exit code, and why: without the nodes that only waited for others.
fn in_short(run: &Ended) -> String {
    let document = run.json();
    let left = document["left"].as_object().into_iter().flatten();
    let why = left.filter_map(|(node, why)| Some(format!("{node}: {}", why.as_str()?)));
    let why: Vec<_> = why.filter(|why| !why.contains("not begun")).collect();
    format!("exit {}, {}", run.code(), why.join("; "))
}

/// Another run takes over a lease whose holder does not move, and finishes; then that one goes on, and changes nothing.
///
/// The request at which it is stopped is cut. What else was on its way lands at once or never. So no request is between
/// the check of its permit and its send, which is the one gap that the README names.
async fn stopped(bed: &Bed, child: Child, point: CrashPoint) -> Outcome {
    signal(&child, Signal::STOP);
    let had_the_lease = lease_is_held(bed);
    point.cut();
    if had_the_lease {
        bed.holder_runs_elsewhere();
    }
    let since = tokio::time::Instant::now();
    let outcome = next_run(bed).await;
    tokio::time::sleep_until(since + lease_time()).await;
    let before = bed.effects_of(FIRST);
    signal(&child, Signal::CONT);
    let thawed = ended(child).await;
    assert_documented(&thawed, &[0, 1, 3, 4, 5]);
    if had_the_lease {
        let mut after = bed.effects_of(FIRST).split_off(before.len());
        // Where all was done the next one wanted no lease, and the thawed one gives back what is still its own.
        after.retain(|effect| !bed.effects_of(NEXT).is_empty() || !effect.starts_with("PATCH leases"));
        assert!(after.is_empty(), "the thawed run changed {after:#?}\n{}", thawed.stderr);
    }
    if outcome == Outcome::NextRun {
        assert_finished(bed);
    }
    outcome
}

/// One unattended run with default flags, at once.
async fn next_run(bed: &Bed) -> Outcome {
    let before = bed.effects_of(NEXT).len();
    let next = finish(bed.roll_as(NEXT, &["-o", "json"])).await;
    if let Some(step) = HUMAN_STEPS.iter().find(|step| next.code() == 1 && next.stderr.contains(**step)) {
        let line = next.stderr.lines().find(|line| line.contains(step)).unwrap_or_default();
        return Outcome::Refused(line.trim().to_owned());
    }
    let next = next.expect(0);
    assert_endpoint_last(&next);
    if bed.effects_of(NEXT).len() > before {
        bed.assert_done();
        bed.assert_released_last(NEXT);
        return Outcome::NextRun;
    }
    // All was done, and only the release of the lease was not: a run that finds nothing to do writes nothing (S10), not
    // even there, and says who is named in it. Whoever wants the lease takes it from the dead.
    assert_eq!(next.json()["result"], "nothing-to-do");
    assert_eq!(next.stderr.contains("the lease is held by"), lease_is_held(bed), "{}", next.stderr);
    assert_finished(bed);
    Outcome::NextRun
}

/// Law S7 but for the Lease, which names a dead run where that died in its release.
fn assert_finished(bed: &Bed) {
    for node in bed.lab.truth().nodes {
        assert_eq!((node.configured, node.cri_loaded), (Held::New, Held::New), "{}", node.name);
        assert!(node.fence.is_none() && !node.cordoned, "{} is released", node.name);
        assert!(node.record.is_some_and(|record| record["state"] == "proved"), "{} is proved", node.name);
    }
}

/// Law S3: what adopts live is never rebooted, all others once, whatever happened.
fn assert_one_boot_each(bed: &Bed) {
    for node in bed.lab.truth().nodes {
        let live = bed.lab.node(&node.name).version().adopts_live();
        assert_eq!(node.boots, u32::from(!live), "boots of {}", node.name);
    }
}

/// Law S4, of one run: the endpoint node is the last that it rebooted.
#[track_caller]
fn assert_endpoint_last(run: &Ended) {
    let document = run.json();
    let rebooted: Vec<&str> = document["rebooted"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let place = rebooted.iter().position(|name| *name == ENDPOINT);
    assert!(place.is_none_or(|place| place + 1 == rebooted.len()), "{rebooted:?}");
}

#[track_caller]
fn assert_documented(run: &Ended, codes: &[i32]) {
    assert!(codes.contains(&run.code()), "exit {}\nstdout:\n{}\nstderr:\n{}", run.code(), run.stdout, run.stderr);
}
