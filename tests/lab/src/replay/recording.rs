//! The files of the recordings.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A recorded exchange.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Who asked; in parentheses for nobody.
    pub user: String,
    /// The method of the request.
    pub method: String,
    /// Its path and query.
    pub target: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: String,
    /// The status of the answer.
    pub code: u16,
    /// Its headers, with their names in lower case.
    pub answer_headers: HashMap<String, String>,
    /// Its body.
    pub answer: String,
}

/// The folder with them.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/kubernetes")
}

/// All files of recordings, by the number that a name begins with.
///
/// # Panics
/// When the folder is not there.
#[must_use]
pub fn all() -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(folder()).expect("the recordings are in the source tree");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let numbered = paths.filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        let (number, _) = name.strip_suffix(".http")?.split_once('-')?;
        Some((number.to_owned(), path))
    });
    numbered.collect()
}

impl Recording {
    /// The recording with that number.
    ///
    /// # Panics
    /// When there is none, or its file is not in the form of the others.
    #[must_use]
    pub fn read(number: &str) -> Self {
        let all = all();
        let path = all.get(number).unwrap_or_else(|| panic!("no recording {number}"));
        let text = fs::read_to_string(path).expect("a recording can be read");
        Self::parse(&text).unwrap_or_else(|| panic!("{} has another form", path.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        let (asked, answered) = text.split_once("---- response ----\n")?;
        let (head, body) = asked.split_once("\n\n")?;
        let mut lines = head.lines();
        let user = lines.next()?.trim_start_matches("# user: ").split("   took").next()?.to_owned();
        let (method, target) = lines.next()?.split_once(' ')?;
        let (answer_head, answer) = answered.split_once("\n\n")?;
        let mut answer_lines = answer_head.lines();
        let code = answer_lines.next()?.split(' ').next()?.parse().ok()?;
        Some(Self {
            user,
            method: method.to_owned(),
            target: target.to_owned(),
            headers: lines.map(header).collect::<Option<_>>()?,
            body: body.trim().to_owned(),
            code,
            answer_headers: answer_lines.map(header).collect::<Option<_>>()?,
            answer: answer.trim().to_owned(),
        })
    }

    /// The object that was answered; null when it was none.
    #[must_use]
    pub fn object(&self) -> Value {
        serde_json::from_str(&self.answer).unwrap_or_default()
    }
}

fn header(line: &str) -> Option<(String, String)> {
    line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()))
}
