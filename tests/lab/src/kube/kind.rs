//! The kinds that the lab's API knows.

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// v1 Node.
    Node,
    /// v1 Pod.
    Pod,
    /// v1 Namespace: only so that requests into a missing or terminating one are answered as the real server does.
    Namespace,
    /// coordination.k8s.io/v1 Lease.
    Lease,
    /// apps/v1 DaemonSet.
    DaemonSet,
    /// policy/v1 PodDisruptionBudget.
    PodDisruptionBudget,
}

impl Kind {
    /// The API group; empty for the core group.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::Node | Self::Pod | Self::Namespace => "",
            Self::Lease => "coordination.k8s.io",
            Self::DaemonSet => "apps",
            Self::PodDisruptionBudget => "policy",
        }
    }

    /// The plural that stands in a path.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::Namespace => "namespaces",
            Self::Lease => "leases",
            Self::DaemonSet => "daemonsets",
            Self::PodDisruptionBudget => "poddisruptionbudgets",
        }
    }

    /// The `kind` of an object.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Namespace => "Namespace",
            Self::Lease => "Lease",
            Self::DaemonSet => "DaemonSet",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
        }
    }

    /// Whether objects live in a namespace.
    #[must_use]
    pub fn namespaced(self) -> bool {
        !matches!(self, Self::Node | Self::Namespace)
    }

    /// The `apiVersion` of an object.
    #[must_use]
    pub fn api_version(self) -> String {
        if self.group().is_empty() { "v1".into() } else { format!("{}/v1", self.group()) }
    }

    /// Plural and group as errors name them: `leases.coordination.k8s.io`, `nodes`.
    #[must_use]
    pub fn qualified_plural(self) -> String {
        qualified(self.plural(), self.group())
    }

    /// Kind and group as some errors name them: `Lease.coordination.k8s.io`, `Pod`.
    #[must_use]
    pub fn qualified_name(self) -> String {
        qualified(self.name(), self.group())
    }

    /// The kind behind a group and a plural of a path.
    #[must_use]
    pub fn parse(group: &str, plural: &str) -> Option<Self> {
        [Self::Node, Self::Pod, Self::Lease, Self::DaemonSet, Self::PodDisruptionBudget]
            .into_iter()
            .find(|kind| kind.group() == group && kind.plural() == plural)
    }
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.into() } else { format!("{name}.{group}") }
}
