//! How a node is rebooted: R10.

use lab::Held;
use lab::talos::log::Entry;
use lab::talos::{Asked, RebootMode};

use crate::harness::{Bed, ended, eventually, row};
use crate::scene::{Story, lease_is_held, only_stale_of, requests};

fn asked(bed: &Bed, node: &str) -> Vec<RebootMode> {
    bed.lab.node(node).reboots_asked().iter().map(|Asked { mode, .. }| *mode).collect()
}

/// What stands in the log last of a method about a node.
fn last(bed: &Bed, method: &str, node: &str) -> Entry {
    requests(bed, method, node).pop().unwrap_or_else(|| panic!("{method} of {node} was never asked for"))
}

const WORKERS: [&str; 3] = ["worker-1", "worker-2", "worker-3"];

/// Three stale workers, the last of which is older than the mode `force`.
async fn workers() -> Bed {
    only_stale_of(&WORKERS, |options| {
        options.workers = 3;
        options.talos = ["1.13.9=5", "1.11.6=1"].map(|share| share.parse().expect("a share")).into();
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_each_node_is_rebooted_in_its_mode_and_by_force_only_where_and_when_that_is_safe() {
    let bed = workers().await;
    let story = Story::begin(&bed);
    let modes = ["--reboot-mode", "force,worker-1=powercycle", "-o", "json"];
    let plan = bed.product("plan", &modes).await.expect(0).json();
    assert_eq!(
        (&row(&plan, "worker-1")["rebootMode"], &row(&plan, "worker-2")["rebootMode"]),
        (&"powercycle".into(), &"force".into())
    );
    assert_eq!(row(&plan, "worker-3")["verdict"], "Blocked", "{plan:#}");
    let table = bed.product("plan", &modes[..2]).await.expect(0).stdout;
    assert!(table.contains("reboot (powercycle)") && table.contains("reboot (force)"), "{table}");

    let ended = bed.run(&modes).await.expect(1);
    let why = ended.json()["left"]["worker-3"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("force") && why.contains("--reboot-mode worker-3=default"), "{why}");
    assert!(story.fenced("worker-3").is_empty() && bed.truth_of("worker-3").configured == Held::Old);
    assert_eq!(asked(&bed, "worker-1"), [RebootMode::Powercycle]);
    assert_eq!(asked(&bed, "worker-2"), [RebootMode::Force]);
    assert_eq!(bed.truth_of("worker-2").cri_loaded, Held::New);
    assert!(ended.stderr.contains("reboot asked for, mode force"), "{}", ended.stderr);

    // As the document says.
    bed.run(&["--reboot-mode", "force", "--reboot-mode", "worker-3=default"]).await.expect(0);
    bed.assert_done();
    assert_eq!(asked(&bed, "worker-3"), [RebootMode::Default]);
    assert!(!lease_is_held(&bed));
}

/// What is applied just before a reboot by force may not be saved yet. 60 s of a lease of 180 s: 2 s of the tests' lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_force_waits_until_the_config_is_saved_whoever_has_applied_it() {
    let bed = only_stale_of(&["worker-1"], |_| {}).await;
    let child = bed.start(&["--reboot-mode", "worker-1=force"]);
    eventually("it is fenced", || bed.truth_of("worker-1").fence.is_some()).await;
    let ours = last(&bed, "ApplyConfiguration", "worker-1").at;
    let others = jiff::Timestamp::now();
    bed.apply("worker-1", &crate::scene::with_comment(&bed.config("worker-1"), "of somebody else"));
    let ended = ended(child).await.expect(0);
    bed.assert_done();
    let reboot = last(&bed, "Reboot", "worker-1").at;
    let saved = jiff::SignedDuration::from_secs(2);
    assert!(ours <= others && reboot.duration_since(others) >= saved, "{}", ended.stderr);
    assert!(ended.stderr.contains("until Talos has saved its config"), "{}", ended.stderr);
    assert_eq!((asked(&bed, "worker-1"), bed.truth_of("worker-1").boots), (vec![RebootMode::Force], 1));
    assert!(bed.config("worker-1").contains("of somebody else"));

    let wrong = bed.product("run", &["--reboot-mode", "force,default"]).await.expect(64);
    assert!(wrong.stderr.contains("--reboot-mode"), "{}", wrong.stderr);
    let unknown = bed.run(&["--reboot-mode", "nobody=force"]).await.expect(1);
    assert!(unknown.stderr.contains("nobody") && unknown.stderr.contains("--reboot-mode"), "{}", unknown.stderr);
}
