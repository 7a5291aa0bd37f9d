//! What an API server does with a request that it knows. Nothing here waits: one request is one turn at the store.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use serde_json::{Map, Value, json};

use super::evict::{DeleteOptions, delete, evict};
use super::json_patch;
use super::kind::Kind;
use super::route::{Asked, Route};
use super::schema::{Decoded, decode, validate};
use super::select::Selector;
use super::status::{Failure, deleted, success};
use super::store::{State, Store, metadata_mut};
use super::watch::Watch;

/// An answer.
pub enum Answer {
    /// A JSON body.
    Json {
        /// The HTTP code.
        code: u16,
        /// The body.
        body: Value,
        /// `Warning` headers.
        warnings: Vec<String>,
    },
    /// A plain text, as the health endpoints give it.
    Text(String),
    /// A stream of events.
    Watch(Watch),
}

impl Answer {
    fn json(code: u16, body: Value) -> Self {
        Self::Json { code, body, warnings: Vec::new() }
    }
}

/// Why there is no answer of this sort.
pub enum Refusal {
    /// The server answers a failure.
    Failure(Failure),
    /// The lab does not know the request.
    Unexpected,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Answers a request.
///
/// # Errors
/// A failure of the real server, or that the lab does not know the request.
pub fn answer(store: &Store, asked: &Asked, content_type: &str, body: &[u8]) -> Result<Answer, Refusal> {
    match (&asked.method, &asked.route) {
        (&Method::GET, Route::Health { endpoint, single }) => Ok(Answer::Text(health(asked, endpoint, *single))),
        (&Method::GET, Route::Version) => Ok(Answer::json(200, version())),
        (&Method::POST, Route::AccessReview) => Ok(Answer::json(201, json_body(body)?)),
        (&Method::GET, Route::Collection(kind, namespace)) => collection(store, asked, *kind, namespace),
        (&Method::GET, Route::Object(kind, namespace, name)) => {
            let object = store.get(*kind, namespace, name).ok_or_else(|| Failure::not_found(*kind, name))?;
            Ok(Answer::json(200, Value::clone(&object)))
        }
        (&Method::PATCH, Route::Object(kind @ (Kind::Node | Kind::Lease), namespace, name)) => {
            let object = store.with(|state| patch(state, asked, (*kind, namespace, name), content_type, body))?;
            Ok(Answer::json(200, object))
        }
        (&Method::POST, Route::Eviction(namespace, name)) => eviction(store, asked, namespace, name, body),
        (&Method::POST, Route::Collection(Kind::Lease, namespace)) if !namespace.is_empty() => {
            create(store, asked, namespace, body)
        }
        (&Method::PUT, Route::Object(Kind::Lease, namespace, name)) => update(store, asked, namespace, name, body),
        (&Method::DELETE, Route::Object(Kind::Lease, namespace, name)) => remove(store, namespace, name, body),
        (&Method::DELETE, Route::Object(Kind::Pod, namespace, name)) => remove_pod(store, namespace, name, body),
        _ => Err(Refusal::Unexpected),
    }
}

fn health(asked: &Asked, endpoint: &str, single: bool) -> String {
    if single || !asked.query.contains_key("verbose") {
        return "ok".into();
    }
    let excluded = asked.query.get("exclude").map(String::as_str);
    let checks = ["ping", "log", "etcd", "etcd-readiness", "informer-sync", "shutdown"].map(|check| {
        let excluded = if excluded == Some(check) { " excluded:" } else { "" };
        format!("[+]{check}{excluded} ok\n")
    });
    format!("{}{endpoint} check passed\n", checks.concat())
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35", "gitVersion": "v1.36.3", "gitCommit": "unknown", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.26.8", "compiler": "gc", "platform": "linux/amd64",
    })
}

fn json_body(body: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::bad_request(format!("the body is no JSON: {error}")))
}

