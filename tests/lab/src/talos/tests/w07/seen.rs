//! What a reply says to the product, in words that are the same for a real node and one of the lab: times, process ids,
//! member ids and addresses are left out or named, version counters count from the first that was seen.

use std::collections::BTreeMap;

use prost::Message;
use talos_proto::proto::common::Data;
use talos_proto::proto::cosi::resource::{GetResponse, ListResponse, Resource, WatchResponse};
use talos_proto::proto::machine::image_service_pull_response::Response as Step;
use talos_proto::proto::machine::{
    ApplyConfigurationResponse, EtcdAlarmListResponse, EtcdMemberListResponse, EtcdStatusResponse, ImageListResponse,
    ImagePullResponse, ImageServiceListResponse, ImageServicePullResponse, RebootResponse, ServiceListResponse,
    VersionResponse,
};
use talos_proto::proto::resource::config::MachineConfigSpec;
use talos_proto::proto::talos::resource::definitions::{cri, etcd, files, k8s, network, runtime, v1alpha1};

/// One side of the comparison, and what it has seen so far.
#[derive(Default)]
pub(super) struct Side {
    /// The address here and the one of the recording.
    addresses: Vec<(String, String)>,
    /// Digests that the registry gave; every other one is of an image's own config.
    digests: Vec<String>,
    members: BTreeMap<u64, String>,
    counters: BTreeMap<String, u64>,
    processes: BTreeMap<String, Vec<String>>,
}

impl Side {
    pub fn new(addresses: Vec<(String, String)>, digests: Vec<String>) -> Self {
        Self { addresses, digests, ..Self::default() }
    }

    /// Other addresses from now on.
    pub fn also(&mut self, addresses: Vec<(String, String)>) {
        self.addresses = addresses;
    }

    /// Another moment, with another history: counters and processes begin anew.
    pub fn forget(&mut self) {
        self.counters.clear();
        self.processes.clear();
    }

    /// Another boot: only the boot id is known from before.
    pub fn reboot(&mut self) {
        self.counters.clear();
        self.processes.retain(|key, _| key.ends_with(" boot"));
    }

    /// Learns who is who from a reply to EtcdMemberList.
    pub fn meet(&mut self, reply: &[u8]) {
        let reply = EtcdMemberListResponse::decode(reply).unwrap();
        for member in reply.messages.into_iter().flat_map(|message| message.members) {
            self.members.insert(member.id, member.hostname);
        }
    }

    /// With the addresses of the recording in it.
    pub fn text(&self, text: &str) -> String {
        self.addresses.iter().fold(text.to_owned(), |text, (here, there)| text.replace(here, there))
    }

    fn ip(&self, bytes: &[u8]) -> String {
        let text = <[u8; 4]>::try_from(bytes)
            .map_or_else(|_| format!("{bytes:?}"), |ip| std::net::Ipv4Addr::from(ip).to_string());
        self.text(&text)
    }

    fn digest(&self, text: &str) -> String {
        match text.split_once("sha256:") {
            Some((before, digest)) if self.digests.iter().any(|known| known.ends_with(digest)) => {
                format!("{before}sha256:the image")
            }
            Some((before, _)) => format!("{before}sha256:something else"),
            None => text.to_owned(),
        }
    }

    fn member(&self, id: u64) -> String {
        if id == 0 { "nobody".to_owned() } else { self.members.get(&id).cloned().unwrap_or_else(|| id.to_string()) }
    }

    /// The steps since the first value.
    fn steps(&mut self, key: String, value: &str) -> String {
        let Ok(value) = value.parse::<u64>() else { return value.to_owned() };
        let first = *self.counters.entry(key).or_insert(value);
        format!("{:+}", i128::from(value) - i128::from(first))
    }

    /// The how-manieth value it is.
    fn which(&mut self, key: String, value: String) -> String {
        let known = self.processes.entry(key).or_default();
        let index = known.iter().position(|other| *other == value).unwrap_or_else(|| {
            known.push(value);
            known.len() - 1
        });
        format!("#{index}")
    }

    /// A reply in words, one line a thing.
    pub fn words(
        &mut self,
        target: &str,
        rpc: &str,
        service: &str,
        reply: &[u8],
        config: Option<&[u8]>,
    ) -> Vec<String> {
        match (service, rpc) {
            ("cosi.resource.State", "Get") => {
                decode::<GetResponse>(reply).resource.iter().map(|it| self.resource(target, it, config)).collect()
            }
            ("cosi.resource.State", "List") => {
                decode::<ListResponse>(reply).resource.iter().map(|it| self.resource(target, it, config)).collect()
            }
            ("cosi.resource.State", "Watch") => {
                let events = decode::<WatchResponse>(reply).event;
                let word = |event: talos_proto::proto::cosi::resource::Event| {
                    let resource = event.resource.as_ref().map(|it| self.resource(target, it, config));
                    format!("{:?} {}", event.event_type(), resource.unwrap_or_default())
                };
                events.into_iter().map(word).collect()
            }
            ("machine.ImageService", "List") => {
                let image: ImageServiceListResponse = decode(reply);
                vec![format!("{} is {}", self.digest(&image.name), self.digest(&image.digest))]
            }
            ("machine.ImageService", "Pull") => match decode::<ImageServicePullResponse>(reply).response {
                Some(Step::Name(name)) => vec![self.digest(&name)],
                // How a pull goes on is read by nobody.
                _ => Vec::new(),
            },
            ("machine.ImageService", _) => Vec::new(),
            _ => self.machine(target, rpc, reply),
        }
    }

