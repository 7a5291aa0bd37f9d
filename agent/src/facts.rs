//! What one node says about itself, as it was read, before anything is concluded from it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use talos_proto::error::{CallError, Why, chain};
use talos_proto::node::Node;
use talos_proto::proto::machine::{ServiceEvent, ServiceInfo};
use talos_proto::proto::talos::resource::definitions::enums::RuntimeMachineStage;
use talos_proto::proto::talos::resource::definitions::files::EtcFileStatusSpec;
use talos_proto::proto::talos::resource::definitions::network::NodeAddressSpec;
use talos_proto::proto::talos::resource::definitions::runtime::MachineStatusSpec;
use talos_proto::registries::RawRegistries;
use talos_proto::resources::{
    ACTIVE, BootIds, CRI_TOML, EtcFileStatuses, MachineConfigs, MachineStatuses, NodeAddresses, NodeStatuses,
    Nodenames, PERSISTENT, RegistryConfigs, ServicePids, Typed,
};
use talos_proto::version::TalosVersion;
use zeroize::Zeroizing;

use crate::credential::{Credential, RegistryHost, Unusable};
use crate::record::{self, CriProcess};

/// The kernel's boot id, the same on the host and in every container.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The machine config on disk (Talos `pkg/machinery/constants`, `ConfigPath` under `StateMountPoint`).
const CONFIG_FILE: &str = "/system/state/config.yaml";

/// Marks a boot that is told by a creation time because the boot id may not be read.
const CREATED: &str = "created ";

/// The answer to one question: what was seen, or why nothing was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look<T> {
    /// It is there.
    Seen(T),
    /// It was looked for and is not there.
    Absent,
    /// The certificate's roles do not allow to look.
    NotPermitted,
    /// This Talos does not have it.
    NotSupported,
    /// The question had no answer.
    Failed(String),
    /// It was not asked.
    NotAsked,
}

impl<T> Look<T> {
    /// What was seen, if it was.
    #[must_use]
    pub fn seen(&self) -> Option<&T> {
        if let Look::Seen(value) = self { Some(value) } else { None }
    }

    fn map<U>(self, change: impl FnOnce(T) -> U) -> Look<U> {
        match self {
            Look::Seen(value) => Look::Seen(change(value)),
            Look::Absent => Look::Absent,
            Look::NotPermitted => Look::NotPermitted,
            Look::NotSupported => Look::NotSupported,
            Look::Failed(why) => Look::Failed(why),
            Look::NotAsked => Look::NotAsked,
        }
    }

    /// Why nothing was seen, for people.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Look::Seen(_) => "seen",
            Look::Absent => "not there",
            Look::NotPermitted => "not permitted with this identity's roles",
            Look::NotSupported => "not supported by this Talos",
            Look::Failed(why) => why,
            Look::NotAsked => "not looked at",
        }
    }
}

impl<T> From<Result<Option<T>, CallError>> for Look<T> {
    fn from(answer: Result<Option<T>, CallError>) -> Self {
        match answer {
            Ok(Some(value)) => Look::Seen(value),
            Ok(None) => Look::Absent,
            Err(error) => match error.why {
                Why::NotFound => Look::Absent,
                Why::NotAuthorized => Look::NotPermitted,
                Why::NotSupported => Look::NotSupported,
                _ => Look::Failed(chain(&error)),
            },
        }
    }
}

/// Stage and readiness of a machine (`MachineStatuses`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// The stage, for instance RUNNING.
    pub stage: RuntimeMachineStage,
    /// Ready. A machine that shuts down says REBOOTING and ready (talos-captures, point 21).
    pub ready: bool,
    /// The conditions that are not met.
    pub unmet: Vec<String>,
}

impl MachineState {
    /// RUNNING and ready.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.stage == RuntimeMachineStage::MachineStageRunning && self.ready
    }
}

