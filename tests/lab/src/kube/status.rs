//! `Status` bodies, with the texts of the real server (fixtures/kubernetes).

use serde_json::{Map, Value, json};

use super::kind::Kind;

/// An answer that is a failure: HTTP code and `Status` body.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The HTTP code.
    pub code: u16,
    /// The `Retry-After` header, in seconds.
    pub retry_after: Option<u64>,
    message: String,
    reason: &'static str,
    details: Option<Box<Value>>,
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, retry_after: None, message: message.into(), reason, details: None }
    }

    fn with(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut body = Map::new();
        body.insert("kind".into(), json!("Status"));
        body.insert("apiVersion".into(), json!("v1"));
        body.insert("metadata".into(), json!({}));
        body.insert("status".into(), json!("Failure"));
        body.insert("message".into(), json!(self.message));
        if !self.reason.is_empty() {
            body.insert("reason".into(), json!(self.reason));
        }
        if let Some(details) = &self.details {
            body.insert("details".into(), Value::clone(details));
        }
        body.insert("code".into(), json!(self.code));
        Value::Object(body)
    }

    /// 404 of an object (022, 116).
    #[must_use]
    pub fn not_found(kind: Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", kind.qualified_plural());
        Self::new(404, "NotFound", message).with(details(kind, name, kind.plural()))
    }

    /// 409 of a name that is taken (021).
    #[must_use]
    pub fn already_exists(kind: Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", kind.qualified_plural());
        Self::new(409, "AlreadyExists", message).with(details(kind, name, kind.plural()))
    }

    /// 409 of a stale resourceVersion (056, 070, 113), or of another precondition of the storage (060).
    #[must_use]
    pub fn conflict(kind: Kind, name: &str, why: Option<&str>) -> Self {
        let why = why
            .unwrap_or("the object has been modified; please apply your changes to the latest version and try again");
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified_plural());
        Self::new(409, "Conflict", message).with(details(kind, name, kind.plural()))
    }

    /// 409 of a precondition in DeleteOptions (072, 128): named by kind, not by plural.
    #[must_use]
    pub fn precondition(kind: Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified_name());
        Self::new(409, "Conflict", message).with(details(kind, name, kind.name()))
    }

    /// 422 of a JSON patch that cannot be applied, whatever the cause (067, 080 - 086, 098, 102, 110).
    #[must_use]
    pub fn patch_refused() -> Self {
        Self::new(422, "Invalid", "the server rejected our request due to an error in our request").with(json!({}))
    }

    /// 422 of a patch whose result is no such object (095, 107).
    #[must_use]
    pub fn patch_undecodable(result: &Value, why: &str) -> Self {
        let bad = format!("Invalid value: {:?}: {why}", result.to_string());
        Self::new(422, "Invalid", format!(" \"\" is invalid: patch: {bad}"))
            .with(json!({"causes": [{"reason": "FieldValueInvalid", "message": bad, "field": "patch"}]}))
    }

    /// 422 of an object that breaks rules: field, offending value as written, and rule (041, 047, 513).
    #[must_use]
    pub fn invalid(kind: Kind, name: &str, broken: &[(&str, String, &str)]) -> Self {
        Self::invalid_as(&kind.qualified_name(), details(kind, name, kind.name()), name, broken)
    }

    /// 422 of an update without a resourceVersion, named by plural (057, 058).
    #[must_use]
    pub fn version_required(kind: Kind, name: &str) -> Self {
        let broken = [("metadata.resourceVersion", "0".to_owned(), "must be specified for an update")];
        Self::invalid_as(&kind.qualified_plural(), details(kind, name, kind.plural()), name, &broken)
    }

    fn invalid_as(of: &str, mut details: Value, name: &str, broken: &[(&str, String, &str)]) -> Self {
        let texts: Vec<_> = broken.iter().map(|(_, value, rule)| format!("Invalid value: {value}: {rule}")).collect();
        let fields = || broken.iter().map(|(field, _, _)| *field).zip(&texts);
        let mut lines: Vec<_> = fields().map(|(field, text)| format!("{field}: {text}")).collect();
        lines.dedup();
        let message = if lines.len() > 1 { format!("[{}]", lines.join(", ")) } else { lines.concat() };
        let causes: Vec<_> = fields()
            .map(|(field, text)| json!({"reason": "FieldValueInvalid", "message": text, "field": field}))
            .collect();
        details["causes"] = json!(causes);
        Self::new(422, "Invalid", format!("{of} \"{name}\" is invalid: {message}")).with(details)
    }

    /// 400.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 400 of a body that is no such object (029 - 045, 053).
    #[must_use]
    pub fn undecodable(kind: Kind, why: &str) -> Self {
        let name = kind.name();
        Self::bad_request(format!("{name} in version \"v1\" cannot be handled as a {name}: {why}"))
    }

    /// 415 of a patch of a kind that the server does not know (108).
    #[must_use]
    pub fn media_type() -> Self {
        Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type").with(json!({}))
    }

    /// 403 of who may not do that (009 - 013, 075).
    #[must_use]
    pub fn forbidden(user: &str, verb: &str, kind: Kind, subresource: &str, namespace: &str, name: &str) -> Self {
        let object =
            if name.is_empty() { kind.qualified_plural() } else { format!("{} \"{name}\"", kind.qualified_plural()) };
        let resource =
            if subresource.is_empty() { kind.plural().to_owned() } else { format!("{}/{subresource}", kind.plural()) };
        let place = if namespace.is_empty() {
            "at the cluster scope".into()
        } else {
            format!("in the namespace \"{namespace}\"")
        };
        let message = format!(
            "{object} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{}\" {place}",
            kind.group()
        );
        Self::new(403, "Forbidden", message).with(details(kind, name, kind.plural()))
    }

    /// 403 of a write into a namespace that is being deleted (168, 170).
    #[must_use]
    pub fn namespace_terminating(kind: Kind, name: &str, namespace: &str) -> Self {
        let message = format!(
            "{} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            kind.qualified_plural()
        );
        let mut details = details(kind, name, kind.plural());
        details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        Self::new(403, "Forbidden", message).with(details)
    }

    /// 401 of a credential that is none (008).
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 500 without reason and details (059, 065, 143, 175).
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// 429 of a disruption budget (122, 124, 135).
    #[must_use]
    pub fn disruption_budget(cause: &str, retry_after: Option<u64>) -> Self {
        let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]});
        if let Some(seconds) = retry_after {
            details["retryAfterSeconds"] = json!(seconds);
        }
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let mut failure = Self::new(429, "TooManyRequests", message).with(details);
        failure.retry_after = retry_after;
        failure
    }

    /// 410 as a watch's ERROR event carries it (601).
    #[must_use]
    pub fn expired(version: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {version} ({oldest})"))
    }

    /// A failure that a test asked for.
    #[must_use]
    pub fn injected(code: u16) -> Self {
        let reason = match code {
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self::new(code, reason, "the lab was asked to answer this")
    }

    /// 501 of a request that the lab does not know: the test that causes it fails.
    #[must_use]
    pub fn unexpected(what: &str) -> Self {
        Self::new(501, "NotImplemented", format!("the lab does not know this request: {what}"))
    }
}

fn details(kind: Kind, name: &str, of: &str) -> Value {
    let mut details = Map::new();
    if !name.is_empty() {
        details.insert("name".into(), json!(name));
    }
    if !kind.group().is_empty() {
        details.insert("group".into(), json!(kind.group()));
    }
    details.insert("kind".into(), json!(of));
    Value::Object(details)
}

/// The body of an eviction that was granted (131).
#[must_use]
pub fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

/// The body of a deletion that is complete (074).
#[must_use]
pub fn deleted(kind: Kind, name: &str, uid: &Value) -> Value {
    let mut details = details(kind, name, kind.plural());
    details["uid"] = uid.clone();
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
