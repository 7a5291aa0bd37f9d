//! Following a list: one LIST, then one WATCH that is resumed where it ended, and a new LIST where it cannot be.
//!
//! A watch ends for many harmless reasons (the server's own timeout, a restart, a dead connection), and an expired
//! version is told inside the stream as an `ERROR` event with code 410, not as an HTTP status. None of this is the
//! caller's business: it sees changes, and bounds its own patience.

use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use http::Request;
use kube::api::{ObjectList, WatchEvent};
use serde::de::DeserializeOwned;

use super::api_servers::{ApiServers, ReadError};

/// The server ends a watch after this long; a stream that is silent for longer is taken for dead.
const WATCH_SECONDS: u32 = 45;
const SILENCE: Duration = Duration::from_secs(50);

/// A page of a list.
const PAGE: u32 = 500;

/// Pauses after a failure, doubled up to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// What is listed: the path of the collection and a selector.
#[derive(Clone, Debug)]
pub struct Query {
    path: String,
    /// `fieldSelector` or `labelSelector`, and its value.
    selector: Option<(&'static str, String)>,
    /// How much of it is asked for, and held, at once.
    page: u32,
}

/// One change of what is followed.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// Everything there is; replaces what was known.
    Listed(Vec<K>),
    /// Added or modified.
    Applied(K),
    /// Gone.
    Deleted(K),
}

type Events<K> = Pin<Box<dyn Stream<Item = Result<WatchEvent<K>, kube::Error>> + Send>>;

/// Something that can be followed.
pub trait Versioned {
    /// `metadata.resourceVersion`: where a watch is resumed.
    fn version(&self) -> Option<String>;
}

/// A list being followed.
pub struct Follow<K> {
    servers: ApiServers,
    query: Query,
    version: Option<String>,
    events: Option<Events<K>>,
    pause: Duration,
}

impl Query {
    /// Everything under `path`, for example `/api/v1/nodes`.
    pub fn all(path: impl Into<String>) -> Self {
        Self { path: path.into(), selector: None, page: PAGE }
    }

    /// Only what the field selector matches, for example `spec.nodeName=w1`.
    pub fn field(path: impl Into<String>, selector: impl Into<String>) -> Self {
        Self { path: path.into(), selector: Some(("fieldSelector", selector.into())), page: PAGE }
    }

    /// Only what the label selector matches; a key alone is what has that label.
    pub fn label(path: impl Into<String>, selector: impl Into<String>) -> Self {
        Self { path: path.into(), selector: Some(("labelSelector", selector.into())), page: PAGE }
    }

    /// In pages of that many.
    pub fn paged(self, page: u32) -> Self {
        Self { page, ..self }
    }

    fn request(&self, more: &[(&str, &str)]) -> Result<Request<Vec<u8>>, kube::Error> {
        let selector = self.selector.as_ref().map(|(name, selector)| (*name, selector.as_str()));
        let pairs: Vec<String> =
            more.iter().copied().chain(selector).map(|(key, value)| format!("{key}={}", escape(value))).collect();
        let separator = if pairs.is_empty() { "" } else { "?" };
        let uri = format!("{}{separator}{}", self.path, pairs.join("&"));
        Request::get(uri).body(Vec::new()).map_err(kube::Error::HttpError)
    }
}

/// Percent-encodes all but the unreserved characters.
fn escape(value: &str) -> String {
    value
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// Lists everything, page by page, with the version to watch from.
///
/// # Errors
/// [`ReadError`].
pub async fn list<K>(servers: &ApiServers, query: &Query) -> Result<(Vec<K>, Option<String>), ReadError>
where
    K: Clone + DeserializeOwned,
{
    let page = query.page.to_string();
    let mut items = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let list: ObjectList<K> = servers
            .read(|client| {
                let mut more = vec![("limit", page.as_str())];
                more.extend(token.as_deref().map(|token| ("continue", token)));
                let request = query.request(&more);
                async move { client.request(request?).await }
            })
            .await?;
        items.extend(list.items);
        token = list.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok((items, list.metadata.resource_version));
        }
    }
}

impl<K> Follow<K>
where
    K: Clone + DeserializeOwned + Versioned + Send + 'static,
{
    /// Follows what `query` lists; the first change is [`Change::Listed`].
    pub fn new(servers: ApiServers, query: Query) -> Self {
        Self { servers, query, version: None, events: None, pause: FIRST_PAUSE }
    }

    /// The next change. Waits through servers that do not answer for as long as the caller lets it.
    ///
    /// # Errors
    /// [`ReadError`] only for a refusal that waiting does not cure (not allowed, no such resource).
    pub async fn next(&mut self) -> Result<Change<K>, ReadError> {
        loop {
            let Some(version) = self.version.clone() else {
                match list(&self.servers, &self.query).await {
                    Ok((items, version)) => {
                        self.version = version;
                        self.pause = FIRST_PAUSE;
                        return Ok(Change::Listed(items));
                    }
                    Err(error) => self.wait_unless_final(error).await?,
                }
                continue;
            };
            let Some(events) = &mut self.events else {
                match Self::open(&self.servers, &self.query, &version).await {
                    Ok(events) => self.events = Some(events),
                    Err(error) => self.wait_unless_final(error).await?,
                }
                continue;
            };
            match self.servers.clock().timeout(SILENCE, events.next()).await {
                Ok(Some(Ok(event))) => {
                    self.pause = FIRST_PAUSE;
                    if let Some(change) = self.take(event) {
                        return Ok(change);
                    }
                }
                // Ended by the server's timeout: resumed at once.
                Ok(None) => self.resume().await,
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, path = self.query.path, "a watch broke");
                    self.resume().await;
                }
                Err(_) => self.events = None,
            }
        }
    }

    fn take(&mut self, event: WatchEvent<K>) -> Option<Change<K>> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.version = object.version();
                Some(Change::Applied(object))
            }
            WatchEvent::Deleted(object) => {
                self.version = object.version();
                Some(Change::Deleted(object))
            }
            WatchEvent::Bookmark(mark) => {
                self.version = Some(mark.metadata.resource_version);
                None
            }
            WatchEvent::Error(status) => {
                tracing::debug!(code = status.code, message = status.message, "a watch expired: listing again");
                self.events = None;
                self.version = None;
                None
            }
        }
    }

    /// Borrows the parts and not the whole: the events in it are not to be shared between threads.
    async fn open(servers: &ApiServers, query: &Query, version: &str) -> Result<Events<K>, ReadError> {
        let seconds = WATCH_SECONDS.to_string();
        servers
            .read(|client| {
                let request = query.request(&[
                    ("watch", "true"),
                    ("allowWatchBookmarks", "true"),
                    ("timeoutSeconds", &seconds),
                    ("resourceVersion", version),
                ]);
                async move {
                    let events = client.request_events::<K>(request?).await?;
                    Ok(Box::pin(events) as Events<K>)
                }
            })
            .await
    }

    /// A short pause, so that a server which ends each watch at once is not asked in a tight loop.
    async fn resume(&mut self) {
        self.events = None;
        self.rest().await;
    }

    async fn rest(&mut self) {
        self.servers.clock().sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    async fn wait_unless_final(&mut self, error: ReadError) -> Result<(), ReadError> {
        match error {
            ReadError::Refused(status) if status.code == 410 => {
                self.version = None;
                Ok(())
            }
            error @ (ReadError::Refused(_) | ReadError::Other(_)) if !error.may_pass() => Err(error),
            other => {
                tracing::debug!(error = %other, path = self.query.path, "cannot watch now");
                self.rest().await;
                Ok(())
            }
        }
    }
}