impl fmt::Display for MachineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = self.stage.as_str_name().trim_start_matches("MACHINE_STAGE_");
        match (self.ready, self.unmet.as_slice()) {
            (true, _) => write!(f, "{stage}, ready"),
            (false, []) => write!(f, "{stage}, not ready"),
            (false, unmet) => write!(f, "{stage}, not ready ({})", unmet.join(", ")),
        }
    }
}

impl From<Typed<MachineStatusSpec>> for MachineState {
    fn from(status: Typed<MachineStatusSpec>) -> Self {
        let stage = status.spec.stage();
        let state = status.spec.status.unwrap_or_default();
        let unmet = state.unmet_conditions.into_iter().map(|unmet| unmet.name).collect();
        Self { stage, ready: state.ready, unmet }
    }
}

/// The effective credential of each host that has one, or why it is unusable.
pub type EffectiveAuths = BTreeMap<String, Result<Credential, Unusable>>;

/// `RegistryConfigs`, as far as credentials go.
#[derive(Clone, Debug, Default)]
pub struct Registries {
    /// Effective credentials by host.
    pub auths: EffectiveAuths,
    /// Hosts with a mirror, `*` for all: a pull there may be answered by another registry.
    pub mirrored: Vec<String>,
}

/// The machine config, exactly the bytes that were applied, and the two version counters.
#[derive(Clone)]
pub struct Configs {
    /// The active config.
    pub active: Zeroizing<Vec<u8>>,
    /// Its counter in this boot: 1 until the first apply.
    pub active_version: u64,
    /// The config on disk; `None` after an ordinary boot until the next apply.
    pub persistent: Option<Zeroizing<Vec<u8>>>,
    /// Its counter, 0 while there is none.
    pub persistent_version: u64,
    /// The file on the STATE partition, read only when there is no `persistent` resource and the active config was
    /// changed in this boot: a TRY that was rolled back looks like that, and so does one in flight.
    pub on_disk: Option<Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Configs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Configs")
            .field("active_version", &self.active_version)
            .field("persistent_version", &self.persistent_version)
            .finish_non_exhaustive()
    }
}

impl Configs {
    /// Whether what is active is what a boot would bring back: both equal, or none persisted yet and nothing applied
    /// in this boot. Otherwise somebody's TRY or STAGED is in flight.
    #[must_use]
    pub fn settled(&self) -> bool {
        match self.persistent.as_ref().or(self.on_disk.as_ref()) {
            Some(persistent) => *persistent == self.active,
            None => self.active_version <= 1,
        }
    }

    /// What a boot would bring back, where it is known.
    #[must_use]
    pub fn persisted(&self) -> Option<&[u8]> {
        self.persistent.as_ref().or(self.on_disk.as_ref()).map(|bytes| bytes.as_slice())
    }

    /// Reads the file on disk where the two resources do not say whether something is in flight.
    pub async fn complete(&mut self, node: &Node) {
        if self.persistent.is_none() && self.active_version > 1 {
            self.read_disk(node).await;
        }
    }

    /// Reads the file on disk.
    pub async fn read_disk(&mut self, node: &Node) {
        self.on_disk = node.read_file(CONFIG_FILE).await.ok().map(Zeroizing::new);
    }
}

/// The Node as the machine itself sees it (`NodeStatuses`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSeen {
    /// Its name.
    pub name: String,
    /// The Ready condition; may be left over from before while the API is away (talos-captures, point 22).
    pub ready: bool,
    /// Cordoned.
    pub unschedulable: bool,
    /// All annotations.
    pub annotations: BTreeMap<String, String>,
}

