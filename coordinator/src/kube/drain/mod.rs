//! Emptying a node: kubectl's choice of pods, evictions that wait for disruption budgets, and one watch that tells
//! when the pods are gone. All or nothing is decided before anything is evicted.

mod evict;
mod filter;
mod pod;
mod report;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use http::Request;
use k8s_openapi::api::apps::v1::DaemonSet;
use talos_proto::clock::Moment;
use talos_proto::permit::{NoPermit, Permits};
use tokio::sync::{Semaphore, watch};

use super::api_servers::{ApiServers, ReadError};
use super::watch::{self as follow, Change, Follow, Query};
use evict::{Eviction, delete, evict};

pub use filter::{DaemonSetState, DrainOptions, Verdict, daemon_set_of, judge};
pub use pod::PodView;
pub use report::{BlockingBudget, DrainError, PodLeft, Refusal};

/// Pods of a list held at once. A kubelet takes 110 unless told otherwise (its `maxPods`), and pods are large.
const PAGE: u32 = 250;

/// Evictions in flight at once.
const CONCURRENT: usize = 8;

/// Between two tries of one eviction, doubled up to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often a lost permit is looked for while only waiting.
const PERMIT_LOOK: Duration = Duration::from_millis(250);

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: another pod may come under the same name.
    pub uid: String,
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PodRef {
    fn of(pod: &PodView) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
    }
}

/// What a drain would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainPlan {
    /// Evicted, with what should be said about it.
    pub evict: Vec<(PodRef, Option<String>)>,
    /// Left where they are.
    pub keep: Vec<PodRef>,
}

/// A node that was drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// How many pods are gone.
    pub evicted: usize,
    /// How many were left.
    pub kept: usize,
}

/// What a drain is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainProgress {
    /// It begins.
    Started {
        /// Pods to evict.
        pods: usize,
    },
    /// Something to say about a pod that is evicted.
    Warning {
        /// The pod.
        pod: PodRef,
        /// What.
        warning: String,
    },
    /// A disruption budget holds a pod; said again only when the words change.
    Blocked {
        /// The pod.
        pod: PodRef,
        /// The server's words.
        message: String,
    },
    /// A pod is gone.
    Gone {
        /// The pod.
        pod: PodRef,
        /// Pods that are left.
        left: usize,
    },
}

/// What would be evicted, or a refusal: asked before anything is fenced.
///
/// # Errors
/// [`DrainError::Refused`] or [`DrainError::Read`].
pub async fn plan(servers: &ApiServers, node: &str, options: DrainOptions) -> Result<DrainPlan, DrainError> {
    let (pods, _) = follow::list::<PodView>(servers, &pods_of(node)).await.map_err(|source| read(node, source))?;
    sort(servers, node, options, &pods).await
}

fn pods_of(node: &str) -> Query {
    Query::field("/api/v1/pods", format!("spec.nodeName={node}")).paged(PAGE)
}

fn read(node: &str, source: ReadError) -> DrainError {
    DrainError::Read { node: node.to_owned(), source }
}

async fn sort(
    servers: &ApiServers,
    node: &str,
    options: DrainOptions,
    pods: &[PodView],
) -> Result<DrainPlan, DrainError> {
    let mut daemon_sets: BTreeMap<(String, String), DaemonSetState> = BTreeMap::new();
    let mut plan = DrainPlan::default();
    let mut refusals = Vec::new();
    for pod in pods {
        let reference = PodRef::of(pod);
        let mut state = DaemonSetState::Present;
        if let Some(name) = daemon_set_of(pod) {
            let key = (reference.namespace.clone(), name.to_owned());
            state = match daemon_sets.get(&key) {
                Some(known) => known.clone(),
                None => daemon_set(servers, &key.0, &key.1).await,
            };
            daemon_sets.insert(key, state.clone());
        }
        match judge(pod, options, &state) {
            Verdict::Evict(warning) => plan.evict.push((reference, warning)),
            Verdict::Keep(_) => plan.keep.push(reference),
            Verdict::Refuse(reason) => refusals.push(Refusal { pod: reference, reason }),
        }
    }
    if refusals.is_empty() { Ok(plan) } else { Err(DrainError::Refused { node: node.to_owned(), refusals }) }
}

