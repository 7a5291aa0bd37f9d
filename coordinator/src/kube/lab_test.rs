//! This room against the lab's API servers, over real sockets with TLS and client certificates.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use lab::kube::server::{ApiServer, Trouble};
use lab::{Lab, Options};
use talos_proto::clock::Clock;

use super::api_servers::ApiServers;
use super::drain::{DrainOptions, drain};
use super::fence::{self, Fence, Released};
use super::lease::{LeaseOptions, Release, Timing, acquire};
use super::nodes::{self, NodeView};
use crate::holder::Holder;

#[tokio::test]
async fn lease_fence_and_drain_while_the_named_server_goes_dark() {
    lease_fence_and_drain(|named| named.stop()).await;
}

/// Its own etcd may hang, and no other API server's: each speaks to that of its node.
#[tokio::test]
async fn lease_fence_and_drain_while_the_named_server_answers_503() {
    lease_fence_and_drain(|named| named.trouble(Trouble::Fail(503))).await;
}

async fn lease_fence_and_drain(trouble: impl FnOnce(&Arc<ApiServer>)) {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::start(Options::new(directory.path())).await.unwrap();
    let clock = Clock::system();
    let kubeconfig = directory.path().join("kubeconfig");
    let servers = ApiServers::connect(Some(&kubeconfig), None, clock.clone()).await.unwrap();
    let all = nodes::list(&servers).await.unwrap();
    assert_eq!((all.len(), servers.requests()), (6, 1));
    let mut addresses: Vec<IpAddr> =
        all.iter().filter(|node| node.control_plane).filter_map(|node| node.internal_ip).collect();
    assert_eq!(addresses.len(), 3);
    let worker = all.iter().find(|node| !node.control_plane).unwrap();
    addresses.push(worker.internal_ip.unwrap());
    let dropped = servers.extend(addresses, &[]).await;
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    let there = format!("{}:6443", worker.internal_ip.unwrap());
    assert_eq!(dropped[0].address, there, "no API server there: {}", dropped[0].reason);
    assert_eq!(servers.names().len(), 3);

    let timing = Timing::scaled(Duration::from_secs(6));
    let options = LeaseOptions { timing, ..LeaseOptions::new(Holder::this_process("0011223344556677", &clock)) };
    let lease = acquire(&servers, options).await.unwrap();
    let made = Fence::claimed(lease.claimant(), worker, "boot", "00112233445566778899aabbccddeeff", clock.utc());
    let value = made.render();
    let claimed = fence::claim(&servers, &lease, worker, made).await.unwrap();
    assert!(claimed.unschedulable);

    // The server that the kubeconfig names goes away for longer than a renewal takes.
    trouble(lab.server("cp-1").unwrap());
    let drained = drain(&servers, &lease, &worker.name, DrainOptions::default(), Duration::from_secs(30), &|_| {});
    drained.await.unwrap();
    clock.sleep(Duration::from_secs(3)).await;
    let released = fence::release(&servers, &lease, &claimed, &value).await.unwrap();
    assert!(matches!(released, Released::Free { schedulable: true, .. }));
    let deadline = clock.now() + Duration::from_secs(10);
    let free = |node: &NodeView| !node.unschedulable && Fence::on(node).is_none();
    nodes::wait_until(&servers, &worker.name, free, deadline).await.unwrap();
    assert_eq!(lease.release().await.unwrap(), Release::Freed);
    assert_eq!(lab.unexpected(), Vec::<String>::new());
    lab.stop();
}

#[tokio::test]
async fn a_control_plane_that_was_away_when_the_run_began_is_used_once_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::start(Options::new(directory.path())).await.unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let servers = ApiServers::connect(Some(&kubeconfig), None, Clock::system()).await.unwrap();
    let late: IpAddr = lab.node("cp-2").address().into();
    let server = lab.server("cp-2").unwrap();
    let mut listening = server.listening();
    server.cut_off(true);
    listening.wait_for(|listening| !listening).await.unwrap();
    assert_eq!(servers.extend(vec![late], &[]).await.len(), 1);
    assert!(servers.ready_at(late).await.is_err());
    assert_eq!(servers.names().len(), 1);
    server.cut_off(false);
    listening.wait_for(|listening| *listening).await.unwrap();
    for _ in 0..2 {
        servers.ready_at(late).await.unwrap();
        assert_eq!(servers.names().len(), 2, "once");
    }
    // It stands in when the named one goes away.
    let named = lab.server("cp-1").unwrap();
    named.cut_off(true);
    named.listening().wait_for(|listening| !listening).await.unwrap();
    assert_eq!(nodes::list(&servers).await.unwrap().len(), 6);
    lab.stop();
}

/// A balancer of whose servers one is left.
#[tokio::test]
async fn o03_the_certificates_behind_a_balancer_and_behind_one_that_passes_nobody_on() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::start(Options::new(directory.path())).await.unwrap();
    let front = lab.front(16443, &["cp-2", "cp-3"]).unwrap();
    let gone = lab.server("cp-3").unwrap();
    let mut listening = gone.listening();
    gone.cut_off(true);
    listening.wait_for(|listening| !listening).await.unwrap();
    let kubeconfig = directory.path().join("kubeconfig-front");
    std::fs::write(&kubeconfig, lab.kubeconfig_for("admin", &["system:masters"], &front.url())).unwrap();
    let servers = ApiServers::connect(Some(&kubeconfig), None, Clock::system()).await.unwrap();
    let seen = servers.serving(4).await.unwrap();
    assert_eq!(seen.len(), 4, "{seen:?}");
    let address: IpAddr = lab.node("cp-2").address().into();
    assert!(seen.iter().all(|serving| serving.addresses.contains(&address) && serving.names.contains(&"cp-2".into())));
    lab.turn_front(&front, &[]);
    assert!(servers.serving(4).await.is_err());
    assert_eq!(servers.requests(), 0);
    lab.stop();
}
