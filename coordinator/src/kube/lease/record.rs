//! The Lease as it stands, read so that no odd record is ever an error.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::wire::Annotated;
use crate::holder::{Evidence, run_link};

/// The annotation of the Lease that carries the holder's [`Evidence`].
pub const EVIDENCE: &str = "talos-ghcr/holder";

/// One reading of a Lease. What is missing or makes no sense is `None`, and the raw members are kept, for a write tests
/// exactly what was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseRecord {
    /// `metadata.uid`: another Lease under the same name has another.
    pub uid: String,
    /// `metadata.resourceVersion`, opaque.
    pub resource_version: String,
    /// `spec.holderIdentity`; `None` when missing, null or empty, which all mean free.
    pub holder: Option<String>,
    /// `spec.leaseTransitions`, if it is a number from 0.
    pub transitions: Option<i64>,
    /// `spec.leaseDurationSeconds`, if it is a number from 1.
    pub duration: Option<Duration>,
    /// `spec.renewTime` as written; for people and for comparison with itself.
    pub renew_time: Option<String>,
    /// `spec.acquireTime` as written.
    pub acquire_time: Option<String>,
    /// What the holder left to be judged by; not what an earlier holder left.
    pub evidence: Option<Evidence>,
    /// There is a `spec` object to add members to.
    pub(super) has_spec: bool,
    /// There is an annotations map to add keys to.
    pub(super) has_annotations: bool,
    /// Our annotation is there.
    pub(super) has_evidence: bool,
    pub(super) raw_holder: Value,
    pub(super) raw_transitions: Value,
}

impl LeaseRecord {
    /// Reads a Lease object of any shape.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let metadata = &object["metadata"];
        let spec = &object["spec"];
        let evidence = &metadata["annotations"][EVIDENCE];
        Self {
            uid: text(&metadata["uid"]).unwrap_or_default(),
            resource_version: text(&metadata["resourceVersion"]).unwrap_or_default(),
            holder: text(&spec["holderIdentity"]),
            transitions: spec["leaseTransitions"].as_i64().filter(|number| *number >= 0),
            duration: spec["leaseDurationSeconds"].as_u64().filter(|number| *number > 0).map(Duration::from_secs),
            renew_time: text(&spec["renewTime"]),
            acquire_time: text(&spec["acquireTime"]),
            evidence: evidence
                .as_str()
                .and_then(|json| serde_json::from_str::<Annotated<Evidence>>(json).ok())
                .filter(|annotated| spec["holderIdentity"] == annotated.holder.as_str())
                .map(|annotated| annotated.evidence),
            has_spec: spec.is_object(),
            has_annotations: metadata["annotations"].is_object(),
            has_evidence: evidence.is_string(),
            raw_holder: spec["holderIdentity"].clone(),
            raw_transitions: spec["leaseTransitions"].clone(),
        }
    }

    /// The epoch that an acquisition over this record has.
    #[must_use]
    pub fn next_transitions(&self) -> i64 {
        match self.transitions {
            // The field is an int32; a wrapped epoch is still another one.
            Some(number) if number >= i64::from(i32::MAX) => 1,
            Some(number) => number + 1,
            None => 1,
        }
    }

    /// Whether the holder has shown no life between `earlier` and this reading: labels that others write do not count.
    #[must_use]
    pub fn same_holding(&self, earlier: &Self) -> bool {
        self.uid == earlier.uid
            && self.raw_holder == earlier.raw_holder
            && self.raw_transitions == earlier.raw_transitions
            && self.renew_time == earlier.renew_time
            && self.acquire_time == earlier.acquire_time
            && self.duration == earlier.duration
    }

    /// The CI run of the holder, if it names one.
    #[must_use]
    pub fn run_link(&self) -> Option<String> {
        run_link(self.holder.as_deref()?, self.evidence.as_ref())
    }

    /// What the record says beside its holder, for a human who must judge a refusal or a loss: whether the holder is
    /// `me`, how often the lease changed hands, and the run of the holder.
    #[must_use]
    pub fn facts(&self, me: &str) -> String {
        let unknown = || "unknown".to_owned();
        let mut text = format!(
            "same_holder={}, transitions {}, renewTime {}, duration {}, resourceVersion {}",
            self.holder.as_deref() == Some(me),
            self.transitions.map_or_else(unknown, |number| number.to_string()),
            self.renew_time.as_deref().unwrap_or("unknown"),
            self.duration.map_or_else(unknown, |duration| format!("{}s", duration.as_secs())),
            self.resource_version,
        );
        if let Some(link) = self.run_link() {
            text.push_str(", run ");
            text.push_str(&link);
        }
        text
    }

    /// How long ago the record says that it was renewed, by our clock: for people only.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        let renewed: Timestamp = self.renew_time.as_ref()?.parse().ok()?;
        Duration::try_from(now.duration_since(renewed)).ok()
    }
}

/// A time as the API takes it for a MicroTime: exactly six digits, UTC.
#[must_use]
pub fn micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn l06_odd_records_are_defined() {
        let odd = [
            json!(null),
            json!({}),
            json!({ "spec": null }),
            json!({ "spec": {} }),
            json!({ "spec": { "holderIdentity": null } }),
            json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 0 } }),
            json!({ "spec": [], "metadata": "x" }),
        ];
        for object in odd {
            let record = LeaseRecord::read(&object);
            assert_eq!((record.holder.clone(), record.duration), (None, None), "{object}");
            assert_eq!(record.next_transitions(), 1);
        }
        let huge = json!({ "spec": { "holderIdentity": "x", "leaseDurationSeconds": i32::MAX,
            "leaseTransitions": i32::MAX, "renewTime": "never" } });
        let record = LeaseRecord::read(&huge);
        assert_eq!(record.next_transitions(), 1);
        assert_eq!(record.age(Timestamp::UNIX_EPOCH), None);
        let negative = json!({ "spec": { "leaseTransitions": -7, "leaseDurationSeconds": -1 } });
        let record = LeaseRecord::read(&negative);
        assert_eq!((record.transitions, record.duration, record.next_transitions()), (None, None, 1));
    }

    #[test]
    fn l02_micro_time_has_six_digits() {
        assert_eq!(micro_time(Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00.000000Z");
        let time: Timestamp = "2026-11-30T08:00:00.123456789Z".parse().unwrap();
        assert_eq!(micro_time(time), "2026-11-30T08:00:00.123456Z");
    }

    #[test]
    fn an_age_in_the_future_is_no_age() {
        let record = LeaseRecord { renew_time: Some("2030-01-01T00:00:00.000000Z".to_owned()), ..Default::default() };
        assert_eq!(record.age(Timestamp::UNIX_EPOCH), None);
    }
}
