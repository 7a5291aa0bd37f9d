//! The services of a node: what ServiceList, Services and ServicePIDs say of them.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use talos_proto::proto::machine::{ServiceEvent, ServiceEvents, ServiceHealth, ServiceInfo};

use crate::talos::cosi::store::timestamp;
use crate::talos::cosi::{Store, kind, spec};

/// Events that a service keeps (talos.md 1.4).
const KEPT_EVENTS: usize = 64;

/// The process of the CRI containerd, as Talos names it.
pub(crate) const CRI_PROCESS: &str = r#"Process(["/bin/containerd" "--address" "/run/containerd/containerd.sock" "--config" "/etc/cri/containerd.toml"])"#;

/// What it waits for (read.jsonl of 1.13.9).
const CRI_WAITS: &str = "Waiting for volumes /var/lib, /var/lib/cni, /var/lib/containerd, /var/run, /var/run/lock to be \
                         mounted, network";

/// The same on 1.14, which starts it, takes that back and starts it once more in each boot (read.jsonl of 1.14).
const CRI_WAITS_FOR_FILES: &str = "Waiting for volumes /var/lib, /var/lib/cni, CRI, /var/run, /var/run/lock to be \
                                   mounted, network, /etc files [\"machine-id\" \"cri/conf.d/cri.toml\" \
                                   \"cri/conf.d/base-spec.json\"] to be ready";

/// All services of one boot.
#[derive(Default)]
pub(crate) struct Services {
    all: BTreeMap<&'static str, Service>,
    /// Talos >= 1.14.
    waits_for_files: bool,
}

#[derive(Default)]
struct Service {
    state: &'static str,
    events: VecDeque<ServiceEvent>,
    health: ServiceHealth,
    pid: Option<i32>,
}

impl Services {
    fn event(&mut self, at: Timestamp, id: &'static str, state: &'static str, text: &str) {
        let service = self.all.entry(id).or_default();
        service.state = state;
        if service.events.len() == KEPT_EVENTS {
            service.events.pop_front();
        }
        service.events.push_back(ServiceEvent {
            msg: text.to_owned(),
            state: state.to_owned(),
            ts: Some(timestamp(at)),
        });
    }

    /// Talos >= 1.14: what its services say is worded otherwise, and the CRI's first start of a boot is taken back.
    pub fn are_of_1_14(&mut self, at: Timestamp) {
        self.waits_for_files = true;
        self.event(at, "cri", "Starting", "Starting service");
        self.event(at, "cri", "Waiting", CRI_WAITS_FOR_FILES);
        self.event(at, "cri", "Finished", "Service finished successfully");
    }

    /// The process runs from now on, with that pid; not healthy yet.
    pub fn started(&mut self, store: &mut Store, at: Timestamp, id: &'static str, pid: i32) {
        self.event(at, id, "Starting", "Starting service");
        if id == "cri" {
            self.event(at, id, "Waiting", if self.waits_for_files { CRI_WAITS_FOR_FILES } else { CRI_WAITS });
        }
        self.event(at, id, "Preparing", "Running pre state");
        self.event(at, id, "Preparing", "Creating service runner");
        self.runs(store, at, id, pid);
    }

    /// A runner that restarts its process by itself has no events before this one (cri-killed.jsonl).
    pub fn runs(&mut self, store: &mut Store, at: Timestamp, id: &'static str, pid: i32) {
        let text = match id {
            "cri" => format!("Process {CRI_PROCESS} started with PID {pid}"),
            "machined" => "Service started as goroutine".to_owned(),
            "containerd" => format!("Process Process([\"/bin/containerd\"]) started with PID {pid}"),
            _ => format!("Started task {id} (PID {pid}) for container {id}"),
        };
        self.event(at, id, "Running", &text);
        if let Some(service) = self.all.get_mut(id) {
            service.pid = Some(pid);
            service.health = ServiceHealth {
                unknown: true,
                last_message: "Unknown".to_owned(),
                last_change: Some(timestamp(at)),
                ..ServiceHealth::default()
            };
        }
        store.render(at, &kind::SERVICE_PID, id, spec::service_pid(pid));
        store.render(at, &kind::SERVICE, id, spec::service(true, false, true));
    }

