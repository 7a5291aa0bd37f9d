//! From method, path and query to what is asked.

use std::collections::HashMap;

use http::{Method, Uri};

use super::kind::Kind;

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// /readyz or /livez, with the single check if one is named.
    Health {
        /// `readyz` or `livez`.
        endpoint: &'static str,
        /// Whether one single check is named.
        single: bool,
    },
    /// /version.
    Version,
    /// All objects of a kind, of one namespace (or of all: empty).
    Collection(Kind, String),
    /// One object: kind, namespace, name.
    Object(Kind, String, String),
    /// pods/eviction: namespace and name of the pod.
    Eviction(String, String),
    /// selfsubjectaccessreviews.
    AccessReview,
    /// Nothing that the lab knows.
    Unknown,
}

/// A request without its body.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method.
    pub method: Method,
    /// What the path names.
    pub route: Route,
    /// The query, decoded.
    pub query: HashMap<String, String>,
}

impl Asked {
    /// Reads a request line.
    #[must_use]
    pub fn new(method: &Method, uri: &Uri) -> Self {
        Self { method: method.clone(), route: route(uri.path()), query: query(uri.query().unwrap_or_default()) }
    }

    /// Whether a query parameter is given and not false.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.query.get(name).is_some_and(|value| value != "false" && value != "0")
    }

    /// Whether nothing is to be stored.
    #[must_use]
    pub fn dry_run(&self) -> bool {
        self.query.get("dryRun").is_some_and(|value| value == "All")
    }

    /// The verb of the authorizer and of the counters.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        let collection = matches!(self.route, Route::Collection(..));
        match self.method {
            Method::GET if collection && self.flag("watch") => "watch",
            Method::GET if collection => "list",
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        }
    }

    /// Whether its verb can change stored state. An access review stores nothing.
    #[must_use]
    pub fn mutating(&self) -> bool {
        !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS) && self.route != Route::AccessReview
    }

    /// What it is called in the counters, for example `PATCH nodes`, `LIST pods`, `POST pods/eviction`.
    #[must_use]
    pub fn label(&self) -> String {
        let method = match self.verb() {
            "list" => "LIST",
            "watch" => "WATCH",
            _ => self.method.as_str(),
        };
        match &self.route {
            Route::Health { endpoint, .. } => format!("{method} {endpoint}"),
            Route::Version => format!("{method} version"),
            Route::Collection(kind, _) | Route::Object(kind, ..) => format!("{method} {}", kind.plural()),
            Route::Eviction(..) => format!("{method} pods/eviction"),
            Route::AccessReview => format!("{method} selfsubjectaccessreviews"),
            Route::Unknown => format!("{method} unknown"),
        }
    }
}

fn route(path: &str) -> Route {
    let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (group, rest) = match parts.as_slice() {
        ["version"] => return Route::Version,
        ["readyz", check @ ..] => return Route::Health { endpoint: "readyz", single: !check.is_empty() },
        ["livez", check @ ..] => return Route::Health { endpoint: "livez", single: !check.is_empty() },
        ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] => return Route::AccessReview,
        ["api", "v1", rest @ ..] => ("", rest),
        ["apis", group, "v1", rest @ ..] => (*group, rest),
        _ => return Route::Unknown,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let Some(kind) = rest.first().and_then(|plural| Kind::parse(group, plural)) else { return Route::Unknown };
    if !kind.namespaced() && !namespace.is_empty() {
        return Route::Unknown;
    }
    let namespace = namespace.to_owned();
    match rest {
        [_] => Route::Collection(kind, namespace),
        [_, name] if kind.namespaced() != namespace.is_empty() => Route::Object(kind, namespace, (*name).to_owned()),
        [_, name, "eviction"] if kind == Kind::Pod => Route::Eviction(namespace, (*name).to_owned()),
        _ => Route::Unknown,
    }
}

/// A query string, decoded.
#[must_use]
pub fn query(text: &str) -> HashMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect()
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (byte, hex) {
            (b'%', Some(value)) => {
                decoded.push(value);
                at += 2;
            }
            (b'+', _) => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_each_sort() {
        let lease = || Kind::Lease;
        assert_eq!(route("/api/v1/nodes/n1"), Route::Object(Kind::Node, String::new(), "n1".into()));
        assert_eq!(route("/api/v1/pods"), Route::Collection(Kind::Pod, String::new()));
        assert_eq!(
            route("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l"),
            Route::Object(lease(), "kube-system".into(), "l".into())
        );
        assert_eq!(route("/api/v1/namespaces/a/pods/p/eviction"), Route::Eviction("a".into(), "p".into()));
        assert_eq!(route("/api/v1/nodes/n1/status"), Route::Unknown);
        assert_eq!(route("/api/v1/namespaces/a"), Route::Unknown);
        assert_eq!(route("/apis/coordination.k8s.io/v1/leases/l"), Route::Unknown, "a name needs its namespace");
    }

    #[test]
    fn a_query_is_decoded() {
        let query = query("fieldSelector=spec.nodeName%3Dn1&watch=1");
        assert_eq!(query["fieldSelector"], "spec.nodeName=n1");
        assert_eq!(query["watch"], "1");
    }
}