/// All that was read of one node.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The Talos version, so the adoption mode.
    pub version: TalosVersion,
    /// The boot id.
    pub boot: Look<String>,
    /// Stage and readiness.
    pub machine: Look<MachineState>,
    /// The CRI process that runs now.
    pub cri: Look<CriProcess>,
    /// Where the start of the CRI process is not known: it is not younger than this (Talos <= 1.12).
    pub cri_started_before: Option<Timestamp>,
    /// When the file with the registry credentials was written last.
    pub cri_config_changed: Look<Timestamp>,
    /// Effective registry credentials.
    pub registries: Look<Registries>,
    /// The machine config.
    pub configs: Look<Configs>,
    /// The Kubernetes name.
    pub nodename: Look<String>,
    /// The Node as the machine sees it.
    pub node: Look<NodeSeen>,
    /// Addresses the machine has now, a VIP included.
    pub addresses: Look<Vec<IpAddr>>,
}

/// What is worth asking.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Also what needs os:admin: registry credentials, machine config, the boot id by file.
    pub admin: bool,
    /// Also the addresses: of control planes, to find the node behind an endpoint.
    pub addresses: bool,
}

impl Facts {
    /// Reads everything at once.
    ///
    /// # Errors
    /// The error of the version call when the node cannot be reached; whatever else fails is a [`Look`].
    pub async fn read(node: &Node, want: Want) -> Result<Self, CallError> {
        let (version, boot, machine, cri, changed, registries, configs, nodename, seen, addresses) = futures::join!(
            node.version(),
            async { if want.admin { Some(read_boot_id(node).await) } else { None } },
            node.get::<MachineStatuses>("machine"),
            node.get::<ServicePids>("cri"),
            node.get::<EtcFileStatuses>(CRI_TOML),
            node.get::<RegistryConfigs>("registries"),
            async { if want.admin { Some(read_configs(node).await) } else { None } },
            node.get::<Nodenames>("nodename"),
            node.list::<NodeStatuses>(),
            async { if want.addresses { Some(node.get::<NodeAddresses>("current").await) } else { None } },
        );
        let version = version?;
        let boot = match boot {
            Some(boot) => boot,
            None => reader_boot(node, &version, &changed).await,
        };
        let (cri, cri_started_before) = if version.at_least(1, 13) {
            (Look::from(cri).map(|cri| CriProcess { pid: cri.spec.pid, started: cri.created }), None)
        } else {
            cri_process(node, Some(&version)).await
        };
        let mut configs = configs.map_or(Look::NotPermitted, Look::from);
        // Talos 1.9 has no `persistent`: the file on disk is all there is.
        if let Look::Seen(found) = &mut configs
            && !version.at_least(1, 10)
        {
            found.read_disk(node).await;
        }
        let seen_addresses = addresses.map(self::addresses);
        Ok(Self {
            boot,
            machine: Look::from(machine).map(MachineState::from),
            cri,
            cri_started_before,
            cri_config_changed: Look::from(changed).map(|file| file.updated),
            registries: match Look::from(registries) {
                Look::Seen(raw) => decode(&raw.spec, &version).map_or_else(Look::Failed, Look::Seen),
                other => other.map(|_| Registries::default()),
            },
            configs,
            nodename: Look::from(nodename).map(|name| name.spec.nodename),
            node: Look::from(seen.map(|nodes| nodes.into_iter().next())).map(|node| NodeSeen {
                name: node.spec.nodename,
                ready: node.spec.node_ready,
                unschedulable: node.spec.unschedulable,
                annotations: node.spec.annotations.into_iter().collect(),
            }),
            addresses: seen_addresses.unwrap_or(Look::NotAsked),
            version,
        })
    }

    /// The kernel's boot id, the one that Kubernetes reports as well; `None` where only a creation time stands for it.
    #[must_use]
    pub fn kernel_boot(&self) -> Option<&str> {
        self.boot.seen().map(String::as_str).filter(|boot| !boot.starts_with(CREATED))
    }

    /// When this boot began, where that stands for the boot id.
    #[must_use]
    pub fn booted_at(&self) -> Option<Timestamp> {
        self.boot.seen()?.strip_prefix(CREATED)?.parse().ok()
    }

