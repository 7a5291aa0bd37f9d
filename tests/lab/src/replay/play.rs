//! Brings a server into the state of a recording and asks it the recorded request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use serde_json::Value;

use super::compare::Names;
use super::recording::Recording;
use crate::kube::kind::Kind;
use crate::pki::{Ca, TlsError};
use crate::real::api::Reply;
use crate::real::https::{self, Https};

/// A server that recordings are asked of, and the door behind it through which it is brought into their state.
pub trait Target: Sync {
    /// Scheme, address and port.
    fn url(&self) -> String;

    /// The authority of its certificates.
    fn ca(&self) -> &Ca;

    /// Creates an object or replaces it, status and all; gives it as it is stored. UID and versions are the server's.
    fn put(&self, kind: Kind, object: Value) -> impl Future<Output = Value> + Send;

    /// One object.
    fn get(&self, kind: Kind, namespace: &str, name: &str) -> impl Future<Output = Option<Value>> + Send;

    /// Removes an object at once.
    fn remove(&self, kind: Kind, namespace: &str, name: &str) -> impl Future<Output = ()> + Send;

    /// A namespace is being deleted from now on.
    fn terminate(&self, namespace: &str) -> impl Future<Output = ()> + Send;
}

/// What came of a replay.
#[derive(Debug, Default)]
pub struct Report {
    /// The recordings whose request was sent.
    pub asked: BTreeSet<String>,
    /// The recordings whose answer was brought about beforehand.
    pub seeded: BTreeSet<String>,
    /// How answers differ from the recorded ones.
    pub differences: BTreeMap<String, String>,
}

impl Report {
    /// Adds what came of another replay.
    pub fn add(&mut self, other: Self) {
        self.asked.extend(other.asked);
        self.seeded.extend(other.seeded);
        self.differences.extend(other.differences);
    }

    /// Whether the recordings that differ are exactly these, each with its reason: an exception that is none any more
    /// is as wrong as a difference that nobody knows of.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn check(&self, exceptions: &[(&str, &str)]) -> Result<(), String> {
        let known = |number: &str| exceptions.iter().any(|(exception, _)| *exception == number);
        let unknown = self.differences.iter().filter(|(number, _)| !known(number));
        let mut wrong: Vec<String> = unknown.map(|(number, why)| format!("{number}: {why}")).collect();
        let stale = exceptions.iter().filter(|(number, _)| !self.differences.contains_key(*number));
        wrong.extend(stale.map(|(number, why)| format!("{number} is listed as different ({why}), and is not")));
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }
}

/// One replay: what the recordings call what here is remembered in it.
pub struct Replay<'a, T> {
    /// The server.
    pub target: &'a T,
    names: Names,
    clients: HashMap<String, Https>,
    report: Report,
}

impl<'a, T: Target> Replay<'a, T> {
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// When a certificate cannot be used.
    pub fn new(target: &'a T) -> Result<Self, TlsError> {
        let (ca, mut clients) = (target.ca(), HashMap::new());
        for (user, groups) in [("admin", &["system:masters"][..]), ("alice", &[])] {
            clients.insert(user.to_owned(), https::client(ca.cert_pem(), Some(&ca.client(user, groups)))?);
        }
        clients.insert("(no client certificate)".to_owned(), https::client(ca.cert_pem(), None)?);
        Ok(Self { target, names: Names::default(), clients, report: Report::default() })
    }

    /// What came of it.
    #[must_use]
    pub fn report(self) -> Report {
        self.report
    }

    /// Stores an object as the recordings had it.
    pub async fn seed(&mut self, kind: Kind, object: Value) {
        let theirs = object["metadata"].clone();
        let stored = self.target.put(kind, object).await;
        // It may have been seeded before: another version now is meant.
        let _ = self.names.learn(&theirs, &stored["metadata"]);
    }

    /// Stores the object that a recording answered with, for requests that the product does not make.
    pub async fn seed_from(&mut self, kind: Kind, number: &str, change: impl FnOnce(&mut Value)) {
        let mut object = Recording::read(number).object();
        change(&mut object);
        self.report.seeded.insert(number.to_owned());
        self.seed(kind, object).await;
    }

    /// Asks all of these, separated by spaces.
    pub async fn ask_all(&mut self, numbers: &str) {
        for number in numbers.split_whitespace() {
            self.ask(number).await;
        }
    }

    /// Asks the request of a recording and compares the answers.
    pub async fn ask(&mut self, number: &str) {
        let recording = Recording::read(number);
        self.report.asked.insert(number.to_owned());
        let compared = match self.send(&recording).await {
            Ok(reply) => self.names.compare(&recording, &reply),
            Err(error) => Err(format!("no answer: {error}")),
        };
        if let Err(difference) = compared {
            self.report.differences.insert(number.to_owned(), difference);
        }
    }

    async fn send(&self, recording: &Recording) -> io::Result<Reply> {
        let client = self.clients.get(&recording.user).ok_or_else(|| io::Error::other("nobody knows the user"))?;
        let mut request = Request::builder().method(recording.method.as_str()).uri(format!(
            "{}{}",
            self.target.url(),
            recording.target
        ));
        for (name, value) in &recording.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(self.names.body(recording)))).map_err(io::Error::other)?;
        let (head, body) = client.request(request).await.map_err(io::Error::other)?.into_parts();
        let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let text = String::from_utf8(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(Reply { code: head.status.as_u16(), headers: head.headers, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_that_is_none_any_more_is_as_wrong_as_an_unknown_difference() {
        let differences = BTreeMap::from([("001".to_owned(), "status: 500 instead of 200".to_owned())]);
        let report = Report { differences, ..Report::default() };
        assert_eq!(report.check(&[("001", "known")]), Ok(()));
        assert!(report.check(&[]).is_err_and(|wrong| wrong == "001: status: 500 instead of 200"));
        let stale = report.check(&[("001", "known"), ("002", "old")]);
        assert!(stale.is_err_and(|wrong| wrong.starts_with("002 is listed as different (old)")));
    }
}
