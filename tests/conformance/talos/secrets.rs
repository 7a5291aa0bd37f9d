//! What must appear in no output.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize as _;
use serde_json::Value;

/// A shorter password is also a word of some message; its base64 form is looked for all the same.
const SHORTEST: usize = 8;

/// The secrets of the files that the suite was given, each with the words for it.
#[derive(Default)]
pub struct Secrets(Vec<(String, String)>);

impl Secrets {
    /// Learns the secrets of a file: a docker config, a Secret manifest, Talos documents, a kubeconfig, a talosconfig.
    /// Told by the names of the keys, and not by the product's own reader, which is what is tested.
    pub fn learn(&mut self, file: &str, text: &str) {
        for document in serde_yaml::Deserializer::from_str(text) {
            let document = Value::deserialize(document).unwrap_or_else(|_| panic!("{file} is neither JSON nor YAML"));
            self.walk(file, &document);
        }
    }

    fn walk(&mut self, file: &str, value: &Value) {
        match value {
            Value::Object(map) => {
                let text = |key: &str| map.get(key).and_then(Value::as_str);
                for user in ["username", "user"].into_iter().filter_map(text) {
                    if let Some(password) = text("password") {
                        self.add(file, "base64 of user:password", &STANDARD.encode(format!("{user}:{password}")));
                    }
                }
                for (key, value) in map {
                    if let Some(secret) = value.as_str() {
                        self.entry(file, key, secret);
                    }
                    self.walk(file, value);
                }
            }
            Value::Array(list) => list.iter().for_each(|value| self.walk(file, value)),
            _ => {}
        }
    }

    fn entry(&mut self, file: &str, key: &str, secret: &str) {
        let decoded = || String::from_utf8(STANDARD.decode(secret).unwrap_or_default()).unwrap_or_default();
        match key {
            "password" | "identitytoken" | "identityToken" | "token" | "client-key-data" | "key" => {
                self.add(file, key, secret);
            }
            "auth" => {
                self.add(file, key, secret);
                if let Some((_, password)) = decoded().split_once(':') {
                    self.add(file, "the password in auth", password);
                }
            }
            ".dockerconfigjson" => match serde_json::from_str(secret).or_else(|_| serde_json::from_str(&decoded())) {
                Ok(inner) => self.walk(file, &inner),
                Err(_) => panic!("{file}: what is in {key} is no docker config"),
            },
            _ => {}
        }
    }

    fn add(&mut self, file: &str, what: &str, secret: &str) {
        if secret.len() >= SHORTEST {
            self.0.push((format!("{what} of {file}"), secret.to_owned()));
        }
    }

    /// The words for a secret that is in the text; never the secret.
    pub fn found_in(&self, text: &str) -> Option<&str> {
        self.0.iter().find(|(_, secret)| text.contains(secret.as_str())).map(|(what, _)| what.as_str())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
