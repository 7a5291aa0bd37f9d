//! The COSI resources that the product reads: type, namespace, spec.
//!
//! Names from Talos `pkg/machinery/resources` at v1.13.9; the type must be spelled in full, for aliases are resolved by
//! talosctl and not by the server.

use jiff::Timestamp;

use crate::proto::cosi::resource as cosi;
use crate::proto::resource::config::{MachineConfigSpec, MachineTypeSpec};
use crate::proto::talos::resource::definitions::{cluster, etcd, files, k8s, network, runtime, v1alpha1};
use crate::registries::RawRegistries;

/// A resource type of Talos.
pub trait Resource: Send + Sync + 'static {
    /// `MachineConfigs.config.talos.dev` and the like.
    const TYPE: &'static str;
    /// The namespace that it lives in.
    const NAMESPACE: &'static str;
    /// Its spec.
    type Spec: Send + 'static;

    /// Decodes one as it came over the wire.
    ///
    /// # Errors
    /// What is missing or does not decode; never a part of the spec.
    fn decode(resource: cosi::Resource) -> Result<Typed<Self::Spec>, String>;
}

macro_rules! resources {
    ($($(#[$doc:meta])* $name:ident = $type:literal in $namespace:literal of $spec:ty;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}

        impl Resource for $name {
            const TYPE: &'static str = $type;
            const NAMESPACE: &'static str = $namespace;
            type Spec = $spec;

            fn decode(resource: cosi::Resource) -> Result<Typed<$spec>, String> {
                Typed::decode(resource)
            }
        }
    )+};
}

resources! {
    /// The machine config as bytes: ids `v1alpha1` (active) and `persistent`. Needs os:admin.
    MachineConfigs = "MachineConfigs.config.talos.dev" in "config" of MachineConfigSpec;
    /// Control plane or worker, id `machine-type`.
    MachineTypes = "MachineTypes.config.talos.dev" in "config" of MachineTypeSpec;
    /// When a file under /etc was written last; id `cri/conf.d/cri.toml`.
    EtcFileStatuses = "EtcFileStatuses.files.talos.dev" in "files" of files::EtcFileStatusSpec;
    /// The process of a service, created at its start and destroyed at its end; Talos >= 1.13.
    ServicePids = "ServicePIDs.runtime.talos.dev" in "runtime" of runtime::ServicePidSpec;
    /// Running and healthy, by service id.
    Services = "Services.v1alpha1.talos.dev" in "runtime" of v1alpha1::ServiceSpec;
    /// Stage and readiness, id `machine`.
    MachineStatuses = "MachineStatuses.runtime.talos.dev" in "runtime" of runtime::MachineStatusSpec;
    /// The Kubernetes name of the machine, id `nodename`.
    Nodenames = "Nodenames.kubernetes.talos.dev" in "k8s" of k8s::NodenameSpec;
    /// The machine's own view of its Node, id = node name.
    NodeStatuses = "NodeStatuses.kubernetes.talos.dev" in "k8s" of k8s::NodeStatusSpec;
    /// Addresses, id `current`; a VIP while this machine holds it.
    NodeAddresses = "NodeAddresses.net.talos.dev" in "network" of network::NodeAddressSpec;
    /// The boot id for readers, id `boot-id`; Talos >= 1.14.
    BootIds = "BootIDs.runtime.talos.dev" in "runtime" of runtime::BootIdSpec;
    /// The local etcd member, id `local`; NotFound while etcd does not run.
    EtcdMembers = "EtcdMembers.etcd.talos.dev" in "etcd" of etcd::MemberSpec;
    /// The machines of the cluster as discovery has them, id = node name. Empty while discovery is off; a dead one stays
    /// for a while, with a VIP that another holds by now (talos-captures, point 19).
    Members = "Members.cluster.talos.dev" in "cluster" of cluster::MemberSpec;
}

/// The effective registry configuration, id `registries`. Needs os:admin from 1.12.9 and 1.13.4 on.
#[derive(Debug, Clone, Copy)]
pub enum RegistryConfigs {}

impl Resource for RegistryConfigs {
    const TYPE: &'static str = "RegistryConfigs.cri.talos.dev";
    const NAMESPACE: &'static str = "cri";
    type Spec = RawRegistries;

    fn decode(resource: cosi::Resource) -> Result<Typed<RawRegistries>, String> {
        Typed::with(resource, |bytes| Ok(RawRegistries::new(bytes)))
    }
}

/// Id of the one [`MachineTypes`].
pub const MACHINE_TYPE: &str = "machine-type";
/// Id of the active machine config.
pub const ACTIVE: &str = "v1alpha1";
/// Id of the machine config on disk; absent after an ordinary boot until the next apply (talos-captures, point 4).
pub const PERSISTENT: &str = "persistent";
/// Id of the file that the CRI containerd reads its registry credentials from.
pub const CRI_TOML: &str = "cri/conf.d/cri.toml";

/// A resource with its metadata.
#[derive(Clone, Debug)]
pub struct Typed<S> {
    /// Its id.
    pub id: String,
    /// The version counter, local to one boot of one machine; 0 for `undefined`.
    pub version: u64,
    /// When it was created, by the machine's clock.
    pub created: Timestamp,
    /// When it was changed last, by the machine's clock.
    pub updated: Timestamp,
    /// The spec.
    pub spec: S,
}

impl<S: prost::Message + Default> Typed<S> {
    /// Decodes a resource as it came over the wire.
    ///
    /// # Errors
    /// What is missing or does not decode; never a part of the spec.
    pub fn decode(resource: cosi::Resource) -> Result<Self, String> {
        Self::with(resource, |bytes| S::decode(bytes.as_slice()).map_err(|_| "the spec does not decode".into()))
    }
}

impl<S> Typed<S> {
    fn with(resource: cosi::Resource, decode: impl FnOnce(Vec<u8>) -> Result<S, String>) -> Result<Self, String> {
        let metadata = resource.metadata.ok_or("no metadata")?;
        let spec = resource.spec.ok_or("no spec")?;
        let time = |time: Option<prost_types::Timestamp>| {
            let time = time.unwrap_or_default();
            Timestamp::new(time.seconds, time.nanos).map_err(|_| "a time out of range")
        };
        Ok(Self {
            version: metadata.version.parse().unwrap_or(0),
            created: time(metadata.created)?,
            updated: time(metadata.updated)?,
            id: metadata.id,
            spec: decode(spec.proto_spec)?,
        })
    }
}
