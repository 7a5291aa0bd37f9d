//! The diff that a refused or a dry apply shows: unredacted, as Talos's is (talos-captures point 7).

/// A unified diff of the lines that differ, three lines of context.
pub(crate) fn diff(before: &str, after: &str) -> String {
    if before == after {
        return "No changes.".to_owned();
    }
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let from = head.saturating_sub(3);
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);
    let after_context = tail.min(3);
    let mut text = format!(
        "--- a\n+++ b\n@@ -{},{} +{},{} @@\n",
        from + 1,
        old_end + after_context - from,
        from + 1,
        new_end + after_context - from
    );
    let mut lines = |sign: char, lines: &[&str]| {
        for line in lines {
            text.push(sign);
            text.push_str(line);
            text.push('\n');
        }
    };
    lines(' ', &old[from..head]);
    lines('-', &old[head..old_end]);
    lines('+', &new[head..new_end]);
    lines(' ', &old[old_end..old_end + after_context]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_shows_what_changed_as_talos_does() {
        let (a, b) = ("k: 1\nname: x\nusername: p\npassword: old\n", "k: 1\nname: x\nusername: p\npassword: new\n");
        assert_eq!(
            diff(a, b),
            "--- a\n+++ b\n@@ -1,4 +1,4 @@\n k: 1\n name: x\n username: p\n-password: old\n+password: new\n"
        );
        assert_eq!(diff(a, a), "No changes.");
    }
}
