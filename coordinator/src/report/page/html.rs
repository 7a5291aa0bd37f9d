//! Text that becomes HTML. What is markup is written in this program; all else is escaped.

use std::fmt::Write as _;

/// A piece of a page.
#[derive(Debug, Default)]
pub struct Html(String);

impl Html {
    /// Markup: only what is written in this program can be it.
    pub fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text of whoever, for an element's content or an attribute in double quotes.
    pub fn text(&mut self, text: &str) -> &mut Self {
        for char in text.chars() {
            match char {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(char),
                // Neither a terminal's escapes nor what turns the direction of the text around it.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => self.0.push('\u{fffd}'),
                _ if char.is_control() => self.0.push('\u{fffd}'),
                _ => self.0.push(char),
            }
        }
        self
    }

    /// An element with text alone.
    pub fn element(&mut self, tag: &'static str, text: &str) -> &mut Self {
        self.raw("<").raw(tag).raw(">").text(text).raw("</").raw(tag).raw(">")
    }

    /// A number as it is.
    pub fn number(&mut self, number: impl Into<f64>) -> &mut Self {
        let text = format!("{:.3}", number.into());
        let text = text.trim_end_matches('0').trim_end_matches('.');
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{text}");
        self
    }

    /// Another piece.
    pub fn then(&mut self, other: &Html) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// The text of it.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_is_never_markup() {
        let mut html = Html::default();
        html.raw("<p title=\"").text("a\" onmouseover='x'").raw("\">");
        html.text("</p><script>&amp;\u{1b}[31m\u{202e}x\r\n").raw("</p>");
        assert_eq!(
            html.into_string(),
            "<p title=\"a&quot; onmouseover=&#39;x&#39;\">&lt;/p&gt;&lt;script&gt;&amp;amp;\u{fffd}[31m\u{fffd}x\u{fffd}\n</p>"
        );
    }

    #[test]
    fn numbers_are_short() {
        let text = |number: f64| {
            let mut html = Html::default();
            html.number(number);
            html.into_string()
        };
        assert_eq!([text(0.0), text(12.5), text(33.333_333), text(100.0)], ["0", "12.5", "33.333", "100"]);
    }
}
