//! The resource types that the lab has.

use crate::talos::version::Version;

/// A resource type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Full type.
    pub name: &'static str,
    /// Where its resources are.
    pub namespace: &'static str,
    /// The controller that owns them, as the recordings show it.
    pub owner: &'static str,
    /// Only os:admin reads it (talos.md 2.5), RegistryConfigs in later releases only.
    sensitive: bool,
    /// The first minor version of Talos 1 that has it.
    pub since: u16,
}

macro_rules! kinds {
    ($($(#[$words:meta])* $constant:ident: $name:literal, $namespace:literal, $owner:literal, $sensitive:literal, $since:literal;)+) => {
        $($(#[$words])* pub(crate) const $constant: Kind = Kind {
            name: $name, namespace: $namespace, owner: $owner, sensitive: $sensitive, since: $since,
        };)+
        static ALL: &[Kind] = &[$($constant),+];
    };
}

kinds! {
    MACHINE_CONFIG: "MachineConfigs.config.talos.dev", "config", "", true, 0;
    MACHINE_TYPE: "MachineTypes.config.talos.dev", "config", "config.MachineTypeController", false, 0;
    REGISTRIES: "RegistryConfigs.cri.talos.dev", "cri", "cri.RegistriesConfigController", true, 0;
    ETC_FILE: "EtcFileStatuses.files.talos.dev", "files", "files.EtcFileController", false, 0;
    SERVICE_PID: "ServicePIDs.runtime.talos.dev", "runtime", "", false, 13;
    SERVICE: "Services.v1alpha1.talos.dev", "runtime", "v1alpha1.ServiceController", false, 0;
    MACHINE_STATUS: "MachineStatuses.runtime.talos.dev", "runtime", "runtime.MachineStatusController", false, 0;
    BOOT_ID: "BootIDs.runtime.talos.dev", "runtime", "runtime.BootIDController", false, 14;
    NODENAME: "Nodenames.kubernetes.talos.dev", "k8s", "k8s.NodenameController", false, 0;
    NODE_STATUS: "NodeStatuses.kubernetes.talos.dev", "k8s", "k8s.NodeStatusController", false, 0;
    NODE_ANNOTATION: "NodeAnnotationSpecs.k8s.talos.dev", "k8s", "k8s.NodeAnnotationSpecController", true, 0;
    NODE_ADDRESS: "NodeAddresses.net.talos.dev", "network", "network.NodeAddressController", false, 0;
    ETCD_MEMBER: "EtcdMembers.etcd.talos.dev", "etcd", "etcd.MemberController", false, 0;
    /// Empty as with discovery off, until a test switches it on (talos-captures point 19).
    MEMBER: "Members.cluster.talos.dev", "cluster", "cluster.MemberController", false, 0;
}

/// Namespaces of real Talos, also those that the lab has nothing in.
const NAMESPACES: [&str; 13] = [
    "cluster",
    "config",
    "cri",
    "etcd",
    "extensions",
    "files",
    "hardware",
    "k8s",
    "meta",
    "network",
    "perf",
    "runtime",
    "secrets",
];

impl Kind {
    /// The type of that name in that version of Talos.
    pub fn find(name: &str, version: &Version) -> Option<&'static Kind> {
        ALL.iter().find(|kind| kind.name.eq_ignore_ascii_case(name) && version.at_least(kind.since))
    }

    /// Whether only os:admin reads it in that version of Talos.
    pub fn is_sensitive(&self, version: &Version) -> bool {
        self.sensitive && (self.name != REGISTRIES.name || version.hides_registries())
    }

    /// Whether Talos knows the namespace.
    pub fn is_namespace(namespace: &str) -> bool {
        NAMESPACES.contains(&namespace)
    }
}
