//! Waiting until a node of Talos >= 1.14 has adopted a credential by itself.
//!
//! Traps that real servers showed (talos-captures, point 28): ServicePIDs `cri` is gone for a moment, a new pid is not
//! yet healthy, and right after the reply of an apply the old RegistryConfigs can still be read. None of them is the end.

use std::time::Duration;

use talos_proto::cosi::Change;
use talos_proto::error::CallError;
use talos_proto::node::Node;
use talos_proto::resources::{CRI_TOML, EtcFileStatuses, ServicePids, Services};

use crate::record::CriProcess;

/// Why the adoption was not seen.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The node could not be watched.
    #[error("the restart of CRI could not be watched")]
    Watch(#[source] CallError),
    /// CRI was not restarted, or is not healthy.
    #[error(
        "CRI was not seen restarted and healthy within {0:?}; Talos >= 1.14 does it by itself, see `talosctl service cri`"
    )]
    TimedOut(Duration),
}

/// Waits until another CRI process than `before` runs, started after `cri.toml` changed, and is healthy.
///
/// # Errors
/// [`AdoptError`].
pub async fn await_adopted(
    node: &Node,
    before: Option<&CriProcess>,
    limit: Duration,
) -> Result<CriProcess, AdoptError> {
    let (pids, services, files) = futures::join!(
        node.watch::<ServicePids>(Some("cri")),
        node.watch::<Services>(Some("cri")),
        node.watch::<EtcFileStatuses>(Some(CRI_TOML)),
    );
    let (mut pids, mut services, mut files) =
        (pids.map_err(AdoptError::Watch)?, services.map_err(AdoptError::Watch)?, files.map_err(AdoptError::Watch)?);
    let clock = node.talos().clock().clone();
    let deadline = clock.now() + limit;
    let (mut process, mut healthy, mut changed) = (None::<CriProcess>, None, None);
    loop {
        // Healthy must be said of this process: the watches are three streams, and the old one's word may come late.
        if let (Some(now), Some(changed), Some(healthy)) = (&process, changed, healthy)
            && Some(now) != before
            && now.started > changed
            && healthy > now.started
        {
            return Ok(*now);
        }
        let left = deadline.since(clock.now());
        if left.is_zero() {
            return Err(AdoptError::TimedOut(limit));
        }
        // The three watches run side by side; each `next` keeps what it has read when it is dropped half way.
        tokio::select! {
            seen = pids.next(left) => process = latest(seen, process)?,
            seen = services.next(left) => match seen.map_err(AdoptError::Watch)? {
                Some(Change::Present(service)) => {
                    healthy = (service.spec.running && service.spec.healthy).then_some(service.updated);
                }
                Some(Change::Absent { .. }) => healthy = None,
                _ => {}
            },
            seen = files.next(left) => {
                if let Some(Change::Present(file)) = seen.map_err(AdoptError::Watch)? {
                    changed = Some(file.updated);
                }
            }
        }
    }
}

type PidChange = Change<talos_proto::proto::talos::resource::definitions::runtime::ServicePidSpec>;

fn latest(
    seen: Result<Option<PidChange>, CallError>,
    process: Option<CriProcess>,
) -> Result<Option<CriProcess>, AdoptError> {
    Ok(match seen.map_err(AdoptError::Watch)? {
        Some(Change::Present(pid)) => Some(CriProcess { pid: pid.spec.pid, started: pid.created }),
        Some(Change::Absent { .. }) => None,
        _ => process,
    })
}