fn collection(store: &Store, asked: &Asked, kind: Kind, namespace: &str) -> Result<Answer, Refusal> {
    let text = |name: &str| asked.query.get(name).map(String::as_str).unwrap_or_default();
    let selector = Selector::new(kind, namespace, text("fieldSelector"), text("labelSelector"));
    let selector = selector.map_err(|_| Refusal::Unexpected)?;
    if asked.flag("watch") {
        return Ok(Answer::Watch(Watch::new(selector, &asked.query)?));
    }
    let limit = text("limit").parse().unwrap_or(0_usize);
    let start = match text("continue") {
        "" => None,
        token => Some(parse_token(token)?),
    };
    store.with(|state| {
        let mut selected = state.list(kind).filter(|object| selector.selects(object));
        let (mut items, mut more): (Vec<Value>, bool) = (Vec::new(), false);
        let mut metadata = json!({"resourceVersion": state.version().to_string()});
        for object in selected.by_ref().filter(|object| start.as_ref().is_none_or(|start| path(object) > *start)) {
            if limit > 0 && items.len() == limit {
                let last = items.last().map(path).unwrap_or_default();
                metadata["continue"] = json!(token(state, &last));
                more = true;
                break;
            }
            let mut item = Value::clone(object);
            // Items of a typed list do not say their type.
            if let Some(item) = item.as_object_mut() {
                item.shift_remove("kind");
                item.shift_remove("apiVersion");
            }
            items.push(item);
        }
        // What is left is counted only where nothing selects (166, 528).
        if more && text("fieldSelector").is_empty() && text("labelSelector").is_empty() {
            metadata["remainingItemCount"] = json!(selected.count() + 1);
        }
        let list = format!("{}List", kind.name());
        let body = json!({"kind": list, "apiVersion": kind.api_version(), "metadata": metadata, "items": items});
        Ok(Answer::json(200, body))
    })
}

