//! Cells under each other.

use anstyle::Style;

use super::style::{self, styled};

/// Columns, each as wide as its widest cell; the last one runs free.
#[must_use]
pub fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &[(&str, Style)]| {
        let last = cells.iter().rposition(|(cell, _)| !cell.is_empty()).unwrap_or(0);
        for (index, ((cell, style), width)) in cells.iter().zip(&widths).enumerate().take(last + 1) {
            text.push_str(&styled(*style, cell));
            if index < last {
                text.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 3));
            }
        }
        text.push('\n');
    };
    line(&header.iter().map(|cell| (*cell, style::HEAD)).collect::<Vec<_>>());
    for row in rows {
        let cells = header.iter().zip(row);
        line(&cells.map(|(column, cell)| (cell.as_str(), style::of(column, cell))).collect::<Vec<_>>());
    }
    text
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells_and_nothing_trails() {
        let rows = vec![vec!["a".into(), "long cell".into(), "x".into()], vec!["bb".into(), "y".into(), String::new()]];
        assert_eq!(
            strip_str(&columns(&["A", "B", "C"], &rows)).to_string(),
            "A    B           C\na    long cell   x\nbb   y\n"
        );
    }
}
