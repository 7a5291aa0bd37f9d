//! How a node comes up.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::services::Services;
use super::{Boot, Node, State};
use crate::net::{self, APID_PORT};
use crate::talos::config::Effective;
use crate::talos::cosi::{Store, kind, spec};
use crate::talos::version::Version;
use crate::talos::{Beginning, Role};
use talos_proto::proto::talos::resource::definitions::enums::RuntimeMachineStage as Stage;

/// The file that the CRI reads its credentials from.
pub(super) const CRI_FILE: &str = "cri/conf.d/cri.toml";
/// The part of it that holds them, on Talos <= 1.13.
pub(super) const CRI_PART: &str = "cri/conf.d/01-registries.part";

const BASE_SPEC: &str = "cri/conf.d/base-spec.json";

/// `cri.toml` is updated that long before the CRI process starts: 35-140 ms in real boots (talos-captures point 5).
const FILE_BEFORE_CRI: Duration = Duration::from_millis(45);
/// The first boot of a lab's nodes lies that far in the past.
const UPTIME: SignedDuration = SignedDuration::from_hours(1);

impl Boot {
    pub(super) fn new(stop: &CancellationToken) -> Self {
        Self {
            id: uuid::Uuid::new_v4().to_string(),
            life: stop.child_token(),
            apid: stop.child_token(),
            serving: false,
            store: Store::default(),
            services: Services::default(),
            active: Vec::new(),
            effective: Effective::default(),
            file: Default::default(),
            loaded: Default::default(),
            trial: None,
            stage: None,
            static_pods_unready: false,
            sequence: false,
            seen: None,
            next_pid: 61,
            config_changed: Arc::new(Notify::new()),
            annotations_changed: Arc::new(Notify::new()),
        }
    }

    pub(super) fn pid(&mut self) -> i32 {
        self.next_pid += 7;
        self.next_pid
    }

    /// Writes a file below /etc: the status counts the writes.
    pub(super) fn write_file(&mut self, now: Timestamp, id: &str) {
        let version = self.store.get(&kind::ETC_FILE, id).and_then(|file| file.metadata.as_ref()?.version.parse().ok());
        self.store.write(now, &kind::ETC_FILE, id, spec::etc_file(version.unwrap_or(0) + 1));
    }

    /// The CRI process starts and reads its configuration.
    pub(super) fn start_cri(&mut self, now: Timestamp) {
        let pid = self.pid();
        self.loaded = self.file.clone();
        self.services.started(&mut self.store, now, "cri", pid);
    }

    /// What a first boot, configured in maintenance mode, has and has not.
    fn show_as_first(&mut self, now: Timestamp, version: &Version) {
        if version.shows_persistent() {
            self.store.write(now, &kind::MACHINE_CONFIG, "persistent", spec::machine_config(&self.active));
        }
        self.store.remove(&kind::BOOT_ID, "boot-id");
    }

    pub(super) fn start(&mut self, now: Timestamp, service: &'static str) {
        let pid = self.pid();
        self.services.started(&mut self.store, now, service, pid);
    }
}

impl Node {
    /// The first boot: over and done in the past.
    ///
    /// # Errors
    /// When the API's address cannot be bound.
    pub(crate) fn begin(self: &Arc<Self>) -> std::io::Result<()> {
        let Beginning { first_boot, kubelet, etcd } = self.fleet.beginning;
        {
            let mut state = self.state();
            let start = self.now(&state) - UPTIME;
            let after = |milliseconds: i64| start + SignedDuration::from_millis(milliseconds);
            self.machined(&mut state, start);
            self.render_cri(&mut state, after(900));
            state.boot.start_cri(after(980));
            state.boot.start(after(1300), "apid");
            if kubelet {
                state.boot.start(after(3000), "kubelet");
            }
            if self.role == Role::ControlPlane {
                state.boot.start(after(1310), "trustd");
                if etcd {
                    state.boot.start(after(2900), "etcd");
                }
            }
            for service in self.service_names() {
                let Boot { services, store, .. } = &mut state.boot;
                if services.pid(service).is_some() {
                    services.healthy(store, after(4500), service);
                }
            }
            if first_boot {
                state.boot.show_as_first(after(800), &self.version);
            }
            let whole = kubelet && etcd;
            state.boot.stage = Some(if whole { Stage::MachineStageRunning } else { Stage::MachineStageBooting });
            if !whole {
                self.refresh_status(&mut state);
            }
        }
        self.listen()?;
        if kubelet && etcd {
            self.kubelet_runs();
        }
        if etcd && self.role == Role::ControlPlane {
            self.etcd_runs();
            self.fleet.kubernetes.api_server_started(&self.name);
        }
        self.run_controllers();
        Ok(())
    }

