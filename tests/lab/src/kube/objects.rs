//! The objects of a lab's cluster, in the shape in which a Talos cluster has them.

use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::store::seconds;

/// What the Kubernetes side knows of a machine before its kubelet registers.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The Node's name.
    pub name: String,
    /// Its InternalIP.
    pub address: String,
    /// Whether it is a control plane.
    pub control_plane: bool,
    /// Its Talos version, without `v`.
    pub talos: String,
}

/// A workload of the lab: a ReplicaSet without an object, for nobody asks for it.
#[derive(Clone, Debug)]
pub struct ReplicaSet {
    /// Namespace of its pods.
    pub namespace: String,
    /// Name, and prefix of its pods' names.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// How many pods there should be.
    pub replicas: usize,
}

impl ReplicaSet {
    /// A new one.
    #[must_use]
    pub fn new(namespace: &str, name: &str, replicas: usize) -> Self {
        let uid = Uuid::new_v4().to_string();
        Self { namespace: namespace.to_owned(), name: name.to_owned(), uid, replicas }
    }

    fn owner(&self) -> Value {
        owner("apps/v1", "ReplicaSet", &self.name, &self.uid)
    }
}

fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!([{
        "apiVersion": api_version, "kind": kind, "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// A Node as a kubelet registers it.
#[must_use]
pub fn node(machine: &Machine, boot_id: &str, now: Timestamp) -> Value {
    let mut labels = json!({
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/os": "linux",
    });
    let mut annotations = json!({
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    });
    let mut spec = json!({});
    if machine.control_plane {
        let role = "node-role.kubernetes.io/control-plane";
        labels[role] = json!("");
        annotations["talos.dev/owned-labels"] = json!(json!([role]).to_string());
        annotations["talos.dev/owned-taints"] = json!(json!([role]).to_string());
        spec["taints"] = json!([{"key": role, "effect": "NoSchedule"}]);
    }
    let resources = json!({"cpu": "4", "memory": "8131396Ki", "pods": "110"});
    json!({
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": machine.name, "labels": labels, "annotations": annotations},
        "spec": spec,
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions(now),
            "addresses": [
                {"type": "InternalIP", "address": machine.address},
                {"type": "Hostname", "address": machine.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": node_info(machine, boot_id),
        },
    })
}

/// What a kubelet says about its machine, new in every boot.
#[must_use]
pub fn node_info(machine: &Machine, boot_id: &str) -> Value {
    json!({
        "machineID": stable_id(&machine.name),
        "systemUUID": stable_id(&machine.name),
        "bootID": boot_id,
        "kernelVersion": "6.12.48-talos",
        "osImage": format!("Talos (v{})", machine.talos),
        "containerRuntimeVersion": "containerd://2.1.4",
        "kubeletVersion": "v1.36.3",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    })
}

/// The same identifier for the same name.
fn stable_id(name: &str) -> String {
    let mut bytes = [0x4c; 16];
    for (at, byte) in name.bytes().enumerate() {
        bytes[at % 16] ^= byte;
    }
    Uuid::from_bytes(bytes).to_string()
}

/// The conditions of a Node whose kubelet is well.
#[must_use]
pub fn conditions(now: Timestamp) -> Value {
    let condition = |of: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": of, "status": status, "lastHeartbeatTime": seconds(now), "lastTransitionTime": seconds(now),
            "reason": reason, "message": message,
        })
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

/// A pod that is not running yet.
#[must_use]
pub fn pod(namespace: &str, name: &str, node: &str, owners: &Value, labels: &Value) -> Value {
    let mut spec = json!({
        "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {}}],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
    });
    if !node.is_empty() {
        spec["nodeName"] = json!(node);
    }
    let mut metadata = json!({"name": name, "namespace": namespace, "labels": labels});
    if !owners.is_null() {
        metadata["ownerReferences"] = owners.clone();
    }
    json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec,
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    })
}

/// The next pod of a ReplicaSet, not scheduled yet.
#[must_use]
pub fn replica(set: &ReplicaSet) -> Value {
    let suffix: String = Uuid::new_v4().simple().to_string().chars().take(5).collect();
    let labels = json!({"app": set.name});
    pod(&set.namespace, &format!("{}-{suffix}", set.name), "", &set.owner(), &labels)
}

/// The pod of a DaemonSet on a node.
#[must_use]
pub fn daemon_pod(set: &Value, node: &str) -> Value {
    let text = |field: &str| set["metadata"][field].as_str().unwrap_or_default();
    let suffix: String = Uuid::new_v4().simple().to_string().chars().take(5).collect();
    let labels = json!({"app": text("name")});
    let owners = owner("apps/v1", "DaemonSet", text("name"), text("uid"));
    let mut pod = pod(text("namespace"), &format!("{}-{suffix}", text("name")), node, &owners, &labels);
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    pod
}

/// The mirror pod of a static pod.
#[must_use]
pub fn mirror_pod(component: &str, node: &str, node_uid: &str) -> Value {
    let hash = stable_id(component);
    let owners = json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": true}]);
    let labels = json!({"k8s-app": component, "tier": "control-plane"});
    let mut pod = pod("kube-system", &format!("{component}-{node}"), node, &owners, &labels);
    pod["metadata"]["annotations"] =
        json!({"kubernetes.io/config.mirror": hash, "kubernetes.io/config.source": "file"});
    pod["spec"]["priorityClassName"] = json!("system-cluster-critical");
    pod
}

/// A DaemonSet.
#[must_use]
pub fn daemon_set(namespace: &str, name: &str) -> Value {
    json!({
        "kind": "DaemonSet",
        "apiVersion": "apps/v1",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}]},
            },
        },
        "status": {
            "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
        },
    })
}

/// A budget that lets one pod of an app be away.
#[must_use]
pub fn budget(namespace: &str, app: &str) -> Value {
    json!({
        "kind": "PodDisruptionBudget",
        "apiVersion": "policy/v1",
        "metadata": {"name": app, "namespace": namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
    })
}
