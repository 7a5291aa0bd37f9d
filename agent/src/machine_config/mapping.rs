//! Setting and removing entries of one mapping of the text, whatever its layout, and making the way to it.

use zeroize::Zeroizing;

use super::error::{At, ConfigError};
use super::scalar;
use super::splice::Patch;
use super::tree::{Document, Entry, Kind, Node};

/// What the mapping must hold afterwards.
pub(super) struct Goal<'g> {
    /// Keys from the document's root to the mapping; what is missing of it is made.
    pub(super) path: &'g [&'g str],
    /// Keys of the mapping and their values as written (already quoted).
    pub(super) set: &'g [(&'g str, Zeroizing<String>)],
    /// Keys that must go.
    pub(super) remove: &'g [&'g str],
    /// Whether the mapping holds nothing else that counts, so that an alias in its place may be written out.
    pub(super) whole: bool,
}

/// A document and the text that it stands in.
pub(super) struct Editor<'t> {
    pub(super) text: &'t str,
    pub(super) document: &'t Document,
    /// For errors.
    pub(super) name: &'t str,
}

impl Editor<'_> {
    /// The patches that reach the goal.
    pub(super) fn reach(&self, goal: &Goal<'_>) -> Result<Vec<Patch>, ConfigError> {
        let mut node = &self.document.root;
        for (depth, key) in goal.path.iter().enumerate() {
            let (here, rest) = (&goal.path[..depth], &goal.path[depth + 1..]);
            self.guard(node, here)?;
            let Some(entry) = node.entry(key) else {
                if node.merges() {
                    return Err(ConfigError::Shared(self.at(node, &[here, &[key]].concat())));
                }
                let child = Nested { path: &goal.path[depth..], set: goal.set };
                return self.insert(node, here, &child).map(|patch| vec![patch]);
            };
            let there = &goal.path[..=depth];
            match &entry.value.kind {
                _ if entry.value.is_null() => {
                    let flow = Nested { path: rest, set: goal.set }.flow();
                    return self.replace(entry, there, &braced(&flow)).map(|patch| vec![patch]);
                }
                Kind::Alias(_) if goal.whole && rest.is_empty() => {
                    let flow = Nested { path: rest, set: goal.set }.flow();
                    return self.replace(entry, there, &braced(&flow)).map(|patch| vec![patch]);
                }
                Kind::Alias(_) => return Err(ConfigError::Shared(self.at(&entry.value, there))),
                _ => node = &entry.value,
            }
        }
        self.guard(node, goal.path)?;
        if node.merges() {
            return Err(ConfigError::Shared(self.at(node, goal.path)));
        }
        self.change(node, goal)
    }

    /// A node on the way must be a mapping that only this place uses.
    fn guard(&self, node: &Node, path: &[&str]) -> Result<(), ConfigError> {
        if !node.is_map() {
            return Err(ConfigError::Shape { at: self.at(node, path), expected: "a mapping" });
        }
        if node.anchor.is_some_and(|anchor| self.document.aliased.contains(&anchor)) {
            return Err(ConfigError::Shared(self.at(node, path)));
        }
        Ok(())
    }

    fn change(&self, node: &Node, goal: &Goal<'_>) -> Result<Vec<Patch>, ConfigError> {
        let mut patches = Vec::new();
        let mut missing = Vec::new();
        for (key, value) in goal.set {
            let path = [goal.path, &[key]].concat();
            match node.entry(key) {
                Some(entry) => patches.push(self.replace(entry, &path, value)?),
                None => missing.push((*key, value.clone())),
            }
        }
        let mut going = node.entries().iter().filter(|e| e.key.text().is_some_and(|key| goal.remove.contains(&key)));
        if !missing.is_empty() {
            let added = Nested { path: &[], set: &missing };
            match going.next() {
                // In the place of what goes, so that order and comments around it stay.
                Some(entry) => {
                    self.check_entry(node, entry, goal.path)?;
                    let text = if is_flow(node) {
                        added.flow()
                    } else {
                        added.block(&self.line_break(), &" ".repeat(entry.key.place.column), "")
                    };
                    patches.push(Patch { range: entry.key.span.start..self.end(entry), text });
                }
                None => patches.push(self.insert(node, goal.path, &added)?),
            }
        }
        for entry in going {
            self.check_entry(node, entry, goal.path)?;
            patches.push(self.removal(node, entry));
        }
        Ok(patches)
    }

    /// Replaces the value of an entry.
    fn replace(&self, entry: &Entry, path: &[&str], written: &Zeroizing<String>) -> Result<Patch, ConfigError> {
        let value = &entry.value;
        if value.anchor.is_some_and(|anchor| self.document.aliased.contains(&anchor)) || value.tagged {
            return Err(ConfigError::Shared(self.at(value, path)));
        }
        let behind_colon = self.behind_colon(&entry.key);
        let spaced = || Zeroizing::new(format!(" {}", **written));
        match &value.kind {
            // Nothing stands there: the place that a parser gives such a value is not where one would be written.
            Kind::Scalar { .. } if value.span.is_empty() => match behind_colon {
                _ if value.anchor.is_some() => Err(ConfigError::Shared(self.at(value, path))),
                Some(at) => Ok(Patch::insert(at, spaced())),
                None if self.text[entry.key.span.end..].starts_with([',', '}']) => {
                    Ok(Patch::insert(entry.key.span.end, Zeroizing::new(format!(": {}", **written))))
                }
                None => Err(ConfigError::Layout(self.at(value, path))),
            },
            Kind::Scalar { block: true, .. } => match behind_colon {
                Some(at) if value.anchor.is_none() => Ok(Patch { range: at..value.span.end, text: spaced() }),
                _ => Err(ConfigError::Layout(self.at(value, path))),
            },
            Kind::Scalar { .. } | Kind::Alias(_) => Ok(Patch { range: value.span.clone(), text: written.clone() }),
            _ => Err(ConfigError::Shape { at: self.at(value, path), expected: "a text" }),
        }
    }

    /// Adds entries to a mapping: at its beginning, the one place where neither block scalars nor comments behind the
    /// last entry matter.
    fn insert(&self, node: &Node, path: &[&str], added: &Nested<'_>) -> Result<Patch, ConfigError> {
        let Some(first) = node.entries().first() else {
            // Only `{}` has no entries.
            return Ok(Patch::insert(node.span.start + 1, added.flow()));
        };
        if is_flow(node) {
            let text = Zeroizing::new(format!("{}, ", *added.flow()));
            return Ok(Patch::insert(node.span.start + 1, text));
        }
        self.check_entry(node, first, path)?;
        let indent = " ".repeat(first.key.place.column);
        let unit = " ".repeat(self.unit());
        let text = added.block(&self.line_break(), &indent, &unit);
        let key = first.key.span.start;
        let above = if path.is_empty() { None } else { self.above_comments(key) };
        let (line_break, text) = (self.line_break(), &*text);
        Ok(match above {
            Some(line) => Patch::insert(line, Zeroizing::new(format!("{indent}{text}{line_break}"))),
            None => Patch::insert(key, Zeroizing::new(format!("{text}{line_break}{indent}"))),
        })
    }

    /// The first of the comment lines that directly precede the line of `at`, if there are any: they belong to it.
    fn above_comments(&self, at: usize) -> Option<usize> {
        let mut line = self.line_start(at);
        let mut found = None;
        while line > 0 {
            let before = self.line_start(line - 1);
            if !self.text[before..line].trim_start().starts_with('#') {
                break;
            }
            (line, found) = (before, Some(before));
        }
        found
    }

    fn removal(&self, node: &Node, entry: &Entry) -> Patch {
        let (start, end) = (entry.key.span.start, self.end(entry));
        let behind = &self.text[end..];
        if is_flow(node) {
            // A comma that is left before the brace is valid.
            let rest = behind.trim_start();
            let comma = rest.starts_with(',').then(|| behind.len() - rest.len() + 1);
            let spaces = comma.map_or(0, |n| behind[n..].len() - behind[n..].trim_start_matches(' ').len());
            return Patch::remove(start..end + comma.unwrap_or(0) + spaces);
        }
        let line = behind.find('\n').map_or(behind, |n| &behind[..=n]);
        if line.trim().is_empty() {
            // The whole line, but not a byte order mark before it.
            let indent = entry.key.place.column;
            Patch::remove(start - indent..end + line.len())
        } else {
            // A comment stands behind it, and stays.
            Patch::remove(start..end)
        }
    }

    /// Where an entry ends: behind its value, or behind its colon when there is none.
    fn end(&self, entry: &Entry) -> usize {
        let colon = self.behind_colon(&entry.key).unwrap_or(entry.key.span.end);
        entry.value.span.end.max(colon)
    }

    /// An entry that lines are added before or removed with must have its line for itself.
    fn check_entry(&self, node: &Node, entry: &Entry, path: &[&str]) -> Result<(), ConfigError> {
        let start = entry.key.span.start;
        let before = &self.text[self.line_start(start)..start];
        let value = &entry.value;
        let ok = if is_flow(node) {
            !before.trim_end().ends_with('?')
        } else {
            let blank = before.trim_start_matches('\u{feff}').bytes().all(|b| b == b' ');
            blank && self.behind_colon(&entry.key).is_some()
        };
        let shared = value.anchor.is_some_and(|anchor| self.document.aliased.contains(&anchor));
        let at = || self.at(&entry.key, &[path, &[entry.key.text().unwrap_or_default()]].concat());
        match (ok, shared) {
            (false, _) => Err(ConfigError::Layout(at())),
            (_, true) => Err(ConfigError::Shared(at())),
            _ => Ok(()),
        }
    }

    fn behind_colon(&self, key: &Node) -> Option<usize> {
        let behind = &self.text[key.span.end..];
        let rest = behind.trim_start_matches([' ', '\t']);
        rest.starts_with(':').then(|| self.text.len() - rest.len() + 1)
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |n| n + 1)
    }

    fn line_break(&self) -> String {
        line_break(self.text).to_owned()
    }

    /// By how many columns this document indents.
    fn unit(&self) -> usize {
        let children = self.document.root.entries().iter().map(|entry| &entry.value).filter(|value| !is_flow(value));
        children.filter_map(|value| value.entries().first()).map(|first| first.key.place.column).next().unwrap_or(4)
    }

    fn at(&self, node: &Node, path: &[&str]) -> At {
        At { document: self.name.to_owned(), path: path.join("."), line: node.place.line }
    }
}

