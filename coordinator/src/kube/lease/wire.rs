//! The requests for one Lease.

use std::time::Duration;

use http::Request;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::api_servers::{ApiServers, Authority, ReadError, WriteError};
use super::super::patch;
use super::record::{EVIDENCE, LeaseRecord, micro_time};
use super::timing::Timing;
use crate::holder::{Evidence, Holder};

/// The annotation's value. It names its holder, for another tool that takes the Lease leaves the annotation behind.
#[derive(Serialize, Deserialize)]
pub(super) struct Annotated<E> {
    pub holder: String,
    #[serde(flatten)]
    pub evidence: E,
}

/// One Lease and how to reach it.
#[derive(Clone)]
pub(super) struct Wire {
    pub servers: ApiServers,
    pub namespace: String,
    pub name: String,
    pub call: Duration,
}

/// A time as it was sent: how the record shows it.
pub(super) type RenewTime = String;

impl Wire {
    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }

    pub(super) fn time(&self) -> RenewTime {
        micro_time(self.servers.clock().utc())
    }

    /// The record, or `None` when there is no Lease.
    pub(super) async fn read(&self) -> Result<Option<LeaseRecord>, ReadError> {
        let path = self.path();
        let read = self.servers.read_within(self.call, |client| {
            let request = Request::get(&path).body(Vec::new()).map_err(kube::Error::HttpError);
            async move { client.request::<Value>(request?).await }
        });
        match read.await {
            Ok(object) => Ok(Some(LeaseRecord::read(&object))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates the Lease, held by us.
    pub(super) async fn create(&self, holder: &Holder, timing: &Timing) -> Result<LeaseRecord, WriteError> {
        let object = new_lease((&self.namespace, &self.name), holder, timing, &self.time());
        let path = self.collection();
        let timeout = self.call;
        let created = self.servers.write(Authority::LeaseItself, timeout, |client| {
            let request = patch::create(&path, &object, timeout);
            async move { client.request::<Value>(request?).await }
        });
        Ok(LeaseRecord::read(&created.await?))
    }

    /// Takes the Lease over from exactly the record that was read.
    pub(super) async fn take(
        &self,
        record: &LeaseRecord,
        holder: &Holder,
        timing: &Timing,
    ) -> Result<LeaseRecord, WriteError> {
        self.patch(&take_patch(record, holder, timing, &self.time())).await
    }

    /// Renews the Lease if holder and transitions are still ours.
    pub(super) async fn renew(
        &self,
        uid: &str,
        holder: &str,
        epoch: i64,
        time: &RenewTime,
    ) -> Result<LeaseRecord, WriteError> {
        self.patch(&renew_patch(uid, holder, epoch, time)).await
    }

    /// Frees the Lease if the holder is still us.
    pub(super) async fn release(&self, record: &LeaseRecord, holder: &str) -> Result<LeaseRecord, WriteError> {
        self.patch(&release_patch(record, holder, &self.time())).await
    }

    async fn patch(&self, operations: &[Value]) -> Result<LeaseRecord, WriteError> {
        let path = self.path();
        let timeout = self.call;
        let patched = self.servers.write(Authority::LeaseItself, timeout, |client| {
            let request = patch::request(&path, operations, timeout);
            async move { client.request::<Value>(request?).await }
        });
        Ok(LeaseRecord::read(&patched.await?))
    }
}

/// A Lease as it is created, held by `holder`. Pure, as are the patches below.
#[must_use]
pub fn new_lease((namespace, name): (&str, &str), holder: &Holder, timing: &Timing, now: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": { EVIDENCE: annotation(holder) },
        },
        "spec": {
            "holderIdentity": holder.identity,
            "leaseDurationSeconds": seconds(timing.duration),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        },
    })
}

/// Takes the Lease over from exactly the record that was read.
#[must_use]
pub fn take_patch(record: &LeaseRecord, holder: &Holder, timing: &Timing, now: &str) -> Vec<Value> {
    let mut operations = vec![
        patch::test("/metadata/uid", &record.uid),
        patch::test("/metadata/resourceVersion", &record.resource_version),
    ];
    if record.has_spec {
        operations.push(patch::test("/spec/holderIdentity", &record.raw_holder));
        operations.push(patch::test("/spec/leaseTransitions", &record.raw_transitions));
    } else {
        operations.push(patch::add("/spec", Map::new()));
    }
    if !record.has_annotations {
        operations.push(patch::add("/metadata/annotations", Map::new()));
    }
    operations.extend([
        patch::add(patch::annotation(EVIDENCE), annotation(holder)),
        patch::add("/spec/holderIdentity", &holder.identity),
        patch::add("/spec/leaseDurationSeconds", seconds(timing.duration)),
        patch::add("/spec/acquireTime", now),
        patch::add("/spec/renewTime", now),
        patch::add("/spec/leaseTransitions", record.next_transitions()),
    ]);
    operations
}

/// Renews the Lease if holder and transitions are still ours.
#[must_use]
pub fn renew_patch(uid: &str, holder: &str, epoch: i64, now: &str) -> Vec<Value> {
    vec![
        patch::test("/metadata/uid", uid),
        patch::test("/spec/holderIdentity", holder),
        patch::test("/spec/leaseTransitions", epoch),
        patch::add("/spec/renewTime", now),
    ]
}

/// Frees the Lease if the holder is still us; nothing else is tested, for nothing else matters. Written so that
/// client-go and the older script read it as free: holder "" and a duration of one second.
#[must_use]
pub fn release_patch(record: &LeaseRecord, holder: &str, now: &str) -> Vec<Value> {
    let mut operations = vec![
        patch::test("/spec/holderIdentity", holder),
        patch::add("/spec/holderIdentity", ""),
        patch::add("/spec/leaseDurationSeconds", 1),
        patch::add("/spec/renewTime", now),
    ];
    if record.has_evidence {
        operations.push(patch::remove(patch::annotation(EVIDENCE)));
    }
    operations
}

fn annotation(holder: &Holder) -> String {
    let annotated: Annotated<&Evidence> = Annotated { holder: holder.identity.clone(), evidence: &holder.evidence };
    // Strings and numbers always serialise.
    serde_json::to_string(&annotated).unwrap_or_default()
}

fn seconds(duration: Duration) -> u64 {
    let whole = duration.as_secs();
    let started = u64::from(duration.subsec_nanos() > 0);
    (whole + started).clamp(1, u64::from(u32::MAX >> 1))
}
