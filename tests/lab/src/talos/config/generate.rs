//! Machine configs in the shape that Talos generates (talos-captures/variants), with comments and several documents.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::talos::Role;
use crate::talos::version::Version;

/// Where the credential of a generated config stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `machine.registries.config.<host>.auth`.
    Legacy,
    /// A RegistryAuthConfig document, from Talos 1.12 on; before it the legacy form is used instead.
    Document,
}

/// What a generated machine config is made of.
#[derive(Clone, Debug)]
pub struct Generated<'a> {
    /// Control plane or worker.
    pub role: Role,
    /// The node's Talos.
    pub version: &'a Version,
    /// The node's name.
    pub name: &'a str,
    /// `cluster.controlPlane.endpoint`, for instance `https://127.20.3.10:6443`.
    pub cluster_endpoint: &'a str,
    /// `cluster.secret`; the same on all nodes of a cluster, base64 of 32 bytes.
    pub cluster_secret: &'a str,
    /// The registry that has a credential.
    pub registry_host: &'a str,
    /// Its user.
    pub user: &'a str,
    /// Its password.
    pub password: &'a str,
    /// Where the credential stands.
    pub form: Form,
}

/// A whole machine config. Only the credential and the cluster secret are read by anything; the other secrets are
/// well formed and open nothing.
#[must_use]
pub fn machine_config_for(from: &Generated<'_>) -> String {
    let control_plane = from.role == Role::ControlPlane;
    let form = if from.version.has_registry_documents() { from.form } else { Form::Legacy };
    let kind = if control_plane { "controlplane" } else { "worker" };
    let mut text = format!(
        "version: v1alpha1 # Indicates the schema used to decode the contents.\n\
         debug: false # Enable verbose logging to the console.\n\
         persist: true\n\
         # Provides machine specific configuration options.\n\
         machine:\n    type: {kind} # Defines the role of the machine within the cluster.\n    \
         token: {} # The `token` is used by a machine to join the PKI of the cluster.\n",
        filler("machine token", from, 22).to_lowercase()
    );
    pair(&mut text, 4, "ca", from, control_plane);
    text.push_str("    certSANs: []\n");
    text.push_str(
        "    # Used to provide additional options to the kubelet.\n    kubelet:\n        \
         image: ghcr.io/siderolabs/kubelet:v1.36.3 # The `image` field is an optional reference to an alternative \
         kubelet image.\n        defaultRuntimeSeccompProfileEnabled: true\n        disableManifestsDirectory: true\n",
    );
    text.push_str(&format!(
        "    install:\n        disk: /dev/sda # The disk used for installations.\n        \
         image: ghcr.io/siderolabs/installer:v{}\n        wipe: false\n",
        from.version
    ));
    if form == Form::Legacy {
        text.push_str(&format!(
            "    # Used to configure the machine's container image registry mirrors.\n    registries:\n        \
             # Specifies TLS & auth configuration for HTTPS image registries.\n        config:\n            \
             {}:\n                auth:\n                    username: {} # who pulls\n                    \
             password: {}\n",
            from.registry_host,
            scalar(from.user),
            scalar(from.password)
        ));
    }
    if !from.version.has_registry_documents() {
        text.push_str(&format!("    network:\n        hostname: {}\n", from.name));
    }
    text.push_str(
        "    features:\n        diskQuotaSupport: true\n        kubePrism:\n            enabled: true\n            \
         port: 7445\n        hostDNS:\n            enabled: true\n            forwardKubeDNSToHost: true\n",
    );
    if control_plane && !from.version.adopts_live() {
        text.push_str("    nodeLabels:\n        node.kubernetes.io/exclude-from-external-load-balancers: \"\"\n");
    }
    cluster(&mut text, from, control_plane);
    // A document of its own since 1.12.
    if from.version.has_registry_documents() {
        text.push_str(&format!("---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: {}\n", from.name));
    }
    if form == Form::Document {
        text.push_str(&format!(
            "---\n# The pull credential of this cluster.\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: {}\n\
             username: {}\npassword: {}\n",
            from.registry_host,
            scalar(from.user),
            scalar(from.password)
        ));
    }
    if control_plane && from.version.adopts_live() {
        text.push_str(
            "---\napiVersion: v1alpha1\nkind: KubeNodeConfig\nlabels:\n    \
             node.kubernetes.io/exclude-from-external-load-balancers: \"\"\n",
        );
    }
    text
}

