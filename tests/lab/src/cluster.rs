//! A whole lab: nodes, Kubernetes, registry, and the files that point the product at them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Span};
use serde_json::json;
use talos_proto::clock::Clock;
use tokio::task::AbortHandle;
use uuid::Uuid;

use crate::backend::Backend;
use crate::faults::Faults;
use crate::front::Front;
use crate::kube::authz::Rule;
use crate::kube::kind::Kind;
use crate::kube::objects::Machine;
use crate::kube::server::ApiServer;
use crate::kube::{Kube, KubeOptions};
use crate::net::{KUBE_PORT, Network};
use crate::objects::Objects;
use crate::options::{Kubernetes, Options, plan};
use crate::pki::{Ca, TlsError, talosconfig};
use crate::real::Cluster;
use crate::real::cluster::ClusterOptions;
use crate::registry::{self, Registry};
use crate::talos::config::{Generated, machine_config_for};
use crate::talos::log::{Entry, Log};
use crate::talos::outside::NodeSeen;
use crate::talos::{Node, NodeSpec, Role, Talos, TalosOptions};
use crate::truth::{Counters, Held, LeaseTruth, NodeTruth, Truth, parsed};
use crate::{control, files};

/// The user of both credentials.
pub const USER: &str = "puller";
/// The Lease of the product, as far as the truth is concerned.
pub const LEASE: (&str, &str) = ("kube-system", "talos-ghcr");
/// How long a lab may take until it has settled, beyond the start of its programs.
const SETTLE: Duration = Duration::from_secs(60);
/// The annotation of the product's fence on a Node.
const FENCE: &str = "talos-ghcr/fence";

