//! Evictions, in the order in which the real server decides.

use std::time::Duration;

use http::Response;
use serde_json::{Value, json};

use super::serve::{Reply, fail, failure, good};
use super::{FakeApi, Seen};

/// How long a pod takes to end, in seconds; a pod with a finalizer never does.
const GRACE: &str = "/metadata/annotations/test~1grace";

pub fn evict(api: &FakeApi, seen: &Seen) -> Response<Reply> {
    let path = seen.path.trim_end_matches("/eviction").to_owned();
    let name = path.rsplit('/').next().unwrap();
    let mut state = api.state();
    let Some(mut pod) = state.store.get(&path).cloned() else {
        return fail(404, &failure(404, "NotFound", &format!("pods \"{name}\" not found")));
    };
    let terminating = !pod["metadata"]["deletionTimestamp"].is_null();
    if !terminating {
        let namespace = path.rsplit_once("/pods/").unwrap().0.replace("/api/v1/", "/apis/policy/v1/");
        let budgets = state.store.list(&format!("{namespace}/poddisruptionbudgets"));
        let label = &pod["metadata"]["labels"]["app"];
        let matching: Vec<Value> = budgets
            .into_iter()
            .filter(|budget| budget["spec"]["selector"]["matchLabels"]["app"] == *label)
            .cloned()
            .collect();
        if matching.len() > 1 {
            let message =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return fail(500, &json!({ "status": "Failure", "metadata": {}, "message": message, "code": 500 }));
        }
        if let Some(mut budget) = matching.into_iter().next() {
            let budget_name = budget["metadata"]["name"].as_str().unwrap().to_owned();
            let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
            if allowed == 0 {
                let mut body = failure(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                );
                let cause = format!("The disruption budget {budget_name} needs 2 healthy pods and has 2 currently");
                body["details"] = json!({ "causes": [{ "reason": "DisruptionBudget", "message": cause }] });
                return fail(429, &body);
            }
            budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
            state.store.update(&format!("{namespace}/poddisruptionbudgets/{budget_name}"), budget);
        }
    }
    let wanted = &seen.body["deleteOptions"]["preconditions"]["uid"];
    if !wanted.is_null() && *wanted != pod["metadata"]["uid"] {
        let message =
            format!("Operation cannot be fulfilled on Pod \"{name}\": the UID in the precondition does not match");
        return fail(409, &failure(409, "Conflict", &message));
    }
    if !terminating {
        pod["metadata"]["deletionTimestamp"] = json!(api.clock.utc().to_string());
        let grace = pod.pointer(GRACE).and_then(Value::as_str).map_or(1, |seconds| seconds.parse().unwrap());
        let kept = pod["metadata"]["finalizers"].is_array();
        state.store.update(&path, pod);
        if !kept {
            let api = api.clone();
            tokio::spawn(async move {
                api.clock.sleep(Duration::from_secs(grace)).await;
                api.delete(&path);
            });
        }
    }
    good(201, &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 }))
}
