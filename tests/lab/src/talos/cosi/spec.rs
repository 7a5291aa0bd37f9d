//! The specs of the resources, both halves: the protobuf and the YAML that the server fills in always, secrets too.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use prost::Message;
use serde::Serialize;
use serde_json::{Map, Value, json};
use talos_proto::proto::common;
use talos_proto::proto::cosi::resource::Spec;
use talos_proto::proto::resource::config::MachineConfigSpec;
use talos_proto::proto::talos::resource::definitions::enums::RuntimeMachineStage as Stage;
use talos_proto::proto::talos::resource::definitions::{cri, etcd, files, k8s, network, runtime, v1alpha1};

use crate::talos::Role;
use crate::talos::config::Effective;
use crate::talos::outside::NodeSeen;

fn spec(proto: &impl Message, yaml: &impl Serialize) -> Spec {
    // A value of plain strings, numbers and maps always has a YAML text.
    Spec { proto_spec: proto.encode_to_vec(), yaml_spec: serde_yaml::to_string(yaml).unwrap_or_default() }
}

pub(crate) fn machine_config(bytes: &[u8]) -> Spec {
    spec(&MachineConfigSpec { yaml_marshalled: bytes.to_vec() }, &String::from_utf8_lossy(bytes))
}

pub(crate) fn machine_type(role: Role) -> Spec {
    let (number, word) = match role {
        Role::ControlPlane => (2, "controlplane"),
        Role::Worker => (3, "worker"),
    };
    // MachineTypeSpec{machine_type = 1}; the product reads no such resource, so that its protos do not have it.
    Spec { proto_spec: vec![0x08, number], yaml_spec: format!("{word}\n") }
}

pub(crate) fn registries(effective: &Effective) -> Spec {
    let mirrors = effective.mirrors.iter().map(|(host, mirror)| {
        let endpoints = mirror.endpoints.iter().map(|(url, override_path)| cri::RegistryEndpointConfig {
            endpoint_endpoint: url.clone(),
            endpoint_override_path: *override_path,
        });
        let config = cri::RegistryMirrorConfig {
            mirror_endpoints: endpoints.collect(),
            mirror_skip_fallback: mirror.skip_fallback,
        };
        (host.clone(), config)
    });
    let auths = effective.auths.iter().map(|(host, auth)| {
        let config = cri::RegistryAuthConfig {
            registry_username: auth.username.clone(),
            registry_password: auth.password.clone(),
            registry_auth: auth.auth.clone(),
            registry_identity_token: auth.identity_token.clone(),
        };
        (host.clone(), config)
    });
    let proto = cri::RegistriesConfigSpec { registry_mirrors: mirrors.collect(), registry_auths: auths.collect() };
    // A protobuf map has no order: an equal content must give equal bytes, or it would look like a change.
    Spec {
        proto_spec: ordered(&proto),
        yaml_spec: serde_yaml::to_string(&registries_yaml(effective)).unwrap_or_default(),
    }
}

/// Encodes the maps in the order of their keys: one message an entry, and messages join by concatenation.
fn ordered(spec: &cri::RegistriesConfigSpec) -> Vec<u8> {
    let mirrors: BTreeMap<_, _> = spec.registry_mirrors.iter().collect();
    let auths: BTreeMap<_, _> = spec.registry_auths.iter().collect();
    let mut bytes = Vec::new();
    for (host, mirror) in mirrors {
        let one = cri::RegistriesConfigSpec {
            registry_mirrors: [(host.clone(), mirror.clone())].into(),
            ..cri::RegistriesConfigSpec::default()
        };
        bytes.extend(one.encode_to_vec());
    }
    for (host, auth) in auths {
        let one = cri::RegistriesConfigSpec {
            registry_auths: [(host.clone(), auth.clone())].into(),
            ..cri::RegistriesConfigSpec::default()
        };
        bytes.extend(one.encode_to_vec());
    }
    bytes
}

