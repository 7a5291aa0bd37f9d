//! Watches: JSON lines, from a resourceVersion on, 410 as an ERROR event when that is too old.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use talos_proto::clock::Clock;
use tokio::sync::watch;

use super::select::Selector;
use super::status::Failure;
use super::store::{Event, Store};

/// Where a watch begins and ends.
#[derive(Clone, Debug)]
pub struct Watch {
    selector: Selector,
    from: Option<u64>,
    initial_events: bool,
    length: Option<Duration>,
}

impl Watch {
    /// From the query of the request.
    ///
    /// # Errors
    /// 500 of a resourceVersion that is no number (175).
    pub fn new(selector: Selector, query: &HashMap<String, String>) -> Result<Self, Failure> {
        let given = query.get("resourceVersion").map(String::as_str).filter(|text| !text.is_empty() && *text != "0");
        let from = match given.map(|text| (text, text.parse::<u64>())) {
            None => None,
            Some((_, Ok(version))) => Some(version),
            Some((text, Err(_))) => {
                return Err(Failure::internal(format!(
                    "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
                )));
            }
        };
        let seconds = query.get("timeoutSeconds").and_then(|text| text.parse().ok());
        let initial_events = query.get("sendInitialEvents").is_some_and(|text| text == "true");
        Ok(Self { selector, from, initial_events, length: seconds.map(Duration::from_secs) })
    }

    /// The body of the answer: lines until the time is over.
    pub fn stream(self, store: Arc<Store>, clock: Clock) -> impl Stream<Item = Result<Frame<Bytes>, io::Error>> {
        let changes = store.changes();
        let length = self.length;
        let running = Running { watch: self, store, changes, position: None, over: false };
        stream::unfold(running, |mut running| async move {
            let lines = running.next().await?;
            Some((Ok(Frame::data(Bytes::from(lines))), running))
        })
        .take_until(async move {
            match length {
                Some(length) => clock.sleep(length).await,
                None => std::future::pending().await,
            }
        })
    }
}

struct Running {
    watch: Watch,
    store: Arc<Store>,
    changes: watch::Receiver<u64>,
    /// The version up to which everything has been sent.
    position: Option<u64>,
    over: bool,
}

impl Running {
    /// The next lines; None at the end.
    async fn next(&mut self) -> Option<String> {
        if self.over {
            return None;
        }
        if self.position.is_none() {
            let lines = self.begin();
            if !lines.is_empty() {
                return Some(lines);
            }
        }
        loop {
            self.changes.borrow_and_update();
            let lines = self.catch_up();
            if !lines.is_empty() {
                return Some(lines);
            }
            self.changes.changed().await.ok()?;
        }
    }

    /// What is there already, unless the watch begins at a version that the client has.
    fn begin(&mut self) -> String {
        if let (Some(from), false) = (self.watch.from, self.watch.initial_events) {
            self.position = Some(from);
            return String::new();
        }
        let selector = &self.watch.selector;
        let (mut lines, version) = self.store.with(|state| {
            let selected = state.list(selector.kind()).filter(|object| selector.selects(object));
            (selected.map(|object| line("ADDED", object)).collect::<String>(), state.version())
        });
        if self.watch.initial_events {
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            lines.push_str(&line(
                "BOOKMARK",
                &json!({
                    "kind": selector.kind().name(),
                    "apiVersion": selector.kind().api_version(),
                    "metadata": {"resourceVersion": version.to_string(), "annotations": annotations},
                }),
            ));
        }
        self.position = Some(version);
        lines
    }

    fn catch_up(&mut self) -> String {
        let position = self.position.unwrap_or(0);
        let selector = &self.watch.selector;
        let (events, version) = self.store.with(|state| (state.since(selector.kind(), position), state.version()));
        let Some(events) = events else {
            self.over = true;
            return line("ERROR", &Failure::expired(position, version).body());
        };
        if let Some(last) = events.last() {
            self.position = Some(last.version);
        }
        events.iter().filter_map(|event| self.describe(event)).collect()
    }

    /// The event as this watch sees it: an object that leaves the selection is deleted to it.
    fn describe(&self, event: &Event) -> Option<String> {
        let selects = |object: &Value| self.watch.selector.selects(object);
        let before = event.before.as_ref().is_some_and(|object| selects(object));
        let after = !event.deleted && selects(&event.object);
        let kind = match (before, after) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(line(kind, &event.object))
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}
