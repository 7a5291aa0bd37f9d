//! What a change of a fence comes to on a Node as it is now: done, refused, or a patch that tests what it was decided on.
//! Pure.

use serde_json::Value;

use super::super::nodes::NodeView;
use super::super::patch;
use super::{ANNOTATION, Fence, FenceError, Released, SCALE_DOWN_DISABLED, ScaleDown, hard, script};

/// What a look at the Node comes to, when it is no refusal.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<T> {
    /// It is as it should be.
    Done(T),
    /// This JSON patch makes it so; it tests what it was decided on.
    Patch(Vec<Value>),
}

/// What a claim that was decided on `view` comes to on the Node as it is `now`. Pure.
///
/// # Errors
/// [`FenceError`]: the refusals of [`claim`](super::claim).
pub fn look_for_claim(view: &NodeView, fence: &Fence, now: &NodeView) -> Result<Next<NodeView>, FenceError> {
    let value = fence.render();
    let node = || now.name.clone();
    if now.uid != fence.uid {
        return Err(FenceError::Replaced { node: node(), uid: now.uid.clone() });
    }
    match now.annotations.get(ANNOTATION) {
        Some(present) if *present == value => return Ok(Next::Done(now.clone())),
        Some(present) => return Err(FenceError::Fenced { node: node(), value: present.clone() }),
        None => {}
    }
    if let Some(owner) = now.annotations.get(script::OWNER).filter(|owner| !owner.is_empty()) {
        return Err(FenceError::Fenced { node: node(), value: format!("of the old script, {owner}") });
    }
    if now.deleting || now.leaving {
        return Err(FenceError::Leaving { node: node() });
    }
    if now.unschedulable != view.unschedulable {
        return Err(FenceError::CordonChanged { node: node(), cordoned: now.unschedulable });
    }
    if let Some(new) = now.taints.iter().find(|taint| hard(taint) && !view.taints.contains(taint)) {
        return Err(FenceError::Tainted { node: node(), taint: format!("{}:{}", new.key, new.effect) });
    }
    Ok(Next::Patch(claim_patch(now, fence, &value)))
}

fn claim_patch(now: &NodeView, fence: &Fence, value: &str) -> Vec<Value> {
    let mut operations =
        vec![patch::test("/metadata/uid", &now.uid), patch::test("/metadata/resourceVersion", &now.resource_version)];
    if !now.has_annotations {
        // Adding a whole map replaces one that is there; the test of the version says that none is.
        operations.push(patch::add("/metadata/annotations", serde_json::Map::new()));
    }
    operations.push(patch::add(patch::annotation(ANNOTATION), value));
    if fence.scale_down_before.is_some() {
        operations.push(patch::add(patch::annotation(SCALE_DOWN_DISABLED), "true"));
    }
    operations.push(patch::add("/spec/unschedulable", true));
    operations
}

/// What the change of the fence `old` on the Node with that UID into `new` comes to on the Node as it is `now`. Pure.
///
/// # Errors
/// [`FenceError`]: another Node, or another fence.
pub fn look_for_update(uid: &str, old: &str, new: &Fence, now: &NodeView) -> Result<Next<NodeView>, FenceError> {
    let value = new.render();
    if now.uid != uid {
        return Err(FenceError::Replaced { node: now.name.clone(), uid: now.uid.clone() });
    }
    match now.annotations.get(ANNOTATION) {
        Some(present) if *present == value => Ok(Next::Done(now.clone())),
        Some(present) if present == old => Ok(Next::Patch(vec![
            patch::test("/metadata/uid", &now.uid),
            patch::test(patch::annotation(ANNOTATION), old),
            patch::add(patch::annotation(ANNOTATION), &value),
        ])),
        other => Err(FenceError::Changed { node: now.name.clone(), now: other.cloned() }),
    }
}

/// What the removal of the fence `old`, which reads as `fence`, comes to on the Node as it is `now`. Pure.
///
/// # Errors
/// [`FenceError::Changed`]: another fence.
pub fn look_for_release(uid: &str, old: &str, fence: &Fence, now: &NodeView) -> Result<Next<Released>, FenceError> {
    if now.uid != uid {
        return Ok(Next::Done(Released::NodeGone));
    }
    match now.annotations.get(ANNOTATION) {
        None => Ok(Next::Done(Released::Free { schedulable: !now.unschedulable, node: Box::new(now.clone()) })),
        Some(present) if present == old => Ok(Next::Patch(release_patch(now, fence, old))),
        other => Err(FenceError::Changed { node: now.name.clone(), now: other.cloned() }),
    }
}

pub(crate) fn release_patch(now: &NodeView, fence: &Fence, old: &str) -> Vec<Value> {
    let mut operations = vec![
        patch::test("/metadata/uid", &now.uid),
        patch::test(patch::annotation(ANNOTATION), old),
        patch::remove(patch::annotation(ANNOTATION)),
    ];
    // Another value than the one we set is a newer actor's.
    let still_ours = now.annotations.get(SCALE_DOWN_DISABLED).is_some_and(|value| value == "true");
    if let Some(before) = fence.scale_down_before.as_ref().filter(|_| still_ours) {
        let path = patch::annotation(SCALE_DOWN_DISABLED);
        operations.push(patch::test(&path, "true"));
        operations.push(match before {
            ScaleDown::Absent => patch::remove(&path),
            ScaleDown::Value(value) => patch::add(&path, value),
        });
    }
    if !fence.cordoned_before && now.unschedulable {
        operations.push(patch::test("/spec/unschedulable", true));
        operations.push(patch::add("/spec/unschedulable", false));
    }
    operations
}
