//! How wide a terminal is, and texts that are broken to fit.

use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// The columns of a terminal; `None` for what is none.
#[must_use]
pub fn terminal(stream: impl AsFd) -> Option<usize> {
    let columns = tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col));
    columns.filter(|columns| *columns > 0)
}

/// Breaks at spaces; a word that is longer than the line stays whole, for it may be copied.
#[must_use]
pub fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > room {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_word_stays_whole() {
        assert_eq!(wrapped("a bb ccccccccccc d", 6), ["a bb", "ccccccccccc", "d"]);
        assert_eq!(wrapped("", 6), [""]);
    }
}
