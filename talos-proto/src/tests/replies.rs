//! Every recorded reply through the generated messages.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use protox::prost_reflect::DynamicMessage;
use serde_json::Value as Json;

use super::descriptors::{message, render};
use super::left_out::{FIELDS, Met};
use super::recordings::{calls, is_abridged};
use crate::proto::cosi::resource as cosi;
use crate::proto::{common, machine};

/// Decodes with the generated message and encodes again.
type Again = fn(&[u8]) -> Result<Vec<u8>, String>;

fn again<M: Message + Default + PartialEq>(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let decoded = M::decode(bytes).map_err(|error| error.to_string())?;
    let encoded = decoded.encode_to_vec();
    let twice = M::decode(encoded.as_slice()).map_err(|error| error.to_string())?;
    if decoded == twice { Ok(encoded) } else { Err("encoded and decoded again it is another".into()) }
}

/// The message of a method's reply, by name and as generated.
fn reply_of(method: &str) -> Option<(&'static str, Again)> {
    Some(match method {
        "/machine.MachineService/Version" => ("machine.VersionResponse", again::<machine::VersionResponse>),
        "/machine.MachineService/Read" => ("common.Data", again::<common::Data>),
        "/machine.MachineService/ApplyConfiguration" => {
            ("machine.ApplyConfigurationResponse", again::<machine::ApplyConfigurationResponse>)
        }
        "/machine.MachineService/Reboot" => ("machine.RebootResponse", again::<machine::RebootResponse>),
        "/machine.MachineService/ServiceList" => ("machine.ServiceListResponse", again::<machine::ServiceListResponse>),
        "/machine.MachineService/EtcdMemberList" => {
            ("machine.EtcdMemberListResponse", again::<machine::EtcdMemberListResponse>)
        }
        "/machine.MachineService/EtcdStatus" => ("machine.EtcdStatusResponse", again::<machine::EtcdStatusResponse>),
        "/machine.MachineService/EtcdAlarmList" => {
            ("machine.EtcdAlarmListResponse", again::<machine::EtcdAlarmListResponse>)
        }
        "/machine.ImageService/List" => {
            ("machine.ImageServiceListResponse", again::<machine::ImageServiceListResponse>)
        }
        "/machine.ImageService/Pull" => {
            ("machine.ImageServicePullResponse", again::<machine::ImageServicePullResponse>)
        }
        "/machine.ImageService/Remove" => ("google.protobuf.Empty", again::<()>),
        "/cosi.resource.State/Get" => ("cosi.resource.GetResponse", again::<cosi::GetResponse>),
        "/cosi.resource.State/List" => ("cosi.resource.ListResponse", again::<cosi::ListResponse>),
        "/cosi.resource.State/Watch" => ("cosi.resource.WatchResponse", again::<cosi::WatchResponse>),
        _ => return None,
    })
}

#[test]
fn w06_every_recorded_reply_decodes_as_its_json_says() {
    let mut met = Met::default();
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    for call in calls() {
        for (number, reply) in call.replies.iter().enumerate() {
            let at = format!("{}, reply {number}", call.at);
            let (name, again) = reply_of(&call.method).unwrap_or_else(|| panic!("{at}: a reply of {}", call.method));
            let bytes = reply.bytes();
            let encoded = again(&bytes).unwrap_or_else(|error| panic!("{at}: {error}"));
            let descriptor = message(name);
            let original = DynamicMessage::decode(descriptor.clone(), bytes.as_slice()).unwrap();
            let ours = DynamicMessage::decode(descriptor.clone(), encoded.as_slice()).unwrap();
            met.wire(&original);
            // No field that we know is lost or changed on the way through the generated message …
            assert_eq!(render(&original), render(&ours), "{at}");
            // … and what it says is what Talos's own descriptors say.
            if !reply.is_abridged() {
                let recorded = met.prune(&descriptor, &reply.json);
                let mut ours = render(&ours);
                abridge(&mut ours, &recorded);
                assert_eq!(ours, recorded, "{at}");
                *compared.entry(name).or_default() += 1;
            }
        }
    }
    for (name, at_least) in [
        ("machine.VersionResponse", 4),
        ("common.Data", 2),
        ("machine.ApplyConfigurationResponse", 5),
        ("machine.RebootResponse", 3),
        ("machine.ServiceListResponse", 4),
        ("machine.EtcdMemberListResponse", 4),
        ("machine.EtcdStatusResponse", 4),
        ("machine.EtcdAlarmListResponse", 3),
        ("machine.ImageServiceListResponse", 10),
        ("machine.ImageServicePullResponse", 10),
        ("google.protobuf.Empty", 2),
        ("cosi.resource.GetResponse", 60),
        ("cosi.resource.ListResponse", 80),
        ("cosi.resource.WatchResponse", 400),
    ] {
        let seen = compared.get(name).copied().unwrap_or_default();
        assert!(seen >= at_least, "{name}: only {seen} recorded replies compared");
    }
    let wire: BTreeSet<_> = FIELDS.iter().map(|(message, number, ..)| ((*message).to_owned(), *number)).collect();
    let json: BTreeSet<_> =
        FIELDS.iter().map(|(message, _, name, _)| ((*message).to_owned(), (*name).into())).collect();
    assert_eq!(met.wire, wire, "fields on the wire that our protos leave out");
    assert_eq!(met.json, json, "fields in the recorded JSON that our protos leave out");
}

/// Where the recorder wrote `{"see": "hex"}` for the spec of a machine config, the spec is compared in `specs` alone.
fn abridge(ours: &mut Json, recorded: &Json) {
    match (ours, recorded) {
        (ours, recorded) if is_abridged(recorded) => *ours = recorded.clone(),
        (Json::Object(ours), Json::Object(recorded)) => {
            for (key, ours) in ours {
                if let Some(recorded) = recorded.get(key) {
                    abridge(ours, recorded);
                }
            }
        }
        (Json::Array(ours), Json::Array(recorded)) => {
            ours.iter_mut().zip(recorded).for_each(|(ours, recorded)| abridge(ours, recorded));
        }
        _ => {}
    }
}