    /// Every later boot, from the new boot id on; shares of the reboot time, so that a test can make it short.
    pub(super) async fn come_up(self: Arc<Self>) {
        {
            let mut state = self.state();
            state.boots += 1;
            state.boot = Boot::new(&self.fleet.stop);
            let now = self.now(&state);
            self.machined(&mut state, now);
            self.refresh_status(&mut state);
        }
        self.fleet.boot_order().push(self.name.clone());
        let life = self.state().boot.life.clone();
        let boot = async {
            self.sleep(Duration::from_millis(15)).await;
            self.step(|node, state, now| node.render_cri(state, now));
            self.sleep(FILE_BEFORE_CRI).await;
            self.step(|_, state, now| state.boot.start_cri(now));
            self.spawn_cri_health();
            // A worker has no apid until trustd on a control plane has given it a certificate (talos.md 2.1).
            while self.role == Role::Worker && !self.fleet.gives_certificates() {
                self.sleep(Duration::from_millis(20)).await;
            }
            self.step(|_, state, now| state.boot.start(now, "apid"));
            while self.listen().is_err() {
                // Something else took the port for a moment: a node's API does not stay away for that.
                self.sleep(Duration::from_millis(20)).await;
            }
            self.run_controllers();
            match self.role {
                Role::Worker => self.worker_gets_ready().await,
                Role::ControlPlane => self.control_plane_gets_ready().await,
            }
        };
        tokio::select! {
            () = life.cancelled() => {}
            () = boot => {}
        }
    }

    async fn worker_gets_ready(&self) {
        if !self.is_in_cluster() {
            return;
        }
        self.sleep(self.share(8)).await;
        self.enter(Stage::MachineStageRunning);
        self.sleep(self.share(10)).await;
        self.service_runs("kubelet");
        self.kubelet_runs();
    }

    /// A control plane comes back twice (talos-captures point 20): RUNNING and ready, then not ready for its static
    /// pods, then ready; its API server answers well after the first time.
    async fn control_plane_gets_ready(&self) {
        self.service_runs("trustd");
        if !self.is_in_cluster() {
            return;
        }
        self.sleep(self.share(8)).await;
        self.service_runs("etcd");
        self.etcd_runs();
        self.service_runs("kubelet");
        self.kubelet_runs();
        self.sleep(self.share(10)).await;
        self.enter(Stage::MachineStageRunning);
        self.sleep(self.share(35)).await;
        self.step(|_, state, _| state.boot.static_pods_unready = true);
        self.sleep(self.share(5)).await;
        self.fleet.kubernetes.api_server_started(&self.name);
        self.sleep(self.share(20)).await;
        self.step(|_, state, _| state.boot.static_pods_unready = false);
    }

    /// There is a Kubernetes that it belongs to.
    fn is_in_cluster(&self) -> bool {
        self.fleet.beginning.kubelet && self.fleet.beginning.etcd
    }

    /// What machined does first: the machine config becomes active. There is no `persistent` one after a boot
    /// (talos-captures point 4).
    fn machined(&self, state: &mut State, now: Timestamp) {
        let bytes = state.disk.clone();
        let boot = &mut state.boot;
        // What is on disk was taken by this very parser before.
        boot.effective = Effective::parse(&bytes, &self.version).unwrap_or_default();
        boot.active = bytes;
        boot.stage = Some(Stage::MachineStageBooting);
        boot.services.runs(&mut boot.store, now, "machined", 1);
        if self.version.adopts_live() {
            boot.services.are_of_1_14(now);
        }
        boot.start(now, "containerd");
        for file in ["hosts", "machine-id", BASE_SPEC, "ssl/certs/ca-certificates.crt", CRI_FILE] {
            boot.write_file(now, file);
        }
        if !self.version.adopts_live() {
            boot.write_file(now, CRI_PART);
        }
        let Boot { store, active, .. } = boot;
        store.write(now, &kind::MACHINE_CONFIG, "v1alpha1", spec::machine_config(active));
        store.render(now, &kind::MACHINE_TYPE, "machine-type", spec::machine_type(self.role));
        store.render(now, &kind::NODENAME, "nodename", spec::nodename(&self.name));
        if self.version.adopts_live() {
            store.render(now, &kind::BOOT_ID, "boot-id", spec::boot_id(&boot.id));
        }
        self.render_addresses(state, now);
        self.render_members(state, now);
        self.render_annotations(state, now);
    }

    /// Renders what the CRI reads from the active machine config.
    fn render_cri(&self, state: &mut State, now: Timestamp) {
        let boot = &mut state.boot;
        boot.file = Default::default();
        if !boot.effective.stops_rendering {
            let registries = spec::registries(&boot.effective, &self.version);
            boot.store.render(now, &kind::REGISTRIES, "registries", registries);
            boot.file = boot.effective.auths.clone();
        }
        if !self.version.adopts_live() {
            boot.write_file(now, CRI_PART);
        }
        boot.write_file(now, CRI_FILE);
    }

    pub(super) fn render_addresses(&self, state: &mut State, now: Timestamp) {
        let own = (self.address, 24);
        let current: Vec<_> = [Some(own), state.vip.map(|vip| (vip, 32))].into_iter().flatten().collect();
        // No pod network on the lab's nodes (cluster.jsonl, before pods were on a bridge).
        let all: [(&str, &[_]); 10] = [
            ("accumulative", &current),
            ("accumulative-no-k8s", &current),
            ("accumulative-only-k8s", &[]),
            ("current", &current),
            ("current-no-k8s", &current),
            ("current-only-k8s", &[]),
            ("default", &[own]),
            ("routed", &current),
            ("routed-no-k8s", &current),
            ("routed-only-k8s", &[]),
        ];
        for (id, addresses) in all {
            state.boot.store.render(now, &kind::NODE_ADDRESS, id, spec::node_addresses(addresses));
        }
    }

