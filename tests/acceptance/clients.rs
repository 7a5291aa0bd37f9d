//! Coordinators that the servers' log tells apart: each has certificates in its own name, for Kubernetes and for Talos.

use lab::kube::kind::Kind;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::harness::{Bed, in_words, lease_duration};

/// The annotation of the Lease that says where its holder runs.
const EVIDENCE: &str = "talos-ghcr/holder";

impl Bed {
    /// `run` with the scaled lease as that client, not started yet.
    pub fn roll_as(&self, client: &str, more: &[&str]) -> Command {
        let server = format!("https://{}:6443", self.lab.node("cp-1").address());
        let kubeconfig = self.lab.kubeconfig_for(client, &["system:masters"], &server);
        let kubeconfig = self.write(&format!("kubeconfig-{client}"), &kubeconfig);
        let talosconfig = self.write(&format!("talosconfig-{client}"), &self.lab.talosconfig_for(client));
        let replaced = [("--kubeconfig", kubeconfig.as_str()), ("--talosconfig", talosconfig.as_str())];
        let mut roll = self.command_with("run", &replaced, more);
        roll.args(["--lease-duration", lease_duration()]).kill_on_drop(true);
        roll
    }

    /// The same, started.
    pub fn start_as(&self, client: &str, more: &[&str]) -> Child {
        self.roll_as(client, more).spawn().expect("the product starts")
    }

    /// What the Lease says of its holder reads as if that ran on another machine, where nobody here can see whether it
    /// lives.
    pub fn holder_runs_elsewhere(&self) {
        let (namespace, name) = lab::cluster::LEASE;
        self.lab.objects().edit(Kind::Lease, namespace, name, &mut |lease| {
            let text = lease["metadata"]["annotations"][EVIDENCE].as_str().unwrap_or("{}");
            let mut evidence: Value = serde_json::from_str(text).expect("evidence is JSON");
            evidence["bootId"] = json!("another-machine");
            lease["metadata"]["annotations"][EVIDENCE] = json!(evidence.to_string());
        });
    }

    /// What a client changed so far, in the order of the effects: `METHOD target`.
    pub fn effects_of(&self, client: &str) -> Vec<String> {
        self.lab.log().effects().iter().filter(|entry| entry.client == client).map(in_words).collect()
    }

    /// Law S2, by the servers' own log of who changed what and when it took effect: only the last one who wrote the
    /// Lease changes anything. A test of the holder is in each of the product's writes to it, so whoever could write it
    /// held it then. Gives the clients in the order in which they held it.
    pub fn assert_one_changes_things_at_a_time(&self) -> Vec<String> {
        let effects = self.lab.log().effects();
        let mut holders: Vec<String> = Vec::new();
        for (index, entry) in effects.iter().enumerate() {
            if entry.method.ends_with(" leases") {
                if holders.last() != Some(&entry.client) {
                    holders.push(entry.client.clone());
                }
                continue;
            }
            let around: Vec<_> = effects[index.saturating_sub(6)..(index + 3).min(effects.len())]
                .iter()
                .map(|entry| format!("{} {} {} {}", entry.client, entry.server, entry.method, entry.target))
                .collect();
            assert_eq!(holders.last(), Some(&entry.client), "{} held no lease:\n{}", entry.client, around.join("\n"));
        }
        holders
    }

    /// The last thing that a client changed is the Lease: nothing of it took effect after its release.
    pub fn assert_released_last(&self, client: &str) {
        let effects = self.effects_of(client);
        assert!(effects.last().is_some_and(|last| last.starts_with("PATCH leases")), "{client}: {effects:#?}");
    }
}
