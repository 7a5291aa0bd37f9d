//! Field and label selectors of lists and watches, and label selectors of disruption budgets.

use serde_json::Value;

use super::kind::Kind;

/// What a list or watch is narrowed to.
#[derive(Clone, Debug)]
pub struct Selector {
    kind: Kind,
    namespace: String,
    fields: Vec<(String, bool, String)>,
    labels: Vec<(String, bool, Option<String>)>,
}

/// A selector that the lab does not know, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSelector(pub String);

impl Selector {
    /// From namespace (empty: all), `fieldSelector` and `labelSelector`.
    ///
    /// # Errors
    /// [`UnknownSelector`] for forms beyond `=`, `==`, `!=`, and a label's name alone.
    pub fn new(kind: Kind, namespace: &str, fields: &str, labels: &str) -> Result<Self, UnknownSelector> {
        let fields = parse(fields)?
            .into_iter()
            .map(|(field, equal, value)| {
                let known = field.starts_with("metadata.")
                    || (kind == Kind::Pod && ["spec.nodeName", "status.phase"].contains(&field.as_str()));
                match value {
                    Some(value) if known => Ok((field, equal, value)),
                    _ => Err(UnknownSelector(field)),
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { kind, namespace: namespace.to_owned(), fields, labels: parse(labels)? })
    }

    /// The kind that it selects from.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the object is selected.
    #[must_use]
    pub fn selects(&self, object: &Value) -> bool {
        let in_namespace = self.namespace.is_empty() || object["metadata"]["namespace"] == self.namespace.as_str();
        let fields = self.fields.iter().all(|(field, equal, value)| {
            let pointer = format!("/{}", field.replace('.', "/"));
            (object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default() == value) == *equal
        });
        let labels = &object["metadata"]["labels"];
        in_namespace
            && fields
            && self.labels.iter().all(|(name, equal, value)| match value {
                Some(value) => (labels[name] == value.as_str()) == *equal,
                None => labels[name].is_null() != *equal,
            })
    }
}

/// `a=b,c!=d,e,!f` as (name, whether equal or present, value).
fn parse(text: &str) -> Result<Vec<(String, bool, Option<String>)>, UnknownSelector> {
    let terms = text.split(',').filter(|term| !term.is_empty());
    terms
        .map(|term| {
            let (name, equal, value) = if let Some((name, value)) = term.split_once("!=") {
                (name, false, Some(value))
            } else if let Some((name, value)) = term.split_once('=') {
                (name, true, Some(value.trim_start_matches('=')))
            } else {
                (term.trim_start_matches('!'), !term.starts_with('!'), None)
            };
            if name.contains(' ') || name.contains('(') || value.is_some_and(|value| value.contains('(')) {
                return Err(UnknownSelector(term.to_owned()));
            }
            Ok((name.to_owned(), equal, value.map(str::to_owned)))
        })
        .collect()
}

/// Whether a LabelSelector with `matchLabels` selects the object; an empty one selects all.
#[must_use]
pub fn match_labels(selector: &Value, object: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object();
    wanted.into_iter().flatten().all(|(name, value)| object["metadata"]["labels"][name] == *value)
}