    fn machine(&mut self, target: &str, rpc: &str, reply: &[u8]) -> Vec<String> {
        match rpc {
            "Version" => decode::<VersionResponse>(reply).messages.into_iter().map(|it| self.version(&it)).collect(),
            "Read" => {
                let text = String::from_utf8(decode::<Data>(reply).bytes).unwrap();
                assert!(uuid::Uuid::parse_str(text.trim_end()).is_ok() && text.ends_with('\n'), "{text:?}");
                vec![format!("boot {}", self.which(format!("{target} boot"), text))]
            }
            "ApplyConfiguration" => {
                let word = |it: talos_proto::proto::machine::ApplyConfiguration| {
                    let error = it.metadata.as_ref().map(|metadata| metadata.error.clone()).unwrap_or_default();
                    format!("{:?} {:?} {error}", it.mode(), it.warnings)
                };
                decode::<ApplyConfigurationResponse>(reply).messages.into_iter().map(word).collect()
            }
            "Reboot" => {
                let word = |it: talos_proto::proto::machine::Reboot| format!("actor {}", it.actor_id.len());
                decode::<RebootResponse>(reply).messages.into_iter().map(word).collect()
            }
            "ServiceList" => decode::<ServiceListResponse>(reply)
                .messages
                .into_iter()
                .flat_map(|it| it.services)
                .filter(|service| service.id == "cri")
                .flat_map(|service| self.service(target, service))
                .collect(),
            "ImageList" => {
                let image: ImageListResponse = decode(reply);
                vec![format!("{} is {}", self.digest(&image.name), self.digest(&image.digest))]
            }
            "ImagePull" => vec![format!("{} answers", decode::<ImagePullResponse>(reply).messages.len())],
            "EtcdMemberList" => {
                let members = decode::<EtcdMemberListResponse>(reply).messages.into_iter().flat_map(|it| it.members);
                let word = |it: talos_proto::proto::machine::EtcdMember| {
                    let urls = self.text(&format!("{:?} {:?}", it.peer_urls, it.client_urls));
                    format!("{} is {} at {urls}, learner {}", self.member(it.id), it.hostname, it.is_learner)
                };
                sorted(members.map(word).collect())
            }
            "EtcdStatus" => {
                let statuses = decode::<EtcdStatusResponse>(reply).messages.into_iter().flat_map(|it| it.member_status);
                let word = |it: talos_proto::proto::machine::EtcdMemberStatus| {
                    let ids = self.members.iter();
                    let errors = ids.fold(it.errors.join("; "), |text, (id, name)| text.replace(&id.to_string(), name));
                    let at_end = it.raft_applied_index + 1 >= it.raft_index && it.raft_index > 0 && it.raft_term > 0;
                    format!(
                        "{} {}, leader {}, learner {}, errors {errors:?}, storage {}, applied {at_end}",
                        self.member(it.member_id),
                        it.protocol_version,
                        self.member(it.leader),
                        it.is_learner,
                        it.storage_version
                    )
                };
                statuses.map(word).collect()
            }
            "EtcdAlarmList" => {
                let lists = decode::<EtcdAlarmListResponse>(reply).messages.into_iter();
                let alarm = |it: &talos_proto::proto::machine::EtcdMemberAlarm| {
                    format!("{} {:?}", self.member(it.member_id), it.alarm())
                };
                lists.map(|list| format!("{:?}", list.member_alarms.iter().map(alarm).collect::<Vec<_>>())).collect()
            }
            other => vec![format!("{other}: {reply:?}")],
        }
    }

    fn version(&self, it: &talos_proto::proto::machine::Version) -> String {
        let tag = it.version.as_ref().map(|version| version.tag.clone()).unwrap_or_default();
        let rbac = it.features.as_ref().is_some_and(|features| features.rbac);
        let metadata = it.metadata.clone().unwrap_or_default();
        self.text(&format!("{tag}, rbac {rbac}, of {:?}, error {:?}", metadata.hostname, metadata.error))
    }

