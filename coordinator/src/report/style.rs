//! Colour, and what is never sent to a terminal.
//!
//! Texts carry their colours; the streams of anstream take them out where they do not belong: what is no terminal,
//! `NO_COLOR`, `TERM=dumb`. `CLICOLOR_FORCE` leaves them in.

use std::borrow::Cow;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

const GOOD: Style = AnsiColor::Green.on_default();
const ODD: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default();
/// The head of a table.
pub const HEAD: Style = Style::new().bold();

/// The columns whose words have a colour.
const JUDGING: [&str; 9] = ["VERDICT", "CONFIGURED", "LOADED", "PULL", "PROOF", "HOLDS", "STATE", "RESULT", "EVIDENCE"];

/// The colour of a word in a column.
#[must_use]
pub fn of(column: &str, word: &str) -> Style {
    if !JUDGING.contains(&column) {
        return Style::new();
    }
    match word {
        "Current" | "yes" | "ok" | "proved" => GOOD,
        "Unproved" | "Stale" | "Drifted" | "Unknown" | "unknown" | "?" | "staged" | "warning" => ODD,
        "Blocked" | "no" | "FAULT" => BAD,
        _ => Style::new(),
    }
}

/// A text in that style.
#[must_use]
pub fn styled(style: Style, text: &str) -> String {
    if style.is_plain() { text.to_owned() } else { format!("{style}{text}{style:#}") }
}

/// The word at the begin of what goes wrong.
#[must_use]
pub fn lead(text: &str) -> Cow<'_, str> {
    for (word, style) in [("error:", BAD.bold()), ("warning:", ODD.bold())] {
        if let Some(rest) = text.strip_prefix(word) {
            return Cow::Owned(styled(style, word) + rest);
        }
    }
    Cow::Borrowed(text)
}

/// With every control character written out, for what nodes, servers and commands say may hold some, and a terminal
/// obeys them. New lines, tabs and colours are no danger, and stay.
#[must_use]
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_fine = |char: char| !char.is_control() || matches!(char, '\n' | '\t');
    if text.chars().all(is_fine) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if let Some(length) = colour(rest) {
            out.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        if is_fine(char) {
            out.push(char);
        } else {
            let _ = write!(out, "{}", char.escape_default());
        }
        rest = &rest[char.len_utf8()..];
    }
    Cow::Owned(out)
}

/// The length of the sequence that sets a colour at the begin of the text (ECMA-48 SGR), if there is one.
fn colour(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|char: char| !char.is_ascii_digit() && char != ';')?;
    parameters[end..].starts_with('m').then_some("\u{1b}[".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out_and_colours_stay() {
        let cases = [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            ("a\rb\u{8}c\u{9b}m", "a\\rb\\u{8}c\\u{9b}m"),
            ("\u{1b}[1;31merror:\u{1b}[0m x", "\u{1b}[1;31merror:\u{1b}[0m x"),
            ("\u{1b}[31", "\\u{1b}[31"),
            ("caf\u{e9}\u{1b}", "caf\u{e9}\\u{1b}"),
        ];
        for (given, expected) in cases {
            assert_eq!(harmless(given), expected, "{given:?}");
        }
    }

    #[test]
    fn only_words_that_judge_have_a_colour() {
        assert!(!of("VERDICT", "Current").is_plain());
        assert!(of("NODE", "Current").is_plain() && of("VERDICT", "Leaving").is_plain());
        assert_eq!(lead("error: x"), format!("{0}error:{0:#} x", BAD.bold()));
        assert_eq!(lead("an error: x"), "an error: x");
    }
}
