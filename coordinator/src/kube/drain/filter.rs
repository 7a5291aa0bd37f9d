//! Which pods of a node are evicted: kubectl's filters, in kubectl's order, as a pure function
//! (kubectl pkg/drain/filters.go at dee3483a3).

use super::PodView;

/// kubectl's flags of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainOptions {
    /// Leave pods of DaemonSets; without it they refuse the drain.
    pub ignore_daemonsets: bool,
    /// Evict pods whose `emptyDir` is lost with them; without it they refuse the drain.
    pub delete_emptydir_data: bool,
    /// Evict pods that nothing will start again; without it they refuse the drain.
    pub force: bool,
    /// Delete pods in the place of evicting them: no disruption budget counts.
    pub disable_eviction: bool,
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self { ignore_daemonsets: true, delete_emptydir_data: true, force: false, disable_eviction: false }
    }
}

/// What is to be done with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Evicted, with what should be said about it.
    Evict(Option<String>),
    /// Left where it is.
    Keep(Option<String>),
    /// Nothing at all is evicted.
    Refuse(String),
}

/// What the API says of the DaemonSet that a pod names as its controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonSetState {
    /// It exists.
    Present,
    /// It does not: nothing will start the pod again.
    Missing,
    /// It could not be read.
    Unreadable(String),
}

/// The DaemonSet's name, if the pod has one for its controller and its state matters.
#[must_use]
pub fn daemon_set_of(pod: &PodView) -> Option<&str> {
    let controller = pod.controller.as_ref()?;
    let of_daemon_set = controller.kind == "DaemonSet" && controller.api_version == "apps/v1";
    (of_daemon_set && !pod.finished).then_some(&controller.name)
}

/// Judges one pod. `daemon_set` is asked only for a pod for which [`daemon_set_of`] names one.
#[must_use]
pub fn judge(pod: &PodView, options: DrainOptions, daemon_set: &DaemonSetState) -> Verdict {
    let mut warning = None;
    if let Some(name) = daemon_set_of(pod) {
        match daemon_set {
            DaemonSetState::Missing if options.force => {
                warning = Some(format!("its DaemonSet {name} is gone (--force)"))
            }
            DaemonSetState::Missing => return Verdict::Refuse(format!("its DaemonSet {name} is gone (use --force)")),
            DaemonSetState::Unreadable(why) => {
                return Verdict::Refuse(format!("its DaemonSet {name} cannot be read: {why}"));
            }
            DaemonSetState::Present if options.ignore_daemonsets => {
                return Verdict::Keep(Some("managed by a DaemonSet".to_owned()));
            }
            DaemonSetState::Present => {
                return Verdict::Refuse("managed by a DaemonSet (use --ignore-daemonsets)".to_owned());
            }
        }
    }
    if pod.mirror {
        return Verdict::Keep(None);
    }
    if pod.empty_dir && !pod.finished {
        if !options.delete_emptydir_data {
            return Verdict::Refuse("has an emptyDir, lost by eviction (use --delete-emptydir-data)".to_owned());
        }
        warning = Some("its emptyDir is lost".to_owned());
    }
    if pod.controller.is_none() && !pod.finished {
        if !options.force {
            return Verdict::Refuse("has no controller that would start it again (use --force)".to_owned());
        }
        warning = Some("has no controller that would start it again".to_owned());
    }
    Verdict::Evict(warning)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(controller: Option<&str>, phase: &str, empty_dir: bool, annotations: &Value) -> PodView {
        let owners: Vec<Value> = controller
            .into_iter()
            .map(|kind| json!({ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true }))
            .collect();
        let volumes = if empty_dir { json!([{ "name": "v", "emptyDir": {} }]) } else { json!([]) };
        serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "d", "ownerReferences": owners, "annotations": annotations },
            "spec": { "containers": [], "volumes": volumes },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    fn with(ignore_daemonsets: bool, delete_emptydir_data: bool, force: bool) -> DrainOptions {
        DrainOptions { ignore_daemonsets, delete_emptydir_data, force, disable_eviction: false }
    }

    fn word(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Evict(None) => "evict",
            Verdict::Evict(Some(_)) => "evict, warned",
            Verdict::Keep(_) => "keep",
            Verdict::Refuse(_) => "refuse",
        }
    }

    #[test]
    fn d01_kubectls_table() {
        use DaemonSetState::{Missing, Present};
        let unreadable = DaemonSetState::Unreadable("403".to_owned());
        let none = json!({});
        let mirror = json!({ "kubernetes.io/config.mirror": "hash" });
        let all = with(true, true, true);
        let nothing = with(false, false, false);
        let table = [
            // A DaemonSet's pod.
            (pod(Some("DaemonSet"), "Running", true, &none), with(true, false, false), &Present, "keep"),
            (pod(Some("DaemonSet"), "Running", false, &none), nothing, &Present, "refuse"),
            (pod(Some("DaemonSet"), "Running", false, &none), with(true, true, false), &Missing, "refuse"),
            (pod(Some("DaemonSet"), "Running", false, &none), all, &Missing, "evict, warned"),
            (pod(Some("DaemonSet"), "Running", false, &none), all, &unreadable, "refuse"),
            (pod(Some("DaemonSet"), "Succeeded", false, &none), nothing, &Present, "evict"),
            // An orphan of a DaemonSet is judged by the later filters too.
            (pod(Some("DaemonSet"), "Running", true, &none), with(true, false, true), &Missing, "refuse"),
            // A static pod, before emptyDir and controller are looked at.
            (pod(Some("Node"), "Running", true, &mirror), nothing, &Present, "keep"),
            (pod(None, "Running", true, &mirror), nothing, &Present, "keep"),
            // emptyDir.
            (pod(Some("ReplicaSet"), "Running", true, &none), nothing, &Present, "refuse"),
            (pod(Some("ReplicaSet"), "Running", true, &none), with(false, true, false), &Present, "evict, warned"),
            (pod(Some("ReplicaSet"), "Failed", true, &none), nothing, &Present, "evict"),
            // No controller.
            (pod(None, "Running", false, &none), with(true, true, false), &Present, "refuse"),
            (pod(None, "Running", false, &none), with(false, false, true), &Present, "evict, warned"),
            (pod(None, "Succeeded", true, &none), nothing, &Present, "evict"),
            // The ordinary case.
            (pod(Some("ReplicaSet"), "Running", false, &none), nothing, &Present, "evict"),
        ];
        for (index, (pod, options, daemon_set, expected)) in table.iter().enumerate() {
            assert_eq!(word(&judge(pod, *options, daemon_set)), *expected, "row {index}");
        }
    }

    #[test]
    fn d01_an_owner_that_does_not_control_is_none() {
        let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "u" });
        let owned = json!({ "metadata": { "ownerReferences": [owner] }, "status": { "phase": "Running" } });
        let owned: PodView = serde_json::from_value(owned).unwrap();
        assert_eq!(word(&judge(&owned, with(true, true, false), &DaemonSetState::Present)), "refuse");
    }
}
