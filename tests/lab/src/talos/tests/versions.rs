//! What differs between the versions of Talos (talos.md 1.1, 1.3, 2.5, 3.1, 3.2, 4.1).

use futures::StreamExt as _;
use talos_proto::proto::common::ContainerdNamespace;
use talos_proto::proto::machine::{
    ImageListRequest, ImagePullRequest, ImageServiceListRequest, ReadRequest, reboot_request,
};
use talos_proto::proto::talos::resource::definitions::cri;
use tonic::Code;

use super::*;
use crate::talos::Namespace;
use crate::talos::cosi::kind;

const OLDER: [&str; 4] = ["1.9.6", "1.10.9", "1.11.6", "1.12.11"];

fn said(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

async fn persisted(bed: &Bed) -> Vec<u8> {
    let request = ReadRequest { path: "/system/state/config.yaml".to_owned() };
    let mut chunks = bed.machine("w-1", "os:admin").read(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes.extend(chunk.bytes);
    }
    bytes
}

#[tokio::test]
async fn the_effective_credential_has_the_layout_of_the_version() {
    for version in OLDER {
        let bed = Bed::start(0, 1, version).await;
        let registries = bed.get("w-1", &kind::REGISTRIES, "registries").await.unwrap();
        let auth = if version == "1.12.11" {
            spec::<cri::RegistriesConfigSpec>(&registries).registry_auths.remove(HOST)
        } else {
            let mut older: cri::v1_11::RegistriesConfigSpec = spec(&registries);
            older.registry_config.remove(HOST).and_then(|config| config.registry_auth)
        };
        assert_eq!(auth.unwrap().registry_password, OLD, "{version}");
    }
}

#[tokio::test]
async fn only_1_9_does_not_show_what_is_persisted_but_all_have_it_on_disk() {
    for version in OLDER {
        let bed = Bed::start(0, 1, version).await;
        let text = config(Role::Worker, version, "w-1", NEW);
        bed.apply("w-1", &text, Mode::NoReboot).await.unwrap();
        let shown = if version == "1.9.6" { "-" } else { "1" };
        assert_eq!(bed.version("w-1", &kind::MACHINE_CONFIG, "persistent").await, shown, "{version}");
        assert_eq!(bed.version("w-1", &kind::MACHINE_CONFIG, "v1alpha1").await, "2", "{version}");
        assert_eq!(persisted(&bed).await, text.as_bytes(), "{version}");
        bed.apply("w-1", &config(Role::Worker, version, "w-1", "tried"), Mode::Try).await.unwrap();
        assert_eq!(persisted(&bed).await, text.as_bytes(), "a TRY is not on disk");
    }
}

#[tokio::test]
async fn below_1_13_the_cri_process_is_told_by_its_event_only() {
    let bed = Bed::start(0, 1, "1.12.11").await;
    let node = bed.talos.node("w-1");
    let refused = bed.get("w-1", &kind::SERVICE_PID, "cri").await.unwrap_err();
    let words = "resource type \"ServicePIDs.runtime.talos.dev\" is not supported";
    assert_eq!(said(&refused), (Code::PermissionDenied, words));
    let events = || async {
        let list = bed.machine("w-1", "os:reader").service_list(()).await.unwrap().into_inner();
        let services = list.messages.into_iter().flat_map(|message| message.services);
        let cri = services.into_iter().find(|service| service.id == "cri").unwrap();
        assert_eq!(cri.state, "Running");
        cri.events.unwrap().events.into_iter().map(|event| event.msg).collect::<Vec<_>>()
    };
    let start = format!("started with PID {}", node.pid("cri").unwrap());
    let told = |events: &[String]| events.iter().any(|text| text.contains("/bin/containerd") && text.ends_with(&start));
    assert!(told(&events().await));
    node.push_cri_start_out();
    let kept = events().await;
    assert!(kept.len() == 64 && !told(&kept));
}

#[tokio::test]
async fn images_below_1_13_are_the_business_of_the_machine_service() {
    for version in ["1.9.6", "1.12.11", "1.13.9", "1.14.0-rc.1"] {
        let bed = Bed::start(0, 1, version).await;
        let list = bed.images("w-1", "os:reader").list(ImageServiceListRequest::default()).await;
        if version.starts_with("1.9") || version.starts_with("1.12") {
            let refused = list.map(drop).unwrap_err();
            assert_eq!(said(&refused), (Code::Unimplemented, "unknown service machine.ImageService"));
        }
        let system = ContainerdNamespace::NsSystem.into();
        let pull = ImagePullRequest { namespace: system, reference: "ghcr.io/lab/app:0".to_owned() };
        let denied = bed.machine("w-1", "os:reader").image_pull(pull.clone()).await.unwrap_err();
        assert_eq!(said(&denied), (Code::PermissionDenied, "not authorized"));
        bed.machine("w-1", "os:operator").image_pull(pull).await.unwrap();
        let list = bed.machine("w-1", "os:reader").image_list(ImageListRequest { namespace: system }).await;
        let names: Vec<_> = list.unwrap().into_inner().map(|image| image.unwrap().name).collect().await;
        assert_eq!(names, ["ghcr.io/lab/app:0", &format!("ghcr.io/lab/app@{DIGEST}"), DIGEST], "{version}");
        assert!(bed.talos.node("w-1").images(Namespace::Cri).is_empty());
    }
}

#[tokio::test]
async fn readers_see_the_credential_before_1_12_9_and_1_13_4() {
    for (version, hidden) in
        [("1.9.6", false), ("1.12.8", false), ("1.12.11", true), ("1.13.3", false), ("1.13.9", true)]
    {
        let bed = Bed::start(0, 1, version).await;
        let mut reader = bed.state("w-1", "os:reader");
        let read = reader.get(get_request(&kind::REGISTRIES, "registries")).await;
        assert_eq!(read.is_err(), hidden, "{version}");
        let config = reader.get(get_request(&kind::MACHINE_CONFIG, "v1alpha1")).await.unwrap_err();
        assert_eq!(said(&config), (Code::PermissionDenied, "not authorized"));
    }
}

#[tokio::test]
async fn a_forced_reboot_below_1_12_is_an_orderly_one() {
    for (version, orderly) in [("1.11.6", true), ("1.12.11", false)] {
        let bed = Bed::start(0, 1, version).await;
        let mut request = RebootRequest::default();
        request.set_mode(reboot_request::Mode::Force);
        bed.machine("w-1", "os:operator").reboot(request).await.unwrap();
        bed.until("the boot", || bed.talos.node("w-1").boots() == 1).await;
        assert_eq!(bed.cluster.events().contains(&"w-1 kubelet stopped".to_owned()), orderly, "{version}");
    }
}

#[tokio::test]
async fn v1_12_0_renders_nothing_beside_a_tls_document_without_identity() {
    let tls = "---\napiVersion: v1alpha1\nkind: RegistryTLSConfig\nname: other.io\ninsecureSkipVerify: true\n";
    for (version, follows) in [("1.12.0", false), ("1.12.11", true)] {
        let bed = Bed::start(0, 1, version).await;
        bed.apply("w-1", &(config(Role::Worker, version, "w-1", NEW) + tls), Mode::NoReboot).await.unwrap();
        bed.clock.sleep(Duration::from_millis(150)).await;
        let registries = bed.get("w-1", &kind::REGISTRIES, "registries").await.unwrap();
        let auth = spec::<cri::RegistriesConfigSpec>(&registries).registry_auths.remove(HOST).unwrap();
        assert_eq!(auth.registry_password == NEW, follows, "{version}");
        assert_eq!(bed.version("w-1", &kind::ETC_FILE, "cri/conf.d/cri.toml").await == "3", follows, "{version}");
    }
}