    /// State, health and events; the process ids in them are named.
    fn service(&mut self, target: &str, service: talos_proto::proto::machine::ServiceInfo) -> Vec<String> {
        let health = service.health.unwrap_or_default();
        let mut words = vec![format!("cri {}, unknown {}, healthy {}", service.state, health.unknown, health.healthy)];
        for event in service.events.unwrap_or_default().events {
            assert!(event.ts.is_some());
            let text = match event.msg.rsplit_once("started with PID ") {
                Some((before, pid)) => {
                    let which = self.which(format!("{target} cri"), pid.to_owned());
                    format!("{before}started with PID {which}")
                }
                None => event.msg,
            };
            words.push(format!("{}: {text}", event.state));
        }
        words
    }

    fn resource(&mut self, target: &str, resource: &Resource, config: Option<&[u8]>) -> String {
        let metadata = resource.metadata.clone().unwrap_or_default();
        assert!(metadata.created.is_some() && metadata.updated.is_some(), "{metadata:?}");
        let short = metadata.r#type.split('.').next().unwrap_or_default();
        let key = format!("{target} {short} {}", metadata.id);
        let version = match short {
            // It begins with 1 again (talos-captures point 5).
            "ServicePIDs" => metadata.version.clone(),
            _ => self.steps(key.clone(), &metadata.version),
        };
        let bytes = resource.spec.as_ref().map(|spec| spec.proto_spec.as_slice()).unwrap_or_default();
        let spec = match short {
            _ if metadata.version == "undefined" => String::new(),
            "MachineConfigs" => {
                let yaml = decode::<MachineConfigSpec>(bytes).yaml_marshalled;
                String::from_utf8_lossy(config.unwrap_or(&yaml)).into_owned()
            }
            _ => self.spec(short, &key, bytes),
        };
        let Metadata { id, namespace, owner, phase, .. } = metadata;
        format!("{namespace} {short} {} {version} by {owner:?} {phase}: {spec}", self.text(&id))
    }

    fn spec(&mut self, short: &str, key: &str, bytes: &[u8]) -> String {
        match short {
            "RegistryConfigs" => {
                let spec: cri::RegistriesConfigSpec = decode(bytes);
                let mirrors: BTreeMap<_, _> = spec.registry_mirrors.iter().collect();
                let auths = spec.registry_auths.iter().map(|(host, auth)| {
                    let cri::RegistryAuthConfig {
                        registry_username,
                        registry_password,
                        registry_auth,
                        registry_identity_token,
                    } = auth;
                    let fields = [registry_username, registry_password, registry_auth, registry_identity_token];
                    (host, fields)
                });
                format!("{mirrors:?} {:?}", auths.collect::<BTreeMap<_, _>>())
            }
            "EtcFileStatuses" => {
                let version = decode::<files::EtcFileStatusSpec>(bytes).spec_version;
                self.steps(format!("{key} spec"), &version)
            }
            "ServicePIDs" => {
                let pid = decode::<runtime::ServicePidSpec>(bytes).pid;
                self.which(key.to_owned(), pid.to_string())
            }
            "BootIDs" => {
                let id = decode::<runtime::BootIdSpec>(bytes).boot_id;
                let target = key.split(' ').next().unwrap_or_default();
                self.which(format!("{target} boot"), format!("{id}\n"))
            }
            "Services" => format!("{:?}", decode::<v1alpha1::ServiceSpec>(bytes)),
            "MachineStatuses" => format!("{:?}", decode::<runtime::MachineStatusSpec>(bytes)),
            "Nodenames" => format!("{:?}", decode::<k8s::NodenameSpec>(bytes)),
            "NodeStatuses" => {
                let spec: k8s::NodeStatusSpec = decode(bytes);
                let (labels, annotations) = (sorted_map(&spec.labels), sorted_map(&spec.annotations));
                let (ready, cordoned) = (spec.node_ready, spec.unschedulable);
                format!("{} ready {ready}, cordoned {cordoned}, {labels:?} {annotations:?}", spec.nodename)
            }
            "NodeAddresses" => {
                let addresses = decode::<network::NodeAddressSpec>(bytes).addresses;
                let word =
                    |it: &talos_proto::proto::common::NetIpPrefix| format!("{}/{}", self.ip(&it.ip), it.prefix_length);
                format!("{:?}", addresses.iter().map(word).collect::<Vec<_>>())
            }
            "EtcdMembers" => {
                let id = decode::<etcd::MemberSpec>(bytes).member_id;
                self.member(u64::from_str_radix(&id, 16).unwrap())
            }
            _ => format!("{bytes:?}"),
        }
    }
}

type Metadata = talos_proto::proto::cosi::resource::Metadata;

fn decode<M: Message + Default>(bytes: &[u8]) -> M {
    M::decode(bytes).unwrap()
}

fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort();
    words
}

fn sorted_map(map: &std::collections::HashMap<String, String>) -> BTreeMap<&String, &String> {
    map.iter().collect()
}