fn registries_yaml(effective: &Effective) -> Value {
    let mut document = Map::new();
    if !effective.mirrors.is_empty() {
        let mirrors = effective.mirrors.iter().map(|(host, mirror)| {
            let endpoints: Vec<_> = mirror
                .endpoints
                .iter()
                .map(|(url, override_path)| json!({"endpoint": url, "overridePath": override_path}))
                .collect();
            (host.clone(), json!({ "endpoints": endpoints }))
        });
        document.insert("mirrors".to_owned(), Value::Object(mirrors.collect()));
    }
    if !effective.auths.is_empty() {
        let auths = effective.auths.iter().map(|(host, auth)| {
            let fields = [
                ("username", &auth.username),
                ("password", &auth.password),
                ("auth", &auth.auth),
                ("identityToken", &auth.identity_token),
            ];
            let set = fields.into_iter().filter(|(_, value)| !value.is_empty());
            let set = set.map(|(key, value)| (key.to_owned(), Value::from(value.as_str())));
            (host.clone(), Value::Object(set.collect()))
        });
        document.insert("auths".to_owned(), Value::Object(auths.collect()));
    }
    Value::Object(document)
}

pub(crate) fn etc_file(version: u64) -> Spec {
    let version = version.to_string();
    spec(&files::EtcFileStatusSpec { spec_version: version.clone() }, &json!({"specVersion": version}))
}

pub(crate) fn service_pid(pid: i32) -> Spec {
    let mount_namespace = "mnt:[4026532319]".to_owned();
    let yaml = json!({"pid": pid, "mountNamespace": mount_namespace});
    spec(&runtime::ServicePidSpec { pid, mount_namespace }, &yaml)
}

pub(crate) fn service(running: bool, healthy: bool, unknown: bool) -> Spec {
    let yaml = json!({"running": running, "healthy": healthy, "unknown": unknown});
    spec(&v1alpha1::ServiceSpec { running, healthy, unknown }, &yaml)
}

/// `unmet`: name and reason of each condition that is not met; ready when there is none.
pub(crate) fn machine_status(stage: Stage, unmet: &[(&str, String)]) -> Spec {
    let ready = unmet.is_empty();
    let conditions =
        unmet.iter().map(|(name, reason)| runtime::UnmetCondition { name: (*name).to_owned(), reason: reason.clone() });
    let status = runtime::MachineStatusStatus { ready, unmet_conditions: conditions.collect() };
    let words: Vec<_> = unmet.iter().map(|(name, reason)| json!({"name": name, "reason": reason})).collect();
    let word = stage.as_str_name().trim_start_matches("MACHINE_STAGE_").to_lowercase();
    let yaml = json!({"stage": word, "status": {"ready": ready, "unmetConditions": words}});
    spec(&runtime::MachineStatusSpec { stage: stage.into(), status: Some(status) }, &yaml)
}

pub(crate) fn boot_id(id: &str) -> Spec {
    spec(&runtime::BootIdSpec { boot_id: id.to_owned() }, &json!({"bootID": id}))
}

pub(crate) fn nodename(name: &str) -> Spec {
    let proto = k8s::NodenameSpec {
        nodename: name.to_owned(),
        hostname_version: "1".to_owned(),
        skip_node_registration: false,
    };
    spec(&proto, &json!({"nodename": name, "hostnameVersion": "1", "skipNodeRegistration": false}))
}

pub(crate) fn node_status(name: &str, seen: &NodeSeen) -> Spec {
    let proto = k8s::NodeStatusSpec {
        nodename: name.to_owned(),
        node_ready: seen.ready,
        unschedulable: seen.unschedulable,
        ..k8s::NodeStatusSpec::default()
    };
    let mut proto_spec = proto.encode_to_vec();
    // The maps in order, as for the registries.
    for (key, value) in &seen.labels {
        let labels = [(key.clone(), value.clone())].into();
        proto_spec.extend(k8s::NodeStatusSpec { labels, ..k8s::NodeStatusSpec::default() }.encode_to_vec());
    }
    for (key, value) in &seen.annotations {
        let annotations = [(key.clone(), value.clone())].into();
        proto_spec.extend(k8s::NodeStatusSpec { annotations, ..k8s::NodeStatusSpec::default() }.encode_to_vec());
    }
    let yaml = json!({
        "nodename": name,
        "nodeReady": seen.ready,
        "unschedulable": seen.unschedulable,
        "labels": seen.labels,
        "annotations": seen.annotations,
    });
    Spec { proto_spec, yaml_spec: serde_yaml::to_string(&yaml).unwrap_or_default() }
}

