//! A text under edit, that knows which of its bytes are old.

use std::fmt;
use std::ops::Range;

use zeroize::Zeroizing;

/// One place where an edit replaced bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splice {
    /// The bytes of the old text that went; empty for an insertion.
    pub old: Range<usize>,
    /// The bytes of the new text that came; empty for a removal.
    pub new: Range<usize>,
}

/// The outcome of an edit.
#[derive(Clone, PartialEq, Eq)]
pub struct Edited {
    /// The whole new config.
    pub bytes: Zeroizing<Vec<u8>>,
    /// Where it differs, in order. Empty when nothing had to be changed.
    pub spans: Vec<Splice>,
}

impl fmt::Debug for Edited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edited").field("spans", &self.spans).finish_non_exhaustive()
    }
}

impl Edited {
    /// Whether outside of the spans every byte of `old` is in the new text, in order and with nothing in between.
    #[must_use]
    pub fn keeps_all_else_of(&self, old: &[u8]) -> bool {
        let (mut from_old, mut from_new) = (0, 0);
        let ends = Splice { old: old.len()..old.len(), new: self.bytes.len()..self.bytes.len() };
        for splice in self.spans.iter().chain([&ends]) {
            let kept = (old.get(from_old..splice.old.start), self.bytes.get(from_new..splice.new.start));
            if kept.0.is_none() || kept.0 != kept.1 {
                return false;
            }
            (from_old, from_new) = (splice.old.end, splice.new.end);
        }
        true
    }
}

/// One replacement in the present text.
pub(super) struct Patch {
    pub(super) range: Range<usize>,
    pub(super) text: Zeroizing<String>,
}

impl Patch {
    pub(super) fn insert(at: usize, text: Zeroizing<String>) -> Self {
        Self { range: at..at, text }
    }

    pub(super) fn remove(range: Range<usize>) -> Self {
        Self { range, text: Zeroizing::new(String::new()) }
    }
}

enum Piece {
    Old(Range<usize>),
    New(Zeroizing<String>),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Old(range) => range.len(),
            Self::New(text) => text.len(),
        }
    }

    /// Cuts the piece in two; `at` is within it and on a character's border.
    fn split(self, at: usize) -> (Self, Self) {
        match self {
            Self::Old(range) => {
                let middle = range.start + at;
                (Self::Old(range.start..middle), Self::Old(middle..range.end))
            }
            Self::New(text) => {
                let (left, right) = text.split_at(at);
                (Self::New(Zeroizing::new(left.to_owned())), Self::New(Zeroizing::new(right.to_owned())))
            }
        }
    }
}

/// Old and new pieces in order.
pub(super) struct Pieces<'t> {
    old: &'t str,
    pieces: Vec<Piece>,
}

impl<'t> Pieces<'t> {
    pub(super) fn new(old: &'t str) -> Self {
        Self { old, pieces: vec![Piece::Old(0..old.len())] }
    }

    /// Applies patches whose ranges are all of the present text and do not overlap.
    pub(super) fn apply(&mut self, mut patches: Vec<Patch>) {
        // From the end, so that the places of the others stay true.
        patches.sort_by_key(|patch| std::cmp::Reverse((patch.range.start, patch.range.end)));
        for patch in patches {
            let from = self.border(patch.range.start);
            let to = self.border(patch.range.end);
            self.pieces.splice(from..to, (!patch.text.is_empty()).then_some(Piece::New(patch.text)));
        }
    }

    /// The index of the piece that begins at `at`, after cutting one there if needed.
    fn border(&mut self, at: usize) -> usize {
        let mut start = 0;
        for index in 0..self.pieces.len() {
            let len = self.pieces[index].len();
            if at <= start {
                return index;
            }
            if at < start + len {
                let (left, right) = self.pieces.remove(index).split(at - start);
                self.pieces.splice(index..index, [left, right]);
                return index + 1;
            }
            start += len;
        }
        self.pieces.len()
    }

    /// The present text.
    pub(super) fn text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(self.pieces.iter().map(Piece::len).sum()));
        for piece in &self.pieces {
            match piece {
                Piece::Old(range) => text.push_str(&self.old[range.clone()]),
                Piece::New(new) => text.push_str(new),
            }
        }
        text
    }

    /// The text and where it differs from the old one.
    pub(super) fn finish(&self) -> Edited {
        let mut spans: Vec<Splice> = Vec::new();
        let (mut old, mut new) = (0, 0);
        let mut open = Splice { old: 0..0, new: 0..0 };
        for piece in self.pieces.iter().chain([&Piece::Old(self.old.len()..self.old.len())]) {
            match piece {
                Piece::New(text) => {
                    new += text.len();
                    open.new.end = new;
                }
                Piece::Old(range) => {
                    open.old.end = range.start;
                    if !open.old.is_empty() || !open.new.is_empty() {
                        spans.push(open.clone());
                    }
                    old = range.end;
                    new += range.len();
                    open = Splice { old: old..old, new: new..new };
                }
            }
        }
        debug_assert_eq!(old, self.old.len());
        Edited { bytes: Zeroizing::new(self.text().as_bytes().to_vec()), spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(range: Range<usize>, text: &str) -> Patch {
        Patch { range, text: Zeroizing::new(text.to_owned()) }
    }

    #[test]
    fn c01_edits_of_edits_still_know_the_old_bytes() {
        let old = "abcdefghij";
        let mut pieces = Pieces::new(old);
        pieces.apply(vec![patch(2..4, "XYZ"), patch(9..9, "!"), patch(0..0, ">")]);
        assert_eq!(*pieces.text(), ">abXYZefghi!j");
        pieces.apply(vec![patch(4..7, ""), patch(13..13, "$")]);
        let edited = pieces.finish();
        assert_eq!(*edited.bytes, b">abXfghi!j$");
        let places: Vec<_> = edited.spans.iter().map(|s| (s.old.clone(), s.new.clone())).collect();
        assert_eq!(places, [(0..0, 0..1), (2..5, 3..4), (9..9, 8..9), (10..10, 10..11)]);
        assert!(edited.keeps_all_else_of(old.as_bytes()));
        assert!(!edited.keeps_all_else_of(b"abcdefgHij"));
    }

    #[test]
    fn nothing_changed_has_no_spans() {
        let edited = Pieces::new("a: 1\n").finish();
        assert!(edited.spans.is_empty() && edited.keeps_all_else_of(b"a: 1\n"));
        assert!(!edited.keeps_all_else_of(b"a: 1"));
    }
}
