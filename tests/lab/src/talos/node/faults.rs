//! What a test can do to a node.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::images::{Namespace, Reference};
use super::{Boot, Node};
use crate::talos::Role;
use crate::talos::config::Refused;
use talos_proto::proto::machine::apply_configuration_request::Mode;

/// What is wrong with a node.
#[derive(Default)]
pub(crate) struct NodeFaults {
    pub reboot_locked: bool,
    pub cri_restart_hangs: bool,
    /// The power is off.
    pub off: bool,
    /// Its API runs and cannot be reached.
    pub apid_cut_off: bool,
    /// What its machine config says for the Node's annotations does not get there.
    pub annotations_held: bool,
    /// Methods whose next reply is lost.
    pub lost_replies: BTreeSet<String>,
}

impl Node {
    /// A locked sequence: Reboot is answered OK and nothing happens (talos.md 6.1).
    pub fn set_reboot_locked(&self, locked: bool) {
        self.state().faults.reboot_locked = locked;
    }

    /// The next request of that method (for instance `Reboot`) that this node answers takes effect, and the
    /// connection is cut before the reply.
    pub fn set_reply_lost_once(&self, method: &str) {
        self.state().faults.lost_replies.insert(method.to_owned());
    }

    /// Talos >= 1.14: the CRI does not come back from the restart that follows a change of its configuration.
    pub fn hang_cri_restart(&self, hangs: bool) {
        self.state().faults.cri_restart_hangs = hangs;
    }

    /// A static pod of a control plane is not ready, so that its machine is not (talos-captures point 20), or is again.
    pub fn unready_static_pods(&self, unready: bool) {
        self.step(|_, state, _| state.boot.static_pods_unready = unready);
    }

    /// The annotations of its machine config do not get to its Node any more, or all that were held back do: 0.5 s in a
    /// quiet cluster, more than 10 s after a bootstrap (talos-captures point 22), and for as long as the node's own way
    /// to the API is barred.
    pub fn hold_annotations(&self, held: bool) {
        let changed = {
            let mut state = self.state();
            state.faults.annotations_held = held;
            Arc::clone(&state.boot.annotations_changed)
        };
        if !held {
            changed.notify_one();
        }
    }

    /// The node's wall clock is off by that much from now on.
    pub fn set_clock_offset(&self, offset: SignedDuration) {
        self.state().clock_offset = offset;
    }

    /// The node holds a virtual address, or no more.
    pub fn set_vip(&self, vip: Option<Ipv4Addr>) {
        self.step(|node, state, now| {
            state.vip = vip;
            node.render_addresses(state, now);
        });
    }

    /// Whether the node holds that virtual address now.
    pub(crate) fn holds(&self, address: Ipv4Addr) -> bool {
        self.state().vip == Some(address)
    }

    /// Discovery is on: the node sees every member of the cluster.
    pub fn discover(&self) {
        self.step(|node, state, now| {
            state.discovery = true;
            node.render_members(state, now);
        });
    }

    /// As [`Node::discover`], and the members have that virtual address under `holder`, whoever holds it now.
    pub fn discover_vip(&self, holder: &str, vip: Ipv4Addr) {
        self.step(|node, state, now| {
            (state.discovery, state.discovered_vip) = (true, Some((holder.to_owned(), vip)));
            node.render_members(state, now);
        });
    }

    /// Somebody else stages a machine config.
    ///
    /// # Errors
    /// When the node does not take it.
    pub fn stage_foreign(self: &Arc<Self>, config: &[u8]) -> Result<(), Refused> {
        self.foreign(config, Mode::Staged, Duration::ZERO)
    }

    /// Somebody else tries a machine config for that long.
    ///
    /// # Errors
    /// When the node does not take it.
    pub fn try_foreign(self: &Arc<Self>, config: &[u8], timeout: Duration) -> Result<(), Refused> {
        self.foreign(config, Mode::Try, timeout)
    }

    /// Somebody else applies a machine config without a reboot.
    ///
    /// # Errors
    /// When the node does not take it.
    pub fn apply_foreign(self: &Arc<Self>, config: &[u8]) -> Result<(), Refused> {
        self.foreign(config, Mode::NoReboot, Duration::ZERO)
    }

    fn foreign(self: &Arc<Self>, config: &[u8], mode: Mode, timeout: Duration) -> Result<(), Refused> {
        self.apply(config, mode, false, timeout).map(drop).map_err(|status| Refused(status.message().to_owned()))
    }