pub(crate) fn node_annotation(key: &str, value: &str) -> Spec {
    // NodeAnnotationSpecSpec{key = 1, value = 2}, as a map entry has it: not among the product's protos.
    #[derive(Clone, PartialEq, Message)]
    struct NodeAnnotationSpec {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(string, tag = "2")]
        value: String,
    }
    let proto = NodeAnnotationSpec { key: key.to_owned(), value: value.to_owned() };
    spec(&proto, &json!({"key": key, "value": value}))
}

/// Addresses with their prefix lengths; a virtual address is a /32 (talos-captures point 19).
pub(crate) fn node_addresses(addresses: &[(Ipv4Addr, i32)]) -> Spec {
    let prefixes = addresses
        .iter()
        .map(|(address, length)| common::NetIpPrefix { ip: address.octets().to_vec(), prefix_length: *length });
    let words: Vec<_> = addresses.iter().map(|(address, length)| format!("{address}/{length}")).collect();
    let yaml = json!({"addresses": words, "sortAlgorithm": "v1"});
    spec(&network::NodeAddressSpec { addresses: prefixes.collect() }, &yaml)
}

pub(crate) fn etcd_member(id: u64) -> Spec {
    let member_id = format!("{id:x}");
    let yaml = json!({"memberID": member_id});
    spec(&etcd::MemberSpec { member_id }, &yaml)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// The bytes of the recordings: read.jsonl and cluster.jsonl.
    #[test]
    fn specs_are_encoded_as_real_talos_encodes_them() {
        let hex = |text: &str| STANDARD.decode(text).unwrap();
        assert_eq!(service_pid(71).proto_spec[..3], hex("CEcSEG1udDpbNDAyNjUzMjMxOV0=")[..3]);
        assert_eq!(service(true, true, false).proto_spec, hex("CAEQAQ=="));
        assert_eq!(etc_file(4), Spec { proto_spec: hex("CgE0"), yaml_spec: "specVersion: '4'\n".to_owned() });
        assert_eq!(nodename("cp1").proto_spec, hex("CgNjcDESATE="));
        assert_eq!(node_addresses(&[([10, 5, 0, 2].into(), 24)]).proto_spec, hex("CggKBAoFAAIQGA=="));
        assert_eq!(machine_status(Stage::MachineStageRunning, &[]).proto_spec, hex("CAQSAggB"));
        assert_eq!(etcd_member(14_110_624_312_194_729_768).proto_spec, hex("ChBjM2QzMDIwY2Y3NWI4NzI4"));
        let unmet = [
            ("services", "kubelet not running, etcd not running".to_owned()),
            ("nodeReady", "node \"cp1\" status is not available yet".to_owned()),
        ];
        let recorded = "CAESaBIxCghzZXJ2aWNlcxIla3ViZWxldCBub3QgcnVubmluZywgZXRjZCBub3QgcnVubmluZxIzCglub2RlUmVhZHkSJm5vZGUg\
                        ImNwMSIgc3RhdHVzIGlzIG5vdCBhdmFpbGFibGUgeWV0";
        assert_eq!(machine_status(Stage::MachineStageBooting, &unmet).proto_spec, hex(recorded));
        assert_eq!(
            node_annotation("lab.example.com/owner", "alice").proto_spec,
            hex("ChVsYWIuZXhhbXBsZS5jb20vb3duZXISBWFsaWNl")
        );
    }

    #[test]
    fn the_registries_of_the_recording() {
        let mut effective = Effective::default();
        let mirror = crate::talos::config::Mirror {
            endpoints: vec![("http://10.5.0.1:5000".to_owned(), false)],
            skip_fallback: false,
        };
        effective.mirrors.insert("reg.lab.test".to_owned(), mirror);
        let auth = crate::talos::config::Auth {
            username: "puller".to_owned(),
            password: "old-secret-1".to_owned(),
            ..Default::default()
        };
        effective.auths.insert("10.5.0.1:5000".to_owned(), auth);
        let recorded = "CigKDHJlZy5sYWIudGVzdBIYChYKFGh0dHA6Ly8xMC41LjAuMTo1MDAwEicKDTEwLjUuMC4xOjUwMDASFgoGcHVsbGVyEgxvbGQtc2VjcmV0LTE=";
        assert_eq!(registries(&effective).proto_spec, STANDARD.decode(recorded).unwrap());
        assert!(registries(&effective).yaml_spec.contains("password: old-secret-1"));
    }
}
