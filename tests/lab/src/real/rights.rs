//! What users may do in a real cluster: ClusterRoles, and the wait until every authoriser knows of them.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::Cluster;
use super::objects::ANSWERS;
use crate::kube::authz::Rule;

const GROUP: &str = "/apis/rbac.authorization.k8s.io/v1";
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

impl Cluster {
    /// Lets a user do that in the whole cluster, and nothing else, by a ClusterRole and its binding.
    ///
    /// # Panics
    /// When the server does not take them.
    pub fn grant(&self, user: &str, rules: &[Rule]) {
        let name = format!("lab-{user}");
        let listed: Vec<Value> = rules
            .iter()
            .map(|rule| json!({"apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.verbs}))
            .collect();
        let role = json!({
            "kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name},
            "rules": listed,
        });
        let binding = json!({
            "kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
            "roleRef": {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": name},
        });
        self.block(async {
            let path = |plural: &str| format!("{GROUP}/{plural}/{name}");
            let before = self.api().get(&path("clusterroles")).await.expect(ANSWERS).json();
            for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
                // A PUT replaces what is there or creates it.
                let reply = self.api().put(&path(plural), &object).await.expect(ANSWERS);
                assert!(reply.is_ok(), "{plural}: {}", reply.text);
            }
            let questions = questions(&before, rules);
            for server in self.ready_servers() {
                self.until_known(&server, user, &questions).await;
            }
        });
    }

    /// Waits until the authoriser of a server answers these questions so: it learns of a change through a watch, some
    /// milliseconds later. A question is the `resourceAttributes` of a SubjectAccessReview.
    ///
    /// # Panics
    /// When the server does not answer.
    pub async fn until_known(&self, server: &Api, user: &str, questions: &[(Value, bool)]) {
        for (attributes, allowed) in questions {
            let review = json!({
                "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                "spec": {"user": user, "resourceAttributes": attributes},
            });
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            while server.post(path, &review).await.expect(ANSWERS).json()["status"]["allowed"] != *allowed {
                self.clock().sleep(LOOK).await;
            }
        }
    }
}

/// What is allowed from now on, and what is no longer.
fn questions(before: &Value, rules: &[Rule]) -> Vec<(Value, bool)> {
    let allowed = |group: &Value, resource: &Value, verb: &Value| {
        rules
            .iter()
            .any(|rule| *group == rule.group && *resource == rule.resource && rule.verbs.iter().any(|v| verb == v))
    };
    let now =
        rules.iter().map(|rule| json!({"apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.verbs}));
    let all: Vec<Value> = before["rules"].as_array().into_iter().flatten().cloned().chain(now).collect();
    let mut questions = Vec::new();
    for rule in &all {
        let (group, resource) = (&rule["apiGroups"][0], &rule["resources"][0]);
        for verb in rule["verbs"].as_array().into_iter().flatten() {
            let whole = resource.as_str().unwrap_or_default();
            let (plural, subresource) = whole.split_once('/').unwrap_or((whole, ""));
            let attributes = json!({"group": group, "resource": plural, "subresource": subresource, "verb": verb});
            questions.push((attributes, allowed(group, resource, verb)));
        }
    }
    questions
}
