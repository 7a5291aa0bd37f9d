//! The documents as texts, and what is marked in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::harness::read;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A document for people.
pub struct Document {
    /// From the root.
    pub path: String,
    pub text: String,
}

/// Every document that people read first to last: those at the root, and `docs/`.
pub fn documents() -> Vec<Document> {
    let mut paths: Vec<String> =
        ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"].map(str::to_owned).into();
    find(&root().join("docs"), "docs", &mut paths);
    paths.into_iter().map(|path| Document { text: read(&root().join(&path)), path }).collect()
}

fn find(folder: &Path, name: &str, into: &mut Vec<String>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut entries: Vec<_> = entries.map(|entry| entry.expect("a folder can be listed")).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            find(&entry.path(), &path, into);
        } else if path.ends_with(".md") {
            into.push(path);
        }
    }
}

/// A fenced block.
#[derive(Debug, PartialEq)]
pub struct Block {
    /// Of its first line of text, from 1.
    pub line: usize,
    /// The first word behind the fence.
    pub language: String,
    /// `name=value` or `name="some words"` behind it.
    pub attributes: BTreeMap<String, String>,
    pub text: String,
}

/// The fenced blocks of a text; one that stands in a list is indented with it.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let indent = line.len() - line.trim_start().len();
        let mut text = String::new();
        for (_, line) in lines.by_ref().take_while(|(_, line)| line.trim() != "```") {
            text.push_str(line.get(indent..).unwrap_or_default());
            text.push('\n');
        }
        let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
        blocks.push(Block { line: number + 2, language: language.to_owned(), attributes: attributes(rest), text });
    }
    blocks
}

fn attributes(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text.trim();
    while let Some((name, behind)) = rest.split_once('=') {
        let (value, behind) = match behind.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').expect("a quote is closed"),
            None => behind.split_once(' ').unwrap_or((behind, "")),
        };
        found.insert(name.trim().to_owned(), value.to_owned());
        rest = behind;
    }
    found
}

/// The lines outside of fenced blocks, with their numbers from 1.
pub fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    lines.map(|(number, line)| (number + 1, line)).collect()
}

/// What stands between backticks in prose; a span may go over the end of a line.
pub fn code_spans(text: &str) -> Vec<String> {
    let lines: Vec<_> = prose(text).into_iter().map(|(_, line)| line).collect();
    let paragraphs = lines.split(|line| line.trim().is_empty()).map(|lines| lines.join(" "));
    paragraphs.flat_map(|text| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn blocks_are_found_with_their_attributes_also_in_a_list() {
    let text = "a\n```sh exit=2 not-run=\"needs Go\"\nmake\n```\n1. b\n\n   ```text\n   c\n     d\n   ```\n`x\ny` e\n";
    let [first, second] = &blocks(text)[..] else { panic!("two blocks") };
    assert_eq!((first.line, first.language.as_str(), first.text.as_str()), (3, "sh", "make\n"));
    assert_eq!(first.attributes["exit"], "2");
    assert_eq!(first.attributes["not-run"], "needs Go");
    assert_eq!((second.language.as_str(), second.text.as_str()), ("text", "c\n  d\n"));
    assert_eq!(prose(text).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 5, 6, 11, 12]);
    assert_eq!(code_spans(text), ["x y"]);
}
