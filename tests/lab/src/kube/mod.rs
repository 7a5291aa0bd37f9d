//! A Kubernetes API for a lab: one store, an API server per control plane, and what moves in a cluster by itself. The
//! answers are those of the real server (`fixtures/kubernetes`); what the product does not ask is answered 501.

mod api;
pub mod authz;
pub mod controllers;
mod evict;
mod json_patch;
pub mod kind;
pub(crate) mod kubelet;
mod micro_time;
pub mod objects;
mod route;
mod schema;
mod select;
pub mod server;
pub mod simulated;
mod status;
pub mod store;
mod watch;

#[cfg(test)]
mod server_test;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use talos_proto::clock::Clock;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub use self::evict::is_ready;
pub(crate) use self::route::query as query_of;

use self::authz::Rbac;
use self::controllers::{Controllers, Pace};
use self::kind::Kind;
use self::kubelet::Kubelets;
use self::objects::{Machine, ReplicaSet};
use self::server::{ApiServer, Behind, Shared};
use self::simulated::Simulated;
use self::store::Store;
use crate::faults::Faults;
use crate::pki::{Ca, TlsError, server_config};
use crate::talos::log::Log;

/// What a cluster consists of.
pub struct KubeOptions {
    /// All machines; the control planes among them get an API server.
    pub machines: Vec<Machine>,
    /// How long things take.
    pub pace: Pace,
    /// Names and addresses that the certificates of all API servers carry, besides each node's own.
    pub sans: Vec<String>,
}

/// What the certificate of an API server names (Talos `secrets/kubernetes_cert_sans.go`): its node's address and host
/// name, the service's names and address, and what all have in common (the cluster endpoint's host and certSANs).
pub(crate) fn certified(machine: &Machine, shared: &[String]) -> Vec<String> {
    let service = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    let mut names = vec![machine.address.clone(), machine.name.clone()];
    names.extend(service.iter().chain(&["10.96.0.1", "127.0.0.1"]).map(ToString::to_string));
    names.extend(shared.iter().filter(|name| **name != machine.address).cloned());
    names
}

/// The Kubernetes side of a lab.
pub struct Kube {
    store: Arc<Store>,
    kubelets: Kubelets,
    servers: BTreeMap<String, Arc<ApiServer>>,
    simulated: Arc<Simulated>,
    ca: Ca,
    clock: Clock,
    stop: CancellationToken,
}

impl Kube {
    /// Makes the objects and the API servers. Nothing listens before the kubelets and the servers are started; the
    /// controllers run on the current tokio runtime until this is stopped.
    ///
    /// # Errors
    /// When a server's TLS configuration cannot be made.
    pub fn start(options: KubeOptions, log: Arc<Log>, faults: Arc<Faults>) -> Result<Arc<Self>, TlsError> {
        let clock = Clock::system();
        let store = Arc::new(Store::new(clock.clone()));
        let (runtime, ca) = (Handle::current(), Ca::new("kubernetes", "kubernetes"));
        let control_planes: Vec<_> = options.machines.iter().filter(|machine| machine.control_plane).collect();
        let simulated = Arc::new(Simulated { store: Arc::clone(&store), rbac: Rbac::default(), clock: clock.clone() });
        let shared = Arc::new(Shared { log, faults, clock: clock.clone() });
        let mut servers = BTreeMap::new();
        for machine in control_planes {
            let Ok(address) = machine.address.parse::<Ipv4Addr>() else { continue };
            let tls = server_config(&ca.server(&certified(machine, &options.sans)), &ca, &[b"h2", b"http/1.1"], false)?;
            let server = ApiServer::new(
                &machine.name,
                address,
                tls,
                Behind::Simulated(Arc::clone(&simulated)),
                Arc::clone(&shared),
                runtime.clone(),
            );
            servers.insert(machine.name.clone(), server);
        }
        let workers = options.machines.iter().filter(|machine| !machine.control_plane).count();
        for namespace in ["default", "kube-node-lease", "kube-public", "kube-system", "flux-system"] {
            store.create(Kind::Namespace, json!({"metadata": {"name": namespace}, "status": {"phase": "Active"}}));
        }
        store.create(Kind::DaemonSet, objects::daemon_set("kube-system", "kube-flannel"));
        store.create(Kind::PodDisruptionBudget, objects::budget("default", "web"));
        let replica_sets = vec![ReplicaSet::new("default", "web", 2 * workers)];
        let machines = options.machines.len();
        let kubelets = Kubelets::new(options.machines);
        let stop = CancellationToken::new();
        let kube = Arc::new(Self { store, kubelets, servers, simulated, ca, clock, stop });
        tokio::spawn(Arc::clone(&kube).control(Controllers::new(options.pace, replica_sets, machines)));
        Ok(kube)
    }

    async fn control(self: Arc<Self>, mut controllers: Controllers) {
        while !self.stop.is_cancelled() {
            let begun = self.clock.now();
            self.store.with(|state| controllers.pass(state, &self.kubelets));
            // A large cluster is moved less often: else nobody else would get to its store.
            let took = self.clock.now().since(begun);
            self.clock.sleep(Duration::from_millis(20).max(took * 3)).await;
        }
    }

    /// The objects, to look at and to edit behind the API's back.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The authority of the API servers' and clients' certificates.
    #[must_use]
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// What clients may do that are no masters.
    #[must_use]
    pub fn rbac(&self) -> &Rbac {
        &self.simulated.rbac
    }

    /// The API server of a control plane.
    #[must_use]
    pub fn server(&self, node: &str) -> Option<&Arc<ApiServer>> {
        self.servers.get(node)
    }

    /// All API servers, by node.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<ApiServer>> {
        self.servers.values()
    }

    /// Stops everything.
    pub fn stop(&self) {
        self.stop.cancel();
        self.servers.values().for_each(ApiServer::stop);
    }
}
