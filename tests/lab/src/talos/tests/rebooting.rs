//! Reboots (reboot.jsonl, restarted.jsonl, reboot-full.jsonl).

use jiff::SignedDuration;
use talos_proto::proto::machine::EtcdMemberListRequest;
use tonic::Code;

use super::*;
use crate::talos::cosi::kind;
use crate::talos::{Asked, RebootMode};
use talos_proto::proto::talos::resource::definitions::runtime::MachineStatusSpec;

#[tokio::test]
async fn a_reboot_is_a_new_boot_with_what_is_on_disk() {
    let bed = Bed::start(1, 1, "1.13.9").await;
    let (node, target) = (bed.talos.node("w-1"), bed.address("w-1"));
    bed.apply("w-1", &config(Role::Worker, "1.13.9", "w-1", NEW), Mode::NoReboot).await.unwrap();
    let before = node.boot_id();
    let first = bed.reboot("w-1").await.unwrap();
    let second = bed.reboot("w-1").await.unwrap();
    assert_ne!(first.messages[0].actor_id, second.messages[0].actor_id, "an OK proves nothing");
    assert_eq!(node.boot_id(), before);
    bed.until("it is dark", || !node.is_up()).await;
    let mut proxied = bed.machine("cp-1", "os:reader");
    let status = proxied.version(to((), &[("node", &target)])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("connect: connection refused"), "{status}");
    bed.machine("w-1", "os:reader").version(()).await.unwrap_err();
    bed.until("it is back", || node.is_up()).await;
    proxied.version(to((), &[("node", &target)])).await.unwrap();
    assert_ne!(node.boot_id(), before);
    assert_eq!(bed.password("w-1").unwrap(), NEW);
    assert_eq!(bed.version("w-1", &kind::MACHINE_CONFIG, "v1alpha1").await, "1");
    assert_eq!(bed.version("w-1", &kind::MACHINE_CONFIG, "persistent").await, "-");
    bed.until("the kubelet runs", || bed.cluster.node("w-1").unwrap().ready).await;
    bed.clock.sleep(REBOOT).await;
    assert_eq!((node.boots(), bed.talos.boot_order()), (1, vec!["w-1".to_owned()]), "two calls are one boot");
}

#[tokio::test]
async fn a_shutdown_is_rebooting_and_ready_and_ends_the_watches() {
    let bed = Bed::start(2, 0, "1.13.9").await;
    let mut watch = bed.watch("cp-2", &kind::MACHINE_STATUS, Some("machine")).await;
    // Through another node: the proxy's connection to it lives on, and the status says what happened.
    let proxied = to(
        WatchRequest {
            namespace: "runtime".into(),
            r#type: kind::SERVICE_PID.name.into(),
            api_version: 1,
            ..Default::default()
        },
        &[("node", &bed.address("cp-2"))],
    );
    let mut proxied = bed.state("cp-1", "os:reader").watch(proxied).await.unwrap().into_inner();
    bed.reboot("cp-2").await.unwrap();
    let mut seen = Vec::new();
    while let Ok(Some(response)) = watch.message().await {
        for event in response.event {
            let status: MachineStatusSpec = spec(&event.resource.unwrap());
            seen.push((status.stage().as_str_name(), status.status.unwrap().ready));
        }
    }
    assert_eq!(seen[..2], [("MACHINE_STAGE_RUNNING", true), ("MACHINE_STAGE_REBOOTING", true)]);
    let end = loop {
        match proxied.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a watch does not end well"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::Unavailable);
    assert!(end.message().contains("graceful_stop"), "{end}");
}

#[tokio::test]
async fn a_control_plane_comes_back_twice_and_its_api_server_late() {
    let bed = Bed::start(3, 0, "1.13.9").await;
    let node = bed.talos.node("cp-1");
    assert_eq!(bed.talos.etcd_leader().as_deref(), Some("cp-1"));
    bed.reboot("cp-1").await.unwrap();
    bed.until("it is dark", || !node.is_up()).await;
    assert_ne!(bed.talos.etcd_leader().unwrap(), "cp-1");
    bed.until("it is back", || node.is_up()).await;
    let mut watch = bed.watch("cp-1", &kind::MACHINE_STATUS, Some("machine")).await;
    let started = || bed.cluster.events().iter().filter(|event| *event == "cp-1 API server started").count();
    let (mut seen, mut served) = (Vec::new(), Vec::new());
    while seen.iter().filter(|status| **status == ("MACHINE_STAGE_RUNNING", true)).count() < 2 {
        for event in watch.message().await.unwrap().unwrap().event {
            let status: MachineStatusSpec = spec(&event.resource.unwrap());
            seen.push((status.stage().as_str_name(), status.status.unwrap().ready));
            served.push(started());
        }
    }
    let last = seen.len() - 1;
    assert_eq!(
        seen[last - 3..],
        [
            ("MACHINE_STAGE_BOOTING", true),
            ("MACHINE_STAGE_RUNNING", true),
            ("MACHINE_STAGE_RUNNING", false),
            ("MACHINE_STAGE_RUNNING", true)
        ]
    );
    assert_eq!(
        (served[last - 2], served[last]),
        (1, 2),
        "its API server answers after it was ready for the first time"
    );
    let events = bed.cluster.events();
    let position = |what: &str| events.iter().rposition(|event| event == what).unwrap();
    assert!(position("cp-1 kubelet stopped") < position("cp-1 API server stopped"));
    assert!(position("cp-1 kubelet started") < position("cp-1 API server started"));
}

#[tokio::test]
async fn a_locked_sequence_says_ok_and_does_nothing() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let node = bed.talos.node("w-1");
    node.set_reboot_locked(true);
    bed.reboot("w-1").await.unwrap();
    bed.clock.sleep(REBOOT).await;
    assert!(node.is_up() && node.boots() == 0);
    let status = bed.machine("w-1", "os:reader").reboot(RebootRequest::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not authorized"));
    node.set_reboot_locked(false);
    bed.reboot("w-1").await.unwrap();
    bed.until("it boots", || node.boots() == 1).await;
}

#[tokio::test]
async fn a_power_cut_adopts_what_was_staged_and_leaves_the_node_ready() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let node = bed.talos.node("w-1");
    node.stage_foreign(config(Role::Worker, "1.13.9", "w-1", NEW).as_bytes()).unwrap();
    node.set_clock_offset(SignedDuration::from_hours(-2));
    node.power_cycle();
    bed.until("it is dark", || !node.is_up()).await;
    assert!(bed.cluster.node("w-1").unwrap().ready, "nobody told Kubernetes");
    bed.until("it is back", || node.is_up()).await;
    assert_eq!(bed.password("w-1").unwrap(), NEW);
    let cri = bed.get("w-1", &kind::SERVICE_PID, "cri").await.unwrap();
    let age = bed.clock.utc().as_second() - metadata(&cri).created.unwrap().seconds;
    assert!((7190..7260).contains(&age), "its clock is two hours behind: {age}");
}

