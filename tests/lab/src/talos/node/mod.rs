//! One simulated node: what it keeps on disk, what it keeps until its next boot, and what a test can ask of it.

mod apply;
mod boot;
mod controllers;
mod faults;
pub(crate) mod images;
mod services;
pub(crate) mod shutdown;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustls::ServerConfig;
use talos_proto::clock::Moment;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::config::{Auth, Effective};
use super::cosi::Store;
use super::fleet::Fleet;
use super::log::Counters;
use super::outside::NodeSeen;
use super::version::Version;
use super::{NodeSpec, Role};
use faults::NodeFaults;
use images::Images;
use services::Services;
use shutdown::Asked;
use talos_proto::proto::talos::resource::definitions::enums::RuntimeMachineStage as Stage;

/// The annotation that carries the proof record, written through the machine config.
const RECORD: &str = "talos-ghcr/proof";

/// A simulated Talos node.
pub struct Node {
    name: String,
    address: Ipv4Addr,
    role: Role,
    version: Version,
    tls: Arc<ServerConfig>,
    pub(crate) fleet: Arc<Fleet>,
    state: Mutex<State>,
}

/// Everything that changes.
pub(crate) struct State {
    /// The machine config that the next boot begins with.
    disk: Vec<u8>,
    pub(crate) images: Images,
    /// Boots after the first.
    boots: u32,
    /// The calls of Reboot.
    asked: Vec<Asked>,
    /// How far the node's wall clock is off.
    clock_offset: SignedDuration,
    pub(crate) faults: NodeFaults,
    /// A virtual address that the node holds now.
    vip: Option<Ipv4Addr>,
    /// Discovery is switched on.
    discovery: bool,
    /// The name of the member that discovery lists a virtual address under, and that.
    discovered_vip: Option<(String, Ipv4Addr)>,
    pub(crate) boot: Boot,
}

/// What a reboot throws away.
pub(crate) struct Boot {
    /// As `/proc/sys/kernel/random/boot_id` has it.
    pub id: String,
    /// Cancelled when the node's API goes dark.
    pub life: CancellationToken,
    /// Cancelled earlier when the API alone is cut off.
    pub apid: CancellationToken,
    /// The API answers.
    pub serving: bool,
    pub store: Store,
    pub services: Services,
    active: Vec<u8>,
    effective: Effective,
    /// What the CRI's configuration file holds.
    file: BTreeMap<String, Auth>,
    /// What the CRI process that runs has read at its start.
    loaded: BTreeMap<String, Auth>,
    /// Ends the timer of a TRY.
    trial: Option<CancellationToken>,
    stage: Option<Stage>,
    /// A static pod is not ready (talos-captures point 20).
    static_pods_unready: bool,
    /// A sequence runs: another Reboot changes nothing.
    pub sequence: bool,
    seen: Option<NodeSeen>,
    next_pid: i32,
    config_changed: Arc<Notify>,
    annotations_changed: Arc<Notify>,
}

impl Node {
    pub(crate) fn new(spec: &NodeSpec, version: Version, tls: Arc<ServerConfig>, fleet: Arc<Fleet>) -> Self {
        let state = State {
            disk: spec.config.clone(),
            images: Images::default(),
            boots: 0,
            asked: Vec::new(),
            clock_offset: SignedDuration::ZERO,
            faults: NodeFaults::default(),
            vip: None,
            discovery: false,
            discovered_vip: None,
            boot: Boot::new(&fleet.stop),
        };
        let (name, address, role) = (spec.name.clone(), spec.address, spec.role);
        Self { name, address, role, version, tls, fleet, state: Mutex::new(state) }
    }

