//! The specs of recorded resources: through [`Typed::decode`], and against the YAML that the server sent beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use prost::Message;
use protox::prost_reflect::DynamicMessage;
use serde_json::{Value as Json, json};

use super::descriptors::message;
use super::left_out::{Met, SPEC_FIELDS, YAML_KEYS};
use super::recordings::{calls, is_abridged};
use crate::proto::cosi::resource as cosi;
use crate::proto::talos::resource::definitions::{cluster, cri, enums, etcd, files, k8s, network, runtime, v1alpha1};
use crate::resources::{
    BootIds, EtcFileStatuses, EtcdMembers, MachineConfigs, MachineStatuses, MachineTypes, Members, NodeAddresses,
    NodeStatuses, Nodenames, RegistryConfigs, Resource, ServicePids, Services, Typed,
};

/// A decoded resource, whatever its type: metadata, and the spec in the shape of the server's YAML.
struct Seen {
    id: String,
    version: u64,
    created: Timestamp,
    updated: Timestamp,
    yaml: Json,
}

fn typed<S: Message + Default>(resource: cosi::Resource, yaml: fn(&S) -> Json) -> Result<Seen, String> {
    let Typed { id, version, created, updated, spec } = Typed::<S>::decode(resource)?;
    Ok(Seen { id, version, created, updated, yaml: yaml(&spec) })
}

/// The full name of the spec's message, and the resource decoded as its type.
fn decode(resource: cosi::Resource) -> (&'static str, Result<Seen, String>) {
    let of = resource.metadata.as_ref().unwrap().r#type.clone();
    match of.as_str() {
        MachineConfigs::TYPE => ("resource.config.MachineConfigSpec", typed(resource, machine_config)),
        RegistryConfigs::TYPE => ("talos.resource.definitions.cri.RegistriesConfigSpec", typed(resource, registries)),
        EtcFileStatuses::TYPE => (
            "talos.resource.definitions.files.EtcFileStatusSpec",
            typed(resource, |spec: &files::EtcFileStatusSpec| json!({"specVersion": spec.spec_version})),
        ),
        ServicePids::TYPE => (
            "talos.resource.definitions.runtime.ServicePIDSpec",
            typed(
                resource,
                |spec: &runtime::ServicePidSpec| json!({"pid": spec.pid, "mountNamespace": spec.mount_namespace}),
            ),
        ),
        Services::TYPE => (
            "talos.resource.definitions.v1alpha1.ServiceSpec",
            typed(
                resource,
                |spec: &v1alpha1::ServiceSpec| json!({"running": spec.running, "healthy": spec.healthy, "unknown": spec.unknown}),
            ),
        ),
        MachineStatuses::TYPE => {
            ("talos.resource.definitions.runtime.MachineStatusSpec", typed(resource, machine_status))
        }
        Nodenames::TYPE => (
            "talos.resource.definitions.k8s.NodenameSpec",
            typed(resource, |spec: &k8s::NodenameSpec| {
                json!({
                    "nodename": spec.nodename,
                    "hostnameVersion": spec.hostname_version,
                    "skipNodeRegistration": spec.skip_node_registration,
                })
            }),
        ),
        NodeStatuses::TYPE => (
            "talos.resource.definitions.k8s.NodeStatusSpec",
            typed(resource, |spec: &k8s::NodeStatusSpec| {
                json!({
                    "nodename": spec.nodename,
                    "nodeReady": spec.node_ready,
                    "unschedulable": spec.unschedulable,
                    "labels": spec.labels,
                    "annotations": spec.annotations,
                })
            }),
        ),
        NodeAddresses::TYPE => ("talos.resource.definitions.network.NodeAddressSpec", typed(resource, addresses)),
        BootIds::TYPE => (
            "talos.resource.definitions.runtime.BootIDSpec",
            typed(resource, |spec: &runtime::BootIdSpec| json!({"bootID": spec.boot_id})),
        ),
        EtcdMembers::TYPE => (
            "talos.resource.definitions.etcd.MemberSpec",
            typed(resource, |spec: &etcd::MemberSpec| json!({"memberID": spec.member_id})),
        ),
        MachineTypes::TYPE => ("resource.config.MachineTypeSpec", typed(resource, machine_type)),
        Members::TYPE => ("talos.resource.definitions.cluster.MemberSpec", typed(resource, member)),
        other => panic!("the product reads no {other}"),
    }
}