/// Why a lab cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The options contradict themselves.
    #[error("{0}")]
    Options(String),
    /// No network of its own.
    #[error("no free loopback network")]
    Network(#[source] io::Error),
    /// A file of the lab.
    #[error("cannot write {}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// The control socket.
    #[error("cannot listen in {}", .0.display())]
    Control(PathBuf, #[source] io::Error),
    /// The Kubernetes API.
    #[error("the Kubernetes API")]
    Kube(#[from] TlsError),
    /// A real one.
    #[error("the real Kubernetes")]
    Real(#[from] crate::real::cluster::StartError),
    /// The registry.
    #[error("the registry")]
    Registry(#[from] registry::StartError),
    /// The nodes.
    #[error("the Talos nodes")]
    Talos(#[from] crate::talos::StartError),
    /// It did not settle.
    #[error("the lab is not ready after {} s: {why}", SETTLE.as_secs(), why = .0)]
    NotReady(String),
}

/// A running lab. Dropping it ends it.
///
/// Times that people wait for are scaled, and tests may scale them further by [`Options`].
pub struct Lab {
    dir: PathBuf,
    network: Network,
    kube: Backend,
    registry: Arc<Registry>,
    talos: Talos,
    talos_ca: Arc<Ca>,
    log: Arc<Log>,
    faults: Arc<Faults>,
    clock: Clock,
    passwords: [String; 2],
    /// The number of the last request before the counters were reset.
    counted_from: AtomicU64,
    control: Mutex<Option<AbortHandle>>,
}

impl Lab {
    /// Starts a lab and waits until it has settled: all nodes Ready with the old credential configured and loaded, no
    /// record, all pods Ready.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(mut options: Options) -> Result<Arc<Self>, StartError> {
        let absolute = fs::create_dir_all(&options.dir).and_then(|()| fs::canonicalize(&options.dir));
        options.dir = absolute.map_err(|error| StartError::File(options.dir.clone(), error))?;
        let listener =
            control::listen(&options.dir).map_err(|error| StartError::Control(options.dir.clone(), error))?;
        let ready = options.dir.join("ready");
        match fs::remove_file(&ready) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StartError::File(ready, error)),
            _ => {}
        }
        let network = Network::take().map_err(StartError::Network)?;
        let planned = plan(&options, &network).map_err(StartError::Options)?;
        let (log, faults): (Arc<Log>, Arc<Faults>) = (Arc::default(), Arc::default());
        let passwords = ["old", "new"].map(|which| format!("{which}-{}", Uuid::new_v4().simple()));
        let [old, new] = &passwords;
        let (users, folder) = ([(USER, old.as_str()), (USER, new.as_str())], options.dir.join("registry"));
        let address = network.registry();
        let registry = Registry::start_with(&options.registry, address, &users, Arc::clone(&log), &folder).await?;
        let machines = planned.iter().map(|node| Machine {
            name: node.name.clone(),
            address: node.address.to_string(),
            control_plane: node.role == Role::ControlPlane,
            talos: node.version.to_string(),
        });
        let kube = kubernetes(&options, machines.collect(), &network, &log, &faults).await?;

        let endpoint = format!("https://{}:{KUBE_PORT}", network.control_plane(options.endpoint));
        let secret = STANDARD.encode([*Uuid::new_v4().as_bytes(), *Uuid::new_v4().as_bytes()].concat());
        let host = registry.host();
        let nodes = planned.iter().map(|node| {
            let config = machine_config_for(&Generated {
                role: node.role,
                version: &node.version,
                name: &node.name,
                cluster_endpoint: &endpoint,
                cluster_secret: &secret,
                registry_host: &host,
                user: USER,
                password: old,
                form: options.form,
            });
            let (name, version) = (node.name.clone(), node.version.to_string());
            NodeSpec { name, address: node.address, role: node.role, version, config: config.into_bytes() }
        });
        let talos_ca = Arc::new(Ca::talos());
        let mut talos_options = TalosOptions::new(Arc::clone(&talos_ca), nodes.collect());
        talos_options.reboot_time = options.reboot_time;
        talos_options.cri_health = options.cri_health;
        talos_options.faults = Arc::clone(&faults);
        let (kubernetes, images) = (kube.nodes_view(), Arc::clone(&registry));
        let talos = Talos::start(talos_options, kubernetes, images, Arc::clone(&log)).await?;
        let lab = Arc::new(Self {
            dir: options.dir.clone(),
            network,
            kube,
            registry,
            talos,
            talos_ca,
            log,
            faults,
            clock: Clock::system(),
            passwords,
            counted_from: AtomicU64::new(0),
            control: Mutex::default(),
        });
        lab.settle().await?;
        lab.write_files(&endpoint)?;
        let control = tokio::spawn(control::serve(Arc::downgrade(&lab), listener));
        *lab.control.lock().unwrap_or_else(PoisonError::into_inner) = Some(control.abort_handle());
        lab.reset_counters();
        lab.write_ready(&ready)?;
        Ok(lab)
    }

    /// Waits until nothing moves any more but heartbeats.
    async fn settle(&self) -> Result<(), StartError> {
        let start = self.clock.now();
        while let Some(missing) = self.missing() {
            if self.clock.now().since(start) > SETTLE {
                return Err(StartError::NotReady(missing));
            }
            self.clock.sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// What is not yet as it should be at the start.
    fn missing(&self) -> Option<String> {
        let nodes = self.talos.nodes();
        let mut control_planes = nodes.iter().filter(|node| node.role() == Role::ControlPlane);
        if let Some(node) = control_planes.find(|node| !self.kube.is_ready(node.name())) {
            return Some(format!("the API server of {} is not ready", node.name()));
        }
        for node in nodes {
            let seen = self.kube.kubernetes().node(node.name()).is_some_and(|seen| seen.ready);
            let loaded = self.held(node.cri_loaded(&self.registry.host()));
            if !node.is_up() || !seen || loaded != Held::Old {
                return Some(format!("{} is not up, not Ready or has not loaded the old credential", node.name()));
            }
        }
        let store = self.kube.objects();
        let pods = store.list(Kind::Pod);
        let replicas = pods.iter().filter(|pod| pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet").count();
        let workers = nodes.iter().filter(|node| node.role() == Role::Worker).count();
        if replicas < 2 * workers {
            return Some("the pods of the workload are not there".into());
        }
        let pod = pods.into_iter().find(|pod| !crate::kube::is_ready(pod));
        if let Some(pod) = pod {
            return Some(format!("the pod {} is not Ready", pod["metadata"]["name"]));
        }
        let budgets = store.list(Kind::PodDisruptionBudget);
        let spent = budgets.iter().find(|pdb| {
            pdb["status"]["expectedPods"] != 0 && pdb["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) < 1
        });
        spent.map(|pdb| format!("the budget {} allows nothing", pdb["metadata"]["name"]))
    }

    fn write_files(&self, endpoint: &str) -> Result<(), StartError> {
        let write = |name: &str, text: &str| {
            let path = self.dir.join(name);
            files::write_private(&path, text).map_err(|error| StartError::File(path, error))
        };
        let nodes = self.talos.nodes();
        let control_planes = nodes.iter().filter(|node| node.role() == Role::ControlPlane);
        let endpoints: Vec<_> = control_planes.map(|node| node.address().to_string()).collect();
        let ca = &self.talos_ca;
        let roles = [("", "os:admin"), ("-reader", "os:reader"), ("-operator", "os:operator")];
        for (suffix, role) in roles {
            write(&format!("talosconfig{suffix}"), &talosconfig("lab", &endpoints, ca, &ca.client("", &[role])))?;
        }
        write("kubeconfig", &self.kubeconfig_for("kubernetes-admin", &["system:masters"], endpoint))?;
        let host = self.registry.host();
        for (which, password) in ["old", "new"].iter().zip(&self.passwords) {
            write(&format!("credential-{which}.json"), &files::docker_config(&host, USER, password))?;
        }
        write("registry-ca.pem", self.registry.ca().cert_pem())?;
        write("env", &self.environment())
    }

    /// For a shell of a person: `. DIR/env`, and the product needs no flag to find this lab.
    fn environment(&self) -> String {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let variables = [
            ("TALOSCONFIG", file("talosconfig")),
            ("KUBECONFIG", file("kubeconfig")),
            ("SSL_CERT_FILE", file("registry-ca.pem")),
            ("TALOS_GHCR_REGISTRY", self.registry.host()),
            ("TALOS_GHCR_IMAGE", self.image()),
            ("TALOS_GHCR_CREDENTIAL_FILE", file("credential-new.json")),
        ];
        let line = |(name, value): &(&str, String)| format!("export {name}='{}'\n", value.replace('\'', r"'\''"));
        variables.iter().map(line).collect()
    }

    fn write_ready(&self, path: &Path) -> Result<(), StartError> {
        let nodes = self.talos.nodes();
        let nodes: Vec<_> = nodes
            .iter()
            .map(|node| {
                let (name, address) = (node.name(), node.address().to_string());
                json!({"name": name, "address": address, "talos": node.version().to_string()})
            })
            .collect();
        let ready = json!({
            "registry": self.registry.host(),
            "image": self.image(),
            "caFile": self.dir.join("registry-ca.pem"),
            "nodes": nodes,
        });
        files::write_atomically(path, &format!("{ready:#}\n"))
            .map_err(|error| StartError::File(path.to_path_buf(), error))
    }

    /// The directory with its files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The objects of the cluster.
    #[must_use]
    pub fn objects(&self) -> &dyn Objects {
        self.kube.objects()
    }

    /// A Node as its kubelet sees it.
    #[must_use]
    pub fn node_seen(&self, node: &str) -> Option<NodeSeen> {
        self.kube.kubernetes().node(node)
    }

    /// The API server of a control plane, where clients reach it.
    #[must_use]
    pub fn server(&self, node: &str) -> Option<&Arc<ApiServer>> {
        self.kube.server(node)
    }

    /// Opens what stands before the API servers, on that port: a load balancer, a tunnel, a virtual address. Their
    /// certificates carry its address, as those of a real cluster do (`cluster.apiServer.certSANs`).
    ///
    /// # Errors
    /// When the port is taken.
    pub fn front(&self, port: u16, behind: &[&str]) -> io::Result<Front> {
        let front = Front::open(self.network.front(), port)?;
        self.turn_front(&front, behind);
        Ok(front)
    }

    /// Turns it to other control planes; connections to the former ones are cut.
    pub fn turn_front(&self, front: &Front, behind: &[&str]) {
        front.turn(behind.iter().map(|node| SocketAddrV4::new(self.node(node).address(), KUBE_PORT)).collect());
    }

    /// Whether the API server of a control plane is reached and ready.
    #[must_use]
    pub fn server_is_ready(&self, node: &str) -> bool {
        self.kube.is_ready(node)
    }

    /// Lets a user do that in Kubernetes, and nothing else.
    pub fn grant(&self, user: &str, rules: Vec<Rule>) {
        self.kube.grant(user, rules);
    }

    /// The authority of Kubernetes.
    #[must_use]
    pub fn kube_ca(&self) -> &Ca {
        self.kube.ca()
    }

    /// The real Kubernetes, where the lab has one.
    #[must_use]
    pub fn real(&self) -> Option<&Arc<Cluster>> {
        match &self.kube {
            Backend::Real(cluster) => Some(cluster),
            Backend::Simulated(_) => None,
        }
    }

    /// The registry.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The simulated nodes.
    #[must_use]
    pub fn talos(&self) -> &Talos {
        &self.talos
    }

    /// One of the simulated nodes.
    ///
    /// # Panics
    /// When there is none of that name.
    #[must_use]
    pub fn node(&self, name: &str) -> &Arc<Node> {
        self.talos.node(name)
    }

    /// Crash points at mutating requests of all servers.
    #[must_use]
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Every request of all servers, in the order of arrival.
    #[must_use]
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// The private image of the registry: `127.a.b.200:5000/lab/app:1`.
    #[must_use]
    pub fn image(&self) -> String {
        format!("{}/lab/app:1", self.registry.host())
    }

    /// A kubeconfig for another user and another server, for instance one of few rights ([`Lab::grant`]).
    #[must_use]
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str], server: &str) -> String {
        self.kubeconfig_lasting(user, groups, server, Span::new().years(1))
    }

    /// The same, valid until this far from now (negative: expired).
    #[must_use]
    pub fn kubeconfig_lasting(&self, user: &str, groups: &[&str], server: &str, from_now: Span) -> String {
        let ca = self.kube_ca();
        files::kubeconfig(server, ca, &ca.client_for(user, groups, from_now))
    }

    /// A talosconfig of an administrator whose certificate has that name, so that the log tells clients apart.
    #[must_use]
    pub fn talosconfig_for(&self, name: &str) -> String {
        self.talosconfig_lasting(name, Span::new().years(1))
    }

    /// The same, valid until this far from now (negative: expired).
    #[must_use]
    pub fn talosconfig_lasting(&self, name: &str, from_now: Span) -> String {
        let planes = self.talos.nodes().iter().filter(|node| node.role() == Role::ControlPlane);
        let endpoints: Vec<_> = planes.map(|node| node.address().to_string()).collect();
        let client = self.talos_ca.client_for(name, &["os:admin"], from_now);
        talosconfig("lab", &endpoints, &self.talos_ca, &client)
    }

    /// The old password.
    #[must_use]
    pub fn old_password(&self) -> &str {
        &self.passwords[0]
    }

    /// The new password.
    #[must_use]
    pub fn new_password(&self) -> &str {
        &self.passwords[1]
    }

    /// The docker config with one of the credentials.
    #[must_use]
    pub fn credential_file(&self, which: Held) -> PathBuf {
        self.dir.join(if which == Held::Old { "credential-old.json" } else { "credential-new.json" })
    }

    /// The flags that point the product at this lab, with the new credential.
    #[must_use]
    pub fn product_args(&self) -> Vec<String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let pairs = [
            ("--talosconfig", file("talosconfig")),
            ("--kubeconfig", file("kubeconfig")),
            ("--registry", self.registry.host()),
            ("--credential-file", file("credential-new.json")),
            ("--image", self.image()),
        ];
        pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// The environment that the product needs besides: the authority of the registry.
    #[must_use]
    pub fn product_env(&self) -> Vec<(String, String)> {
        vec![("SSL_CERT_FILE".into(), self.dir.join("registry-ca.pem").display().to_string())]
    }

    /// A machine's clock is off by that much: of its Talos, and of the API server on it.
    pub fn set_clock_offset(&self, node: &str, offset: SignedDuration) {
        self.node(node).set_clock_offset(offset);
        if let Some(server) = self.server(node) {
            server.set_clock_offset(offset);
        }
    }

    /// Cuts a node's power: no orderly shutdown; its Node turns Unknown unless it is back before.
    pub fn power_cycle(&self, node: &str) {
        self.kube.kubelet_died(node);
        self.node(node).power_cycle();
    }

    fn held(&self, credential: Option<(String, String)>) -> Held {
        match credential {
            None => Held::None,
            Some((user, password)) if user == USER && password == self.old_password() => Held::Old,
            Some((user, password)) if user == USER && password == self.new_password() => Held::New,
            Some(_) => Held::Other,
        }
    }

    /// What is really so.
    #[must_use]
    pub fn truth(&self) -> Truth {
        let (store, host) = (self.kube.objects(), self.registry.host());
        let nodes = self.talos.nodes();
        let truths = nodes.iter().map(|node| {
            let seen = self.kube.kubernetes().node(node.name());
            NodeTruth {
                name: node.name().to_owned(),
                talos: node.version().to_string(),
                address: node.address().to_string(),
                configured: self.held(node.configured(&host)),
                cri_loaded: self.held(node.cri_loaded(&host)),
                boots: node.boots(),
                record: node.record().as_deref().map(parsed),
                cordoned: seen.as_ref().is_some_and(|seen| seen.unschedulable),
                fence: seen.and_then(|seen| seen.annotations.get(FENCE).map(|text| parsed(text))),
            }
        });
        let lease = store.get(Kind::Lease, LEASE.0, LEASE.1);
        Truth {
            nodes: truths.collect(),
            lease: lease.map(|lease| LeaseTruth::from_object(&lease)),
            counters: self.counters(),
            boot_order: self.talos.boot_order(),
            unexpected: self.unexpected(),
        }
    }

    /// Requests by server since the start or the last reset; every server is there.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<String, Counters> {
        let mut servers: Vec<String> = self.kube.servers().iter().map(|server| server.name()).collect();
        servers.extend(self.talos.nodes().iter().map(|node| node.server_name()));
        servers.push(registry::SERVER.to_owned());
        let from = self.counted_from.load(Ordering::SeqCst);
        let entries = self.log.all();
        Counters::by_server(servers, entries.iter().filter(|entry| entry.seq > from))
    }

    /// Starts counting at zero again.
    pub fn reset_counters(&self) {
        self.counted_from.store(*self.log.watch().borrow(), Ordering::SeqCst);
    }

    /// Requests that the lab does not know; a test asserts that there are none.
    #[must_use]
    pub fn unexpected(&self) -> Vec<String> {
        let text = |entry: &Entry| format!("{} {} {}", entry.server, entry.method, entry.target);
        self.log.surprises().iter().map(text).collect()
    }

    /// Ends the lab: everything is closed, `ready` and the control socket are gone. A second call does nothing.
    pub fn stop(&self) {
        if let Some(control) = self.control.lock().unwrap_or_else(PoisonError::into_inner).take() {
            control.abort();
        }
        self.talos.stop();
        self.kube.stop();
        self.registry.stop();
        for name in ["ready", "lab.sock"] {
            // The directory may be gone already.
            let _ = fs::remove_file(self.dir.join(name));
        }
    }
}

async fn kubernetes(
    options: &Options,
    machines: Vec<Machine>,
    network: &Network,
    log: &Arc<Log>,
    faults: &Arc<Faults>,
) -> Result<Backend, StartError> {
    let (log, faults) = (Arc::clone(log), Arc::clone(faults));
    let sans = vec![network.control_plane(options.endpoint).to_string(), network.front().to_string()];
    Ok(match &options.kubernetes {
        Kubernetes::Simulated => {
            let options = KubeOptions { machines, pace: options.pace, sans };
            Backend::Simulated(Kube::start(options, log, faults)?)
        }
        Kubernetes::Real(programs) => {
            let (programs, dir) = (programs.clone(), options.dir.clone());
            let flags = options.api_server_flags.clone();
            let options = ClusterOptions { programs, machines, pace: options.pace, dir, flags, sans };
            Backend::Real(Cluster::start(options, network, log, faults).await?)
        }
    })
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
    }
}
