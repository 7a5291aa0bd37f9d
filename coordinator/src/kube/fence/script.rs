//! The fence of the bash script that this tool replaces: three annotations on a Node.
//!
//! It is taken over as one of ours, in one patch, and then goes the way of any fence that a dead run left. What the script
//! did not record is taken so that nothing is undone that it may not have done: a cordon of unknown origin stays.

use serde::Deserialize;
use serde_json::Value;
use talos_proto::permit::Permits;

use super::super::api_servers::{ApiServers, Authority};
use super::super::nodes::NodeView;
use super::super::patch;
use super::look::Next;
use super::write::{FenceError, settle};
use super::{ANNOTATION, Fence, Step};

/// Who fenced the node.
pub const OWNER: &str = "platform.devantler.tech/ghcr-auth-drain-owner";
/// `claimed` or `mutating`. It stays on every node that the script has processed, so alone it is no fence.
pub const PHASE: &str = "platform.devantler.tech/ghcr-auth-drain-phase";
/// The journal; only the script's bootstrap mode writes one.
pub const JOURNAL: &str = "platform.devantler.tech/ghcr-auth-drain-recovery";

/// All keys of it.
pub const KEYS: [&str; 3] = [OWNER, PHASE, JOURNAL];

/// What the script left on a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFence {
    /// The script's name for its run, with the run's number and attempt in it.
    pub owner: String,
    /// Its phase, as written.
    pub phase: Option<String>,
    /// What its journal says.
    pub journal: Option<Journal>,
}

/// The part of the journal that counts here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// How far the script had come.
    pub phase: JournalPhase,
    /// The node was cordoned before it.
    pub was_cordoned: bool,
}

/// The journal's phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JournalPhase {
    /// Claimed; nothing durable was done.
    Active,
    /// As good as released.
    RollbackSafe,
    /// A reboot was about to be asked for.
    Retain,
    /// Rebooted and proved.
    ReleaseReady,
}

/// A fence of the script that a human must look at. Only its node is blocked.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The journal is not what the script writes.
    #[error("the journal of the old script ({JOURNAL}) is not what it writes ({0})")]
    Malformed(#[source] serde_json::Error),
    /// It has another version.
    #[error("the journal of the old script ({JOURNAL}) has format {0}, and only 1 is known")]
    Version(u64),
    /// It is not about this fence.
    #[error("the journal of the old script ({JOURNAL}) speaks of another {0}")]
    Elsewhere(&'static str),
    /// The cordon's origin is neither of two.
    #[error("the journal of the old script ({JOURNAL}) has wasCordoned {0}, and only 0 and 1 are known")]
    WasCordoned(u64),
    /// A journal without an owner.
    #[error("there is a journal of the old script ({JOURNAL}) and no owner ({OWNER})")]
    NoOwner,
}

impl ScriptFence {
    /// The script's fence on a Node, if there is one.
    #[must_use]
    pub fn on(node: &NodeView) -> Option<Result<Self, ScriptError>> {
        let text = |key: &str| node.annotations.get(key).filter(|value| !value.is_empty());
        let (owner, journal) = (text(OWNER), text(JOURNAL));
        let Some(owner) = owner else { return journal.map(|_| Err(ScriptError::NoOwner)) };
        let journal = match journal.map(|journal| Journal::parse(journal, owner, &node.uid)).transpose() {
            Ok(journal) => journal,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(Self { owner: owner.clone(), phase: text(PHASE).cloned(), journal }))
    }

    /// How far it came, in the script's own words.
    #[must_use]
    pub fn words(&self) -> String {
        let phase = self.phase.as_deref().unwrap_or("no phase");
        match &self.journal {
            Some(journal) => format!("{phase}, journal {}", journal.phase.name()),
            None => phase.to_owned(),
        }
    }

    /// The same as a fence of ours under the script's Lease, for a node that is in that boot now.
    ///
    /// `mutating`, no phase, and a journal beyond the reboot's edge mean that a reboot may be under way: it is waited for.
    /// Whether one has happened already nobody can tell, so the boot is the present one.
    #[must_use]
    pub fn as_fence(&self, node: &NodeView, lease: &str, boot: &str) -> Fence {
        let untouched = match &self.journal {
            Some(journal) => matches!(journal.phase, JournalPhase::Active | JournalPhase::RollbackSafe),
            None => self.phase.as_deref() == Some("claimed"),
        };
        let recorded = self.journal.as_ref().map(|journal| journal.was_cordoned);
        Fence {
            v: super::VERSION,
            holder: self.owner.clone(),
            lease: lease.to_owned(),
            lease_uid: String::new(),
            epoch: 0,
            node: node.name.clone(),
            uid: node.uid.clone(),
            step: if untouched { Step::Claimed } else { Step::Rebooting },
            step_since: jiff::Timestamp::UNIX_EPOCH,
            boot: boot.to_owned(),
            reboot_calls: 0,
            cordoned_before: recorded.unwrap_or(node.unschedulable),
            cordon_unknown: recorded.is_none() && node.unschedulable,
            scale_down_before: None,
            revision: String::new(),
            since: jiff::Timestamp::UNIX_EPOCH,
        }
    }
}

impl Journal {
    fn parse(text: &str, owner: &str, uid: &str) -> Result<Self, ScriptError> {
        /// The exact set of keys.
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Written {
            v: u64,
            owner: String,
            uid: String,
            #[serde(rename = "desiredRevision")]
            _desired_revision: String,
            was_cordoned: u64,
            #[serde(rename = "initialTaints")]
            _initial_taints: Vec<Value>,
            phase: JournalPhase,
        }
        let written: Written = serde_json::from_str(text).map_err(ScriptError::Malformed)?;
        if written.v != 1 {
            return Err(ScriptError::Version(written.v));
        }
        if written.owner != owner {
            return Err(ScriptError::Elsewhere("owner"));
        }
        if written.uid != uid {
            return Err(ScriptError::Elsewhere("node"));
        }
        let was_cordoned = match written.was_cordoned {
            0 => false,
            1 => true,
            other => return Err(ScriptError::WasCordoned(other)),
        };
        Ok(Self { phase: written.phase, was_cordoned })
    }
}

impl JournalPhase {
    /// As the script writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::RollbackSafe => "rollback-safe",
            Self::Retain => "retain",
            Self::ReleaseReady => "release-ready",
        }
    }
}