/// The line break that a text uses.
pub(super) fn line_break(text: &str) -> &'static str {
    match text.find('\n') {
        Some(at) if text[..at].ends_with('\r') => "\r\n",
        _ => "\n",
    }
}

fn is_flow(node: &Node) -> bool {
    matches!(node.kind, Kind::Map { flow: true, .. })
}

fn braced(inner: &str) -> Zeroizing<String> {
    Zeroizing::new(format!("{{{inner}}}"))
}

/// Entries under a path of new keys.
struct Nested<'n> {
    path: &'n [&'n str],
    set: &'n [(&'n str, Zeroizing<String>)],
}

impl Nested<'_> {
    /// `a: {b: {k: "v", l: "w"}}`
    fn flow(&self) -> Zeroizing<String> {
        match self.path {
            [] => join(self.lines(), ", "),
            [key, rest @ ..] => {
                let inner = Nested { path: rest, set: self.set }.flow();
                Zeroizing::new(format!("{}: {{{}}}", scalar::key(key), *inner))
            }
        }
    }

    /// Lines, the first without its indentation, the last without its line break.
    fn block(&self, line_break: &str, indent: &str, unit: &str) -> Zeroizing<String> {
        let mut indent = indent.to_owned();
        let mut keys = String::new();
        for key in self.path {
            indent.push_str(unit);
            keys.push_str(&format!("{}:{line_break}{indent}", scalar::key(key)));
        }
        let entries = join(self.lines(), &format!("{line_break}{indent}"));
        Zeroizing::new(keys + &entries)
    }

    fn lines(&self) -> impl Iterator<Item = Zeroizing<String>> {
        self.set.iter().map(|(key, value)| Zeroizing::new(format!("{}: {}", scalar::key(key), **value)))
    }
}

fn join(parts: impl Iterator<Item = Zeroizing<String>>, between: &str) -> Zeroizing<String> {
    let parts: Vec<_> = parts.collect();
    let len = parts.iter().map(|part| part.len() + between.len()).sum();
    let mut joined = Zeroizing::new(String::with_capacity(len));
    for (n, part) in parts.iter().enumerate() {
        if n > 0 {
            joined.push_str(between);
        }
        joined.push_str(part);
    }
    joined
}