fn machine_config(spec: &crate::proto::resource::config::MachineConfigSpec) -> Json {
    Json::String(String::from_utf8(spec.yaml_marshalled.clone()).unwrap())
}

fn registries(spec: &cri::RegistriesConfigSpec) -> Json {
    let mirrors: BTreeMap<_, _> = spec.registry_mirrors.iter().collect();
    let auths: BTreeMap<_, _> = spec.registry_auths.iter().collect();
    let mirror = |mirror: &cri::RegistryMirrorConfig| {
        let endpoints: Json = mirror
            .mirror_endpoints
            .iter()
            .map(|to| json!({"endpoint": to.endpoint_endpoint, "overridePath": to.endpoint_override_path}))
            .collect();
        json!({"endpoints": endpoints, "skipFallback": mirror.mirror_skip_fallback})
    };
    let auth = |auth: &cri::RegistryAuthConfig| {
        json!({
            "username": auth.registry_username,
            "password": auth.registry_password,
            "auth": auth.registry_auth,
            "identityToken": auth.registry_identity_token,
        })
    };
    json!({
        "mirrors": mirrors.iter().map(|(host, it)| ((*host).clone(), mirror(it))).collect::<Json>(),
        "auths": auths.iter().map(|(host, it)| ((*host).clone(), auth(it))).collect::<Json>(),
    })
}

fn machine_status(spec: &runtime::MachineStatusSpec) -> Json {
    let stage = spec.stage().as_str_name().trim_start_matches("MACHINE_STAGE_").to_lowercase().replace('_', " ");
    let status = spec.status.clone().unwrap_or_default();
    let unmet: Json =
        status.unmet_conditions.iter().map(|unmet| json!({"name": unmet.name, "reason": unmet.reason})).collect();
    json!({"stage": stage, "status": {"ready": status.ready, "unmetConditions": unmet}})
}

fn machine_type(spec: &crate::proto::resource::config::MachineTypeSpec) -> Json {
    Json::String(spec.machine_type().as_str_name().to_lowercase().replace('_', ""))
}

fn member(spec: &cluster::MemberSpec) -> Json {
    let role = match spec.machine_type() {
        enums::MachineType::TypeControlPlane => "controlplane",
        enums::MachineType::TypeWorker => "worker",
        other => panic!("no machine of the recordings is {other:?}"),
    };
    json!({
        "nodeId": spec.node_id,
        "addresses": spec.addresses.iter().map(|it| address(&it.ip).to_string()).collect::<Json>(),
        "hostname": spec.hostname,
        "machineType": role,
        "operatingSystem": spec.operating_system,
        "controlPlane": spec.control_plane.as_ref().map(|it| json!({"port": it.api_server_port})),
    })
}

fn address(bytes: &[u8]) -> IpAddr {
    match <[u8; 4]>::try_from(bytes) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    }
}

fn addresses(spec: &network::NodeAddressSpec) -> Json {
    let prefix = |prefix: &crate::proto::common::NetIpPrefix| {
        Json::String(format!("{}/{}", address(&prefix.ip), prefix.prefix_length))
    };
    json!({"addresses": spec.addresses.iter().map(prefix).collect::<Json>()})
}

