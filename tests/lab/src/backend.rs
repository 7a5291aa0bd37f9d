//! Who plays Kubernetes in a lab.

use std::sync::Arc;

use crate::kube::Kube;
use crate::kube::authz::Rule;
use crate::kube::server::ApiServer;
use crate::objects::Objects;
use crate::pki::Ca;
use crate::real::Cluster;
use crate::talos::outside::Kubernetes;

/// The Kubernetes side of a lab.
pub(crate) enum Backend {
    /// The lab's own API.
    Simulated(Arc<Kube>),
    /// Real programs.
    Real(Arc<Cluster>),
}

impl Backend {
    /// As the simulated nodes see it.
    pub fn nodes_view(&self) -> Arc<dyn Kubernetes> {
        match self {
            Self::Simulated(kube) => Arc::clone(kube) as Arc<dyn Kubernetes>,
            Self::Real(cluster) => Arc::clone(cluster) as Arc<dyn Kubernetes>,
        }
    }

    /// The same, for a look.
    pub fn kubernetes(&self) -> &dyn Kubernetes {
        match self {
            Self::Simulated(kube) => kube.as_ref(),
            Self::Real(cluster) => cluster.as_ref(),
        }
    }

    /// Its objects.
    pub fn objects(&self) -> &dyn Objects {
        match self {
            Self::Simulated(kube) => kube.store().as_ref(),
            Self::Real(cluster) => cluster.as_ref(),
        }
    }

    /// The API servers where clients reach them, by node.
    pub fn servers(&self) -> Vec<&Arc<ApiServer>> {
        match self {
            Self::Simulated(kube) => kube.servers().collect(),
            Self::Real(cluster) => cluster.listeners().collect(),
        }
    }

    /// The one of a control plane.
    pub fn server(&self, node: &str) -> Option<&Arc<ApiServer>> {
        match self {
            Self::Simulated(kube) => kube.server(node),
            Self::Real(cluster) => cluster.server(node),
        }
    }

    /// Whether the API server of a control plane is reached and ready. A simulated one is ready when it listens.
    pub fn is_ready(&self, node: &str) -> bool {
        let listens = self.server(node).is_some_and(|server| *server.listening().borrow());
        listens
            && match self {
                Self::Simulated(_) => true,
                Self::Real(cluster) => cluster.is_ready(node),
            }
    }

    /// The authority of all certificates.
    pub fn ca(&self) -> &Ca {
        match self {
            Self::Simulated(kube) => kube.ca(),
            Self::Real(cluster) => cluster.ca(),
        }
    }

    /// Lets a user do that, and nothing else.
    pub fn grant(&self, user: &str, rules: Vec<Rule>) {
        match self {
            Self::Simulated(kube) => kube.rbac().grant(user, rules),
            Self::Real(cluster) => cluster.grant(user, &rules),
        }
    }

    /// A kubelet falls silent.
    pub fn kubelet_died(&self, node: &str) {
        match self {
            Self::Simulated(kube) => kube.kubelet_died(node),
            Self::Real(cluster) => cluster.kubelet_died(node),
        }
    }

    /// Ends it.
    pub fn stop(&self) {
        match self {
            Self::Simulated(kube) => kube.stop(),
            Self::Real(cluster) => cluster.stop(),
        }
    }
}
