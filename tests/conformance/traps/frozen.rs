//! What it answers while etcd neither answers nor goes away.

use std::net::IpAddr;

use coordinator::kube::api_servers::{Authority, WriteError};
use coordinator::kube::fence::{self, Fence};
use coordinator::kube::lease::{HeldLease, Release};
use coordinator::kube::nodes;
use http::Request;
use lab::options::Kubernetes;
use lab::real::api::{MERGE_PATCH, Reply};
use serde_json::{Value, json};
use talos_proto::clock::Clock;

use super::{LEASES, NODES, Real, fence_for, lease, programs, s};
use crate::harness::{Bed, ended, eventually, lease_duration};

/// Requests that are asked together.
const MANY: usize = 40;
/// As many where each takes a while.
const FEW: usize = 6;
/// How a request ends whose time has run out: whether its handler or the filter around it notices first is a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The connection is closed without an answer.
    Cut,
    /// 504 of the filter: JSON that is said to be text, and lacks what makes it a Status.
    NoStatus,
}

fn asked(answer: std::io::Result<Reply>) -> Asked {
    let Ok(reply) = answer else { return Asked::Cut };
    assert_eq!(reply.code, 504, "{}", reply.text);
    let text = reply.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert!(text.starts_with("text/plain"), "{text}");
    let body = reply.json();
    assert_eq!((&body["kind"], &body["code"]), (&Value::Null, &json!(504)), "{}", reply.text);
    Asked::NoStatus
}