    /// The power goes and comes back: no orderly shutdown, the API dark at once, a new boot after half the reboot
    /// time. The Kubernetes Node keeps what it said.
    pub fn power_cycle(self: &Arc<Self>) {
        let locked = std::mem::take(&mut self.state().faults.reboot_locked);
        self.ask_for_reboot(false);
        self.state().faults.reboot_locked = locked;
    }

    /// Makes its API unreachable although the node runs, directly and behind the others' proxies, or reachable again.
    pub fn cut_off_apid(self: &Arc<Self>, cut_off: bool) {
        let serving = {
            let mut state = self.state();
            if std::mem::replace(&mut state.faults.apid_cut_off, cut_off) == cut_off {
                return;
            }
            if cut_off {
                state.boot.apid.cancel();
            }
            state.boot.serving
        };
        if cut_off || !serving {
            return;
        }
        let node = Arc::clone(self);
        tokio::spawn(async move {
            // The listener before may need a moment until its port is free.
            while node.is_up() && node.listen().is_err() {
                node.sleep(Duration::from_millis(20)).await;
            }
        });
    }

    /// The node loses its power and stays away. Nobody tells Kubernetes.
    pub fn stop(&self) {
        self.state().faults.off = true;
        self.fleet.kubernetes.power_lost(&self.name);
        self.go_dark();
    }

    /// A node that was stopped boots.
    pub fn start_again(self: &Arc<Self>) {
        let was_off = std::mem::take(&mut self.state().faults.off);
        if was_off && !self.is_up() {
            tokio::spawn(Arc::clone(self).come_up());
        }
    }

    /// The CRI process is killed from outside: it is back, with what is in its file then, after five times its health
    /// time (5 s to 1 s in real nodes, talos-captures points 5 and 30). What becomes of its pods is left out:
    /// [`Node::kill_cri_under_pods`].
    pub fn kill_cri(self: &Arc<Self>) {
        let life = self.step(|_, state, now| {
            let Boot { services, store, life, .. } = &mut state.boot;
            services.crashed(store, now, "cri");
            life.clone()
        });
        let node = Arc::clone(self);
        tokio::spawn(async move {
            node.sleep(node.fleet.timing.cri_health * 5).await;
            if life.is_cancelled() {
                return;
            }
            node.step(|_, state, now| {
                let pid = state.boot.pid();
                state.boot.loaded = state.boot.file.clone();
                let Boot { services, store, .. } = &mut state.boot;
                services.runs(store, now, "cri", pid);
            });
            node.spawn_cri_health();
        });
    }

    /// As [`Node::kill_cri`], on a node with pods: etcd and the kubelet are started anew 11 s after it, and the API server
    /// of a control plane is away for 20 to over 50 s while the machine's status flaps. Its Node stays Ready
    /// (talos-captures point 25, cri-killed.jsonl; a second there is the CRI's health time here).
    pub fn kill_cri_under_pods(self: &Arc<Self>) {
        self.kill_cri();
        let life = self.state().boot.life.clone();
        let node = Arc::clone(self);
        if node.role == Role::ControlPlane {
            node.fleet.kubernetes.api_server_stopped(&node.name);
            node.unready_static_pods(true);
        }
        tokio::spawn(async move {
            let second = node.fleet.timing.cri_health;
            node.sleep(second * 11).await;
            if life.is_cancelled() {
                return;
            }
            if node.role == Role::ControlPlane {
                node.unready_static_pods(false);
                node.fleet.etcd().set_running(&node.name, false);
                node.sleep(second).await;
                node.service_runs("etcd");
                node.etcd_runs();
            }
            node.service_runs("kubelet");
            node.sleep(second * 2).await;
            if life.is_cancelled() || node.role != Role::ControlPlane {
                return;
            }
            node.unready_static_pods(true);
            node.sleep(second * 18).await;
            if !life.is_cancelled() {
                node.fleet.kubernetes.api_server_started(&node.name);
                node.unready_static_pods(false);
            }
        });
    }

    /// The health check of the CRI fails and passes again so often that the start of its process leaves the ring of
    /// its events: Talos <= 1.12 then has no word of that start any more.
    pub fn push_cri_start_out(&self) {
        self.step(|_, state, now| {
            let Boot { services, store, .. } = &mut state.boot;
            services.flaps(store, now, "cri");
        });
    }

    /// An image is there already.
    ///
    /// # Panics
    /// When `reference` is no image reference.
    pub fn preload_image(&self, namespace: Namespace, reference: &str, digest: &str) {
        let reference = Reference::parse(reference).expect("a test names an image reference");
        let mut state = self.state();
        let now = self.now(&state);
        state.images.add(namespace, &reference, digest, now);
    }

    pub(crate) fn loses_reply(&self, method: &str) -> bool {
        self.state().faults.lost_replies.remove(method)
    }
}
