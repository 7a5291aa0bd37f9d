//! What two servers can have in common.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::recording::Recording;
use crate::real::api::Reply;

/// Headers that a client acts on.
const HEADERS: [&str; 3] = ["retry-after", "warning", "content-type"];

/// UIDs and resourceVersions of the recordings, and what this server calls the same.
#[derive(Default)]
pub struct Names(HashMap<String, String>);

impl Names {
    /// Learns what an object is called here. What had one name there must have one name here.
    ///
    /// # Errors
    /// What moved here and did not there.
    pub fn learn(&mut self, theirs: &Value, ours: &Value) -> Result<(), String> {
        for field in ["uid", "resourceVersion"] {
            let (Some(theirs), Some(ours)) = (theirs[field].as_str(), ours[field].as_str()) else { continue };
            let before = self.0.insert(theirs.to_owned(), ours.to_owned());
            if before.is_some_and(|before| before != ours) {
                return Err(format!("{field} moved, and did not in the recording"));
            }
        }
        Ok(())
    }

    /// Puts our names in the place of theirs.
    pub fn translate(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(ours) = self.0.get(text.as_str()) {
                    ours.clone_into(text);
                }
            }
            Value::Array(all) => all.iter_mut().for_each(|value| self.translate(value)),
            Value::Object(all) => all.values_mut().for_each(|value| self.translate(value)),
            _ => {}
        }
    }

    /// The body of a recorded request for this server.
    #[must_use]
    pub fn body(&self, recording: &Recording) -> String {
        match serde_json::from_str::<Value>(&recording.body) {
            Ok(mut body) => {
                self.translate(&mut body);
                body.to_string()
            }
            Err(_) => recording.body.clone(),
        }
    }

    /// Compares an answer with the recorded one: status, headers, and the whole body but for what no two servers can
    /// have in common.
    ///
    /// # Errors
    /// The difference.
    pub fn compare(&mut self, recording: &Recording, reply: &Reply) -> Result<(), String> {
        equal("status", &reply.code, &recording.code).map_err(|why| format!("{why}: {}", reply.text))?;
        for name in HEADERS {
            let found = reply.headers.get(name).and_then(|value| value.to_str().ok());
            equal(name, &found, &recording.answer_headers.get(name).map(String::as_str))?;
        }
        let Ok(mut expected) = serde_json::from_str::<Value>(&recording.answer) else {
            return equal("body", &reply.text.trim(), &recording.answer.as_str());
        };
        let mut found = reply.json();
        self.learn(&expected["metadata"], &found["metadata"])?;
        self.translate(&mut expected);
        normalise(&mut expected, self);
        normalise(&mut found, &Self::default());
        equal("body", &found, &expected)
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}")) }
}

/// Takes out what no two servers can have in common.
fn normalise(value: &mut Value, names: &Names) {
    const VARIABLE: [&str; 17] = [
        "continue",
        "creationTimestamp",
        "deletionTimestamp",
        "lastTransitionTime",
        "resourceVersion",
        "uid",
        // Of /version: what was built, when, where and with what.
        "buildDate",
        "emulationMajor",
        "emulationMinor",
        "gitCommit",
        "gitVersion",
        "goVersion",
        "major",
        "minCompatibilityMajor",
        "minCompatibilityMinor",
        "minor",
        "platform",
    ];
    match value {
        Value::Object(all) => {
            all.shift_remove("managedFields");
            for (name, value) in all.iter_mut() {
                if VARIABLE.contains(&name.as_str()) {
                    // Absent and null are not the same as a value.
                    if !value.is_null() {
                        *value = json!("*");
                    }
                } else if name == "disruptedPods"
                    && let Some(pods) = value.as_object_mut()
                {
                    pods.values_mut().for_each(|time| *time = json!("*"));
                } else if name == "message"
                    && let Some(text) = value.as_str()
                {
                    *value = json!(normalise_text(text, names));
                } else {
                    normalise(value, names);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| normalise(value, names)),
        _ => {}
    }
}

/// A message with our UIDs in place of theirs, without a resourceVersion and without a whole object in it.
fn normalise_text(text: &str, names: &Names) -> String {
    let mut text = text.to_owned();
    for (theirs, ours) in names.0.iter().filter(|(theirs, _)| theirs.len() == 36) {
        text = text.replace(theirs.as_str(), ours);
    }
    if let (Some(start), Some(end)) = (text.find("ResourceVersion in record ("), text.find("). The object")) {
        text.replace_range(start + 27..end, "*");
    }
    if let (Some(start), Some(end)) = (text.find("\"{"), text.rfind("}\"")) {
        text.replace_range(start..end, "\"{*");
    }
    text
}
