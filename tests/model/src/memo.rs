//! Answers of pure functions, so that each question is asked once, and texts that are quick to compare.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// A fence or a patch as it goes over the wire: hashed once, copied by reference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text {
    hash: u64,
    text: Arc<str>,
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self { hash: fingerprint(text), text: text.into() }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

fn fingerprint(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What a pure function has answered, by a fingerprint of what it was asked. The checker keeps its states in no other way.
pub struct Memo<V>(Mutex<HashMap<u64, V>>);

impl<V> Default for Memo<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V: Clone> Memo<V> {
    /// The answer to `key`, asked for if it is not known.
    pub fn once(&self, key: impl Hash, ask: impl FnOnce() -> V) -> V {
        let key = fingerprint(key);
        if let Some(found) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return found.clone();
        }
        let answer = ask();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, answer.clone());
        answer
    }
}
