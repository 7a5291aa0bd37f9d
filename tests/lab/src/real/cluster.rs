//! The Kubernetes side of a lab, played by real programs.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use talos_proto::clock::Clock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::api::Api;
use super::https;
use super::kubelet::Kubelet;
use super::member::Member;
use super::mirror::Mirror;
use super::process::Process;
use super::programs::Programs;
use super::scheduler;
use super::servers::{Flags, PROXY, REAL_PORT, Servers};
use super::workload;
use crate::faults::Faults;
use crate::files;
use crate::kube::certified;
use crate::kube::controllers::Pace;
use crate::kube::kind::Kind;
use crate::kube::kubelet::seen;
use crate::kube::objects::Machine;
use crate::kube::server::{ApiServer, Shared};
use crate::net::Network;
use crate::pki::{Ca, TlsError};
use crate::talos::log::Log;
use crate::talos::outside::{Kubernetes, NodeSeen};

/// How long the first API server may take on a busy machine; alone it takes four seconds.
const START: Duration = Duration::from_secs(90);
/// Between two looks at something that is about to be.
const LOOK: Duration = Duration::from_millis(40);

/// Why a real cluster cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A program or a file.
    #[error("cannot start the programs of Kubernetes from {}", .0.display())]
    Program(PathBuf, #[source] io::Error),
    /// TLS.
    #[error("the certificates of Kubernetes")]
    Tls(#[from] TlsError),
    /// It does not answer.
    #[error("kube-apiserver is not ready after {} s; its log is {}", START.as_secs(), .log.display())]
    NotReady {
        /// Its log.
        log: PathBuf,
    },
    /// A program did not stay.
    #[error("{0}")]
    Ended(String),
    /// It refuses an object of the lab.
    #[error("kube-apiserver does not take {0}: {1}")]
    Refused(String, String),
}

/// What a real cluster is made of.
pub struct ClusterOptions {
    /// The programs.
    pub programs: Programs,
    /// All machines; the control planes among them get an API server.
    pub machines: Vec<Machine>,
    /// How long pods take, and how often kubelets beat.
    pub pace: Pace,
    /// The lab's folder; what the programs write goes into `kubernetes` in it.
    pub dir: PathBuf,
    /// More flags of the kube-apiservers.
    pub flags: Flags,
    /// Names and addresses that the certificates of all control planes' API servers carry, besides each node's own.
    pub sans: Vec<String>,
}

/// A running cluster. Dropping it ends it.
pub struct Cluster {
    servers: Servers,
    members: BTreeMap<String, Member>,
    kubelets: BTreeMap<String, Arc<Kubelet>>,
    nodes: Arc<Mirror>,
    api: Api,
    ca: Ca,
    clock: Clock,
    runtime: Handle,
    controllers: Process,
    etcd: Process,
    own_server: Process,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Cluster {
    /// Starts etcd, an API server for the lab itself and the controllers, and makes the workload. Neither Nodes nor the
    /// control planes' API servers are there before their machines start them.
    ///
    /// The lab's own API server is one that no client is told of: kubelets, controllers and tests reach the cluster
    /// through it whatever becomes of the others.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(
        options: ClusterOptions,
        network: &Network,
        log: Arc<Log>,
        faults: Arc<Faults>,
    ) -> Result<Arc<Self>, StartError> {
        let dir = options.dir.join("kubernetes");
        let folder = options.programs.folder().to_owned();
        let failed = |error| StartError::Program(folder.clone(), error);
        let (ca, proxy) = (Ca::new("kubernetes", "kubernetes"), Ca::new("lab listeners", "lab"));
        let own = network.own_api_server();
        let control_planes: Vec<_> = options.machines.iter().filter(|machine| machine.control_plane).collect();
        let mut sans: Vec<String> = control_planes.iter().map(|machine| machine.address.clone()).collect();
        sans.extend(["kubernetes", "kubernetes.default.svc", "localhost"].map(str::to_owned));
        sans.push(own.to_string());
        let certificate = ca.server(&sans);
        let files = (&ca, &certificate, &proxy);
        let servers =
            Servers::new(options.programs.clone(), &dir, network.etcd(), files, options.flags).map_err(failed)?;
        let (etcd, own_server) = (servers.etcd().map_err(failed)?, servers.api_server("lab", own).map_err(failed)?);

        let admin = https::client(ca.cert_pem(), Some(&ca.client("lab", &["system:masters"])))?;
        let api = Api::new(admin, format!("https://{own}:{REAL_PORT}"));
        let clock = Clock::system();
        until_ready(&api, &[&etcd, &own_server], &clock, servers.path("kube-apiserver-lab.log")).await?;
        let kubeconfig = servers.path("controllers.kubeconfig");
        let controllers = ca.client("system:kube-controller-manager", &[]);
        let text = files::kubeconfig(&format!("https://{own}:{REAL_PORT}"), &ca, &controllers);
        files::write_private(&kubeconfig, &text).map_err(failed)?;
        let controllers = servers.controllers(&kubeconfig).map_err(failed)?;
        workload::create(&api, options.machines.iter().filter(|machine| !machine.control_plane).count()).await?;

        let identity = proxy.client(PROXY, &[]);
        let shared = Arc::new(Shared { log, faults, clock: clock.clone() });
        let mut members = BTreeMap::new();
        for machine in control_planes {
            let Ok(address) = machine.address.parse::<Ipv4Addr>() else { continue };
            let listener = ca.server(&certified(machine, &options.sans));
            let member = Member::new(machine, address, (&ca, &listener), &identity, &shared)?;
            members.insert(machine.name.clone(), member);
        }
        let (nodes, pods) = (Mirror::new(Kind::Node), Mirror::new(Kind::Pod));
        let machines = options.machines.len();
        let kubelets: BTreeMap<_, _> =
            options.machines.into_iter().map(|machine| (machine.name.clone(), Kubelet::new(machine))).collect();
        let mut tasks = vec![
            tokio::spawn(Arc::clone(&nodes).follow(api.clone(), clock.clone())).abort_handle(),
            tokio::spawn(Arc::clone(&pods).follow(api.clone(), clock.clone())).abort_handle(),
        ];
        let scheduler = scheduler::run(api.clone(), Arc::clone(&nodes), Arc::clone(&pods), machines, clock.clone());
        tasks.push(tokio::spawn(scheduler).abort_handle());
        for kubelet in kubelets.values() {
            let run = Arc::clone(kubelet).run(api.clone(), Arc::clone(&pods), options.pace, clock.clone());
            tasks.push(tokio::spawn(run).abort_handle());
        }
        let (tasks, runtime) = (Mutex::new(tasks), Handle::current());
        Ok(Arc::new(Self {
            servers,
            members,
            kubelets,
            nodes,
            api,
            ca,
            clock,
            runtime,
            controllers,
            etcd,
            own_server,
            tasks,
        }))
    }

    /// The authority of the API servers' and clients' certificates.
    #[must_use]
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    pub(super) fn nodes(&self) -> &Mirror {
        &self.nodes
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The lab's own way to the cluster.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The listener before a control plane's API server.
    #[must_use]
    pub fn server(&self, node: &str) -> Option<&Arc<ApiServer>> {
        self.members.get(node).map(|member| &member.listener)
    }

    /// Whether a control plane's API server says that it is ready; false from the moment in which it is killed.
    #[must_use]
    pub fn is_ready(&self, node: &str) -> bool {
        self.members.get(node).is_some_and(|member| member.is_ready())
    }

    /// All of them, by node.
    pub fn listeners(&self) -> impl Iterator<Item = &Arc<ApiServer>> {
        self.members.values().map(|member| &member.listener)
    }

    /// The kubelet of that machine falls silent.
    pub fn kubelet_died(&self, node: &str) {
        if let Some(kubelet) = self.kubelets.get(node) {
            kubelet.died();
        }
    }

    /// Stops etcd in the middle of whatever it does, or lets it go on: every request that needs it hangs meanwhile.
    pub fn freeze_etcd(&self, freeze: bool) {
        if freeze { self.etcd.freeze() } else { self.etcd.thaw() }
    }

    /// The API servers of control planes that are ready now, and the lab's own.
    pub(super) fn ready_servers(&self) -> Vec<Api> {
        let ready = self.members.values().filter(|member| member.is_ready()).map(|member| member.api.clone());
        ready.chain([self.api.clone()]).collect()
    }

    /// The lab's own way to the API server of a control plane.
    #[must_use]
    pub fn member_api(&self, node: &str) -> Option<&Api> {
        self.members.get(node).map(|member| &member.api)
    }

    /// `https://ADDRESS:PORT` of the lab's own API server, for other clients that are no part of the product.
    #[must_use]
    pub fn own_server(&self) -> &str {
        self.api.server()
    }

    /// Waits for an answer where nobody can await it.
    pub(super) fn block<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::task::block_in_place(|| self.runtime.block_on(work))
    }

    /// Ends all programs.
    pub fn stop(&self) {
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
        for member in self.members.values() {
            member.stop();
        }
        for program in [&self.controllers, &self.own_server, &self.etcd] {
            program.kill();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until an API server says that it is ready, as long as these programs run.
pub(super) async fn until_ready(
    api: &Api,
    programs: &[&Process],
    clock: &Clock,
    log: PathBuf,
) -> Result<(), StartError> {
    let start = clock.now();
    while !api.get("/readyz").await.is_ok_and(|reply| reply.is_ok()) {
        if let Some(how) = programs.iter().find_map(|program| program.ended()) {
            return Err(StartError::Ended(how));
        }
        if clock.now().since(start) > START {
            return Err(StartError::NotReady { log });
        }
        clock.sleep(LOOK).await;
    }
    Ok(())
}

impl Kubernetes for Cluster {
    fn kubelet_started(&self, node: &str, boot_id: &str) {
        if let Some(kubelet) = self.kubelets.get(node) {
            kubelet.started(boot_id);
        }
    }

    fn kubelet_stopped(&self, node: &str) {
        if let Some(kubelet) = self.kubelets.get(node) {
            kubelet.stopped();
        }
    }

    fn power_lost(&self, node: &str) {
        self.kubelet_died(node);
    }

    fn api_server_started(&self, node: &str) {
        if let Some(member) = self.members.get(node) {
            member.stop();
            // A program that cannot be started is seen by the lab as a server that never listens.
            member.start(self.servers.api_server(node, member.address).ok());
        }
    }

    fn api_server_stopped(&self, node: &str) {
        if let Some(member) = self.members.get(node) {
            member.stop();
        }
    }

    fn node(&self, node: &str) -> Option<NodeSeen> {
        self.nodes.get(node).map(|node| seen(&node))
    }

    fn watch_node(&self, node: &str) -> watch::Receiver<u64> {
        self.nodes.changes(node)
    }

    fn annotate_from_talos(&self, node: &str, set: BTreeMap<String, String>) {
        if let Some(kubelet) = self.kubelets.get(node) {
            kubelet.annotate(set);
        }
    }
}
