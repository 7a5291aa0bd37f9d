//! Writing one YAML scalar so that every reader gives back the same text (quotes, leading zeros, `yes`, `#`, `: `,
//! trailing spaces, unicode).

use std::fmt::Write as _;

use zeroize::Zeroizing;

/// `text` in double quotes, on one line.
pub(super) fn double_quoted(text: &str) -> Zeroizing<String> {
    // Six bytes a character at most, so that the buffer never grows and leaves a copy behind.
    let mut out = Zeroizing::new(String::with_capacity(text.len() * 6 + 2));
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if !printable(c) => {
                // YAML has no printable form of these; writing to a String cannot fail.
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `text` in single quotes where that can hold it, which leaves JSON readable; else in double quotes.
pub(super) fn quoted(text: &str) -> Zeroizing<String> {
    if text.chars().all(printable) {
        Zeroizing::new(format!("'{}'", text.replace('\'', "''")))
    } else {
        double_quoted(text)
    }
}

/// A key or name as it is usually written: plain where that cannot be misread.
pub(super) fn key(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/');
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(plain);
    let special = matches!(
        text.to_ascii_lowercase().as_str(),
        "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null"
    );
    if word && !special { text.to_owned() } else { double_quoted(text).to_string() }
}

/// Whether a quoted scalar may hold the character as it is: YAML 1.2's `c-printable` without line breaks, in the
/// narrower reading of Go's parser.
fn printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}'
        | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c12_texts_that_need_quotes_come_back_from_another_reader() {
        for text in [
            "", " ", "012345", "yes", "~", "a # b", "a: b", "it's", "\"", "\\", "\\n", " lead", "trail ", "ümläut",
            "😀", "a\nb", "a\r\nb", "\t", "\0", "\u{7f}", "\u{85}", "\u{2028}", "\u{feff}", "{a", "*a", "&a", "!a",
            "%a", "@a", "`a", "- a", "'", "''", "---", "0x1f", "1e3", "\u{fffe}",
        ] {
            for written in [double_quoted(text), quoted(text), Zeroizing::new(key(text))] {
                let line = format!("{{k: {}, l: 1}}", *written);
                let read: std::collections::BTreeMap<String, serde_yaml::Value> = serde_yaml::from_str(&line).unwrap();
                assert_eq!(read["k"].as_str(), Some(text), "{line}");
                assert!(!written.contains(['\n', '\r']), "{line}");
            }
        }
    }
}