async fn daemon_set(servers: &ApiServers, namespace: &str, name: &str) -> DaemonSetState {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
    let read = servers.read(|client| {
        let request = Request::get(&path).body(Vec::new()).map_err(kube::Error::HttpError);
        async move { client.request::<DaemonSet>(request?).await }
    });
    match read.await {
        Ok(_) => DaemonSetState::Present,
        Err(error) if error.is_not_found() => DaemonSetState::Missing,
        Err(error) => DaemonSetState::Unreadable(error.to_string()),
    }
}

/// Evicts the node's pods and waits until they are gone, for at most `budget`. The node is cordoned already.
///
/// # Errors
/// [`DrainError`]; what was evicted by then stays evicted.
pub async fn drain(
    servers: &ApiServers,
    permits: &dyn Permits,
    node: &str,
    options: DrainOptions,
    budget: Duration,
    progress: &(dyn Fn(DrainProgress) + Send + Sync),
) -> Result<Drained, DrainError> {
    let clock = servers.clock();
    let deadline = clock.now() + budget;
    let mut pods = Follow::<PodView>::new(servers.clone(), pods_of(node));
    let Ok(first) = clock.timeout(budget, pods.next()).await else {
        return Err(DrainError::TimedOut { node: node.to_owned(), left: Vec::new() });
    };
    let present = watch::Sender::new(BTreeMap::new());
    let Change::Listed(listed) = first.map_err(|source| read(node, source))? else {
        return Ok(Drained { evicted: 0, kept: 0 });
    };
    let plan = sort(servers, node, options, &listed).await?;
    apply(&present, Change::Listed(listed));
    progress(DrainProgress::Started { pods: plan.evict.len() });
    for (pod, warning) in &plan.evict {
        if let Some(warning) = warning.clone() {
            progress(DrainProgress::Warning { pod: pod.clone(), warning });
        }
    }
    let drain = Drain {
        servers,
        permits,
        node,
        options,
        progress,
        present: &present,
        slots: Semaphore::new(CONCURRENT),
        waiting: Mutex::new(plan.evict.iter().map(|(pod, _)| (pod.clone(), Waiting::default())).collect()),
    };
    tokio::select! {
        biased;
        done = drain.all() => done?,
        error = drain.keep_looking(&mut pods) => return Err(read(node, error)),
        no = drain.permit_lost() => return Err(DrainError::NoPermit { node: node.to_owned(), source: no }),
        () = clock.sleep_until(deadline) => return Err(drain.out_of_time().await),
    }
    Ok(Drained { evicted: plan.evict.len(), kept: plan.keep.len() })
}

type Present = BTreeMap<String, PodView>;

fn apply(present: &watch::Sender<Present>, change: Change<PodView>) {
    present.send_modify(|pods| match change {
        Change::Listed(all) => *pods = all.into_iter().map(|pod| (pod.uid.clone(), pod)).collect(),
        Change::Applied(pod) => {
            pods.insert(pod.uid.clone(), pod);
        }
        Change::Deleted(pod) => {
            pods.remove(&pod.uid);
        }
    });
}

/// Why a pod is still there.
#[derive(Clone, Debug, Default)]
struct Waiting {
    /// The budget that refused last, with its words.
    budget: Option<(Option<String>, String)>,
    /// What else the last try said.
    reason: Option<String>,
}

struct Drain<'a> {
    servers: &'a ApiServers,
    permits: &'a dyn Permits,
    node: &'a str,
    options: DrainOptions,
    progress: &'a (dyn Fn(DrainProgress) + Send + Sync),
    /// The node's pods by UID, as the watch shows them.
    present: &'a watch::Sender<Present>,
    slots: Semaphore,
    /// The pods that are not gone yet.
    waiting: Mutex<BTreeMap<PodRef, Waiting>>,
}

