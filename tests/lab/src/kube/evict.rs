//! Deletion and eviction of pods, in the order in which the real server decides
//! (pkg/registry/core/pod/storage/eviction.go; captures 122 - 162).

use serde_json::{Value, json};

use super::kind::Kind;
use super::select::match_labels;
use super::status::Failure;
use super::store::{State, seconds};

/// The options of a deletion that matter here.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Overrides the pod's own grace.
    pub grace_seconds: Option<i64>,
    /// The UID that the object must have.
    pub uid: Option<String>,
    /// The resourceVersion that the object must have.
    pub resource_version: Option<String>,
    /// Nothing is stored.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// From a DeleteOptions object; null is the default.
    #[must_use]
    pub fn parse(options: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            grace_seconds: options["gracePeriodSeconds"].as_i64(),
            uid: text(&options["preconditions"]["uid"]),
            resource_version: text(&options["preconditions"]["resourceVersion"]),
            dry_run: options["dryRun"].as_array().is_some_and(|all| all.contains(&json!("All"))),
        }
    }

    /// Whether the object is the one that is meant.
    ///
    /// # Errors
    /// 409 that names both values.
    pub fn check(&self, kind: Kind, object: &Value) -> Result<(), Failure> {
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let found = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        if let Some(uid) = self.uid.as_ref().filter(|uid| **uid != found("uid")) {
            let record = found("uid");
            return Err(Failure::precondition(
                kind,
                name,
                &format!(
                    "the UID in the precondition ({uid}) does not match the UID in record ({record}). The object might have been deleted and then recreated"
                ),
            ));
        }
        if let Some(version) = self.resource_version.as_ref().filter(|version| **version != found("resourceVersion")) {
            let record = found("resourceVersion");
            return Err(Failure::precondition(
                kind,
                name,
                &format!(
                    "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({record}). The object might have been modified"
                ),
            ));
        }
        Ok(())
    }
}