    /// The Kubernetes name, and the host name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address; the API is on port 50000.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Control plane or worker.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its Talos.
    #[must_use]
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Its name in the log.
    #[must_use]
    pub fn server_name(&self) -> String {
        format!("talos/{}", self.name)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock has failed anyway; the others see what it left.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's own wall clock.
    pub(crate) fn now(&self, state: &State) -> Timestamp {
        let now = self.fleet.clock.utc();
        now.checked_add(state.clock_offset).unwrap_or(now)
    }

    /// As the kernel has it: when the boot began by the wall clock as it is now, in whole seconds. It moves when that clock
    /// is stepped.
    pub(crate) fn proc_stat(&self) -> String {
        let now = self.now(&self.state());
        let began = now.checked_sub(self.up()).unwrap_or(now);
        format!("cpu  8123 0 4711 99312 83 0 20 0 0 0\nctxt 815123\nbtime {}\nprocesses 4012\n", began.as_second())
    }

    /// As the kernel has it: seconds since the boot began, which no step of the wall clock changes.
    pub(crate) fn proc_uptime(&self) -> String {
        let up = self.up().as_secs_f64();
        format!("{up:.2} {up:.2}\n")
    }

    /// The nodes of a lab were all booted with it, and no test asks for more.
    fn up(&self) -> Duration {
        self.fleet.clock.now().since(Moment::from_origin(Duration::ZERO))
    }

    /// A worker's apid gets its serving certificate from trustd on a control plane (talos.md 2.1): one must run.
    pub(crate) fn serves_certificates(&self) -> bool {
        let state = self.state();
        self.role == Role::ControlPlane && state.boot.serving && state.boot.services.pid("trustd").is_some()
    }

    pub(crate) async fn sleep(&self, length: Duration) {
        self.fleet.clock.sleep(length).await;
    }

    /// That many hundredths of the reboot time.
    pub(crate) fn share(&self, hundredths: u32) -> Duration {
        self.fleet.timing.reboot_time * hundredths / 100
    }

    /// The credential of the active machine config for a registry host: user and password.
    #[must_use]
    pub fn configured(&self, host: &str) -> Option<(String, String)> {
        self.state().boot.effective.auths.get(host).and_then(Auth::basic)
    }

    /// The credential that the running CRI process read when it started: the truth that a test asks. `None` when it
    /// read none for that host, or no process runs.
    #[must_use]
    pub fn cri_loaded(&self, host: &str) -> Option<(String, String)> {
        let state = self.state();
        state.boot.services.pid("cri")?;
        state.boot.loaded.get(host).and_then(Auth::basic)
    }

    /// Boots after the first.
    #[must_use]
    pub fn boots(&self) -> u32 {
        self.state().boots
    }

    /// The calls of Reboot that it answered, in their order.
    #[must_use]
    pub fn reboots_asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// The boot id now; during a reboot that of the boot before.
    #[must_use]
    pub fn boot_id(&self) -> String {
        self.state().boot.id.clone()
    }

    /// The proof record in the active machine config.
    #[must_use]
    pub fn record(&self) -> Option<String> {
        self.state().boot.effective.annotations.get(RECORD).cloned()
    }

    /// The active machine config, as it was applied.
    #[must_use]
    pub fn machine_config(&self) -> Vec<u8> {
        self.state().boot.active.clone()
    }

    /// The machine config that the next boot begins with.
    #[must_use]
    pub fn persisted_config(&self) -> Vec<u8> {
        self.state().disk.clone()
    }

    /// The pid of a service's process, while it has one.
    #[must_use]
    pub fn pid(&self, service: &str) -> Option<i32> {
        self.state().boot.services.pid(service)
    }

    /// Whether the node's API answers now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state().boot.serving
    }

    /// Whether a TRY runs, which the node takes back by itself.
    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        self.state().boot.trial.is_some()
    }

    /// The requests that entered at this node.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.fleet.log.counters(&self.server_name())
    }

    /// The names of the images in a namespace of its containerd.
    #[must_use]
    pub fn images(&self, namespace: images::Namespace) -> Vec<String> {
        self.state().images.list(namespace).into_iter().map(|image| image.name).collect()
    }
}

impl State {
    /// Where an image of a host is pulled from through Talos, and with which credential: that of the live machine
    /// config, not of the CRI process (talos-captures point 13).
    pub(crate) fn pull_endpoints(&self, host: &str) -> Vec<(String, Option<(String, String)>)> {
        let Effective { mirrors, auths, .. } = &self.boot.effective;
        let mirror = mirrors.get(host).or_else(|| mirrors.get("*"));
        let endpoints = mirror.into_iter().flat_map(|mirror| &mirror.endpoints).map(|(url, _)| {
            let behind_scheme = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
            behind_scheme.split('/').next().unwrap_or_default()
        });
        let itself = (!mirror.is_some_and(|mirror| mirror.skip_fallback)).then_some(host);
        endpoints
            .chain(itself)
            .map(|endpoint| (endpoint.to_owned(), auths.get(endpoint).and_then(Auth::basic)))
            .collect()
    }
}
