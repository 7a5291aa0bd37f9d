//! The text of a machine config, cut into its YAML documents.

/// One document and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// The line of its first content line, from 1, as Talos counts in its refusals.
    pub line: usize,
    /// Its text, without the separator.
    pub text: &'a str,
}

/// Cuts at lines that begin a document (`---` in the first column: deeper ones are content of a block scalar), drops
/// a byte order mark, and leaves out documents without content (variants 15 and 23 of the recordings are accepted).
pub(super) fn split(text: &str) -> Vec<Document<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let (mut start, mut first_line) = (0, 1);
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let end = offset + line.len();
        if is_separator(line) {
            documents.push(Document { line: first_line, text: &text[start..offset] });
            (start, first_line) = (end, index + 2);
        }
        offset = end;
    }
    documents.push(Document { line: first_line, text: &text[start..] });
    documents.retain(|document| document.text.lines().any(has_content));
    documents
}

fn is_separator(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.trim_start().is_empty() || rest.trim_start().starts_with('#'))
}

fn has_content(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#') && line != "..."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_keep_their_lines() {
        let text = "\u{feff}a: 1\r\nb: |\r\n  ---\r\n---\r\nkind: X\r\n---\n# nothing\n";
        let documents = split(text);
        assert_eq!(documents.iter().map(|d| d.line).collect::<Vec<_>>(), [1, 5]);
        assert!(documents[0].text.ends_with("  ---\r\n"));
    }
}
