//! The record: what was written into a node's machine config together with a credential.
//!
//! It is the annotation [`ANNOTATION`], one line of JSON. `staged` is written in the same apply as the credential,
//! `proved` when the running CRI holds it. As it names the CRI process (pid and start) that was running, it outranks
//! comparisons of times: a clock that is stepped, or a file that is touched, cannot fake it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::revision::Revision;

/// The key of the annotation.
pub const ANNOTATION: &str = "talos-ghcr/proof";

/// The version of the format that is written and understood.
const VERSION: u32 = 1;

/// How many earlier revisions a record remembers.
const REMEMBERED: usize = 3;

/// What happened to the credential of this revision on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordState {
    /// Written; the CRI process that the record names does not hold it.
    Staged,
    /// The CRI process that the record names holds it.
    Proved,
}

impl fmt::Display for RecordState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Staged => "staged",
            Self::Proved => "proved",
        })
    }
}

/// What is known about a pull with the credential on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PullRecord {
    /// Every image of `images` was fetched with it.
    Proved,
    /// It could not be shown (no image named, image present, a mirror answered).
    Unprovable,
    /// Not tried yet.
    None,
}

/// A process of containerd's CRI: one start of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CriProcess {
    /// On the node. Alone it proves nothing: it comes again after a boot.
    pub pid: i32,
    /// `created` of ServicePIDs `cri`, on the node's clock, with nanoseconds.
    pub started: Timestamp,
}

/// The record of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    v: u32,
    /// The credentials that were written.
    pub revision: Revision,
    /// How far they got.
    pub state: RecordState,
    /// The boot id that this was written in, where it was known.
    #[serde(default)]
    pub boot: Option<String>,
    /// The CRI process that was running, where it was known.
    #[serde(default)]
    pub cri: Option<CriProcess>,
    /// The images that the pull proof was asked for.
    #[serde(default)]
    pub images: Vec<String>,
    /// What the pull proof said.
    pub pull: PullRecord,
    /// When this was written, on the writer's clock; for people.
    pub at: Timestamp,
    /// Who wrote it: the holder of the lease.
    pub holder: String,
    /// `rev16` of the revisions before this one, newest first, at most three.
    #[serde(default)]
    pub previous: Vec<String>,
}

/// What a new record says beyond its state.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The credentials that are written.
    pub revision: Revision,
    /// The node's boot id.
    pub boot: Option<String>,
    /// The CRI process now running.
    pub cri: Option<CriProcess>,
    /// The images of the pull proof.
    pub images: Vec<String>,
    /// What the pull proof said.
    pub pull: PullRecord,
    /// The writer's clock.
    pub at: Timestamp,
    /// The writer.
    pub holder: String,
}

/// Why an annotation is no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Written by a later version of this tool, or by something else.
    #[error("the record has version {found}, only {VERSION} is understood")]
    Version {
        /// Its `v`.
        found: u64,
    },
    /// Not JSON of the format. A record holds no secret, so the cause may be shown.
    #[error("the record cannot be read")]
    Json(#[source] serde_json::Error),
}

impl Record {
    /// A record for credentials that are being written. `before` is the record that stands there now.
    #[must_use]
    pub fn staged(entry: Entry, before: Option<&Record>) -> Self {
        Self::new(RecordState::Staged, entry, before)
    }

    /// A record for credentials that the running CRI holds. `before` is the record that stands there now.
    #[must_use]
    pub fn proved(entry: Entry, before: Option<&Record>) -> Self {
        Self::new(RecordState::Proved, entry, before)
    }

    fn new(state: RecordState, entry: Entry, before: Option<&Record>) -> Self {
        let previous = previous(entry.revision, before);
        let Entry { revision, boot, cri, images, pull, at, holder } = entry;
        Self { v: VERSION, revision, state, boot, cri, images, pull, at, holder, previous }
    }

    /// Reads the annotation's value. Fields that are not known are ignored.
    ///
    /// # Errors
    /// [`RecordError`] when it is no record, or one of another version.
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Versioned {
            v: u64,
        }
        // Looked at first: another version may well have other fields, which must not be what is complained about.
        let Versioned { v } = serde_json::from_str(text).map_err(RecordError::Json)?;
        if v != u64::from(VERSION) {
            return Err(RecordError::Version { found: v });
        }
        let mut record: Self = serde_json::from_str(text).map_err(RecordError::Json)?;
        record.previous.truncate(REMEMBERED);
        Ok(record)
    }

    /// The annotation's value: one line of JSON, keys always in the same order.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and lists always serialise")
    }

    /// Whether `revision` was on this node before the present one, so that writing it again would go back to an older
    /// credential.
    #[must_use]
    pub fn was_before(&self, revision: &Revision) -> bool {
        *revision != self.revision && self.previous.contains(&revision.rev16())
    }
}

