//! The specs of the resources, both halves: the protobuf and the YAML that the server fills in always, secrets too.

use std::net::Ipv4Addr;

use prost::Message;
use serde::Serialize;
use serde_json::{Map, Value, json};
use talos_proto::proto::common;
use talos_proto::proto::cosi::resource::Spec;
use talos_proto::proto::resource::config::{MachineConfigSpec, MachineType, MachineTypeSpec};
use talos_proto::proto::talos::resource::definitions::enums::{self, RuntimeMachineStage as Stage};
use talos_proto::proto::talos::resource::definitions::{cluster, cri, etcd, files, k8s, network, runtime, v1alpha1};

use crate::talos::Role;
use crate::talos::config::{Auth, Effective, Mirror};
use crate::talos::outside::NodeSeen;
use crate::talos::version::Version;

fn spec(proto: &impl Message, yaml: &impl Serialize) -> Spec {
    // A value of plain strings, numbers and maps always has a YAML text.
    Spec { proto_spec: proto.encode_to_vec(), yaml_spec: serde_yaml::to_string(yaml).unwrap_or_default() }
}

pub(crate) fn machine_config(bytes: &[u8]) -> Spec {
    spec(&MachineConfigSpec { yaml_marshalled: bytes.to_vec() }, &String::from_utf8_lossy(bytes))
}

pub(crate) fn machine_type(role: Role) -> Spec {
    let (number, word) = match role {
        Role::ControlPlane => (MachineType::ControlPlane, "controlplane"),
        Role::Worker => (MachineType::Worker, "worker"),
    };
    spec(&MachineTypeSpec { machine_type: number.into() }, &json!(word))
}

/// RegistryConfigs in the layout of the version (talos.md 3.2). A protobuf map has no order: an equal content must give
/// equal bytes, or it would look like a change; so the entries are written in the order of their keys.
pub(crate) fn registries(effective: &Effective, version: &Version) -> Spec {
    let mut proto_spec = Vec::new();
    for (host, mirror) in &effective.mirrors {
        proto_spec.extend(entry(1, host, &mirror_bytes(mirror, version)));
    }
    if version.has_registry_documents() {
        for (host, auth) in &effective.auths {
            proto_spec.extend(entry(2, host, &auth_message(auth).encode_to_vec()));
        }
    } else {
        for host in effective.configured_hosts() {
            proto_spec.extend(entry(2, host, &registry_config(effective, host)));
        }
    }
    let yaml_spec = serde_yaml::to_string(&registries_yaml(effective, version)).unwrap_or_default();
    Spec { proto_spec, yaml_spec }
}

/// An entry of a map: key 1 and value 2.
fn entry(tag: u8, key: &str, value: &[u8]) -> Vec<u8> {
    field(tag, &[field(1, key.as_bytes()), field(2, value)].concat())
}

/// A length-delimited field.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![tag << 3 | 2];
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    field.extend(bytes);
    field
}

fn auth_message(auth: &Auth) -> cri::RegistryAuthConfig {
    cri::RegistryAuthConfig {
        registry_username: auth.username.clone(),
        registry_password: auth.password.clone(),
        registry_auth: auth.auth.clone(),
        registry_identity_token: auth.identity_token.clone(),
    }
}

/// RegistryConfig{tls = 1, auth = 2} of Talos <= 1.11; the content of `tls` means nothing to the lab.
fn registry_config(effective: &Effective, host: &str) -> Vec<u8> {
    let tls = effective.tls_hosts.contains(host).then(|| field(1, &[]));
    let auth = effective.auths.get(host).map(|auth| field(2, &auth_message(auth).encode_to_vec()));
    [tls, auth].into_iter().flatten().flatten().collect()
}

/// In 1.9 the endpoints are strings and one `override_path` (2) is for all of them: not among the product's protos.
fn mirror_bytes(mirror: &Mirror, version: &Version) -> Vec<u8> {
    #[derive(Clone, PartialEq, Message)]
    struct Mirror1_9 {
        #[prost(string, repeated, tag = "1")]
        endpoints: Vec<String>,
        #[prost(bool, tag = "2")]
        override_path: bool,
        #[prost(bool, tag = "3")]
        skip_fallback: bool,
    }
    if !version.has_mirror_endpoints() {
        let endpoints = mirror.endpoints.iter().map(|(url, _)| url.clone()).collect();
        let override_path = mirror.endpoints.iter().any(|(_, override_path)| *override_path);
        return Mirror1_9 { endpoints, override_path, skip_fallback: mirror.skip_fallback }.encode_to_vec();
    }
    let endpoints = mirror.endpoints.iter().map(|(url, override_path)| cri::RegistryEndpointConfig {
        endpoint_endpoint: url.clone(),
        endpoint_override_path: *override_path,
    });
    let proto =
        cri::RegistryMirrorConfig { mirror_endpoints: endpoints.collect(), mirror_skip_fallback: mirror.skip_fallback };
    proto.encode_to_vec()
}

