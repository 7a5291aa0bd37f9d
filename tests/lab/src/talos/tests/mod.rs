//! The simulated nodes, asked over real mutual TLS.

mod adoption;
mod applying;
mod asking;
mod pulling;
mod rebooting;
mod versions;
mod w07;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prost::Message;
use talos_proto::clock::Clock;
use talos_proto::proto::cosi::resource::state_client::StateClient;
use talos_proto::proto::cosi::resource::{GetRequest, Metadata, Resource, WatchRequest, WatchResponse};
use talos_proto::proto::machine::apply_configuration_request::Mode;
use talos_proto::proto::machine::image_service_client::ImageServiceClient;
use talos_proto::proto::machine::machine_service_client::MachineServiceClient;
use talos_proto::proto::machine::{ApplyConfiguration, ApplyConfigurationRequest, RebootRequest, RebootResponse};
use tokio::sync::watch;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};

use super::config::{Form, Generated, machine_config_for};
use super::cosi::Kind;
use super::outside::{Kubernetes, NodeSeen, PullAnswer, Registry};
use super::version::Version;
use super::{Beginning, NodeSpec, Role, Talos, TalosOptions};
use crate::faults::Faults;
use crate::net::Network;
use crate::pki::Ca;
use crate::talos::log::Log;

const HOST: &str = "ghcr.io";
const OLD: &str = "old-secret-1";
const NEW: &str = "new-secret-2";
const REBOOT: Duration = Duration::from_millis(600);

/// A Node, if there is one, and what tells of its changes.
type Registered = (Option<NodeSeen>, watch::Sender<u64>);

/// A cluster's side of Kubernetes in memory; Talos owns every annotation that it sets.
#[derive(Default)]
struct Cluster {
    nodes: Mutex<BTreeMap<String, Registered>>,
    events: Mutex<Vec<String>>,
}

impl Cluster {
    fn change(&self, node: &str, change: impl FnOnce(&mut NodeSeen)) {
        let mut nodes = self.nodes.lock().unwrap();
        let (seen, moved) = nodes.entry(node.to_owned()).or_default();
        let before = seen.clone();
        change(seen.get_or_insert_default());
        if *seen != before {
            moved.send_modify(|count| *count += 1);
        }
    }

    fn event(&self, event: String) {
        self.events.lock().unwrap().push(event);
    }

    fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }
}

impl Kubernetes for Cluster {
    fn kubelet_started(&self, node: &str, _: &str) {
        self.event(format!("{node} kubelet started"));
        self.change(node, |seen| seen.ready = true);
    }

    fn kubelet_stopped(&self, node: &str) {
        self.event(format!("{node} kubelet stopped"));
        self.change(node, |seen| seen.ready = false);
    }

    fn api_server_started(&self, node: &str) {
        self.event(format!("{node} API server started"));
    }

    fn api_server_stopped(&self, node: &str) {
        self.event(format!("{node} API server stopped"));
    }

    fn node(&self, node: &str) -> Option<NodeSeen> {
        self.nodes.lock().unwrap().get(node).and_then(|(seen, _)| seen.clone())
    }

    fn watch_node(&self, node: &str) -> watch::Receiver<u64> {
        self.nodes.lock().unwrap().entry(node.to_owned()).or_default().1.subscribe()
    }

    fn annotate_from_talos(&self, node: &str, set: BTreeMap<String, String>) {
        if self.node(node).is_some() {
            self.change(node, |seen| seen.annotations.extend(set));
        }
    }
}

/// A registry with one image in several tags that one password opens.
struct OneImage {
    password: Mutex<&'static str>,
    pulls: Mutex<Vec<String>>,
    /// By tag, where it is not [`DIGEST`].
    digests: Mutex<BTreeMap<String, String>>,
}

impl OneImage {
    fn pulls(&self) -> MutexGuard<'_, Vec<String>> {
        self.pulls.lock().unwrap()
    }
}

const DIGEST: &str = "sha256:bdbe99d4a8842df22e4e453b6e3935165c5c7421342224220a4afbc0fdd3186b";

impl Registry for OneImage {
    fn pull(&self, host: &str, repository: &str, reference: &str, user: Option<(&str, &str)>) -> PullAnswer {
        self.pulls().push(format!("{host}/{repository}:{reference} {}", user.map_or("", |(user, _)| user)));
        if user.is_none_or(|(_, password)| password != *self.password.lock().unwrap()) {
            PullAnswer::Denied
        } else if repository == "lab/app" && reference != "nope" {
            let digest = self.digests.lock().unwrap().get(reference).cloned();
            PullAnswer::Ok(digest.unwrap_or_else(|| DIGEST.to_owned()))
        } else {
            PullAnswer::NotFound
        }
    }
}

/// Some nodes, and what is beside them.
struct Bed {
    talos: Talos,
    ca: Arc<Ca>,
    cluster: Arc<Cluster>,
    registry: Arc<OneImage>,
    log: Arc<Log>,
    faults: Arc<Faults>,
    clock: Clock,
    _network: Network,
}

impl Bed {
    /// `cp-1`.. and `w-1`.., of that version.
    async fn start(control_planes: usize, workers: usize, version: &str) -> Self {
        let node = |name: String, role| (config(role, version, &name, OLD).into_bytes(), name, role);
        let control_planes = (0..control_planes).map(|index| node(format!("cp-{}", index + 1), Role::ControlPlane));
        let workers = (0..workers).map(|index| node(format!("w-{}", index + 1), Role::Worker));
        Self::of(control_planes.chain(workers).collect(), version, Beginning::default()).await
    }

