//! client-go's leader election at the same Lease, both ways: L28.
//!
//! Whoever follows its rules waits while we hold, takes the lease when we have given it back, and is not disturbed while
//! it holds itself. It judges a lease by how long it has seen it unchanged, not by its times (client-go
//! tools/leaderelection, `tryAcquireOrRenew`), and so do we.

use std::process::Stdio;

use lab::faults::When::Before;
use lab::real::Programs;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::harness::{Bed, LIMIT, ended};
use crate::kubectl::real;
use crate::scene::{Gate, kill, signal};

/// A process that wants to lead.
struct Elector {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Elector {
    fn start(bed: &Bed, identity: &str) -> Self {
        let programs = Programs::find().unwrap_or_else(|missing| panic!("{missing}"));
        let cluster = bed.lab.real().expect("it is real");
        let kubeconfig = bed.lab.kubeconfig_for("elector", &["system:masters"], cluster.own_server());
        let kubeconfig = bed.write("kubeconfig-elector", &kubeconfig);
        let mut command = Command::new(programs.path("leader-election"));
        command.env_clear().args(["--kubeconfig", &kubeconfig, "--identity", identity]);
        command.args(["--duration", "3s", "--renew-deadline", "2s", "--retry", "300ms"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("leader-election is beside the programs of Kubernetes");
        let said = BufReader::new(child.stdout.take().expect("its stdout is a pipe")).lines();
        Self { child, said }
    }

    /// Waits until it says that.
    async fn says(&mut self, line: &str) {
        let wait = async {
            while let Some(said) = self.said.next_line().await.expect("it can be read") {
                if said == line {
                    return;
                }
            }
            panic!("it ended without {line:?}");
        };
        tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("it never says {line:?}"));
    }
}

async fn two_workers() -> Bed {
    Bed::new(|options| {
        (options.control_planes, options.workers) = (1, 2);
        real(options);
    })
    .await
}

fn holder(bed: &Bed) -> String {
    bed.lab.truth().lease.and_then(|lease| lease.holder).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l28_client_go_waits_while_we_hold_and_leads_when_we_have_released() {
    let bed = two_workers().await;
    let mut gate = Gate::new(&bed);
    let run = bed.start(&["-n", "worker-1"]);
    let held = gate.hold(Before, "ApplyConfiguration", 1).await;
    let ours = holder(&bed);
    let mut elector = Elector::start(&bed, "client-go");
    elector.says(&format!("leader {ours}")).await;
    held.release();
    drop(gate);
    ended(run).await.expect(0);
    elector.says("leading").await;
    let lease = bed.lab.truth().lease.expect("the Lease is there");
    assert_eq!((lease.holder.as_deref(), lease.transitions), (Some("client-go"), 1), "from us to them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l28_we_refuse_while_client_go_leads_and_take_over_when_it_gives_back_or_dies() {
    let bed = two_workers().await;
    let mut elector = Elector::start(&bed, "client-go");
    elector.says("leading").await;
    let refused = bed.run(&["-n", "worker-1"]).await.expect(3);
    assert!(refused.stderr.contains("client-go"), "{}", refused.stderr);
    assert_eq!((holder(&bed).as_str(), bed.writes()), ("client-go", 0), "nothing was written");
    // Given back in order: taken at once.
    signal(&elector.child, Signal::TERM);
    elector.says("lost").await;
    let done = bed.run(&["-n", "worker-1"]).await.expect(0);
    assert!(!done.stderr.contains("taken over"), "{}", done.stderr);
    // Dead: taken when it was seen unchanged for long enough.
    let mut elector = Elector::start(&bed, "client-go-2");
    elector.says("leading").await;
    kill(elector.child).await;
    let done = bed.run(&["-n", "worker-2"]).await.expect(0);
    assert!(done.stderr.contains("taken over in"), "a countdown: {}", done.stderr);
    assert_eq!(holder(&bed), "");
}