/// Puts a fence of ours in the place of the script's, in one patch that tests what the script had written.
///
/// # Errors
/// [`FenceError`].
pub async fn take_over(
    servers: &ApiServers,
    permits: &dyn Permits,
    view: &NodeView,
    new: &Fence,
) -> Result<NodeView, FenceError> {
    let value = new.render();
    settle(servers, Authority::Step(permits), view, |now| {
        if now.uid != view.uid {
            return Err(FenceError::Replaced { node: now.name.clone(), uid: now.uid.clone() });
        }
        match now.annotations.get(ANNOTATION) {
            Some(present) if *present == value => return Ok(Next::Done(now.clone())),
            Some(present) => return Err(FenceError::Fenced { node: now.name.clone(), value: present.clone() }),
            None => {}
        }
        if KEYS.iter().any(|key| now.annotations.get(*key) != view.annotations.get(*key)) {
            return Err(FenceError::Changed { node: now.name.clone(), now: now.annotations.get(OWNER).cloned() });
        }
        Ok(Next::Patch(take_over_patch(now, &value)))
    })
    .await
}

fn take_over_patch(now: &NodeView, value: &str) -> Vec<Value> {
    let mut operations = vec![patch::test("/metadata/uid", &now.uid)];
    operations.extend(KEYS.map(|key| patch::test(patch::annotation(key), now.annotations.get(key))));
    let present = KEYS.into_iter().filter(|key| now.annotations.contains_key(*key));
    operations.extend(present.map(|key| patch::remove(patch::annotation(key))));
    operations.push(patch::add(patch::annotation(ANNOTATION), value));
    operations
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::super::nodes;
    use super::super::super::testing::{Allow, FakeApi, Fault};
    use super::super::Claimant;
    use super::*;

    const W1: &str = "/api/v1/nodes/w1";

    fn node(annotations: &[(&str, &str)]) -> NodeView {
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        NodeView { name: "w1".into(), uid: "u".into(), unschedulable: true, annotations, ..NodeView::default() }
    }

    fn journal(phase: &str, was_cordoned: u64) -> String {
        json!({ "v": 1, "owner": "o", "uid": "u", "desiredRevision": "0", "wasCordoned": was_cordoned,
            "initialTaints": [], "phase": phase })
        .to_string()
    }

    #[test]
    fn f19_a_phase_alone_is_no_fence() {
        assert!(ScriptFence::on(&node(&[])).is_none());
        assert!(ScriptFence::on(&node(&[(PHASE, "mutating")])).is_none());
        assert!(ScriptFence::on(&node(&[(OWNER, ""), (PHASE, "mutating")])).is_none());
        assert!(ScriptFence::on(&node(&[(OWNER, "o")])).is_some());
    }

    #[test]
    fn f19_what_the_script_wrote_says_what_may_have_happened_and_what_must_be_undone() {
        let cases = [
            (Some("claimed"), None, Step::Claimed, (true, true)),
            (Some("mutating"), None, Step::Rebooting, (true, true)),
            (None, None, Step::Rebooting, (true, true)),
            (Some("other"), None, Step::Rebooting, (true, true)),
            (Some("mutating"), Some(("active", 0)), Step::Claimed, (false, false)),
            (Some("mutating"), Some(("rollback-safe", 1)), Step::Claimed, (true, false)),
            (Some("mutating"), Some(("retain", 0)), Step::Rebooting, (false, false)),
            (Some("claimed"), Some(("release-ready", 1)), Step::Rebooting, (true, false)),
        ];
        for (phase, entry, step, cordon) in cases {
            let journal = entry.map(|(phase, cordoned)| journal(phase, cordoned));
            let keys = [(OWNER, Some("o")), (PHASE, phase), (JOURNAL, journal.as_deref())];
            let keys: Vec<_> = keys.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
            let view = node(&keys);
            let fence = ScriptFence::on(&view).unwrap().unwrap().as_fence(&view, "a/b", "b1");
            assert_eq!((fence.step, fence.boot.as_str()), (step, "b1"), "{phase:?} {entry:?}");
            assert_eq!((fence.cordoned_before, fence.cordon_unknown), cordon, "{phase:?} {entry:?}");
            assert!(fence.is_the_scripts());
        }
        // Where nothing is cordoned there is nothing to know.
        let view = NodeView { unschedulable: false, ..node(&[(OWNER, "o")]) };
        let fence = ScriptFence::on(&view).unwrap().unwrap().as_fence(&view, "a/b", "b1");
        assert_eq!((fence.cordoned_before, fence.cordon_unknown), (false, false));
    }

    #[test]
    fn f19_a_journal_that_is_not_the_scripts_is_a_typed_error() {
        let of = |journal: &str| ScriptFence::on(&node(&[(OWNER, "o"), (JOURNAL, journal)])).unwrap().unwrap_err();
        assert!(matches!(of("{"), ScriptError::Malformed(_)));
        assert!(matches!(of(&journal("other", 0)), ScriptError::Malformed(_)));
        assert!(matches!(of(&journal("active", 0).replace("{", "{\"more\":1,")), ScriptError::Malformed(_)));
        assert!(matches!(of(&journal("active", 2)), ScriptError::WasCordoned(2)));
        assert!(matches!(of(&journal("active", 0).replace("\"o\"", "\"p\"")), ScriptError::Elsewhere("owner")));
        assert!(matches!(of(&journal("active", 0).replace("\"u\"", "\"v\"")), ScriptError::Elsewhere("node")));
        assert!(matches!(of(&journal("active", 0).replace("\"v\":1", "\"v\":2")), ScriptError::Version(2)));
        let alone = ScriptFence::on(&node(&[(JOURNAL, &journal("active", 0))])).unwrap();
        assert!(matches!(alone, Err(ScriptError::NoOwner)));
    }

    async fn fenced() -> (FakeApi, Allow, NodeView, Fence) {
        let api = FakeApi::new();
        let annotations = json!({ OWNER: "o", PHASE: "mutating", "a": "b" });
        api.put(
            W1,
            json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "uid": "u", "annotations": annotations },
            "spec": { "unschedulable": true } }),
        );
        let view = nodes::get(&api.servers(), "w1").await.unwrap().unwrap();
        let by = Claimant { holder: "me".into(), lease: "c/d".into(), lease_uid: "l".into(), epoch: 3 };
        let fence = ScriptFence::on(&view).unwrap().unwrap().as_fence(&view, "a/b", "b1").adopted(by, api.clock.utc());
        let allow = Allow::all(&api);
        (api, allow, view, fence)
    }

    #[tokio::test(start_paused = true)]
    async fn f19_taking_over_is_one_patch_in_the_place_of_all_keys() {
        let (api, allow, view, fence) = fenced().await;
        let after = take_over(&api.servers(), &allow, &view, &fence).await.unwrap();
        assert_eq!(api.writes().len(), 1);
        let stored = api.get(W1).unwrap();
        assert_eq!(stored["metadata"]["annotations"], json!({ "a": "b", ANNOTATION: fence.render() }));
        assert_eq!((stored["spec"]["unschedulable"].clone(), after.unschedulable), (json!(true), true));
        let (_, read) = Fence::on(&after).unwrap();
        assert!(read.is_ok_and(|read| read == fence && read.cordon_unknown && !read.is_the_scripts()));
    }

    #[tokio::test(start_paused = true)]
    async fn f19_a_script_that_goes_on_in_between_keeps_its_fence() {
        for (key, value) in [(OWNER, json!("p")), (PHASE, json!("claimed")), (JOURNAL, json!("{}"))] {
            let (api, allow, view, fence) = fenced().await;
            let meanwhile =
                move |api: &FakeApi| api.edit(W1, |node| node["metadata"]["annotations"][key] = value.clone());
            api.fault(1, Fault::Meanwhile(Arc::new(meanwhile)), |seen| seen.method == http::Method::PATCH);
            let refused = take_over(&api.servers(), &allow, &view, &fence).await;
            assert!(matches!(refused, Err(FenceError::Changed { .. })), "{key}: {refused:?}");
            assert!(api.get(W1).unwrap()["metadata"]["annotations"][ANNOTATION].is_null(), "{key}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn f19_a_reply_that_is_lost_is_resolved_by_a_look() {
        let (api, allow, view, fence) = fenced().await;
        api.fault(1, Fault::ReplyLost, |seen| seen.method == http::Method::PATCH);
        take_over(&api.servers(), &allow, &view, &fence).await.unwrap();
        assert_eq!(api.writes().len(), 1);
    }
}