/// Without what is empty, for protobuf sends no defaults and Talos's YAML writes some and leaves some out. An entry of
/// a map of hosts stays, for an empty credential is one.
fn without_defaults(json: Json, deep: usize) -> Json {
    let empty = |json: &Json| match json {
        Json::Null => true,
        Json::Bool(value) => !value,
        Json::String(text) => text.is_empty(),
        Json::Array(list) => list.is_empty(),
        Json::Object(object) => object.is_empty() && deep != 1,
        Json::Number(_) => false,
    };
    match json {
        Json::Object(object) => object
            .into_iter()
            .map(|(key, value)| (key, without_defaults(value, deep + 1)))
            .filter(|(_, value)| !empty(value))
            .collect(),
        Json::Array(list) => list.into_iter().map(|value| without_defaults(value, deep + 1)).collect(),
        other => other,
    }
}

/// What the server's YAML says, without the keys that our protos leave out, which are noted.
fn parse_yaml(of: &str, text: &str, left_out: &mut BTreeSet<(String, String)>) -> Json {
    let mut yaml: Json = serde_yaml::from_str(text).unwrap();
    if let Json::Object(object) = &mut yaml {
        for (kind, key, _) in YAML_KEYS {
            if *kind == of && object.remove(*key).is_some() {
                left_out.insert(((*kind).to_owned(), (*key).to_owned()));
            }
        }
    }
    yaml
}

/// The resources of a reply, each with its recorded JSON.
fn resources(method: &str, bytes: &[u8], json: &Json) -> Vec<(cosi::Resource, Json)> {
    let found = match method {
        "/cosi.resource.State/Get" => {
            vec![(cosi::GetResponse::decode(bytes).unwrap().resource, json["resource"].clone())]
        }
        "/cosi.resource.State/List" => {
            vec![(cosi::ListResponse::decode(bytes).unwrap().resource, json["resource"].clone())]
        }
        "/cosi.resource.State/Watch" => {
            let events = cosi::WatchResponse::decode(bytes).unwrap().event.into_iter().enumerate();
            let pair = |(n, event): (usize, cosi::Event)| {
                let json = &json["event"][n];
                [(event.resource, json["resource"].clone()), (event.old, json["old"].clone())]
            };
            events.flat_map(pair).collect()
        }
        _ => Vec::new(),
    };
    found.into_iter().filter_map(|(resource, json)| Some((resource?, json))).collect()
}

