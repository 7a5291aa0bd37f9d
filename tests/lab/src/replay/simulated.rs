//! The lab's own API as the server that recordings are asked of.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use talos_proto::clock::Clock;
use tokio::runtime::Handle;

use super::play::Target;
use super::recording;
use super::scripts;
use crate::kube::authz::Rbac;
use crate::kube::kind::Kind;
use crate::kube::server::{ApiServer, Behind, Shared};
use crate::kube::simulated::Simulated;
use crate::kube::store::{Store, seconds};
use crate::net::{KUBE_PORT, Network};
use crate::pki::{Ca, server_config};
use crate::testing::Client;

/// A bare API server, without controllers.
pub(crate) struct Bare {
    _network: Network,
    pub server: Arc<ApiServer>,
    pub shared: Arc<Shared>,
    simulated: Arc<Simulated>,
    pub address: Ipv4Addr,
    pub ca: Ca,
    clock: Clock,
}

impl Bare {
    pub async fn start() -> Self {
        let network = Network::take().unwrap();
        let (address, ca, clock) = (network.control_plane(0), Ca::new("kubernetes", "kubernetes"), Clock::system());
        let store = Arc::new(Store::new(clock.clone()));
        for name in ["default", "kube-system", "t1", "t2"] {
            store.create(Kind::Namespace, json!({"metadata": {"name": name}}));
        }
        let (log, faults) = (Arc::default(), Arc::default());
        let simulated = Arc::new(Simulated { store, rbac: Rbac::default(), clock: clock.clone() });
        let shared = Arc::new(Shared { log, faults, clock: clock.clone() });
        let tls = server_config(&ca.server(&[address.to_string()]), &ca, &[b"http/1.1"], false).unwrap();
        let behind = Behind::Simulated(Arc::clone(&simulated));
        let server = ApiServer::new("cp-1", address, tls, behind, Arc::clone(&shared), Handle::current());
        server.start();
        server.listening().wait_for(|listening| *listening).await.unwrap();
        Self { _network: network, server, shared, simulated, address, ca, clock }
    }

    pub fn store(&self) -> &Store {
        &self.simulated.store
    }

    /// A connection of the administrator.
    pub async fn client(&self) -> Client {
        let admin = self.ca.client("admin", &["system:masters"]);
        Client::connect((self.address, KUBE_PORT), self.ca.cert_pem(), Some(&admin)).await.unwrap()
    }
}

impl Target for Bare {
    fn url(&self) -> String {
        format!("https://{}:{KUBE_PORT}", self.address)
    }

    fn ca(&self) -> &Ca {
        &self.ca
    }

    async fn put(&self, kind: Kind, mut object: Value) -> Value {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        object["metadata"].as_object_mut().unwrap().shift_remove("managedFields");
        Value::clone(&self.store().with(|state| match state.get(kind, &namespace, &name) {
            Some(_) => state.replace(kind, object),
            None => state.create(kind, object),
        }))
    }

    async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        self.store().get(kind, namespace, name).map(|object| Value::clone(&object))
    }

    async fn remove(&self, kind: Kind, namespace: &str, name: &str) {
        self.store().remove(kind, namespace, name);
    }

    async fn terminate(&self, namespace: &str) {
        let now = json!(seconds(self.clock.utc()));
        self.store().with(|state| {
            state.edit(Kind::Namespace, "", namespace, |found| found["metadata"]["deletionTimestamp"] = now)
        });
    }
}

/// How many exchanges there are, by the hundreds of their numbers.
const RECORDED: [(usize, usize); 5] = [(1, 178), (301, 311), (401, 411), (501, 528), (601, 604)];

/// The numbers of a list whose lines are `- 001-name: why`.
fn listed(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let items = text.lines().filter_map(|line| line.strip_prefix("- ")).filter_map(|line| line.split_once('-'));
    items.map(|(number, _)| number.to_owned()).collect()
}

#[tokio::test]
async fn the_lab_answers_as_the_real_server_did_and_no_recording_is_left_out() {
    let bare = Bare::start().await;
    let report = scripts::all(&bare).await.unwrap();
    report.check(&[]).unwrap_or_else(|wrong| panic!("{wrong}"));
    let unexpected: Vec<_> = bare.shared.log.surprises().into_iter().map(|entry| entry.target).collect();
    assert_eq!(unexpected, Vec::<String>::new());

    let used: BTreeSet<&String> = report.asked.union(&report.seeded).collect();
    let files = recording::all();
    assert_eq!(used, files.keys().collect(), "every file is asked, or stored before another is");
    let left_out = listed(&recording::folder().join("NOT-REPLAYED.md"));
    let mut all: Vec<&String> = files.keys().chain(&left_out).collect();
    all.sort();
    let recorded: Vec<String> =
        RECORDED.iter().flat_map(|(first, last)| *first..=*last).map(|number| format!("{number:03}")).collect();
    assert_eq!(all, recorded.iter().collect::<Vec<_>>(), "every exchange is a file or in the list, once");
}
