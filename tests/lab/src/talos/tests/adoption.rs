//! The CRI process: what it loaded, and when it starts again (v1.14/rotate.jsonl, cri-killed.jsonl).

use talos_proto::proto::cosi::resource::EventType;

use super::*;
use crate::talos::cosi::kind;

fn changed(password: &str) -> String {
    config(Role::Worker, "1.14.0-rc.1", "w-1", password)
}

#[tokio::test]
async fn since_1_14_the_cri_adopts_by_itself() {
    let bed = Bed::start(0, 1, "1.14.0-rc.1").await;
    let node = bed.talos.node("w-1");
    let (cri, kubelet) = (node.pid("cri"), node.pid("kubelet"));
    let mut pids = bed.watch("w-1", &kind::SERVICE_PID, Some("cri")).await;
    let mut services = bed.watch("w-1", &kind::SERVICE, Some("cri")).await;
    bed.apply("w-1", &changed(NEW), Mode::NoReboot).await.unwrap();
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(pids.message().await.unwrap().unwrap().event);
    }
    let types: Vec<_> = events.iter().map(|event| event.event_type()).collect();
    assert_eq!(types, [EventType::Created, EventType::Destroyed, EventType::Created]);
    assert_eq!(metadata(events[2].resource.as_ref().unwrap()).version, "1", "it counts anew");
    assert_eq!(bed.password("w-1").unwrap(), NEW);
    let mut health = Vec::new();
    while health.len() < 4 {
        for event in services.message().await.unwrap().unwrap().event {
            health.push((event.event_type(), event.resource.unwrap().spec.unwrap().yaml_spec));
        }
    }
    assert_eq!(health[1].0, EventType::Destroyed);
    assert_eq!(health[2].1, "running: true\nhealthy: false\nunknown: true\n");
    assert_eq!(health[3].1, "running: true\nhealthy: true\nunknown: false\n");
    assert_ne!(node.pid("cri"), cri);
    assert_eq!((node.pid("kubelet"), node.boots()), (kubelet, 0));
}

#[tokio::test]
async fn what_changes_no_credential_restarts_nothing() {
    let bed = Bed::start(0, 1, "1.14.0-rc.1").await;
    let node = bed.talos.node("w-1");
    let (cri, text) = (node.pid("cri"), changed(OLD));
    let annotated = format!("{text}---\napiVersion: v1alpha1\nkind: KubeNodeConfig\nannotations:\n    a: b\n");
    let document = text.find("---\n# The pull").unwrap();
    let legacy = format!(
        "    registries:\n        config:\n            ghcr.io:\n                auth: {{username: puller, password: \
         {OLD}}}\n    certSANs"
    );
    let legacy = text[..document].replace("    certSANs", &legacy);
    let mirror = format!("{text}---\napiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: a.io\nendpoints: []\n");
    for other in [&text, &annotated, &legacy, &mirror] {
        bed.apply("w-1", other, Mode::NoReboot).await.unwrap();
        bed.clock.sleep(Duration::from_millis(120)).await;
    }
    assert_eq!(node.pid("cri"), cri);
    assert_eq!(bed.version("w-1", &kind::ETC_FILE, "cri/conf.d/cri.toml").await, "2");
    assert_eq!(bed.version("w-1", &kind::MACHINE_CONFIG, "v1alpha1").await, "5");
    assert_eq!(bed.version("w-1", &kind::REGISTRIES, "registries").await, "2", "the mirror is in the registries");
}

#[tokio::test]
async fn a_restart_can_hang() {
    let bed = Bed::start(0, 1, "1.14.0-rc.1").await;
    let node = bed.talos.node("w-1");
    node.hang_cri_restart(true);
    bed.apply("w-1", &changed(NEW), Mode::NoReboot).await.unwrap();
    bed.until("the process is gone", || node.pid("cri").is_none()).await;
    bed.clock.sleep(Duration::from_millis(150)).await;
    assert_eq!((node.pid("cri"), node.cri_loaded(HOST)), (None, None));
    let status = bed.get("w-1", &kind::MACHINE_STATUS, "machine").await.unwrap();
    assert!(status.spec.unwrap().yaml_spec.contains("ready: true"), "it says nothing of the CRI");
}

#[tokio::test]
async fn a_killed_cri_comes_back_with_what_is_in_its_file() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let node = bed.talos.node("w-1");
    bed.apply("w-1", &config(Role::Worker, "1.13.9", "w-1", NEW), Mode::NoReboot).await.unwrap();
    bed.until_async("its file changes", || async {
        bed.version("w-1", &kind::ETC_FILE, "cri/conf.d/cri.toml").await == "3"
    })
    .await;
    assert_eq!(bed.password("w-1").unwrap(), OLD);
    node.kill_cri();
    assert_eq!(bed.version("w-1", &kind::SERVICE_PID, "cri").await, "-");
    bed.until("it is back", || bed.password("w-1").as_deref() == Some(NEW)).await;
    assert_eq!(bed.version("w-1", &kind::SERVICE_PID, "cri").await, "1");
}
