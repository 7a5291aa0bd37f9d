//! The recorded exchanges, asked of a real API server: that they are still what it answers is what lets the lab's own
//! API be held to them.

use lab::kube::kind::Kind;
use lab::pki::Ca;
use lab::real::api::{Api, collection, object};
use lab::real::{ControlPlane, Programs};
use lab::replay::{Target, scripts};
use serde_json::{Value, json};

/// Recordings that a real server answers differently here, with the reason. One that is listed and does not differ fails
/// the test too.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// What the server gives an object, and a client does not choose.
const GIVEN: [&str; 7] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
];

struct Real {
    plane: ControlPlane,
    api: Api,
}

const ANSWERS: &str = "the API server answers";

impl Target for Real {
    fn url(&self) -> String {
        self.plane.url(0)
    }

    fn ca(&self) -> &Ca {
        self.plane.ca()
    }

    async fn put(&self, kind: Kind, mut wanted: Value) -> Value {
        let metadata = wanted["metadata"].as_object_mut().expect("an object has metadata");
        metadata.retain(|field, _| !GIVEN.contains(&field.as_str()));
        // Items of a list do not say what they are.
        wanted["kind"] = json!(kind.name());
        wanted["apiVersion"] = json!(kind.api_version());
        let text = |field: &str| wanted["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let path = object(kind, &namespace, &name);
        let reply = match self.get(kind, &namespace, &name).await {
            None => self.api.post(&collection(kind, &namespace), &wanted).await,
            Some(there) => {
                wanted["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
                self.api.put(&path, &wanted).await
            }
        };
        let reply = reply.expect(ANSWERS);
        assert!(reply.is_ok(), "{path}: {}", reply.text);
        let mut stored = reply.json();
        if stored["status"] == wanted["status"] {
            return stored;
        }
        // The status has a door of its own.
        stored["status"] = wanted["status"].take();
        let reply = self.api.put(&format!("{path}/status"), &stored).await.expect(ANSWERS);
        assert!(reply.is_ok(), "{path}: {}", reply.text);
        reply.json()
    }

    async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let reply = self.api.get(&object(kind, namespace, name)).await.expect(ANSWERS);
        reply.is_ok().then(|| reply.json())
    }

    async fn remove(&self, kind: Kind, namespace: &str, name: &str) {
        let reply = self.api.delete(&object(kind, namespace, name), None).await.expect(ANSWERS);
        assert!(reply.is_ok(), "{}", reply.text);
    }

    /// Nothing ends it: that would be a controller's work.
    async fn terminate(&self, namespace: &str) {
        self.remove(Kind::Namespace, "", namespace).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_answers_as_it_was_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let programs = Programs::find().unwrap_or_else(|missing| panic!("{missing}"));
    // Pods of the recordings have no service account.
    let flags = vec!["--disable-admission-plugins=ServiceAccount".to_owned()];
    let plane = ControlPlane::start(programs, dir.path(), flags).await.unwrap();
    let real = Real { api: plane.api(0).unwrap(), plane };
    for name in ["t1", "t2"] {
        real.put(Kind::Namespace, json!({"metadata": {"name": name}})).await;
    }
    let report = scripts::all(&real).await.unwrap();
    report.check(&EXCEPTIONS).unwrap_or_else(|wrong| panic!("{wrong}"));
}
