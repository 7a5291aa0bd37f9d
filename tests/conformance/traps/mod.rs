//! What a client of a real API server stumbles over: each is brought about at a real one, and the product meets it too.

mod frozen;
mod history;
mod objects;

use std::time::Duration;

use coordinator::holder::Holder;
use coordinator::kube::api_servers::ApiServers;
use coordinator::kube::fence::Fence;
use coordinator::kube::lease::{HeldLease, LeaseOptions, Timing, acquire};
use coordinator::kube::nodes::NodeView;
use lab::real::api::{Api, MERGE_PATCH, Reply};
use lab::real::{ControlPlane, Programs};
use serde_json::{Value, json};
use talos_proto::clock::Clock;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// Nothing here takes longer unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);
const NODES: &str = "/api/v1/nodes";

fn programs() -> Programs {
    Programs::find().unwrap_or_else(|missing| panic!("{missing}"))
}

/// etcd and an API server, and the product's way there.
struct Real {
    plane: ControlPlane,
    api: Api,
    clock: Clock,
    dir: tempfile::TempDir,
}

impl Real {
    async fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        // Nobody makes service accounts here, and no pod needs one.
        flags.push("--disable-admission-plugins=ServiceAccount".to_owned());
        let plane = ControlPlane::start(programs(), dir.path(), flags).await.unwrap();
        Self { api: plane.api(0).unwrap(), plane, clock: Clock::system(), dir }
    }

    /// The product's API servers, as a kubeconfig names them.
    async fn servers(&self) -> ApiServers {
        let path = self.dir.path().join("kubeconfig");
        std::fs::write(&path, self.plane.kubeconfig(0)).unwrap();
        ApiServers::connect(Some(&path), None, self.clock.clone()).await.unwrap()
    }

    /// The product takes a Lease.
    async fn acquire(&self, servers: &ApiServers, name: &str, duration: Duration) -> HeldLease {
        let options = LeaseOptions::new(Holder::this_process("0011223344556677", &self.clock));
        let options = LeaseOptions { name: name.to_owned(), timing: Timing::scaled(duration), ..options };
        acquire(servers, options).await.unwrap_or_else(|error| panic!("{name}: {error:?}"))
    }

    async fn create(&self, collection: &str, object: Value) -> Value {
        let reply = self.api.post(collection, &object).await.unwrap();
        assert_eq!(reply.code, 201, "{}", reply.text);
        reply.json()
    }

    async fn merge(&self, path: &str, patch: Value) -> Reply {
        self.api.patch(path, MERGE_PATCH, &patch).await.unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        let reply = self.api.get(path).await.unwrap();
        assert_eq!(reply.code, 200, "{}", reply.text);
        reply.json()
    }

    /// Waits until the server says that it is well.
    async fn until_ready(&self) {
        self.until("the server is ready", async || self.api.get("/readyz").await.is_ok_and(|reply| reply.is_ok()))
            .await;
    }

    /// Looks again and again until it is so.
    async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> bool) {
        let deadline = self.clock.now() + LIMIT;
        while !so().await {
            assert!(self.clock.now() < deadline, "never: {what}");
            self.clock.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Lets etcd go on after that long.
    async fn thaw_after(&self, frozen: Duration) {
        self.clock.sleep(frozen).await;
        self.plane.freeze_etcd(false);
    }
}

#[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
fn lease(name: &str, spec: Value) -> Value {
    json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": name}, "spec": spec})
}

/// What the fence of a claim says does not matter here.
fn fence_for(held: &HeldLease, node: &NodeView, clock: &Clock) -> Fence {
    Fence::claimed(held.claimant(), node, "boot", "00112233445566778899aabbccddeeff", clock.utc())
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