    /// Its health check passed.
    pub fn healthy(&mut self, store: &mut Store, at: Timestamp, id: &'static str) {
        self.event(at, id, "Running", "Health check successful");
        if let Some(service) = self.all.get_mut(id) {
            service.health =
                ServiceHealth { healthy: true, last_change: Some(timestamp(at)), ..ServiceHealth::default() };
        }
        store.render(at, &kind::SERVICE, id, spec::service(true, true, false));
    }

    /// Its health check fails and passes again until nothing else is in the ring. Services follows each of them.
    pub fn flaps(&mut self, store: &mut Store, at: Timestamp, id: &'static str) {
        for _ in 0..KEPT_EVENTS / 2 {
            self.event(at, id, "Running", "Health check failed: context deadline exceeded");
            store.render(at, &kind::SERVICE, id, spec::service(true, false, false));
            self.healthy(store, at, id);
        }
    }

    /// Talos stops it: Services loses it before ServicePIDs does (rotate.jsonl of 1.14).
    pub fn stopping(&mut self, store: &mut Store, at: Timestamp, id: &'static str) {
        let text = match (id, self.pid(id)) {
            ("cri", _) => format!("Sending SIGTERM to {CRI_PROCESS}"),
            (_, Some(pid)) => format!("Sending SIGTERM to task {id} (PID {pid}, container {id})"),
            (_, None) => return,
        };
        self.event(at, id, "Stopping", &text);
        self.unknown(id);
        store.remove(&kind::SERVICE, id);
    }

    /// Its process is gone.
    pub fn finished(&mut self, store: &mut Store, at: Timestamp, id: &'static str) {
        if self.pid(id).is_some() {
            self.event(at, id, "Finished", "Service finished successfully");
            self.gone(store, id);
        }
    }

    /// Its process was killed from outside, and the runner waits before it starts another.
    pub fn crashed(&mut self, store: &mut Store, at: Timestamp, id: &'static str) {
        let text = format!("Runner {CRI_PROCESS} exited without error, going to restart it");
        self.event(at, id, "Waiting", &text);
        self.unknown(id);
        self.gone(store, id);
        store.render(at, &kind::SERVICE, id, spec::service(false, false, true));
    }

    fn unknown(&mut self, id: &str) {
        if let Some(service) = self.all.get_mut(id) {
            service.health = ServiceHealth { unknown: true, ..ServiceHealth::default() };
        }
    }

    fn gone(&mut self, store: &mut Store, id: &str) {
        if let Some(service) = self.all.get_mut(id) {
            service.pid = None;
        }
        store.remove(&kind::SERVICE_PID, id);
    }

    /// The pid of its process, while there is one.
    pub fn pid(&self, id: &str) -> Option<i32> {
        self.all.get(id).and_then(|service| service.pid)
    }

    /// Whether its last health check passed.
    pub fn is_healthy(&self, id: &str) -> bool {
        self.all.get(id).is_some_and(|service| service.health.healthy)
    }

    /// What ServiceList answers.
    pub fn list(&self) -> Vec<ServiceInfo> {
        let info = |(id, service): (&&'static str, &Service)| ServiceInfo {
            id: (*id).to_owned(),
            state: service.state.to_owned(),
            events: Some(ServiceEvents { events: service.events.iter().cloned().collect() }),
            health: Some(service.health.clone()),
        };
        self.all.iter().map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_keeps_its_last_events_only() {
        let (mut services, mut store) = (Services::default(), Store::default());
        for pid in 0..40 {
            services.started(&mut store, Timestamp::UNIX_EPOCH, "cri", pid);
            services.stopping(&mut store, Timestamp::UNIX_EPOCH, "cri");
            services.finished(&mut store, Timestamp::UNIX_EPOCH, "cri");
        }
        let list = services.list();
        let events = &list[0].events.as_ref().unwrap().events;
        assert_eq!((events.len(), list[0].state.as_str()), (KEPT_EVENTS, "Finished"));
        assert!(events.iter().any(|event| event.msg.ends_with("started with PID 39")));
        assert!(store.list(&kind::SERVICE_PID).is_empty() && services.pid("cri").is_none());
        services.started(&mut store, Timestamp::UNIX_EPOCH, "cri", 41);
        services.flaps(&mut store, Timestamp::UNIX_EPOCH, "cri");
        let events = services.list()[0].events.clone().unwrap().events;
        assert!(events.len() == KEPT_EVENTS && events.iter().all(|event| event.msg.starts_with("Health check ")));
        assert_eq!((services.pid("cri"), services.is_healthy("cri")), (Some(41), true));
    }
}
