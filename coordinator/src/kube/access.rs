//! What the kubeconfig's user may do, asked before the first mutation: a missing verb in the middle of a roll would leave
//! a fence behind.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;

use super::api_servers::{ApiServers, ReadError};

/// One permission that a roll needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// API group, empty for the core one.
    pub group: &'static str,
    /// Resource, with its subresource behind a slash.
    pub resource: &'static str,
    /// Verb.
    pub verb: &'static str,
    /// Namespace and name, for the Lease.
    pub object: Option<(String, String)>,
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        write!(f, "{} {}{group}", self.verb, self.resource)?;
        self.object.as_ref().map_or(Ok(()), |(namespace, name)| write!(f, " {namespace}/{name}"))
    }
}

/// Everything that a roll asks of Kubernetes; deploy/rbac/clusterrole.yaml grants exactly this, but not the deletion of pods
/// that `--disable-eviction` asks for.
#[must_use]
pub fn needed(namespace: &str, lease: &str, disable_eviction: bool) -> Vec<Permission> {
    let object = || Some((namespace.to_owned(), lease.to_owned()));
    let lease = |verb| Permission { group: "coordination.k8s.io", resource: "leases", verb, object: object() };
    let plain = |group, resource, verb| Permission { group, resource, verb, object: None };
    vec![
        plain("", "nodes", "get"),
        plain("", "nodes", "list"),
        plain("", "nodes", "watch"),
        plain("", "nodes", "patch"),
        plain("", "pods", "list"),
        plain("", "pods", "watch"),
        if disable_eviction { plain("", "pods", "delete") } else { plain("", "pods/eviction", "create") },
        plain("apps", "daemonsets", "get"),
        plain("policy", "poddisruptionbudgets", "get"),
        lease("get"),
        lease("create"),
        lease("patch"),
    ]
}

/// Where these rights come from, in words.
#[must_use]
pub fn granted_by(disable_eviction: bool) -> &'static str {
    if disable_eviction {
        "deploy/rbac/clusterrole.yaml grants all but the deletion of pods, which --disable-eviction needs"
    } else {
        "deploy/rbac/clusterrole.yaml grants it"
    }
}

/// Which of `permissions` the user does not have.
///
/// # Errors
/// [`ReadError`]; creating an access review stores nothing.
pub async fn missing(servers: &ApiServers, permissions: Vec<Permission>) -> Result<Vec<Permission>, ReadError> {
    let asked = permissions.into_iter().map(|permission| async move {
        let allowed = allowed(servers, &permission).await?;
        Ok((!allowed).then_some(permission))
    });
    let answers: Result<Vec<Option<Permission>>, ReadError> = futures::future::try_join_all(asked).await;
    Ok(answers?.into_iter().flatten().collect())
}

async fn allowed(servers: &ApiServers, permission: &Permission) -> Result<bool, ReadError> {
    let (resource, subresource) = match permission.resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub.to_owned())),
        None => (permission.resource, None),
    };
    // The API server judges `create` without a name, which is not known to it then.
    let named = permission.object.as_ref().filter(|_| permission.verb != "create");
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(permission.group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource,
                verb: Some(permission.verb.to_owned()),
                namespace: permission.object.as_ref().map(|(namespace, _)| namespace.clone()),
                name: named.map(|(_, name)| name.clone()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = servers
        .read(|client| {
            let review = review.clone();
            async move { Api::<SelfSubjectAccessReview>::all(client).create(&PostParams::default(), &review).await }
        })
        .await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