    /// The record as it stands: in the machine config when that may be read, else as the Node's annotation shows it.
    #[must_use]
    pub fn record_text(&self) -> Option<String> {
        match &self.configs {
            Look::Seen(configs) => crate::machine_config::MachineConfig::parse(&configs.active)
                .ok()
                .and_then(|config| config.annotation(record::ANNOTATION)),
            _ => self.node.seen().and_then(|node| node.annotations.get(record::ANNOTATION).cloned()),
        }
    }

    /// Whether a mirror may answer in the place of `host`.
    #[must_use]
    pub fn mirrored(&self, host: &RegistryHost) -> bool {
        self.registries
            .seen()
            .is_some_and(|registries| registries.mirrored.iter().any(|name| name == "*" || name == host.as_str()))
    }
}

/// What a reader can tell a boot by: the BootIDs of Talos >= 1.14, which are not there in a first boot; else the age of
/// a resource, for the state of a Talos is in memory and so as old as the boot.
async fn reader_boot(
    node: &Node,
    version: &TalosVersion,
    changed: &Result<Option<Typed<EtcFileStatusSpec>>, CallError>,
) -> Look<String> {
    if version.at_least(1, 14)
        && let Ok(Some(boot)) = node.get::<BootIds>("boot-id").await
    {
        return Look::Seen(boot.spec.boot_id);
    }
    match changed {
        Ok(Some(file)) => Look::Seen(format!("{CREATED}{}", file.created)),
        _ => Look::NotPermitted,
    }
}

