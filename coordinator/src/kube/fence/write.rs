//! Setting, changing and removing a fence.
//!
//! Each of the three is the same loop: look at the Node and decide (done, refused, or a patch that tests what was
//! looked at); send the patch; look again at whatever is there then. So a conflict, a lost reply and a patch that was
//! applied late all end in the same place, and none is sent again without a look.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use talos_proto::permit::{NoPermit, Permits};

use super::super::api_servers::{ApiServers, Authority, ReadError, WriteError};
use super::super::nodes::{self, NodeView};
use super::super::patch;
use super::look::{Next, look_for_claim, look_for_release, look_for_update};
use super::{ANNOTATION, Fence, ParseError};

/// How long conflicts and unreachable servers are ridden out.
const PATIENCE: Duration = Duration::from_secs(45);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Why a fence could not be set, changed or removed. The Node is as the error says; nothing was half done.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// Nothing may be changed now.
    #[error(transparent)]
    NoPermit(#[from] NoPermit),
    /// The Node is gone.
    #[error("the node {node} is gone from Kubernetes")]
    Gone {
        /// Its name.
        node: String,
    },
    /// Another Node has the name by now.
    #[error("the node {node} was replaced by another of the same name (UID {uid})")]
    Replaced {
        /// The name.
        node: String,
        /// The new UID.
        uid: String,
    },
    /// The Node is being deleted, or the autoscaler has decided to.
    #[error("the node {node} is leaving the cluster")]
    Leaving {
        /// Its name.
        node: String,
    },
    /// Somebody cordoned or uncordoned it since it was read.
    #[error("the node {node} was {} by somebody else in between", if *.cordoned { "cordoned" } else { "uncordoned" })]
    CordonChanged {
        /// Its name.
        node: String,
        /// What it is now.
        cordoned: bool,
    },
    /// A taint that matters appeared since it was read.
    #[error("the node {node} got the taint {taint} in between")]
    Tainted {
        /// Its name.
        node: String,
        /// `key:effect`.
        taint: String,
    },
    /// A fence of somebody else is there.
    #[error("the node {node} carries another fence: {value}")]
    Fenced {
        /// Its name.
        node: String,
        /// The annotation's value.
        value: String,
    },
    /// The fence is not the one that was read: somebody else took it over or removed it.
    #[error("the fence on node {node} was changed by somebody else (now: {})", .now.as_deref().unwrap_or("none"))]
    Changed {
        /// The Node's name.
        node: String,
        /// The annotation's value now.
        now: Option<String>,
    },
    /// The fence that was to be removed cannot be read.
    #[error("the fence on node {node} cannot be read")]
    Parse {
        /// The Node's name.
        node: String,
        /// Why.
        #[source]
        source: ParseError,
    },
    /// The API refused.
    #[error("the node {node} could not be patched")]
    Write {
        /// Its name.
        node: String,
        /// Why.
        #[source]
        source: WriteError,
    },
    /// The Node could not be read.
    #[error("the node {node} could not be read")]
    Read {
        /// Its name.
        node: String,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// Conflicts went on for too long.
    #[error("the node {node} kept changing for {PATIENCE:?}: its patch never fitted")]
    Contended {
        /// Its name.
        node: String,
    },
}

/// A refusal of [`claim`].
pub type ClaimError = FenceError;

/// What [`release`] left.
#[derive(Clone, Debug, PartialEq)]
pub enum Released {
    /// The fence is gone from the Node.
    Free {
        /// The Node as it is now.
        node: Box<NodeView>,
        /// It can be scheduled on.
        schedulable: bool,
    },
    /// The Node itself is gone, or another has its name.
    NodeGone,
}

/// Sets the fence and the cordon in one patch that tests UID and resourceVersion, on the Node as `view` shows it.
/// Made again when an unrelated write moved the Node.
///
/// # Errors
/// [`ClaimError`]: refused when the cordon, a taint that matters, the UID or another fence appeared since `view`.
pub async fn claim(
    servers: &ApiServers,
    permits: &dyn Permits,
    view: &NodeView,
    fence: Fence,
) -> Result<NodeView, ClaimError> {
    settle(servers, Authority::Step(permits), view, |now| look_for_claim(view, &fence, now)).await
}

/// Replaces the fence, testing the value as it was read. Also adopts one of a dead holder
/// (`new` = [`Fence::adopted`]).
///
/// # Errors
/// [`FenceError`].
pub async fn update(
    servers: &ApiServers,
    permits: &dyn Permits,
    view: &NodeView,
    old: &str,
    new: &Fence,
) -> Result<NodeView, FenceError> {
    replace(servers, Authority::Step(permits), view, old, new).await
}

/// As [`update`], but also while stopping: to take back an intent that was not carried out.
///
/// # Errors
/// [`FenceError`].
pub async fn revert(
    servers: &ApiServers,
    permits: &dyn Permits,
    view: &NodeView,
    old: &str,
    new: &Fence,
) -> Result<NodeView, FenceError> {
    replace(servers, Authority::Undo(permits), view, old, new).await
}

async fn replace(
    servers: &ApiServers,
    authority: Authority<'_>,
    view: &NodeView,
    old: &str,
    new: &Fence,
) -> Result<NodeView, FenceError> {
    settle(servers, authority, view, |now| look_for_update(&view.uid, old, new, now)).await
}

/// Removes every key of ours in one patch that tests the fence's value as it was read, and uncordons only when the
/// node was not cordoned before us and still is by us. A Node without a fence has been released.
///
/// # Errors
/// [`FenceError`].
pub async fn release(
    servers: &ApiServers,
    permits: &dyn Permits,
    view: &NodeView,
    old: &str,
) -> Result<Released, FenceError> {
    let fence = Fence::parse(old).map_err(|source| FenceError::Parse { node: view.name.clone(), source })?;
    let look = |now: &NodeView| look_for_release(&view.uid, old, &fence, now);
    match settle(servers, Authority::Undo(permits), view, look).await {
        Err(FenceError::Gone { .. }) => Ok(Released::NodeGone),
        other => other,
    }
}

/// Removes a fence that speaks of another Node: copied there, or left over from one that had this name. Whether the
/// node is cordoned is not its business, for it says nothing about this one.
///
/// # Errors
/// [`FenceError`]; a fence or a Node that is gone already is as good.
pub async fn discard(
    servers: &ApiServers,
    permits: &dyn Permits,
    view: &NodeView,
    old: &str,
) -> Result<(), FenceError> {
    let settled = settle(servers, Authority::Step(permits), view, |now| match now.annotations.get(ANNOTATION) {
        Some(present) if present == old && now.uid == view.uid => Ok(Next::Patch(vec![
            patch::test("/metadata/uid", &now.uid),
            patch::test(patch::annotation(ANNOTATION), old),
            patch::remove(patch::annotation(ANNOTATION)),
        ])),
        _ => Ok(Next::Done(())),
    });
    match settled.await {
        Err(FenceError::Gone { .. }) => Ok(()),
        other => other,
    }
}

/// The loop of looking, patching and looking again. What the caller's `view` says is believed only for a patch, which
/// tests it: a refusal or an end is decided on a fresh look.
pub(super) async fn settle<T>(
    servers: &ApiServers,
    authority: Authority<'_>,
    view: &NodeView,
    look: impl Fn(&NodeView) -> Result<Next<T>, FenceError>,
) -> Result<T, FenceError> {
    let clock = servers.clock();
    let give_up = clock.now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    let mut now = Some(view.clone());
    let mut fresh = false;
    loop {
        if let Some(current) = now.take() {
            match look(&current) {
                Ok(Next::Done(done)) if fresh => return Ok(done),
                Err(refused) if fresh => return Err(refused),
                Ok(Next::Patch(operations)) => {
                    let sent = send(servers, authority, &current.name, &operations).await;
                    match sent {
                        Ok(node) => {
                            (now, fresh) = (Some(node), true);
                            continue;
                        }
                        Err(WriteError::NoPermit(no)) => return Err(no.into()),
                        Err(WriteError::Refused(status)) if status.code == 404 => {
                            return Err(FenceError::Gone { node: current.name });
                        }
                        // Conflict or failed test (the server does not say which): look at what is there.
                        Err(WriteError::Refused(status)) if matches!(status.code, 409 | 422 | 429) => {}
                        Err(source @ (WriteError::Ambiguous { .. } | WriteError::Unreachable { .. })) => {
                            last = Some(source);
                        }
                        Err(source) => return Err(FenceError::Write { node: current.name, source }),
                    }
                    if clock.now() >= give_up {
                        let node = current.name;
                        return Err(match last {
                            Some(source) => FenceError::Write { node, source },
                            None => FenceError::Contended { node },
                        });
                    }
                    clock.sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Ok(Next::Done(_)) | Err(_) => {}
            }
        }
        match nodes::get(servers, &view.name).await {
            Ok(Some(read)) => (now, fresh) = (Some(read), true),
            Ok(None) => return Err(FenceError::Gone { node: view.name.clone() }),
            Err(error) if error.may_pass() && clock.now() < give_up => {
                clock.sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(source) => return Err(FenceError::Read { node: view.name.clone(), source }),
        }
    }
}

async fn send(
    servers: &ApiServers,
    authority: Authority<'_>,
    name: &str,
    operations: &[Value],
) -> Result<NodeView, WriteError> {
    let path = format!("{}/{name}", nodes::PATH);
    let timeout = servers.write_timeout();
    servers
        .write(authority, timeout, |client| {
            let request = patch::request(&path, operations, timeout);
            async move { client.request::<Node>(request?).await.map(NodeView::from) }
        })
        .await
}
