//! Messages of ours against encodings by Google's own protobuf.

use std::path::Path;

use prost::Message;
use protox::prost_reflect::DynamicMessage;
use serde_json::Value as Json;

use super::descriptors::{message, pool, render};
use super::recordings::unhex;
use crate::proto::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace, Metadata, NetIp, NetIpPrefix};
use crate::proto::cosi::resource as cosi;
use crate::proto::machine::{
    ApplyConfigurationRequest, ImagePullRequest, ImageServicePullRequest, ImageServiceRemoveRequest, ReadRequest,
    RebootRequest, apply_configuration_request, reboot_request,
};
use crate::proto::talos::resource::definitions::{cluster, cri, enums, files, k8s, network, runtime};

/// Messages of the file that our protos do not have, for the product makes no such call.
const NOT_OURS: [&str; 3] = ["machine.EventsRequest", "machine.SequenceEvent", "machine.MachineStatusEvent"];

/// By message, each of our own in the order of the file.
fn ours() -> Vec<(&'static str, Vec<u8>)> {
    use apply_configuration_request::Mode;
    let apply = |mode: Mode| ApplyConfigurationRequest {
        data: b"a: 1\n".to_vec(),
        mode: mode.into(),
        dry_run: false,
        try_mode_timeout: None,
    };
    let reboot = |mode: reboot_request::Mode| RebootRequest { mode: mode.into() }.encode_to_vec();
    let applied = "machine.ApplyConfigurationRequest";
    let minute = prost_types::Duration { seconds: 60, nanos: 0 };
    let containerd = || {
        let (driver, namespace) = (ContainerDriver::Cri.into(), ContainerdNamespace::NsCri.into());
        Some(ContainerdInstance { driver, namespace })
    };
    let image_ref = || "ghcr.io/a/b:c".to_owned();
    let basic =
        cri::RegistryAuthConfig { registry_username: "u".into(), registry_password: "p".into(), ..Default::default() };
    vec![
        ("machine.ReadRequest", ReadRequest { path: "/proc/sys/kernel/random/boot_id".into() }.encode_to_vec()),
        ("machine.RebootRequest", reboot(reboot_request::Mode::Default)),
        ("machine.RebootRequest", reboot(reboot_request::Mode::Powercycle)),
        ("machine.RebootRequest", reboot(reboot_request::Mode::Force)),
        (applied, apply(Mode::NoReboot).encode_to_vec()),
        (applied, ApplyConfigurationRequest { dry_run: true, ..apply(Mode::NoReboot) }.encode_to_vec()),
        (applied, ApplyConfigurationRequest { try_mode_timeout: Some(minute), ..apply(Mode::Try) }.encode_to_vec()),
        (
            "machine.ImagePullRequest",
            ImagePullRequest { namespace: ContainerdNamespace::NsCri.into(), reference: image_ref() }.encode_to_vec(),
        ),
        (
            "machine.ImageServicePullRequest",
            ImageServicePullRequest { containerd: containerd(), image_ref: image_ref() }.encode_to_vec(),
        ),
        (
            "machine.ImageServiceRemoveRequest",
            ImageServiceRemoveRequest { containerd: containerd(), image_ref: image_ref() }.encode_to_vec(),
        ),
        (
            "cosi.resource.GetRequest",
            cosi::GetRequest {
                namespace: "cri".into(),
                r#type: "RegistryConfigs.cri.talos.dev".into(),
                id: "registries".into(),
                options: None,
            }
            .encode_to_vec(),
        ),
        (
            "cosi.resource.ListRequest",
            cosi::ListRequest {
                namespace: "cluster".into(),
                r#type: "Members.cluster.talos.dev".into(),
                options: None,
            }
            .encode_to_vec(),
        ),
        (
            "cosi.resource.WatchRequest",
            cosi::WatchRequest {
                namespace: "runtime".into(),
                r#type: "MachineStatuses.runtime.talos.dev".into(),
                id: Some("machine".into()),
                options: None,
                api_version: 1,
            }
            .encode_to_vec(),
        ),
        (
            "cosi.resource.WatchRequest",
            cosi::WatchRequest {
                namespace: "k8s".into(),
                r#type: "NodeStatuses.kubernetes.talos.dev".into(),
                id: None,
                options: Some(cosi::WatchOptions { bootstrap_contents: true, ..Default::default() }),
                api_version: 1,
            }
            .encode_to_vec(),
        ),
        (
            "talos.resource.definitions.runtime.MachineStatusSpec",
            runtime::MachineStatusSpec {
                stage: enums::RuntimeMachineStage::MachineStageRunning.into(),
                status: Some(runtime::MachineStatusStatus { ready: true, unmet_conditions: vec![] }),
            }
            .encode_to_vec(),
        ),
        (
            "talos.resource.definitions.k8s.NodeStatusSpec",
            k8s::NodeStatusSpec {
                nodename: "w1".into(),
                node_ready: true,
                annotations: [("a".into(), "b".into())].into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "talos.resource.definitions.cri.RegistriesConfigSpec",
            cri::RegistriesConfigSpec { registry_auths: [("ghcr.io".into(), basic)].into(), ..Default::default() }
                .encode_to_vec(),
        ),
        (
            "talos.resource.definitions.runtime.ServicePIDSpec",
            runtime::ServicePidSpec { pid: 1234, mount_namespace: "mnt:[4026531841]".into() }.encode_to_vec(),
        ),
        (
            "talos.resource.definitions.files.EtcFileStatusSpec",
            files::EtcFileStatusSpec { spec_version: "3".into() }.encode_to_vec(),
        ),
        (
            "talos.resource.definitions.cluster.MemberSpec",
            cluster::MemberSpec {
                node_id: "x".into(),
                hostname: "cp1".into(),
                machine_type: enums::MachineType::TypeControlPlane.into(),
                addresses: vec![NetIp { ip: vec![10, 0, 0, 1] }],
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "talos.resource.definitions.network.NodeAddressSpec",
            network::NodeAddressSpec { addresses: vec![NetIpPrefix { ip: vec![10, 0, 0, 1], prefix_length: 24 }] }
                .encode_to_vec(),
        ),
    ]
}

/// `(message, json, bytes)`.
fn golden() -> Vec<(String, Json, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/talos-api/golden.tsv");
    let line = |line: &str| {
        let mut columns = line.split('\t').map(str::to_owned);
        let mut next = || columns.next().unwrap();
        (next(), serde_json::from_str(&next()).unwrap(), unhex(&next()))
    };
    std::fs::read_to_string(path).unwrap().lines().skip(1).map(line).collect()
}

#[test]
fn w01_messages_are_encoded_byte_for_byte_as_by_google() {
    let mut ours = ours().into_iter();
    for (name, json, bytes) in golden() {
        if NOT_OURS.contains(&name.as_str()) {
            assert!(pool().get_message_by_name(&name).is_none(), "{name} is ours");
            continue;
        }
        if name == "common.Metadata" {
            continue;
        }
        let (ours, encoded) = ours.next().unwrap_or_else(|| panic!("{name} is not built here"));
        assert_eq!((ours, &encoded), (name.as_str(), &bytes), "{json}");
        assert_eq!(render(&DynamicMessage::decode(message(&name), bytes.as_slice()).unwrap()), json, "{name}");
    }
    assert!(ours.next().is_none(), "each was compared");
}

/// Our `Metadata` leaves out the third field, the status: its bytes cannot be equal, but what we read of it is.
#[test]
fn w01_metadata_is_read_although_its_status_is_left_out() {
    let (_, _, bytes) = golden().into_iter().find(|(name, ..)| name == "common.Metadata").unwrap();
    let metadata = Metadata::decode(bytes.as_slice()).unwrap();
    assert_eq!((metadata.hostname.as_str(), metadata.error.as_str()), ("10.0.0.1", "e"));
}