fn cluster(text: &mut String, from: &Generated<'_>, control_plane: bool) {
    text.push_str(&format!(
        "# Provides cluster specific configuration options.\ncluster:\n    id: {}\n    \
         secret: {} # Shared secret of cluster.\n    controlPlane:\n        endpoint: {} # Endpoint is the canonical \
         controlplane endpoint.\n    clusterName: lab\n    network:\n        dnsDomain: cluster.local\n        \
         podSubnets:\n            - 10.244.0.0/16\n        serviceSubnets:\n            - 10.96.0.0/12\n    token: {}\n",
        filler("cluster id", from, 44),
        from.cluster_secret,
        from.cluster_endpoint,
        filler("cluster token", from, 22).to_lowercase(),
    ));
    if control_plane {
        text.push_str(&format!("    secretboxEncryptionSecret: {}\n", filler("secretbox", from, 44)));
    }
    pair(text, 4, "ca", from, control_plane);
    if control_plane {
        pair(text, 4, "aggregatorCA", from, true);
        text.push_str(&format!("    serviceAccount:\n        key: {}\n", filler("service account", from, 400)));
        text.push_str(
            "    apiServer:\n        image: registry.k8s.io/kube-apiserver:v1.36.3\n        auditPolicy:\n            \
             apiVersion: audit.k8s.io/v1\n            kind: Policy\n            rules:\n                \
             - level: Metadata\n    controllerManager:\n        image: registry.k8s.io/kube-controller-manager:v1.36.3\n    \
             scheduler:\n        image: registry.k8s.io/kube-scheduler:v1.36.3\n    etcd:\n",
        );
        pair(text, 8, "ca", from, true);
    }
    text.push_str("    discovery:\n        enabled: false\n");
    text.push_str(
        "    # A list of inline Kubernetes manifests.\n    inlineManifests:\n        - name: lab-namespace\n          \
         contents: |-\n            ---\n            apiVersion: v1\n            kind: Namespace\n            \
         metadata:\n              name: lab\n",
    );
}

/// A certificate, and its key where the node signs with it.
fn pair(text: &mut String, indent: usize, name: &str, from: &Generated<'_>, key: bool) {
    let space = " ".repeat(indent);
    let key = if key { filler(&format!("{name} key {indent}"), from, 200) } else { "\"\"".to_owned() };
    text.push_str(&format!(
        "{space}{name}:\n{space}    crt: {}\n{space}    key: {key}\n",
        filler(&format!("{name} crt {indent}"), from, 400)
    ));
}

/// Base64 that is the same for all nodes of a cluster.
fn filler(what: &str, from: &Generated<'_>, length: usize) -> String {
    let mut text = String::new();
    let mut block = Sha256::digest(format!("{what} of {}", from.cluster_secret));
    while text.len() < length {
        text.push_str(STANDARD.encode(block).trim_end_matches('='));
        block = Sha256::digest(block);
    }
    text.truncate(length - 1);
    // Plain scalars that no YAML reader takes for something else.
    text.insert(0, 'L');
    text.replace(['+', '/'], "x")
}

/// A JSON string is a YAML double-quoted scalar.
fn scalar(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::talos::config::Effective;

    fn config(version: &Version, role: Role, form: Form) -> String {
        machine_config_for(&Generated {
            role,
            version,
            name: "cp-1",
            cluster_endpoint: "https://127.1.1.10:6443",
            cluster_secret: "eb23tpf6ojw0iIuvViJdv+3Jw1TsFCacQFw0PquwV0M=",
            registry_host: "ghcr.io",
            user: "puller",
            password: "se\"cret: #1",
            form,
        })
    }

    #[test]
    fn every_generated_config_is_one_that_its_node_takes() {
        for version in ["1.9.6", "1.10.9", "1.11.6", "1.12.11", "1.13.9", "1.14.0-rc.1"] {
            let version: Version = version.parse().unwrap();
            for role in [Role::ControlPlane, Role::Worker] {
                for form in [Form::Legacy, Form::Document] {
                    let text = config(&version, role, form);
                    let effective = Effective::parse(text.as_bytes(), &version).unwrap();
                    let expected = Some(("puller".to_owned(), "se\"cret: #1".to_owned()));
                    assert_eq!(effective.auths["ghcr.io"].basic(), expected, "{text}");
                }
            }
        }
    }

    #[test]
    fn a_cluster_shares_its_secrets_and_roles_differ() {
        let version: Version = "1.13.9".parse().unwrap();
        let (one, two) =
            (config(&version, Role::ControlPlane, Form::Legacy), config(&version, Role::Worker, Form::Legacy));
        let id = |text: &str| text.lines().find(|line| line.starts_with("    id:")).map(str::to_owned);
        assert_eq!(id(&one), id(&two));
        assert!(one.contains("nodeLabels") && !two.contains("serviceAccount"));
    }
}
