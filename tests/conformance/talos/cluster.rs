//! What Kubernetes says of the cluster, read without the product.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

/// How long the API may be away: its server may be on the node that was rebooted last.
const PATIENCE: Duration = Duration::from_secs(180);

/// A client of the suite's own.
pub struct Cluster {
    client: Client,
    lease: String,
}

/// Nodes and Lease at one time.
#[derive(Clone)]
pub struct Seen {
    pub nodes: BTreeMap<String, Value>,
    pub lease: Option<Value>,
}

impl Cluster {
    /// The cluster of the kubeconfig's current context, or of the one that the product is told to use.
    pub async fn connect(kubeconfigs: &[PathBuf]) -> Self {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // An error only says that another thread was faster.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let read = kubeconfigs.iter().map(|file| {
            Kubeconfig::read_from(file).unwrap_or_else(|error| panic!("kubeconfig {}: {error}", file.display()))
        });
        let merged = read.reduce(|first, next| first.merge(next).expect("kubeconfigs can be merged"));
        let options = KubeConfigOptions {
            context: std::env::var("TALOS_GHCR_KUBE_CONTEXT").ok(),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(merged.expect("KUBECONFIG names a file"), &options).await;
        let client =
            Client::try_from(config.expect("the kubeconfig can be used")).expect("its certificates can be used");
        let name = std::env::var("TALOS_GHCR_LEASE").unwrap_or_else(|_| "kube-system/talos-ghcr".to_owned());
        let (namespace, name) = name.split_once('/').expect("TALOS_GHCR_LEASE is NAMESPACE/NAME");
        let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
        Self { client, lease }
    }

    async fn get(&self, path: &str) -> Result<Value, kube::Error> {
        self.client.request(Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?).await
    }

    /// All of it now; rides out an API server that is away.
    pub async fn seen(&self) -> Seen {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_seen().await {
                Ok(seen) => return seen,
                Err(error) => assert!(Instant::now() < deadline, "Kubernetes does not answer the suite: {error}"),
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// All of it, once every Node shows a proof of the revision. Talos writes these annotations, a moment after the run
    /// has written them into the machine configs.
    pub async fn proofs_shown(&self, revision: &str) -> Seen {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.seen().await;
            let without = seen.which(|node| {
                let proof = text(&node["metadata"]["annotations"]["talos-ghcr/proof"]);
                let proof: Value = serde_json::from_str(proof).unwrap_or_default();
                proof["state"] != "proved" || proof["revision"] != revision
            });
            if without.is_empty() {
                return seen;
            }
            assert!(Instant::now() < deadline, "Talos never shows the proof of {revision} on {without:?}");
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn try_seen(&self) -> Result<Seen, kube::Error> {
        let list = self.get("/api/v1/nodes").await?;
        let items = list["items"].as_array().into_iter().flatten();
        let nodes = items.map(|node| (text(&node["metadata"]["name"]).to_owned(), node.clone())).collect();
        let lease = match self.get(&self.lease).await {
            Ok(lease) => Some(lease),
            Err(kube::Error::Api(status)) if status.is_not_found() => None,
            Err(error) => return Err(error),
        };
        Ok(Seen { nodes, lease })
    }

    /// Writes down, for as long as it is polled, in which order the nodes are seen in a new boot.
    pub async fn watch_boots(&self, before: &Seen, order: &mut Vec<String>) {
        loop {
            if let Ok(list) = self.get("/api/v1/nodes").await {
                for node in list["items"].as_array().into_iter().flatten() {
                    let name = text(&node["metadata"]["name"]);
                    let booted = before.nodes.get(name).is_some_and(|old| boot(old) != boot(node));
                    if booted && !order.iter().any(|seen| seen == name) {
                        order.push(name.to_owned());
                    }
                }
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
}

impl Seen {
    /// Who holds the Lease.
    pub fn holder(&self) -> Option<&str> {
        self.lease.as_ref()?["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty())
    }

    /// Nodes with a fence of the product.
    pub fn fenced(&self) -> BTreeSet<&str> {
        self.which(|node| node["metadata"]["annotations"]["talos-ghcr/fence"].is_string())
    }

    /// Nodes that take no pods.
    pub fn cordoned(&self) -> BTreeSet<&str> {
        self.which(|node| node["spec"]["unschedulable"] == true)
    }

    /// Nodes whose boot is not the one of `before`.
    pub fn booted_since(&self, before: &Self) -> BTreeSet<&str> {
        let old = |node: &Value| before.nodes.get(text(&node["metadata"]["name"])).map(boot);
        self.which(|node| old(node).is_some_and(|old| old != boot(node)))
    }

    fn which(&self, holds: impl Fn(&Value) -> bool) -> BTreeSet<&str> {
        self.nodes.iter().filter(|(_, node)| holds(node)).map(|(name, _)| name.as_str()).collect()
    }

    /// Nothing was written in between: no spec, label or annotation of a Node, and nothing at all of the Lease. A Node's
    /// status and its resourceVersion move with every heartbeat, so they are not compared.
    #[track_caller]
    pub fn assert_unchanged(&self, after: &Self) {
        let mut differences = Vec::new();
        differ("nodes", &self.kept(), &after.kept(), &mut differences);
        let lease = |seen: &Self| seen.lease.clone().unwrap_or(Value::Null);
        differ("lease", &lease(self), &lease(after), &mut differences);
        let list = differences.iter().map(|line| format!("\n  {line}")).collect::<String>();
        assert!(differences.is_empty(), "something was written (managedFields say by whom):{list}");
    }

    /// What only a write to a Node itself changes.
    fn kept(&self) -> Value {
        let kept = |node: &Value| {
            let metadata = &node["metadata"];
            let fields = metadata["managedFields"].as_array().into_iter().flatten();
            // Keyed, so that a difference names its writer.
            let writers: Map<String, Value> = fields
                .filter(|entry| entry["subresource"].is_null())
                .map(|entry| (format!("{} {}", text(&entry["manager"]), text(&entry["operation"])), entry.clone()))
                .collect();
            json!({
                "uid": metadata["uid"],
                "labels": metadata["labels"],
                "annotations": metadata["annotations"],
                "managedFields": writers,
                "spec": node["spec"],
            })
        };
        self.nodes.iter().map(|(name, node)| (name.clone(), kept(node))).collect::<Map<_, _>>().into()
    }
}

/// The boot that kubelet reports.
fn boot(node: &Value) -> &str {
    text(&node["status"]["nodeInfo"]["bootID"])
}

/// A text, empty when it is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A line for each place where two values differ.
fn differ(path: &str, before: &Value, after: &Value, lines: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
                let value = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                differ(&format!("{path} / {key}"), &value(old), &value(new), lines);
            }
        }
        _ if before != after => lines.push(format!("{path}: {before} became {after}")),
        _ => {}
    }
}
