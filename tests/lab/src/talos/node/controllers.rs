//! What follows a change: the controllers of a running node.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::boot::{CRI_FILE, CRI_PART};
use super::{Boot, Node, State};
use crate::talos::cosi::{kind, spec};

/// From the reply of an apply to RegistryConfigs 10 ms, to the part file 20 ms, to `cri.toml` 30 ms (talos-captures
/// point 3): three steps of this.
const RENDER: Duration = Duration::from_millis(10);
/// Talos >= 1.14 stops the CRI some milliseconds after its file changed, and has a new process after 15-60 ms more
/// (point 28).
const STOP_CRI: Duration = Duration::from_millis(8);
const CRI_AWAY: Duration = Duration::from_millis(40);
/// Our annotation is on the Node after 0.5 s, a foreign one in NodeStatuses after 0.35 s (point 22); shorter here.
const ANNOTATE: Duration = Duration::from_millis(100);
const MIRROR: Duration = Duration::from_millis(30);

impl Node {
    /// Runs the controllers until the boot ends.
    pub(super) fn run_controllers(self: &Arc<Self>) {
        let life = self.state().boot.life.clone();
        for controller in [Controller::Cri, Controller::Annotations, Controller::NodeStatus] {
            let (node, life) = (Arc::clone(self), life.clone());
            tokio::spawn(async move {
                let work = async {
                    match controller {
                        Controller::Cri => node.follow_config().await,
                        Controller::Annotations => node.follow_annotations().await,
                        Controller::NodeStatus => node.follow_kubernetes().await,
                    }
                };
                tokio::select! {
                    () = life.cancelled() => {}
                    () = work => {}
                }
            });
        }
    }

    async fn follow_config(self: &Arc<Self>) {
        let changed = Arc::clone(&self.state().boot.config_changed);
        loop {
            changed.notified().await;
            self.sleep(RENDER).await;
            if self.state().boot.effective.stops_rendering {
                continue;
            }
            let auths = self.step(|node, state, now| {
                let Boot { store, effective, .. } = &mut state.boot;
                store.render(now, &kind::REGISTRIES, "registries", spec::registries(effective, &node.version));
                effective.auths.clone()
            });
            // Mirrors are not in cri.toml, and an equal credential in another form is no change (point 29).
            if auths == self.state().boot.file {
                continue;
            }
            self.sleep(RENDER).await;
            if !self.version.adopts_live() {
                self.step(|_, state, now| state.boot.write_file(now, CRI_PART));
            }
            self.sleep(RENDER).await;
            self.step(|_, state, now| {
                state.boot.write_file(now, CRI_FILE);
                state.boot.file = auths;
            });
            if self.version.adopts_live() {
                self.restart_cri().await;
            }
        }
    }

    /// Talos >= 1.14 only; pods, etcd and the kubelet live on (point 30).
    async fn restart_cri(self: &Arc<Self>) {
        self.sleep(STOP_CRI).await;
        self.step(|_, state, now| {
            let Boot { services, store, .. } = &mut state.boot;
            services.stopping(store, now, "cri");
        });
        self.sleep(STOP_CRI).await;
        self.step(|_, state, now| {
            let Boot { services, store, .. } = &mut state.boot;
            services.finished(store, now, "cri");
        });
        self.sleep(CRI_AWAY).await;
        if self.state().faults.cri_restart_hangs {
            return;
        }
        self.step(|_, state, now| state.boot.start_cri(now));
        self.spawn_cri_health();
    }

    /// Its health check passes some time after its start, if it is still the same process.
    pub(super) fn spawn_cri_health(self: &Arc<Self>) {
        let node = Arc::clone(self);
        let (pid, life) = {
            let state = self.state();
            (state.boot.services.pid("cri"), state.boot.life.clone())
        };
        tokio::spawn(async move {
            node.sleep(node.fleet.timing.cri_health).await;
            if life.is_cancelled() {
                return;
            }
            node.step(|_, state, now| {
                let Boot { services, store, .. } = &mut state.boot;
                if pid.is_some() && services.pid("cri") == pid {
                    services.healthy(store, now, "cri");
                }
            });
        });
    }

    async fn follow_annotations(&self) {
        let changed = Arc::clone(&self.state().boot.annotations_changed);
        let mut kubernetes = self.fleet.kubernetes.watch_node(&self.name);
        self.annotate();
        loop {
            tokio::select! {
                () = changed.notified() => {}
                moved = kubernetes.changed() => match moved {
                    Ok(()) if self.has_drifted() => {}
                    Ok(()) => continue,
                    Err(_) => return,
                },
            }
            self.sleep(ANNOTATE).await;
            self.step(|node, state, now| node.render_annotations(state, now));
            self.annotate();
        }
    }

    fn annotate(&self) {
        let wanted = {
            let state = self.state();
            if state.faults.annotations_held {
                return;
            }
            state.boot.effective.annotations.clone()
        };
        self.fleet.kubernetes.annotate_from_talos(&self.name, wanted);
    }

    fn has_drifted(&self) -> bool {
        let Some(seen) = self.fleet.kubernetes.node(&self.name) else { return false };
        let state = self.state();
        state.boot.effective.annotations.iter().any(|(key, value)| seen.annotations.get(key) != Some(value))
    }

    pub(super) fn render_annotations(&self, state: &mut State, now: Timestamp) {
        let Boot { store, effective, .. } = &mut state.boot;
        let wanted = &effective.annotations;
        store.retain(&kind::NODE_ANNOTATION, |key| wanted.contains_key(key));
        for (key, value) in wanted {
            store.render(now, &kind::NODE_ANNOTATION, key, spec::node_annotation(key, value));
        }
    }

    async fn follow_kubernetes(&self) {
        let mut kubernetes = self.fleet.kubernetes.watch_node(&self.name);
        self.mirror_node();
        while kubernetes.changed().await.is_ok() {
            self.sleep(MIRROR).await;
            self.mirror_node();
        }
    }

    /// NodeStatuses is the node's own view of its Node: once the kubelet runs, and stale when nothing updates it.
    pub(super) fn mirror_node(&self) {
        let seen = self.fleet.kubernetes.node(&self.name);
        self.step(|node, state, now| {
            if state.boot.services.pid("kubelet").is_none() && state.boot.seen.is_none() {
                return;
            }
            match &seen {
                Some(seen) => {
                    state.boot.store.render(now, &kind::NODE_STATUS, &node.name, spec::node_status(&node.name, seen));
                }
                None => state.boot.store.remove(&kind::NODE_STATUS, &node.name),
            }
            state.boot.seen = seen;
        });
    }
}

#[derive(Clone, Copy)]
enum Controller {
    Cri,
    Annotations,
    NodeStatus,
}
