//! A machine config as a tree of nodes that know where in the text they stand.
//!
//! Only what an edit needs: a reader with serde would lose the places, and a writer would lose comments and layout.

use std::collections::BTreeSet;
use std::ops::Range;

use granit_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StructureStyle};
use zeroize::Zeroizing;

/// Where something stands in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// From 1.
    pub(super) line: usize,
    /// In characters from 0.
    pub(super) column: usize,
}

/// A node of the tree.
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Its bytes in the text; without tag, anchor and the line break behind it.
    pub(super) span: Range<usize>,
    pub(super) place: Place,
    /// The number of the anchor defined on it.
    pub(super) anchor: Option<usize>,
    pub(super) tagged: bool,
}

pub(super) enum Kind {
    Scalar {
        value: Zeroizing<String>,
        /// Without quotes: only such a scalar can be null.
        plain: bool,
        /// `|` or `>`: the span is that of the text, the indicator stands before it.
        block: bool,
    },
    Map {
        entries: Vec<Entry>,
        flow: bool,
    },
    Sequence(Vec<Node>),
    /// The number of the anchor that is meant.
    Alias(usize),
}

pub(super) struct Entry {
    pub(super) key: Node,
    pub(super) value: Node,
}

/// One YAML document.
pub(super) struct Document {
    pub(super) root: Node,
    /// The anchors that some alias in it means.
    pub(super) aliased: BTreeSet<usize>,
}

impl Node {
    /// The text of a scalar; empty for null, as Go reads null into a string.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { .. } if self.is_null() => Some(""),
            Kind::Scalar { value, .. } => Some(value),
            _ => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { value, plain: true, .. } if !self.tagged
            && matches!(value.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    pub(super) fn entries(&self) -> &[Entry] {
        match &self.kind {
            Kind::Map { entries, .. } => entries,
            _ => &[],
        }
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.kind, Kind::Map { .. })
    }

    /// The entry whose key is written out as `key`.
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries()
            .iter()
            .find(|entry| matches!(&entry.key.kind, Kind::Scalar { value, .. } if value.as_str() == key))
    }

    /// Whether a merge key brings entries in from elsewhere.
    pub(super) fn merges(&self) -> bool {
        self.entry("<<").is_some()
    }

    fn children(&self) -> Vec<&Node> {
        match &self.kind {
            Kind::Map { entries, .. } => entries.iter().flat_map(|entry| [&entry.key, &entry.value]).collect(),
            Kind::Sequence(items) => items.iter().collect(),
            Kind::Scalar { .. } | Kind::Alias(_) => Vec::new(),
        }
    }

    fn find_anchor(&self, anchor: usize) -> Option<&Node> {
        if self.anchor == Some(anchor) {
            return Some(self);
        }
        self.children().into_iter().find_map(|child| child.find_anchor(anchor))
    }
}

impl Document {
    /// What stands under `path`, through aliases and merge keys, as a reader on the node sees it.
    pub(super) fn get(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self.resolve(&self.root), |node, key| self.child(node, key, 0))
    }

    /// The value of `key` in `node`.
    pub(super) fn child<'a>(&'a self, node: &'a Node, key: &str, depth: usize) -> Option<&'a Node> {
        if let Some(entry) = node.entry(key) {
            return Some(self.resolve(&entry.value));
        }
        // Merges can only nest as deep as the text; the bound ends what refers to itself.
        let merged = self.resolve(&node.entry("<<").filter(|_| depth < 16)?.value);
        match &merged.kind {
            Kind::Sequence(items) => items.iter().find_map(|item| self.child(self.resolve(item), key, depth + 1)),
            _ => self.child(merged, key, depth + 1),
        }
    }

    /// The node that an alias means, else the node itself.
    pub(super) fn resolve<'a>(&'a self, node: &'a Node) -> &'a Node {
        match node.kind {
            Kind::Alias(anchor) => self.root.find_anchor(anchor).unwrap_or(node),
            _ => node,
        }
    }
}

/// Reads all documents of `text`.
pub(super) fn read(text: &str) -> Result<Vec<Document>, ScanError> {
    let mut options = granit_parser::options! { block_scalar_eof_without_line_feed: true };
    options.set_emit_comments(false);
    let mut builder = Builder { text, events: Parser::new_from_str_with_options(text, options), closed: 0 };
    let mut documents = Vec::new();
    while let Some((event, _)) = builder.next()? {
        if matches!(event, Event::DocumentStart(..)) {
            let mut aliased = BTreeSet::new();
            let root = builder.node(&mut aliased)?;
            documents.extend(root.map(|root| Document { root, aliased }));
        }
    }
    Ok(documents)
}

struct Builder<'t, P> {
    text: &'t str,
    events: P,
    /// Where the collection that was read last ends.
    closed: usize,
}

impl<'t, P: Iterator<Item = Result<(Event<'t>, Span), ScanError>>> Builder<'t, P> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Span)>, ScanError> {
        self.events.next().transpose()
    }

    /// The next node; nothing where a collection or document ends.
    fn node(&mut self, aliased: &mut BTreeSet<usize>) -> Result<Option<Node>, ScanError> {
        let Some((event, span)) = self.next()? else { return Ok(None) };
        let mut end = offset(self.text, span.end);
        let (kind, anchor, tagged) = match event {
            Event::Scalar(value, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                (Kind::Scalar { value: Zeroizing::new(value.into_owned()), plain, block }, anchor, tag.is_some())
            }
            Event::Alias(anchor) => {
                aliased.insert(anchor);
                (Kind::Alias(anchor), 0, false)
            }
            Event::SequenceStart(_, anchor, tag) => {
                let mut items = Vec::new();
                while let Some(item) = self.node(aliased)? {
                    items.push(item);
                }
                end = self.closed;
                (Kind::Sequence(items), anchor, tag.is_some())
            }
            Event::MappingStart(style, anchor, tag) => {
                let mut entries: Vec<Entry> = Vec::new();
                while let Some(key) = self.node(aliased)? {
                    let Some(value) = self.node(aliased)? else { break };
                    entries.push(Entry { key, value });
                }
                end = self.closed;
                (Kind::Map { entries, flow: style == StructureStyle::Flow }, anchor, tag.is_some())
            }
            _ => {
                self.closed = end;
                return Ok(None);
            }
        };
        let start = offset(self.text, span.start);
        // The span of what stands in block form reaches over line breaks, which are not ours to replace.
        let end = start + self.text.get(start..end).unwrap_or("").trim_end().len();
        let place = Place { line: span.start.line(), column: span.start.col() };
        Ok(Some(Node { kind, span: start..end, place, anchor: (anchor != 0).then_some(anchor), tagged }))
    }
}

/// Parsers of a `&str` always know the byte; the end of the text stands in for a marker that would not.
fn offset(text: &str, marker: Marker) -> usize {
    marker.byte_offset().unwrap_or(text.len())
}
