//! How a node goes down.

use std::sync::Arc;
use std::time::Duration;

use super::{Boot, Node};
use crate::talos::Role;
use crate::talos::cosi::kind;
use talos_proto::proto::machine::reboot_request::Mode;
use talos_proto::proto::talos::resource::definitions::enums::RuntimeMachineStage as Stage;

/// A call of Reboot, as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// How it was to be done.
    pub mode: Mode,
    /// Watches of clients that were open on the node in that moment.
    pub watches: usize,
}

impl Node {
    /// A client calls Reboot.
    pub(crate) fn reboot_called(self: &Arc<Self>, mode: Mode) {
        {
            let mut state = self.state();
            let watches = state.boot.store.watches();
            state.asked.push(Asked { mode, watches });
        }
        // Older servers do not know FORCE and take it for DEFAULT (talos.md 1.3).
        self.ask_for_reboot(!(mode == Mode::Force && self.version.has_forced_reboot()));
    }

    /// The API's Reboot: answered at once, done later, and not at all when the sequence is locked or one runs already
    /// (talos-captures point 12).
    pub(crate) fn ask_for_reboot(self: &Arc<Self>, graceful: bool) {
        {
            let mut state = self.state();
            if state.faults.reboot_locked || state.boot.sequence {
                return;
            }
            state.boot.sequence = true;
        }
        let node = Arc::clone(self);
        tokio::spawn(async move {
            // The answer leaves first.
            node.sleep(Duration::from_millis(5).max(node.share(2))).await;
            if graceful {
                node.shut_down().await;
            } else {
                node.fleet.kubernetes.rebooted_by_force(&node.name);
            }
            node.go_dark();
            node.sleep(node.share(50)).await;
            if !node.fleet.stop.is_cancelled() && !node.state().faults.off {
                node.come_up().await;
            }
        });
    }

    /// The orderly part. Its API and etcd answer until nearly the end (point 21).
    async fn shut_down(&self) {
        self.step(|_, state, now| {
            state.boot.stage = Some(Stage::MachineStageRebooting);
            let Boot { services, store, .. } = &mut state.boot;
            services.stopping(store, now, "kubelet");
        });
        self.fleet.kubernetes.kubelet_stopped(&self.name);
        self.sleep(self.share(25)).await;
        self.step(|_, state, now| {
            let Boot { services, store, .. } = &mut state.boot;
            services.finished(store, now, "kubelet");
        });
        self.sleep(self.share(23)).await;
        // An open stream holds the shutdown up: 10 of 42 s in real nodes (point 12).
        if self.state().boot.store.watches() > 0 {
            self.sleep(self.share(25)).await;
        }
        self.step(|_, state, now| {
            let Boot { services, store, .. } = &mut state.boot;
            for service in ["etcd", "cri"] {
                services.stopping(store, now, service);
                services.finished(store, now, service);
            }
            store.remove(&kind::ETCD_MEMBER, "local");
        });
    }

    /// The listener closes and every connection is cut.
    pub(super) fn go_dark(&self) {
        {
            let mut state = self.state();
            state.boot.serving = false;
            state.boot.life.cancel();
        }
        if self.role == Role::ControlPlane {
            self.fleet.etcd().set_running(&self.name, false);
            self.fleet.kubernetes.api_server_stopped(&self.name);
        }
    }
}