    /// Machine config, name and role of each node.
    async fn of(nodes: Vec<(Vec<u8>, String, Role)>, version: &str, beginning: Beginning) -> Self {
        let network = Network::take().unwrap();
        let ca = Arc::new(Ca::talos());
        let (mut control_planes, mut workers) = (0.., 0..);
        let specs = nodes.into_iter().map(|(config, name, role)| {
            let address = match role {
                Role::ControlPlane => network.control_plane(control_planes.next().unwrap()),
                Role::Worker => network.worker(workers.next().unwrap()),
            };
            NodeSpec { config, name, address, role, version: version.to_owned() }
        });
        let options = TalosOptions {
            reboot_time: REBOOT,
            cri_health: Duration::from_millis(100),
            beginning,
            ..TalosOptions::new(Arc::clone(&ca), specs.collect())
        };
        let faults = Arc::clone(&options.faults);
        let cluster = Arc::new(Cluster::default());
        let registry =
            Arc::new(OneImage { password: Mutex::new(OLD), pulls: Mutex::default(), digests: Mutex::default() });
        let log = Arc::new(Log::default());
        let talos = Talos::start(options, Arc::clone(&cluster) as _, Arc::clone(&registry) as _, Arc::clone(&log));
        let talos = talos.await.unwrap();
        Self { talos, ca, cluster, registry, log, faults, clock: Clock::system(), _network: network }
    }

    fn address(&self, node: &str) -> String {
        self.talos.node(node).address().to_string()
    }

    /// A connection to a node's API, dialled with the first call.
    fn channel(&self, endpoint: &str, role: &str) -> Channel {
        let pair = self.ca.client("", &[role]);
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.ca.cert_pem()))
            .identity(Identity::from_pem(&pair.cert_pem, &pair.key_pem));
        let uri = format!("https://{}:50000", self.address(endpoint));
        Endpoint::from_shared(uri).unwrap().tls_config(tls).unwrap().connect_lazy()
    }

    fn machine(&self, endpoint: &str, role: &str) -> MachineServiceClient<Channel> {
        MachineServiceClient::new(self.channel(endpoint, role))
    }

    fn images(&self, endpoint: &str, role: &str) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel(endpoint, role))
    }

    fn state(&self, endpoint: &str, role: &str) -> StateClient<Channel> {
        StateClient::new(self.channel(endpoint, role))
    }

    async fn get(&self, node: &str, kind: &Kind, id: &str) -> Result<Resource, Status> {
        let response = self.state(node, "os:admin").get(get_request(kind, id)).await?;
        Ok(response.into_inner().resource.unwrap())
    }

    /// The version of a resource; `-` when there is none.
    async fn version(&self, node: &str, kind: &Kind, id: &str) -> String {
        match self.get(node, kind, id).await {
            Ok(resource) => metadata(&resource).version.clone(),
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::NotFound);
                "-".to_owned()
            }
        }
    }

    async fn watch(&self, node: &str, kind: &Kind, id: Option<&str>) -> Streaming<WatchResponse> {
        let request = WatchRequest {
            namespace: kind.namespace.to_owned(),
            r#type: kind.name.to_owned(),
            id: id.map(str::to_owned),
            options: Some(Default::default()),
            api_version: 1,
        };
        self.state(node, "os:admin").watch(request).await.unwrap().into_inner()
    }

    async fn apply(&self, node: &str, config: &str, mode: Mode) -> Result<ApplyConfiguration, Status> {
        let request = ApplyConfigurationRequest {
            data: config.as_bytes().to_vec(),
            mode: mode.into(),
            try_mode_timeout: Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }),
            ..Default::default()
        };
        let response = self.machine(node, "os:admin").apply_configuration(request).await?;
        Ok(response.into_inner().messages.remove(0))
    }

    async fn reboot(&self, node: &str) -> Result<RebootResponse, Status> {
        let response = self.machine(node, "os:operator").reboot(RebootRequest::default()).await?;
        Ok(response.into_inner())
    }

    fn password(&self, node: &str) -> Option<String> {
        self.talos.node(node).cri_loaded(HOST).map(|(_, password)| password)
    }

    /// Waits for something, at most ten seconds.
    async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        self.until_async(what, || std::future::ready(holds())).await;
    }

    async fn until_async<F: Future<Output = bool>>(&self, what: &str, mut holds: impl FnMut() -> F) {
        let waiting = async {
            while !holds().await {
                self.clock.sleep(Duration::from_millis(5)).await;
            }
        };
        self.clock.timeout(Duration::from_secs(10), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
    }
}

fn config(role: Role, version: &str, name: &str, password: &str) -> String {
    let version: Version = version.parse().unwrap();
    machine_config_for(&Generated {
        role,
        version: &version,
        name,
        cluster_endpoint: "https://127.0.0.1:6443",
        cluster_secret: "eb23tpf6ojw0iIuvViJdv+3Jw1TsFCacQFw0PquwV0M=",
        registry_host: HOST,
        user: "puller",
        password,
        form: Form::Document,
    })
}

fn get_request(kind: &Kind, id: &str) -> GetRequest {
    GetRequest { namespace: kind.namespace.to_owned(), r#type: kind.name.to_owned(), id: id.to_owned(), options: None }
}

fn metadata(resource: &Resource) -> &Metadata {
    resource.metadata.as_ref().unwrap()
}

fn spec<M: Message + Default>(resource: &Resource) -> M {
    M::decode(resource.spec.as_ref().unwrap().proto_spec.as_slice()).unwrap()
}

/// A request for the nodes of that metadata.
fn to<T>(message: T, metadata: &[(&'static str, &str)]) -> Request<T> {
    let mut request = Request::new(message);
    for (key, value) in metadata {
        request.metadata_mut().append(*key, value.parse().unwrap());
    }
    request
}
