//! What runs in a real cluster: the same as in a simulated one.

use serde_json::json;

use super::api::{Api, collection};
use super::cluster::StartError;
use crate::kube::kind::Kind;
use crate::kube::objects;

/// What runs in the cluster: the same as in a simulated one.
pub(super) async fn create(api: &Api, workers: usize) -> Result<(), StartError> {
    let web = json!({"app": "web"});
    let replica_set = json!({
        "kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 2 * workers, "selector": {"matchLabels": web},
            "template": {
                "metadata": {"labels": web},
                "spec": {"containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}]},
            },
        },
    });
    let mut daemon_set = objects::daemon_set("kube-system", "kube-flannel");
    daemon_set["spec"]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let all = [
        (collection(Kind::Namespace, ""), json!({"metadata": {"name": "flux-system"}})),
        ("/apis/apps/v1/namespaces/default/replicasets".to_owned(), replica_set),
        (collection(Kind::DaemonSet, "kube-system"), daemon_set),
        (collection(Kind::PodDisruptionBudget, "default"), objects::budget("default", "web")),
    ];
    for (path, object) in all {
        let reply = api.post(&path, &object).await;
        let refused = |why| StartError::Refused(path.clone(), why);
        match reply {
            Ok(reply) if reply.is_ok() => {}
            Ok(reply) => return Err(refused(reply.text)),
            Err(error) => return Err(refused(error.to_string())),
        }
    }
    Ok(())
}