/// The boot id, by the kernel's file; needs os:admin.
pub async fn read_boot_id(node: &Node) -> Look<String> {
    Look::from(node.read_file(BOOT_ID).await.map(Some)).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// How the machine is.
pub async fn read_machine(node: &Node) -> Look<MachineState> {
    Look::from(node.get::<MachineStatuses>("machine").await).map(MachineState::from)
}

/// The addresses of `NodeAddresses current`.
#[must_use]
pub fn addresses(answer: Result<Option<Typed<NodeAddressSpec>>, CallError>) -> Look<Vec<IpAddr>> {
    Look::from(answer).map(|it| it.spec.addresses.iter().filter_map(|prefix| address(&prefix.ip)).collect())
}

/// Both configs; needs os:admin.
///
/// # Errors
/// Any [`CallError`].
pub async fn read_configs(node: &Node) -> Result<Option<Configs>, CallError> {
    let mut configs = pair(node.list::<MachineConfigs>().await?);
    if let Some(configs) = &mut configs {
        configs.complete(node).await;
    }
    Ok(configs)
}

/// The two configs from a List of `MachineConfigs`; `None` when there is no active one.
#[must_use]
pub fn pair(list: Vec<Typed<talos_proto::proto::resource::config::MachineConfigSpec>>) -> Option<Configs> {
    let (mut active, mut persistent) = (None, None);
    for config in list {
        let found = (Zeroizing::new(config.spec.yaml_marshalled), config.version);
        match config.id.as_str() {
            ACTIVE => active = Some(found),
            PERSISTENT => persistent = Some(found),
            _ => {}
        }
    }
    let (active, active_version) = active?;
    let persistent_version = persistent.as_ref().map_or(0, |(_, version)| *version);
    Some(Configs {
        active,
        active_version,
        persistent: persistent.map(|(bytes, _)| bytes),
        persistent_version,
        on_disk: None,
    })
}

/// The effective credentials of a `RegistryConfigs` resource, decoded by the version of its node.
///
/// # Errors
/// That it does not decode.
pub fn decode(raw: &RawRegistries, version: &TalosVersion) -> Result<Registries, String> {
    let registries = raw.decode(version)?;
    let auths = registries.auths.into_iter().map(|(host, auth)| {
        let credential = Credential::effective(
            &auth.registry_username,
            &auth.registry_password,
            &auth.registry_auth,
            &auth.registry_identity_token,
        );
        (host, credential)
    });
    Ok(Registries { auths: auths.collect(), mirrored: registries.mirrored })
}

/// The CRI process: from ServicePIDs, or below 1.13 from the events of its service. Where its start is not known any
/// more, the second value is a time that it is not younger than.
pub async fn cri_process(node: &Node, version: Option<&TalosVersion>) -> (Look<CriProcess>, Option<Timestamp>) {
    if version.is_none_or(|version| version.at_least(1, 13)) {
        let cri = node.get::<ServicePids>("cri").await;
        return (Look::from(cri).map(|cri| CriProcess { pid: cri.spec.pid, started: cri.created }), None);
    }
    match node.services().await {
        Ok(services) => match services.iter().find(|service| service.id == "cri") {
            Some(service) => process_from_events(service),
            None => (Look::Absent, None),
        },
        Err(error) => (Look::from(Err(error)), None),
    }
}

/// The CRI process from the events of its service, for Talos <= 1.12, which has no ServicePIDs.
#[must_use]
pub fn process_from_events(service: &ServiceInfo) -> (Look<CriProcess>, Option<Timestamp>) {
    if service.state != "Running" {
        return (Look::Absent, None);
    }
    let time = |event: &ServiceEvent| event.ts.and_then(|ts| Timestamp::new(ts.seconds, ts.nanos).ok());
    let events = service.events.as_ref().map(|events| events.events.as_slice()).unwrap_or_default();
    // "Process(["/bin/containerd" …]) started with PID 2073" (Talos `system/runner/process/process.go`).
    let started = events.iter().rev().find_map(|event| {
        let pid = event.msg.rsplit_once("started with PID ")?.1.trim().parse().ok()?;
        Some(CriProcess { pid, started: time(event)? })
    });
    match started {
        Some(process) => (Look::Seen(process), None),
        // The ring keeps 64 events: the start has left it, and all that is kept is younger.
        None => (Look::NotSupported, events.first().and_then(time)),
    }
}

/// Go's netip.Addr binary form: 4 or 16 bytes, an IPv6 zone as text behind (Talos `pkg/machinery/proto/proto.go`).
/// An address as Talos sends it, 4 or 16 bytes; `None` when it is neither.
#[must_use]
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(four));
    }
    let sixteen = <[u8; 16]>::try_from(bytes.get(..16)?).ok()?;
    Some(IpAddr::from(sixteen).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs(active_version: u64, persistent: Option<&[u8]>) -> Configs {
        Configs {
            active: Zeroizing::new(b"a".to_vec()),
            active_version,
            persistent: persistent.map(|bytes| Zeroizing::new(bytes.to_vec())),
            persistent_version: 1,
            on_disk: None,
        }
    }

    #[test]
    fn n18_no_persistent_config_after_an_ordinary_reboot_is_settled() {
        assert!(configs(1, None).settled());
        assert!(configs(5, Some(b"a")).settled());
    }

    #[test]
    fn c05_a_try_or_a_staged_config_is_not_settled() {
        assert!(!configs(2, None).settled(), "applied in this boot and not persisted: a TRY");
        assert!(!configs(1, Some(b"b")).settled(), "another config waits for the next boot");
        let mut rolled_back = configs(3, None);
        rolled_back.on_disk = Some(Zeroizing::new(b"a".to_vec()));
        assert!(rolled_back.settled(), "a TRY that was rolled back in a boot without a persistent config");
    }

    #[test]
    fn addresses_in_go_form() {
        assert_eq!(address(&[10, 5, 0, 2]).unwrap().to_string(), "10.5.0.2");
        let mut mapped = vec![0; 10];
        mapped.extend([0xff, 0xff, 10, 5, 0, 2]);
        assert_eq!(address(&mapped).unwrap().to_string(), "10.5.0.2");
        let mut zoned = vec![0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        zoned.extend(b"eth0");
        assert_eq!(address(&zoned).unwrap().to_string(), "fe80::1");
        assert_eq!(address(&[1, 2, 3]), None);
    }
}