/// Evicts a pod.
///
/// # Errors
/// As the real server: 404, 429 of a budget, 500 of two budgets, 409 of a precondition (the budget is spent then).
pub fn evict(state: &mut State, namespace: &str, name: &str, options: &DeleteOptions) -> Result<(), Failure> {
    let pod = state.get(Kind::Pod, namespace, name).cloned().ok_or_else(|| Failure::not_found(Kind::Pod, name))?;
    if !ignores_budgets(&pod) {
        let budgets: Vec<_> = state
            .list(Kind::PodDisruptionBudget)
            .filter(|pdb| pdb["metadata"]["namespace"] == namespace && match_labels(&pdb["spec"]["selector"], &pod))
            .cloned()
            .collect();
        if budgets.len() > 1 {
            return Err(Failure::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
        if let Some(budget) = budgets.first().filter(|budget| is_ready(&pod) || !spares_unready(budget)) {
            spend(state, budget, name, options.dry_run)?;
        }
    }
    options.check(Kind::Pod, &pod)?;
    if !options.dry_run {
        delete(state, &pod, options, Some(("EvictionByEvictionAPI", "Eviction API: evicting")));
    }
    Ok(())
}

/// Pending, finished and terminating pods are evicted past any budget.
fn ignores_budgets(pod: &Value) -> bool {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    ["Pending", "Succeeded", "Failed"].contains(&phase) || is_terminating(pod)
}

/// Whether the condition Ready of a Pod or Node is True.
#[must_use]
pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Whether the object is being deleted.
#[must_use]
pub fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Whether an unready pod may go although the budget is exhausted.
fn spares_unready(pdb: &Value) -> bool {
    if pdb["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" {
        return true;
    }
    let healthy = number(pdb, "currentHealthy");
    let desired = number(pdb, "desiredHealthy");
    desired > 0 && healthy >= desired
}

fn number(pdb: &Value, field: &str) -> i64 {
    pdb["status"][field].as_i64().unwrap_or(0)
}

fn spend(state: &mut State, pdb: &Value, pod: &str, dry_run: bool) -> Result<(), Failure> {
    let name = pdb["metadata"]["name"].as_str().unwrap_or_default();
    if number(pdb, "observedGeneration") < pdb["metadata"]["generation"].as_i64().unwrap_or(0) {
        let cause = format!("The disruption budget {name} is still being processed by the server.");
        return Err(Failure::disruption_budget(&cause, Some(10)));
    }
    let allowed = number(pdb, "disruptionsAllowed");
    if allowed <= 0 {
        let (healthy, desired) = (number(pdb, "currentHealthy"), number(pdb, "desiredHealthy"));
        let cause = if healthy <= desired {
            format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
        } else {
            format!("The disruption budget {name} does not allow evicting pods currently")
        };
        return Err(Failure::disruption_budget(&cause, None));
    }
    if dry_run {
        return Ok(());
    }
    let now = seconds(state.clock().utc());
    let namespace = pdb["metadata"]["namespace"].as_str().unwrap_or_default();
    state.edit(Kind::PodDisruptionBudget, namespace, name, |pdb| {
        pdb["status"]["disruptionsAllowed"] = json!(allowed - 1);
        pdb["status"]["disruptedPods"][pod] = json!(now);
        if allowed == 1 {
            set_disruption_allowed(pdb, false, &now);
        }
    });
    Ok(())
}

/// Deletes a pod: at once when nothing has to be waited for, else it is marked and its kubelet ends it. Gives back
/// the pod as it is answered.
pub fn delete(state: &mut State, pod: &Value, options: &DeleteOptions, why: Option<(&str, &str)>) -> Value {
    let now = state.clock().utc();
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
    let finished = ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or_default());
    let unbound = pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    let mut grace = options.grace_seconds.unwrap_or(own).max(0);
    if finished || unbound {
        grace = 0;
    }
    let before = pod["metadata"]["deletionGracePeriodSeconds"].as_i64();
    let deadline = seconds(now + std::time::Duration::from_secs(grace.unsigned_abs()));
    let mut last = pod.clone();
    // A deletion that is under way can only be hastened.
    if before.is_none_or(|before| grace < before) {
        last["metadata"]["deletionTimestamp"] = json!(deadline);
        last["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        if before.is_none() {
            last["metadata"]["generation"] = json!(pod["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
        }
        if let Some((reason, message)) = why {
            set_pod_condition(&mut last, "DisruptionTarget", "True", (reason, message), &seconds(now));
        }
    }
    let last = state.replace(Kind::Pod, last);
    if grace == 0 && last["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
        state.remove(Kind::Pod, text("namespace"), text("name"));
    }
    Value::clone(&last)
}

/// Says in a budget's conditions whether it allows a disruption.
pub fn set_disruption_allowed(pdb: &mut Value, allowed: bool, now: &str) {
    let (value, reason) = if allowed { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    set_condition(pdb, "DisruptionAllowed", value, reason, "", now);
    let generation = pdb["status"]["observedGeneration"].clone();
    for condition in pdb["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["observedGeneration"] = generation.clone();
    }
}

/// The same of a Pod, whose conditions carry a `lastProbeTime` that is always null.
pub fn set_pod_condition(pod: &mut Value, of: &str, value: &str, (reason, message): (&str, &str), now: &str) {
    set_condition(pod, of, value, reason, message, now);
    for condition in pod["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastProbeTime"] = Value::Null;
    }
}

/// Sets a condition of an object's status; its transition time moves only with its value.
pub fn set_condition(object: &mut Value, of: &str, value: &str, reason: &str, message: &str, now: &str) {
    let status = &mut object["status"];
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    let found = conditions.iter().position(|condition| condition["type"] == of);
    let condition = match found {
        Some(at) => &mut conditions[at],
        None => {
            conditions.push(json!({"type": of}));
            let at = conditions.len() - 1;
            &mut conditions[at]
        }
    };
    if condition["status"] != value {
        condition["status"] = json!(value);
        condition["lastTransitionTime"] = json!(now);
    }
    if !reason.is_empty() {
        condition["reason"] = json!(reason);
        condition["message"] = json!(message);
    }
}