impl Drain<'_> {
    async fn all(&self) -> Result<(), DrainError> {
        let pods: Vec<PodRef> = self.waiting().keys().cloned().collect();
        let mut evictions: FuturesUnordered<_> = pods.iter().map(|pod| self.one(pod)).collect();
        while let Some(done) = evictions.next().await {
            done?;
        }
        Ok(())
    }

    async fn one(&self, pod: &PodRef) -> Result<(), DrainError> {
        let clock = self.servers.clock();
        let mut pause = FIRST_PAUSE;
        while !self.gone(pod) && !self.terminating(pod) {
            let eviction = {
                let controller = match self.present.borrow().get(&pod.uid) {
                    Some(pod) => pod.controller.as_ref().map(|owner| owner.uid.clone()),
                    None => break,
                };
                let _turn = self.servers.evictions().turn(controller).await;
                // The semaphore is never closed.
                let _slot = self.slots.acquire().await;
                if self.gone(pod) || self.terminating(pod) {
                    break;
                }
                if self.options.disable_eviction {
                    delete(self.servers, self.permits, pod).await
                } else {
                    evict(self.servers, self.permits, pod).await
                }
            };
            let after = match eviction {
                Eviction::Accepted => {
                    self.waiting().insert(pod.clone(), Waiting::default());
                    break;
                }
                Eviction::Gone => {
                    self.count_gone(pod);
                    return Ok(());
                }
                Eviction::Budget { name, message, after } => {
                    self.blocked(pod, name, message);
                    after
                }
                Eviction::Again { reason, after } => {
                    self.note(pod, reason);
                    after
                }
                // The lease may be renewed yet; `permit_lost` ends the drain when it is not to be.
                Eviction::NoPermit(no @ (NoPermit::Lapsed | NoPermit::TooLate { .. })) => {
                    self.note(pod, no.to_string());
                    None
                }
                Eviction::NoPermit(source) => {
                    return Err(DrainError::NoPermit { node: self.node.to_owned(), source });
                }
                Eviction::Refused(source) => return Err(DrainError::Eviction { pod: pod.clone(), source }),
            };
            let rest = clock.now() + after.unwrap_or_default().max(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            self.rest(pod, rest).await;
        }
        self.until_gone(pod).await;
        self.count_gone(pod);
        Ok(())
    }

    /// Waits between two tries, but no longer than the pod is there.
    async fn rest(&self, pod: &PodRef, until: Moment) {
        tokio::select! {
            () = self.servers.clock().sleep_until(until) => {}
            () = self.until_gone(pod) => {}
        }
    }

    fn gone(&self, pod: &PodRef) -> bool {
        !self.present.borrow().contains_key(&pod.uid)
    }

    fn terminating(&self, pod: &PodRef) -> bool {
        self.present.borrow().get(&pod.uid).is_some_and(|pod| pod.terminating.is_some())
    }

    async fn until_gone(&self, pod: &PodRef) {
        // The sender lives as long as this drain.
        let _ = self.present.subscribe().wait_for(|pods| !pods.contains_key(&pod.uid)).await;
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodRef, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_gone(&self, pod: &PodRef) {
        let left = {
            let mut waiting = self.waiting();
            waiting.remove(pod);
            waiting.len()
        };
        (self.progress)(DrainProgress::Gone { pod: pod.clone(), left });
    }

    fn blocked(&self, pod: &PodRef, name: Option<String>, message: String) {
        let news = {
            let mut waiting = self.waiting();
            let waiting = waiting.entry(pod.clone()).or_default();
            let before = waiting.budget.replace((name, message.clone()));
            before.is_none_or(|(_, before)| before != message)
        };
        if news {
            (self.progress)(DrainProgress::Blocked { pod: pod.clone(), message });
        }
    }

    fn note(&self, pod: &PodRef, reason: String) {
        self.waiting().entry(pod.clone()).or_default().reason = Some(reason);
    }

    /// Follows the node's pods through servers that come and go; ends only when they may not be watched.
    async fn keep_looking(&self, pods: &mut Follow<PodView>) -> ReadError {
        loop {
            match pods.next().await {
                Ok(change) => apply(self.present, change),
                Err(error) => return error,
            }
        }
    }

    async fn permit_lost(&self) -> NoPermit {
        loop {
            match self.permits.permit(Duration::ZERO) {
                Ok(_) | Err(NoPermit::Lapsed | NoPermit::TooLate { .. }) => {}
                Err(no) => return no,
            }
            self.servers.clock().sleep(PERMIT_LOOK).await;
        }
    }

    async fn out_of_time(&self) -> DrainError {
        let waiting = self.waiting().clone();
        let present = self.present.borrow().clone();
        report::out_of_time(self.servers, self.node, &waiting, &present).await
    }
}