/// Where an object stands in a list.
fn path(object: &Value) -> (String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

fn token(state: &State, (namespace, name): &(String, String)) -> String {
    let token = json!({"v": "meta.k8s.io/v1", "rv": state.version(), "start": format!("{namespace}/{name}")});
    URL_SAFE_NO_PAD.encode(token.to_string())
}

fn parse_token(token: &str) -> Result<(String, String), Failure> {
    let decoded = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let start = decoded.as_ref().and_then(|token| token["start"].as_str()?.split_once('/'));
    let (namespace, name) = start.ok_or_else(|| {
        Failure::bad_request(
            "invalid continue token: continue key is not valid: invalid character 'i' looking for beginning of value",
        )
    })?;
    Ok((namespace.into(), name.into()))
}

fn patch(
    state: &mut State,
    asked: &Asked,
    (kind, namespace, name): (Kind, &str, &str),
    content_type: &str,
    body: &[u8],
) -> Result<Value, Refusal> {
    let merge = match content_type {
        "application/json-patch+json" => false,
        "application/merge-patch+json" => true,
        // The real server knows these; the product does not send them.
        "application/strategic-merge-patch+json" | "application/apply-patch+yaml" => return Err(Refusal::Unexpected),
        _ => return Err(Failure::media_type().into()),
    };
    let patch: Value = serde_json::from_slice(body).map_err(|error| {
        let why = if error.is_eof() { "unexpected end of JSON input".into() } else { error.to_string() };
        Failure::bad_request(format!("error decoding patch: {why}"))
    })?;
    let before = state.get(kind, namespace, name).cloned().ok_or_else(|| Failure::not_found(kind, name))?;
    let mut result = Value::clone(&before);
    if merge {
        json_patch::merge(&mut result, &patch);
    } else {
        let operations = patch.as_array().ok_or_else(|| {
            Failure::bad_request(
                "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
            )
        })?;
        json_patch::apply(&mut result, operations).map_err(|_| Failure::patch_refused())?;
    }
    let Decoded { mut object, .. } = decode(kind, &result).map_err(|why| Failure::patch_undecodable(&result, &why))?;
    settle(kind, name, &before, &mut object)?;
    Ok(if asked.dry_run() { object } else { Value::clone(&state.replace(kind, object)) })
}

/// What an update may not change, and what it must not have missed.
fn settle(kind: Kind, name: &str, before: &Value, object: &mut Value) -> Result<(), Failure> {
    let (old, new) = (&before["metadata"], object["metadata"].clone());
    if !new["resourceVersion"].is_null() && new["resourceVersion"] != old["resourceVersion"] {
        return Err(Failure::conflict(kind, name, None));
    }
    if !new["uid"].is_null() && new["uid"] != old["uid"] {
        // The real server names it twice: two validations look at it.
        let bad = || ("metadata.uid", new["uid"].to_string(), "field is immutable");
        return Err(Failure::invalid(kind, name, &[bad(), bad()]));
    }
    let metadata = metadata_mut(object);
    for field in ["name", "namespace", "uid", "creationTimestamp", "resourceVersion"] {
        match &old[field] {
            Value::Null => drop(metadata.shift_remove(field)),
            value => drop(metadata.insert(field.into(), value.clone())),
        }
    }
    // The status of these is changed through its own subresource only (514).
    if kind != Kind::Lease {
        object["status"] = before["status"].clone();
    }
    validate(kind, object)
}

fn eviction(store: &Store, asked: &Asked, namespace: &str, name: &str, body: &[u8]) -> Result<Answer, Refusal> {
    let eviction = json_body(body)?;
    if eviction["metadata"]["name"] != name {
        return Err(Failure::bad_request("name in URL does not match name in Eviction object").into());
    }
    let mut options = DeleteOptions::parse(&eviction["deleteOptions"]);
    options.dry_run |= asked.dry_run();
    store.with(|state| {
        check_namespace(state, Kind::Pod, namespace, name)?;
        evict(state, namespace, name, &options)
    })?;
    Ok(Answer::json(201, success()))
}

/// A namespace that is missing or being deleted takes no new content. A store without any Namespace has them all.
fn check_namespace(state: &State, kind: Kind, namespace: &str, name: &str) -> Result<(), Failure> {
    if state.list(Kind::Namespace).next().is_none() {
        return Ok(());
    }
    let found = state.get(Kind::Namespace, "", namespace);
    let found = found.ok_or_else(|| Failure::not_found(Kind::Namespace, namespace))?;
    if found["metadata"]["deletionTimestamp"].is_null() {
        Ok(())
    } else {
        Err(Failure::namespace_terminating(kind, name, namespace))
    }
}

fn decode_lease(asked: &Asked, body: &[u8]) -> Result<(Value, Vec<String>), Failure> {
    let given = json_body(body)?;
    let Decoded { object, unknown } =
        decode(Kind::Lease, &given).map_err(|why| Failure::undecodable(Kind::Lease, &why))?;
    if let (Some(field), Some("Strict")) = (unknown.first(), asked.query.get("fieldValidation").map(String::as_str)) {
        let why = format!("strict decoding error: unknown field {field:?}");
        return Err(Failure::undecodable(Kind::Lease, &why));
    }
    let warnings = unknown.iter().map(|field| format!("299 - \"unknown field \\\"{field}\\\"\"")).collect();
    Ok((object, warnings))
}

fn create(store: &Store, asked: &Asked, namespace: &str, body: &[u8]) -> Result<Answer, Refusal> {
    let (mut lease, warnings) = decode_lease(asked, body)?;
    store.with(|state| {
        let metadata = metadata_mut(&mut lease);
        if metadata.get("name").is_none()
            && let Some(prefix) = metadata.get("generateName").and_then(Value::as_str)
        {
            let name = format!("{prefix}{:05x}", state.version() % 0xf_ffff);
            metadata.insert("name".into(), json!(name));
        }
        metadata.insert("namespace".into(), json!(namespace));
        let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if metadata.contains_key("resourceVersion") {
            return Err(Failure::internal("resourceVersion should not be set on objects to be created").into());
        }
        check_namespace(state, Kind::Lease, namespace, &name)?;
        validate(Kind::Lease, &lease)?;
        if state.get(Kind::Lease, namespace, &name).is_some() {
            return Err(Failure::already_exists(Kind::Lease, &name).into());
        }
        metadata_mut(&mut lease).shift_remove("uid");
        let body = if asked.dry_run() { lease } else { Value::clone(&state.create(Kind::Lease, lease)) };
        Ok(Answer::Json { code: 201, body, warnings })
    })
}

fn update(store: &Store, asked: &Asked, namespace: &str, name: &str, body: &[u8]) -> Result<Answer, Refusal> {
    let (mut lease, warnings) = decode_lease(asked, body)?;
    let metadata = metadata_mut(&mut lease);
    let text =
        |metadata: &Map<String, Value>, field: &str| metadata.get(field).and_then(Value::as_str).map(str::to_owned);
    let own_name = text(metadata, "name").unwrap_or_default();
    if own_name != name {
        let why = format!("the name of the object ({own_name}) does not match the name on the URL ({name})");
        return Err(Failure::bad_request(why).into());
    }
    metadata.insert("namespace".into(), json!(namespace));
    let (uid, version) = (text(metadata, "uid"), text(metadata, "resourceVersion"));
    if let Some(version) = version.as_ref().filter(|version| version.parse::<u64>().is_err()) {
        return Err(Failure::internal(format!("strconv.ParseUint: parsing {version:?}: invalid syntax")).into());
    }
    store.with(|state| {
        let before = state.get(Kind::Lease, namespace, name).cloned();
        let found = before.as_ref().and_then(|lease| lease["metadata"]["uid"].as_str()).unwrap_or_default();
        if let Some(uid) = uid.filter(|uid| uid != found) {
            let why = format!("StorageError: invalid object, Code: 4, Key: /registry/leases/{namespace}/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
            return Err(Failure::conflict(Kind::Lease, name, Some(&why)).into());
        }
        let Some(before) = before else {
            // A PUT of a Lease that is gone creates it, even with a resourceVersion (062, 063).
            check_namespace(state, Kind::Lease, namespace, name)?;
            validate(Kind::Lease, &lease)?;
            metadata_mut(&mut lease).shift_remove("resourceVersion");
            let body = if asked.dry_run() { lease } else { Value::clone(&state.create(Kind::Lease, lease)) };
            return Ok(Answer::Json { code: 201, body, warnings });
        };
        if version.as_deref().is_none_or(|version| version == "0") {
            return Err(Failure::version_required(Kind::Lease, name).into());
        }
        settle(Kind::Lease, name, &before, &mut lease)?;
        let body = if asked.dry_run() { lease } else { Value::clone(&state.replace(Kind::Lease, lease)) };
        Ok(Answer::Json { code: 200, body, warnings })
    })
}

/// Answers with the pod as it is after it (159), or as it was when it is gone at once (164).
fn remove_pod(store: &Store, namespace: &str, name: &str, body: &[u8]) -> Result<Answer, Refusal> {
    let options = if body.is_empty() { Value::Null } else { json_body(body)? };
    let options = DeleteOptions::parse(&options);
    store.with(|state| {
        let pod = state.get(Kind::Pod, namespace, name).cloned();
        let pod = pod.ok_or_else(|| Failure::not_found(Kind::Pod, name))?;
        options.check(Kind::Pod, &pod)?;
        let body = if options.dry_run { Value::clone(&pod) } else { delete(state, &pod, &options, None) };
        Ok(Answer::json(200, body))
    })
}

fn remove(store: &Store, namespace: &str, name: &str, body: &[u8]) -> Result<Answer, Refusal> {
    let options = if body.is_empty() { Value::Null } else { json_body(body)? };
    let options = DeleteOptions::parse(&options);
    store.with(|state| {
        let lease = state.get(Kind::Lease, namespace, name).cloned();
        let lease = lease.ok_or_else(|| Failure::not_found(Kind::Lease, name))?;
        options.check(Kind::Lease, &lease)?;
        if !options.dry_run {
            state.remove(Kind::Lease, namespace, name);
        }
        Ok(Answer::json(200, deleted(Kind::Lease, name, &lease["metadata"]["uid"])))
    })
}