#[test]
fn w06_every_recorded_resource_decodes_as_its_yaml_says() {
    let (mut met, mut yaml_keys) = (Met::default(), BTreeSet::new());
    let mut compared: BTreeMap<String, usize> = BTreeMap::new();
    for call in calls() {
        for (number, reply) in call.replies.iter().enumerate() {
            for (resource, json) in resources(&call.method, &reply.bytes(), &reply.json) {
                let at = format!("{}, reply {number}", call.at);
                let metadata = resource.metadata.clone().unwrap();
                assert_eq!(metadata.r#type, call.resource_type(), "{at}");
                let spec = resource.spec.clone().unwrap();
                let (name, decoded) = decode(resource);
                let seen = decoded.unwrap_or_else(|error| panic!("{at}: {error}"));
                met.wire(&DynamicMessage::decode(message(name), spec.proto_spec.as_slice()).unwrap());
                if json.is_object() {
                    assert_metadata(&seen, &json["metadata"], &at);
                }
                // The end of the bootstrap is an event with an empty spec.
                if spec.yaml_spec.is_empty() {
                    assert!(spec.proto_spec.is_empty(), "{at}");
                    continue;
                }
                // serde_yaml reads no byte order mark; the config with one is compared byte for byte elsewhere.
                if spec.yaml_spec.contains('\u{feff}') || spec.yaml_spec.contains("\\uFEFF") {
                    continue;
                }
                let yaml = parse_yaml(&metadata.r#type, &spec.yaml_spec, &mut yaml_keys);
                assert_eq!(without_defaults(seen.yaml, 0), without_defaults(yaml, 0), "{at}");
                *compared.entry(metadata.r#type).or_default() += 1;
            }
        }
    }
    let types = [
        MachineConfigs::TYPE,
        RegistryConfigs::TYPE,
        EtcFileStatuses::TYPE,
        ServicePids::TYPE,
        Services::TYPE,
        MachineStatuses::TYPE,
        Nodenames::TYPE,
        NodeStatuses::TYPE,
        NodeAddresses::TYPE,
        BootIds::TYPE,
        EtcdMembers::TYPE,
        MachineTypes::TYPE,
        Members::TYPE,
    ];
    for of in types {
        assert!(compared.get(of).copied().unwrap_or_default() >= 4, "{of}: too few compared: {compared:?}");
    }
    let wire: BTreeSet<_> = SPEC_FIELDS.iter().map(|(message, number, _)| ((*message).to_owned(), *number)).collect();
    assert_eq!(met.wire, wire, "fields of specs that our protos leave out");
    let keys: BTreeSet<_> = YAML_KEYS.iter().map(|(of, key, _)| ((*of).to_owned(), (*key).to_owned())).collect();
    assert_eq!(yaml_keys, keys, "keys of the YAML that our protos leave out");
}

/// Id, version and both times to the nanosecond, as the recorder's JSON has them.
fn assert_metadata(seen: &Seen, recorded: &Json, at: &str) {
    assert!(!is_abridged(recorded), "{at}");
    let text = |key: &str| recorded[key].as_str().unwrap_or_default();
    let time = |key: &str| text(key).parse::<Timestamp>().unwrap();
    assert_eq!(seen.id, text("id"), "{at}");
    let version = if text("version") == "undefined" { 0 } else { text("version").parse().unwrap() };
    assert_eq!(seen.version, version, "{at}");
    assert_eq!((seen.created, seen.updated), (time("created"), time("updated")), "{at}");
}

#[test]
fn w06_times_keep_their_nanoseconds() {
    let below_a_microsecond = calls()
        .iter()
        .flat_map(|call| call.replies.iter().flat_map(|reply| resources(&call.method, &reply.bytes(), &reply.json)))
        .filter_map(|(resource, _)| decode(resource).1.ok())
        .filter(|seen| seen.created.subsec_nanosecond() % 1_000 != 0 && seen.updated.subsec_nanosecond() % 1_000 != 0)
        .count();
    assert!(below_a_microsecond > 200, "{below_a_microsecond}");
}

/// Talos keeps the bytes exactly as they were applied: CRLF, a byte order mark, comments, no final newline.
#[test]
fn w06_a_machine_config_comes_back_byte_for_byte_as_it_was_applied() {
    let mut applied: Option<Vec<u8>> = None;
    let mut equal = Vec::new();
    for call in calls().iter().filter(|call| call.at.starts_with("v1.13.9/variants.jsonl")) {
        if call.method.ends_with("/ApplyConfiguration") {
            let request = call.request_bytes().filter(|_| call.code_number == 0);
            applied = request
                .map(|bytes| crate::proto::machine::ApplyConfigurationRequest::decode(bytes.as_slice()).unwrap().data);
        }
        if call.resource_type() != MachineConfigs::TYPE {
            continue;
        }
        let config = cosi::GetResponse::decode(call.replies[0].bytes().as_slice()).unwrap().resource.unwrap();
        let config = Typed::<<MachineConfigs as Resource>::Spec>::decode(config).unwrap().spec.yaml_marshalled;
        assert!(applied.as_deref() == Some(config.as_slice()), "{}: other bytes came back", call.at);
        equal.push(config);
    }
    assert_eq!(equal.len(), 6);
    assert!(equal.iter().any(|config| config.starts_with(b"\xef\xbb\xbf")), "one has a byte order mark");
    assert!(equal.iter().any(|config| config.windows(2).any(|two| two == b"\r\n")), "one has CRLF");
    assert!(equal.iter().any(|config| !config.ends_with(b"\n")), "one has no final newline");
}
