//! `metav1.MicroTime`: exactly six digits, and Go's own words when it is anything else (captures 029 - 038).

use jiff::Timestamp;

use super::store::micros;

const LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";

/// The parts of the layout: what Go calls it in an error, and how many digits it takes (0: it stands for itself).
const PARTS: &[(&str, usize)] = &[
    ("2006", 4),
    ("-", 0),
    ("01", 2),
    ("-", 0),
    ("02", 2),
    ("T", 0),
    ("15", 2),
    (":", 0),
    ("04", 2),
    (":", 0),
    ("05", 2),
];

/// The time in UTC with six digits.
///
/// # Errors
/// Go's text of where the text leaves the layout.
pub fn parse(text: &str) -> Result<String, String> {
    let wrong =
        |rest: &str, part: &str| format!("parsing time {text:?} as {LAYOUT:?}: cannot parse {rest:?} as {part:?}");
    let mut rest = text;
    for (part, digits) in PARTS {
        let length = if *digits == 0 { part.len() } else { *digits };
        let taken = rest
            .get(..length)
            .filter(|taken| if *digits == 0 { taken == part } else { taken.bytes().all(|byte| byte.is_ascii_digit()) });
        taken.ok_or_else(|| wrong(rest, part))?;
        rest = &rest[length..];
    }
    let fraction = rest.get(..7).filter(|f| f.starts_with('.') && f[1..].bytes().all(|byte| byte.is_ascii_digit()));
    fraction.ok_or_else(|| wrong(rest, ".000000"))?;
    rest = &rest[7..];
    let zone = rest == "Z" || (rest.len() == 6 && rest.starts_with(['+', '-']) && rest.as_bytes()[3] == b':');
    if !zone {
        return Err(wrong(rest, "Z07:00"));
    }
    let time: Timestamp = text.parse().map_err(|_| format!("parsing time {text:?}: out of range"))?;
    Ok(micros(time))
}