    /// All nodes, for discovery lists a dead one for over a minute, with the addresses that it had (talos-captures point
    /// 19).
    pub(super) fn render_members(&self, state: &mut State, now: Timestamp) {
        if !state.discovery {
            return;
        }
        let listed = state.discovered_vip.clone();
        for member in self.fleet.members() {
            let vip = listed.as_ref().filter(|(holder, _)| *holder == member.name).map(|(_, vip)| *vip);
            let addresses: Vec<_> = [Some(member.address), vip].into_iter().flatten().collect();
            let system = format!("Talos (v{})", member.version);
            let spec = spec::member(&format!("id-of-{}", member.name), &member.name, &addresses, member.role, &system);
            state.boot.store.render(now, &kind::MEMBER, &member.name, spec);
        }
    }

    fn service_names(&self) -> &'static [&'static str] {
        match self.role {
            Role::Worker => &["apid", "containerd", "cri", "kubelet", "machined"],
            Role::ControlPlane => &["apid", "containerd", "cri", "etcd", "kubelet", "machined", "trustd"],
        }
    }

    pub(super) fn listen(self: &Arc<Self>) -> std::io::Result<()> {
        if self.state().faults.apid_cut_off {
            // It runs and nobody reaches it: who ends that listens.
            self.state().boot.serving = true;
            return Ok(());
        }
        let listener = net::bind(self.address, APID_PORT)?;
        let apid = {
            let mut state = self.state();
            state.boot.serving = true;
            state.boot.apid = state.boot.life.child_token();
            state.boot.apid.clone()
        };
        let node = Arc::clone(self);
        let handler = move |peer, request| {
            let node = Arc::clone(&node);
            async move { crate::talos::serve::answer(node, peer, request).await }
        };
        tokio::spawn(net::serve(listener, Arc::clone(&self.tls), apid, handler));
        Ok(())
    }

    /// Changes the state and looks at the machine's status again.
    pub(super) fn step<R>(&self, change: impl FnOnce(&Self, &mut State, Timestamp) -> R) -> R {
        let mut state = self.state();
        let now = self.now(&state);
        let result = change(self, &mut state, now);
        self.refresh_status(&mut state);
        result
    }

    fn enter(&self, stage: Stage) {
        self.step(|_, state, _| state.boot.stage = Some(stage));
    }

    pub(super) fn service_runs(&self, service: &'static str) {
        self.step(|_, state, now| {
            state.boot.start(now, service);
            let Boot { services, store, .. } = &mut state.boot;
            services.healthy(store, now, service);
        });
    }

    fn kubelet_runs(&self) {
        let boot_id = self.boot_id();
        self.fleet.kubernetes.kubelet_started(&self.name, &boot_id);
        self.mirror_node();
    }

    pub(super) fn etcd_runs(&self) {
        let id = {
            let mut etcd = self.fleet.etcd();
            etcd.set_running(&self.name, true);
            etcd.id(&self.name)
        };
        self.step(|_, state, now| state.boot.store.render(now, &kind::ETCD_MEMBER, "local", spec::etcd_member(id)));
    }

    /// The machine's status from what it is made of. While it shuts down it is REBOOTING and ready (point 21).
    pub(super) fn refresh_status(&self, state: &mut State) {
        let Some(stage) = state.boot.stage else { return };
        let unmet = if stage == Stage::MachineStageRebooting { Vec::new() } else { self.unmet(state) };
        let now = self.now(state);
        state.boot.store.render(now, &kind::MACHINE_STATUS, "machine", spec::machine_status(stage, &unmet));
    }

    fn unmet(&self, state: &State) -> Vec<(&'static str, String)> {
        let services = &state.boot.services;
        // Not of the CRI: its restart moves nothing here (rotate.jsonl of 1.14, talos-captures point 30).
        let watched: &[&str] = match self.role {
            Role::Worker => &["kubelet"],
            Role::ControlPlane => &["trustd", "kubelet", "etcd"],
        };
        let missing: Vec<_> = watched
            .iter()
            .filter(|service| !services.is_healthy(service))
            .map(|service| match services.pid(service) {
                Some(_) => format!("{service} not healthy"),
                None => format!("{service} not running"),
            })
            .collect();
        let mut unmet = Vec::new();
        if !missing.is_empty() {
            unmet.push(("services", missing.join(", ")));
        }
        if state.boot.static_pods_unready {
            unmet.push(("staticPods", format!("kube-system/kube-scheduler-{} not ready", self.name)));
        }
        match &state.boot.seen {
            None => unmet.push(("nodeReady", format!("node \"{}\" status is not available yet", self.name))),
            Some(seen) if !seen.ready => unmet.push(("nodeReady", format!("node \"{}\" is not ready", self.name))),
            Some(_) => {}
        }
        unmet
    }
}