#[tokio::test(flavor = "multi_thread")]
async fn l10_f10_a_504_may_have_been_applied() {
    let real = Real::start(&[]).await;
    // Which of them reach etcd in time is a race that it decides when it goes on.
    let names: Vec<String> = (0..MANY).map(|number| format!("theirs-{number}")).collect();
    for name in &names {
        real.create(LEASES, lease(name, json!({"holderIdentity": "before"}))).await;
    }
    real.plane.freeze_etcd(true);
    let patches = names.iter().map(async |name| {
        let patch = json!({"spec": {"holderIdentity": "after"}});
        asked(real.api.patch(&format!("{LEASES}/{name}?timeout=1s"), MERGE_PATCH, &patch).await)
    });
    let answers = futures::future::join_all(patches).await;
    real.plane.freeze_etcd(false);
    real.until_ready().await;
    let mut applied = 0;
    for (name, answer) in names.iter().zip(answers) {
        let holder = real.get(&format!("{LEASES}/{name}")).await["spec"]["holderIdentity"].take();
        applied += usize::from(answer == Asked::NoStatus && holder == "after");
    }
    assert!(applied > 0, "none of {MANY}");

    // The product looks before it does anything again: a claim and a release, each with its answer lost.
    real.create(NODES, json!({"metadata": {"name": "w1"}})).await;
    let servers = real.servers().await;
    let held = real.acquire(&servers, "ours", s(18)).await;
    let view = nodes::get(&servers, "w1").await.unwrap().unwrap();
    let made = fence_for(&held, &view, &real.clock);
    let value = made.render();
    real.plane.freeze_etcd(true);
    let frozen = held.timing().call + s(1);
    let (claimed, ()) = tokio::join!(fence::claim(&servers, &held, &view, made), real.thaw_after(frozen));
    let claimed = claimed.unwrap();
    assert!(claimed.unschedulable);
    assert_eq!(Fence::on(&claimed).unwrap().0, value);
    real.plane.freeze_etcd(true);
    let (released, ()) = tokio::join!(held.release(), real.thaw_after(frozen));
    assert_eq!(released.unwrap(), Release::Freed);
    assert_eq!(real.get(&format!("{LEASES}/ours")).await["spec"]["holderIdentity"], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn l13_while_etcd_is_frozen_livez_is_200_at_first_and_a_get_may_be_cut() {
    let real = Real::start(&[]).await;
    let path = format!("{LEASES}/theirs");
    real.create(LEASES, lease("theirs", json!({"holderIdentity": "h"}))).await;
    let servers = real.servers().await;
    real.plane.freeze_etcd(true);
    let livez = async || real.api.get("/livez").await.unwrap().code;
    assert_eq!(livez().await, 200, "it says what it heard of etcd last");
    // 60 s without a word about it.
    let get = async |path: &str| asked(real.api.get(&format!("{path}?timeout=1s")).await);
    real.until("a GET is cut", async || {
        let ends = futures::future::join_all([get(&path), get(&path), get(LEASES), get(NODES)]).await;
        ends.contains(&Asked::Cut)
    })
    .await;
    real.until("/livez says that etcd does not answer", async || livez().await == 500).await;
    // The product asks /readyz.
    assert!(servers.ready_at(IpAddr::V4(real.plane.address(0))).await.is_err());
    // It takes a lease when etcd is back, and holds it.
    let (held, ()) = tokio::join!(real.acquire(&servers, "ours", s(12)), real.thaw_after(s(4)));
    assert_eq!(held.release().await.unwrap(), Release::Freed);
}

#[tokio::test(flavor = "multi_thread")]
async fn l10_a_504_may_have_a_body_that_is_no_status() {
    // 60 s by default. The product gives a request up before that, and here after it.
    let real = Real::start(&["--request-timeout=1s"]).await;
    let servers = real.servers().await;
    let (mut views, mut leases) = (Vec::new(), Vec::new());
    for number in 0..FEW {
        let name = format!("w{number}");
        real.create(NODES, json!({"metadata": {"name": name}})).await;
        views.push(nodes::get(&servers, &name).await.unwrap().unwrap());
        leases.push(real.acquire(&servers, &name, s(24)).await);
    }
    let path = format!("{NODES}/w0");
    real.plane.freeze_etcd(true);
    real.until("a 504 arrives", async || {
        let written = servers.write(Authority::LeaseItself, s(4), |client| {
            let body = json!({"metadata": {"labels": {"x": "y"}}}).to_string().into_bytes();
            let request = Request::patch(&path).header("content-type", MERGE_PATCH).body(body);
            async move { client.request::<Value>(request.map_err(kube::Error::HttpError)?).await }
        });
        // Cut or answered, to the product it is a change that may have happened.
        match written.await {
            Err(WriteError::Ambiguous { answer, .. }) => answer.is_some_and(|status| status.code == 504),
            // A write that came before etcd stood still, or one that never left: asked again.
            Ok(_) | Err(WriteError::Unreachable { .. }) => false,
            Err(other) => panic!("not ambiguous: {other}"),
        }
    })
    .await;

    // Reads that are answered so are ridden out as those that are not answered at all.
    let claims = views.iter().map(|view| {
        let made = fence_for(&leases[0], view, &real.clock);
        fence::claim(&servers, &leases[0], view, made)
    });
    let (claims, ()) = tokio::join!(futures::future::join_all(claims), real.thaw_after(s(5)));
    for claimed in claims {
        assert!(claimed.unwrap().unschedulable);
    }
    real.plane.freeze_etcd(true);
    let releases = leases.iter().map(HeldLease::release);
    let (releases, ()) = tokio::join!(futures::future::join_all(releases), real.thaw_after(s(5)));
    for released in releases {
        assert_eq!(released.unwrap(), Release::Freed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l13_a_roll_rides_out_an_etcd_that_is_frozen() {
    let bed = Bed::new(|options| {
        (options.control_planes, options.workers) = (1, 2);
        options.kubernetes = Kubernetes::Real(programs());
        // What hangs is answered 504 or cut within the time that etcd is frozen, as after 60 s by default.
        options.api_server_flags = vec!["--request-timeout=2s".to_owned()];
    })
    .await;
    let product = bed.start(&["-n", "worker-1,worker-2"]);
    eventually("a worker is fenced", || bed.lab.truth().nodes.iter().any(|node| node.fence.is_some())).await;
    let cluster = bed.lab.real().unwrap();
    // Longer than the lease may go without a renewal, which is two thirds of it.
    let lease: u64 = lease_duration().trim_end_matches('s').parse().unwrap();
    cluster.freeze_etcd(true);
    Clock::system().sleep(s(lease) * 5 / 6).await;
    cluster.freeze_etcd(false);
    ended(product).await.expect(0);
    let truth = bed.lab.truth();
    for node in truth.nodes.iter().filter(|node| node.name != "cp-1") {
        assert_eq!((node.configured, node.cri_loaded), (lab::Held::New, lab::Held::New), "{}", node.name);
        assert!(node.fence.is_none() && !node.cordoned, "{}", node.name);
    }
    assert!(!truth.lease.is_some_and(|lease| lease.is_held()));
    assert_eq!(truth.unexpected, Vec::<String>::new());
}