#[tokio::test]
async fn a_stopped_node_stays_away_until_it_is_started() {
    let bed = Bed::start(3, 0, "1.13.9").await;
    let node = bed.talos.node("cp-3");
    bed.reboot("cp-3").await.unwrap();
    node.stop();
    bed.clock.sleep(REBOOT * 2).await;
    assert!(!node.is_up() && node.boots() == 0);
    let target = bed.address("cp-3");
    let status = bed.machine("cp-1", "os:reader").etcd_status(to((), &[("node", &target)])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let members = bed.machine("cp-1", "os:reader").etcd_member_list(EtcdMemberListRequest::default()).await.unwrap();
    assert_eq!(members.into_inner().messages[0].members.len(), 3, "a dead member is in the list");
    node.start_again();
    bed.until("it is back", || node.is_up() && node.boots() == 1).await;
}

#[tokio::test]
async fn an_api_that_is_cut_off_is_reached_neither_directly_nor_behind_a_proxy_and_the_node_lives_on() {
    let bed = Bed::start(1, 1, "1.13.9").await;
    let (node, target) = (bed.talos.node("w-1"), bed.address("w-1"));
    let (boot, mut direct, mut proxied) =
        (node.boot_id(), bed.machine("w-1", "os:reader"), bed.machine("cp-1", "os:reader"));
    direct.version(()).await.unwrap();
    node.cut_off_apid(true);
    direct.version(()).await.unwrap_err();
    let status = proxied.version(to((), &[("node", &target)])).await.unwrap_err();
    assert!(status.code() == Code::Unavailable && status.message().contains("i/o timeout"), "{status}");
    proxied.version(()).await.unwrap();
    // It may reboot meanwhile.
    node.ask_for_reboot(true);
    bed.until("it has booted", || node.boots() == 1 && node.is_up()).await;
    bed.machine("w-1", "os:reader").version(()).await.unwrap_err();
    node.cut_off_apid(false);
    let mut again = bed.machine("w-1", "os:reader");
    while again.version(()).await.is_err() {
        bed.clock.sleep(Duration::from_millis(20)).await;
    }
    proxied.version(to((), &[("node", &target)])).await.unwrap();
    assert_ne!(node.boot_id(), boot);
}

#[tokio::test]
async fn a_proxy_that_saw_a_node_down_does_not_look_for_it_again_for_a_while() {
    let bed = Bed::start(2, 1, "1.13.9").await;
    let (node, target) = (bed.talos.node("w-1"), bed.address("w-1"));
    bed.talos.set_proxy_back_off(Duration::from_secs(1));
    node.stop();
    let mut first = bed.machine("cp-1", "os:reader");
    assert_eq!(first.version(to((), &[("node", &target)])).await.unwrap_err().code(), Code::Unavailable);
    node.start_again();
    bed.until("it is back", || node.is_up()).await;
    assert_eq!(first.version(to((), &[("node", &target)])).await.unwrap_err().code(), Code::Unavailable);
    bed.machine("cp-2", "os:reader").version(to((), &[("node", &target)])).await.unwrap();
    bed.machine("w-1", "os:reader").version(()).await.unwrap();
    while first.version(to((), &[("node", &target)])).await.is_err() {
        bed.clock.sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_worker_that_boots_while_no_control_plane_runs_has_no_apid_until_one_does() {
    let bed = Bed::start(1, 1, "1.13.9").await;
    let (worker, plane) = (bed.talos.node("w-1"), bed.talos.node("cp-1"));
    plane.stop();
    worker.ask_for_reboot(true);
    bed.until("it has booted", || worker.boots() == 1).await;
    bed.clock.sleep(REBOOT).await;
    assert!(!worker.is_up());
    plane.start_again();
    bed.until("it has a certificate", || worker.is_up()).await;
}

#[tokio::test]
async fn what_a_reboot_was_asked_for_with_and_what_was_open_then_is_known() {
    let bed = Bed::start(1, 1, "1.13.9").await;
    let watch = bed.watch("w-1", &kind::MACHINE_STATUS, Some("machine")).await;
    bed.reboot("w-1").await.unwrap();
    let asked = bed.talos.node("w-1").reboots_asked();
    assert_eq!(asked, [Asked { mode: RebootMode::Default, watches: 1 }]);
    drop(watch);
}
