//! client-go's leader election at the same Lease, both ways, and the old script's way to take it: L28.
//!
//! Whoever follows its rules waits while we hold, takes the lease when we have given it back, and is not disturbed while
//! it holds itself. It judges a lease by how long it has seen it unchanged, not by its times (client-go
//! tools/leaderelection, `tryAcquireOrRenew`), and so do we.

use lab::faults::When::Before;
use lab::kube::store::micros;
use lab::real::Programs;
use lab::real::process::Process;
use serde_json::{Value, json};

use crate::harness::{Bed, ended, eventually};
use crate::kubectl::{Kubectl, two_workers};
use crate::scene::Gate;

/// A process that wants to lead.
struct Elector(Process);

impl Elector {
    fn start(bed: &Bed, identity: &str) -> Self {
        let programs = Programs::find().unwrap_or_else(|missing| panic!("{missing}"));
        let cluster = bed.lab.real().expect("it is real");
        let kubeconfig = bed.lab.kubeconfig_for("elector", &["system:masters"], cluster.own_server());
        let kubeconfig = bed.write("kubeconfig-elector", &kubeconfig);
        let args = ["--kubeconfig", &kubeconfig, "--identity", identity];
        let times = ["--duration", "3s", "--renew-deadline", "2s", "--retry", "300ms"];
        let args: Vec<String> = args.into_iter().chain(times).map(str::to_owned).collect();
        let log = bed.lab.dir().join(format!("{identity}.log"));
        let process = Process::start(&programs.path("leader-election"), &args, &log);
        Self(process.expect("leader-election is beside the programs of Kubernetes"))
    }

    /// Waits until it says that.
    async fn says(&self, line: &str) {
        eventually(line, || self.0.said().lines().any(|said| said == line)).await;
    }
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
    let elector = Elector::start(&bed, "client-go");
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
    let elector = Elector::start(&bed, "client-go");
    elector.says("leading").await;
    let refused = bed.run(&["-n", "worker-1"]).await.expect(3);
    assert!(refused.stderr.contains("client-go"), "{}", refused.stderr);
    assert_eq!((holder(&bed).as_str(), bed.writes()), ("client-go", 0), "nothing was written");
    // Given back in order: taken at once.
    elector.0.terminate();
    elector.says("lost").await;
    let done = bed.run(&["-n", "worker-1"]).await.expect(0);
    assert!(!done.stderr.contains("taken over"), "{}", done.stderr);
    // Dead: taken when it was seen unchanged for long enough.
    let elector = Elector::start(&bed, "client-go-2");
    elector.says("leading").await;
    elector.0.kill();
    let done = bed.run(&["-n", "worker-2"]).await.expect(0);
    assert!(done.stderr.contains("taken over unless"), "a countdown: {}", done.stderr);
    assert_eq!(holder(&bed), "");
}

/// The script that this tool replaces takes a Lease by a JSON patch with two tests, and only one in the shape that it
/// knows: a holder that is there and empty, a positive duration, times and transitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l28_the_old_script_takes_its_lease_after_we_have_used_and_released_it() {
    let bed = two_workers().await;
    let lease = ["--lease", "flux-system/ghcr-auth-refresh"];
    bed.run(&[&["-n", "worker-1"][..], &lease].concat()).await.expect(0);
    let kubectl = Kubectl::of(&bed);
    let get = ["get", "lease", "ghcr-auth-refresh", "-n", "flux-system", "-o", "json"];
    let object: Value = serde_json::from_str(&kubectl.ok(&get).await).expect("kubectl prints JSON");
    let spec = &object["spec"];
    assert_eq!(spec["holderIdentity"], "", "there, and empty");
    assert!(spec["leaseDurationSeconds"].as_i64() > Some(0) && spec["leaseTransitions"].is_i64(), "{spec}");
    assert!(spec["renewTime"].is_string() && spec["acquireTime"].is_string(), "{spec}");
    let now = micros(jiff::Timestamp::now());
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"]},
        {"op": "test", "path": "/spec/holderIdentity", "value": ""},
        {"op": "replace", "path": "/spec/holderIdentity", "value": "0123456789abcdef-gh17.1-4711-42"},
        {"op": "replace", "path": "/spec/leaseDurationSeconds", "value": 120},
        {"op": "replace", "path": "/spec/acquireTime", "value": now},
        {"op": "replace", "path": "/spec/renewTime", "value": now},
        {"op": "replace", "path": "/spec/leaseTransitions", "value": spec["leaseTransitions"].as_i64().unwrap_or(0) + 1},
    ]);
    kubectl
        .ok(&["patch", "lease", "ghcr-auth-refresh", "-n", "flux-system", "--type=json", "-p", &patch.to_string()])
        .await;
    // And while it holds it, we do nothing.
    let refused = bed.run(&[&["-n", "worker-2", "--lease-wait", "0"][..], &lease].concat()).await.expect(3);
    assert!(refused.stderr.contains("gh17.1"), "{}", refused.stderr);
}
