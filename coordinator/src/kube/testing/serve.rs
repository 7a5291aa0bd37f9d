//! From a request to its answer. What the product does not ask is 501.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use futures::stream;
use http::{Method, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};

use super::store::in_collection;
use super::{FakeApi, Seen, evict, patch};

pub type Reply = UnsyncBoxBody<Bytes, io::Error>;

pub fn good(code: u16, body: &Value) -> Response<Reply> {
    let full = Full::new(Bytes::from(body.to_string())).map_err(|never: Infallible| match never {});
    Response::builder()
        .status(code)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(full.boxed_unsync())
        .unwrap()
}

pub fn fail(code: u16, body: &Value) -> Response<Reply> {
    good(code, body)
}

pub fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": {}, "code": code })
}

/// The one text for every JSON patch that does not apply.
fn invalid() -> Response<Reply> {
    fail(422, &failure(422, "Invalid", "the server rejected our request due to an error in our request"))
}

fn not_found(path: &str) -> Response<Reply> {
    let mut parts = path.rsplit('/');
    let (name, plural) = (parts.next().unwrap(), parts.next().unwrap());
    let plural = if plural == "leases" { "leases.coordination.k8s.io" } else { plural };
    fail(404, &failure(404, "NotFound", &format!("{plural} \"{name}\" not found")))
}

pub fn answer(api: &FakeApi, seen: &Seen) -> Response<Reply> {
    let plural = |path: &str| path.rsplit('/').next().map(str::to_owned).unwrap_or_default();
    let collections = ["nodes", "pods", "leases", "daemonsets", "poddisruptionbudgets"];
    let collection = collections.contains(&plural(&seen.path).as_str());
    match (&seen.method, collection) {
        (&Method::GET, true) if seen.query.contains("watch=true") => watch(api, seen),
        (&Method::GET, true) => list(api, seen),
        (&Method::GET, false) => match api.get(&seen.path) {
            Some(object) => good(200, &object),
            None => not_found(&seen.path),
        },
        (&Method::POST, false) if seen.path.ends_with("/eviction") => evict::evict(api, seen),
        (&Method::POST, true) => create(api, seen),
        (&Method::PATCH, false) => change(api, seen),
        _ => fail(501, &failure(501, "NotImplemented", &format!("{} {}", seen.method, seen.path))),
    }
}

fn create(api: &FakeApi, seen: &Seen) -> Response<Reply> {
    let name = seen.body["metadata"]["name"].as_str().unwrap();
    let path = format!("{}/{name}", seen.path);
    if api.get(&path).is_some() {
        return fail(
            409,
            &failure(409, "AlreadyExists", &format!("leases.coordination.k8s.io \"{name}\" already exists")),
        );
    }
    if let Some((code, message)) = patch::lease_fault(&seen.body) {
        return fail(code, &failure(code, "Invalid", &message));
    }
    api.put(&path, seen.body.clone());
    good(201, &api.get(&path).unwrap())
}

fn change(api: &FakeApi, seen: &Seen) -> Response<Reply> {
    let mut state = api.state();
    let Some(object) = state.store.get(&seen.path) else { return not_found(&seen.path) };
    let Ok(changed) = patch::apply(object, &seen.body) else { return invalid() };
    if seen.path.contains("/leases/")
        && let Some((code, message)) = patch::lease_fault(&changed)
    {
        return fail(code, &failure(code, "Invalid", &message));
    }
    good(200, &state.store.update(&seen.path, changed))
}

/// `metadata.name=x` or `spec.nodeName=x`, percent-encoded as the client sends it.
fn selected(query: &str, object: &Value) -> bool {
    let Some(selector) = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=")) else { return true };
    let (field, value) = selector.split_once("%3D").unwrap();
    object.pointer(&format!("/{}", field.replace('.', "/"))).and_then(Value::as_str) == Some(value)
}

fn list(api: &FakeApi, seen: &Seen) -> Response<Reply> {
    let state = api.state();
    let items: Vec<&Value> =
        state.store.list(&seen.path).into_iter().filter(|object| selected(&seen.query, object)).collect();
    let version = state.store.version.to_string();
    good(
        200,
        &json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": version }, "items": items }),
    )
}

fn watch(api: &FakeApi, seen: &Seen) -> Response<Reply> {
    let version = seen.query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap();
    let since: u64 = version.parse().unwrap();
    let (news, oldest) = {
        let state = api.state();
        (state.store.news.subscribe(), state.store.oldest)
    };
    let broken = *news.borrow();
    let expired = since < oldest;
    let seconds = seen.query.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds=")).unwrap();
    let ends = api.clock.now() + Duration::from_secs(seconds.parse().unwrap());
    let (api, seen) = (api.clone(), seen.clone());
    let begin = (since, news, expired);
    let events = stream::unfold(begin, move |(since, mut news, expired)| {
        let (api, seen) = (api.clone(), seen.clone());
        async move {
            if expired {
                let status = failure(410, "Expired", &format!("too old resource version: {since} ({oldest})"));
                return Some((line("ERROR", &status), (u64::MAX, news, false)));
            }
            loop {
                news.borrow_and_update();
                let next = {
                    let state = api.state();
                    let history = state.store.history.iter();
                    let mut fresh = history.filter(|event| event.version > since);
                    fresh
                        .find(|event| in_collection(&event.path, &seen.path) && selected(&seen.query, &event.object))
                        .cloned()
                };
                if let Some(event) = next {
                    return Some((line(event.kind, &event.object), (event.version, news, false)));
                }
                if *news.borrow() != broken {
                    return None;
                }
                tokio::select! {
                    changed = news.changed() => changed.ok()?,
                    () = api.clock.sleep_until(ends) => return None,
                }
            }
        }
    });
    let body = StreamBody::new(events).boxed_unsync();
    Response::builder().status(200).header(http::header::CONTENT_TYPE, "application/json").body(body).unwrap()
}

fn line(kind: &str, object: &Value) -> Result<Frame<Bytes>, io::Error> {
    Ok(Frame::data(Bytes::from(format!("{}\n", json!({ "type": kind, "object": object })))))
}