/// The list that a record of `revision` carries on. A revision that comes back is taken out of the list, else it would
/// be refused for ever as an older one.
fn previous(revision: Revision, before: Option<&Record>) -> Vec<String> {
    let Some(before) = before else { return Vec::new() };
    let mut list = before.previous.clone();
    if before.revision != revision {
        let replaced = before.revision.rev16();
        list.retain(|rev| *rev != replaced && *rev != revision.rev16());
        list.insert(0, replaced);
    }
    list.truncate(REMEMBERED);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it stands in a cluster (and in ARCHITECTURE.md).
    const GOLDEN: &str = r#"{"v":1,"revision":"7c9e6679f0a34b5d9d3b8a1c2e4f6071","state":"proved","boot":"0f6d7c1e-93a5-4c35-9c1e-5f0a9b1f2d11","cri":{"pid":2184,"started":"2026-11-30T08:28:41.123456789Z"},"images":["ghcr.io/acme/app:1.4.2"],"pull":"proved","at":"2026-11-30T08:31:02Z","holder":"7c9e6679f0a34b5d-gh17123456789.1-2f1c0f5e-7a0b-4c58-9a3e-1d2c3b4a5968","previous":["1a2b3c4d5e6f7081"]}"#;

    fn revision(digit: char) -> Revision {
        digit.to_string().repeat(32).parse().unwrap()
    }

    fn entry(digit: char) -> Entry {
        Entry {
            revision: revision(digit),
            boot: None,
            cri: None,
            images: vec![],
            pull: PullRecord::None,
            at: Timestamp::UNIX_EPOCH,
            holder: "h".to_owned(),
        }
    }

    #[test]
    fn golden_record_as_it_stands_in_the_cluster() {
        let before = Record { previous: vec![], ..Record::staged(entry('1'), None) };
        let before = Record { revision: "1a2b3c4d5e6f70810000000000000000".parse().unwrap(), ..before };
        let record = Record::proved(
            Entry {
                revision: "7c9e6679f0a34b5d9d3b8a1c2e4f6071".parse().unwrap(),
                boot: Some("0f6d7c1e-93a5-4c35-9c1e-5f0a9b1f2d11".to_owned()),
                cri: Some(CriProcess { pid: 2184, started: "2026-11-30T08:28:41.123456789Z".parse().unwrap() }),
                images: vec!["ghcr.io/acme/app:1.4.2".to_owned()],
                pull: PullRecord::Proved,
                at: "2026-11-30T08:31:02Z".parse().unwrap(),
                holder: "7c9e6679f0a34b5d-gh17123456789.1-2f1c0f5e-7a0b-4c58-9a3e-1d2c3b4a5968".to_owned(),
            },
            Some(&before),
        );
        assert_eq!(record.to_json(), GOLDEN);
        assert_eq!(Record::parse(GOLDEN).unwrap(), record);
    }

    #[test]
    fn unknown_fields_are_ignored_and_absent_ones_have_a_meaning() {
        let text = r#"{"v":1,"later":{"a":1},"revision":"00000000000000000000000000000000","state":"staged",
                       "pull":"none","at":"2026-11-30T08:31:02Z","holder":"h"}"#;
        let record = Record::parse(text).unwrap();
        assert_eq!((record.boot, record.cri, record.previous), (None, None, vec![]));
    }

    #[test]
    fn another_version_and_broken_json_are_told_apart() {
        assert!(matches!(Record::parse(r#"{"v":2,"revision":7}"#), Err(RecordError::Version { found: 2 })));
        for text in ["", "{", "[]", r#"{"v":"1"}"#, r#"{"v":1}"#, &GOLDEN.replace("proved", "maybe"), &GOLDEN[..200]] {
            assert!(matches!(Record::parse(text), Err(RecordError::Json(_))), "{text}");
        }
    }

    #[test]
    fn earlier_revisions_are_remembered_newest_first_and_at_most_three() {
        let mut record = Record::staged(entry('0'), None);
        assert!(record.previous.is_empty());
        for digit in ['1', '2', '3', '4'] {
            record = Record::staged(entry(digit), Some(&record));
            record = Record::proved(entry(digit), Some(&record));
        }
        assert_eq!(record.previous, ["3", "2", "1"].map(|d| d.repeat(16)));
        assert!(record.was_before(&revision('2')));
        assert!(!record.was_before(&revision('0')) && !record.was_before(&revision('4')));
    }

    #[test]
    fn a_revision_that_comes_back_is_no_longer_an_earlier_one() {
        let first = Record::proved(entry('1'), None);
        let second = Record::proved(entry('2'), Some(&first));
        let back = Record::proved(entry('1'), Some(&second));
        assert_eq!(back.previous, ["2".repeat(16)]);
        assert!(!back.was_before(&revision('1')));
    }
}