fn registries_yaml(effective: &Effective, version: &Version) -> Value {
    let mut document = Map::new();
    if !effective.mirrors.is_empty() {
        let mirrors = effective.mirrors.iter().map(|(host, mirror)| (host.clone(), mirror_yaml(mirror, version)));
        document.insert("mirrors".to_owned(), Value::Object(mirrors.collect()));
    }
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
    if version.has_registry_documents() {
        if !effective.auths.is_empty() {
            document.insert("auths".to_owned(), Value::Object(auths.collect()));
        }
    } else {
        let config = auths.map(|(host, auth)| (host, json!({ "auth": auth })));
        document.insert("config".to_owned(), Value::Object(config.collect()));
    }
    Value::Object(document)
}

fn mirror_yaml(mirror: &Mirror, version: &Version) -> Value {
    if !version.has_mirror_endpoints() {
        return json!({ "endpoints": mirror.endpoints.iter().map(|(url, _)| url).collect::<Vec<_>>() });
    }
    let endpoints = mirror.endpoints.iter();
    let endpoints = endpoints.map(|(url, override_path)| json!({"endpoint": url, "overridePath": override_path}));
    json!({ "endpoints": endpoints.collect::<Vec<_>>() })
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

/// A member of the cluster as discovery has it (cluster.jsonl, "discovery on"): its addresses as they were announced last.
pub(crate) fn member(id: &str, name: &str, addresses: &[Ipv4Addr], role: Role, system: &str) -> Spec {
    let control_plane = role == Role::ControlPlane;
    let (machine_type, word) = match role {
        Role::ControlPlane => (enums::MachineType::TypeControlPlane, "controlplane"),
        Role::Worker => (enums::MachineType::TypeWorker, "worker"),
    };
    let port = i64::from(crate::net::KUBE_PORT);
    let proto = cluster::MemberSpec {
        node_id: id.to_owned(),
        addresses: addresses.iter().map(|address| common::NetIp { ip: address.octets().to_vec() }).collect(),
        hostname: name.to_owned(),
        machine_type: machine_type.into(),
        operating_system: system.to_owned(),
        control_plane: control_plane.then_some(cluster::ControlPlane { api_server_port: port }),
    };
    let mut yaml = json!({
        "nodeId": id,
        "addresses": addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "hostname": name,
        "machineType": word,
        "operatingSystem": system,
    });
    if control_plane {
        yaml["controlPlane"] = json!({"port": port});
    }
    spec(&proto, &yaml)
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
        let (id, addresses) =
            ("LB5emwx23Tcdoe5w9GmAKFafUENo8GqTHeFOrDmHaRxB", [[10, 5, 0, 2].into(), [10, 5, 0, 50].into()]);
        assert_eq!(
            member(id, "f1", &addresses, Role::ControlPlane, "Talos (v1.13.9)").proto_spec,
            hex(
                "CixMQjVlbXd4MjNUY2RvZTV3OUdtQUtGYWZVRU5vOEdxVEhlRk9yRG1IYVJ4QhIGCgQKBQACEgYKBAoFADIaAmYxIAIqD1RhbG9zICh2MS4xMy45KTIDCKsy"
            )
        );
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
        let of = |version: &str| registries(&effective, &version.parse().unwrap());
        for version in ["1.12.11", "1.13.9", "1.14.0-rc.1"] {
            assert_eq!(of(version).proto_spec, STANDARD.decode(recorded).unwrap());
        }
        assert!(of("1.13.9").yaml_spec.contains("password: old-secret-1"));
    }

    /// Field numbers from the tables of v1.9.6, v1.10.9 and v1.11.6 (fixtures/talos-api).
    #[test]
    fn older_layouts_of_the_registries() {
        let mut effective = Effective::default();
        let mirror = Mirror { endpoints: vec![("http://m".to_owned(), true)], skip_fallback: true };
        effective.mirrors.insert("a.io".to_owned(), mirror);
        let auth = Auth { username: "u".to_owned(), password: "p".to_owned(), ..Auth::default() };
        effective.auths.insert("b.io".to_owned(), auth);
        effective.tls_hosts.extend(["b.io".to_owned(), "c.io".to_owned()]);
        let of = |version: &str| registries(&effective, &version.parse().unwrap());
        let config = b"\x12\x12\n\x04b.io\x12\n\n\0\x12\x06\n\x01u\x12\x01p\x12\n\n\x04c.io\x12\x02\n\0";
        let strings = b"\n\x16\n\x04a.io\x12\x0e\n\x08http://m\x10\x01\x18\x01";
        assert_eq!(of("1.9.6").proto_spec, [&strings[..], config].concat());
        let messages = b"\n\x18\n\x04a.io\x12\x10\n\x0c\n\x08http://m\x10\x01\x18\x01";
        for version in ["1.10.9", "1.11.6"] {
            assert_eq!(of(version).proto_spec, [&messages[..], config].concat());
        }
        assert!(of("1.11.6").yaml_spec.contains("config:\n  b.io:\n    auth:\n"), "{}", of("1.11.6").yaml_spec);
    }
}
