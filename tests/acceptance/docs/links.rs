//! Every link within the repository leads somewhere.

use std::collections::BTreeSet;
use std::path::Path;

use super::markdown::{documents, prose, root};
use crate::harness::read;

/// The targets of `[text](target)` in prose, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // What stands between backticks is no link.
        let outside: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        for part in outside.split("](").skip(1) {
            found.push((number, part.split(')').next().unwrap_or_default().trim().to_owned()));
        }
    }
    found
}

/// The anchors of a text's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let headings = prose(text).into_iter().filter_map(|(_, line)| line.strip_prefix('#'));
    for heading in headings.map(|line| line.trim_start_matches('#').trim().to_lowercase()) {
        let kept = heading.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        let slug: String = kept.map(|char| if char == ' ' { '-' } else { char }).collect();
        let same = (1..).map(|number| format!("{slug}-{number}"));
        let free = std::iter::once(slug.clone()).chain(same).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

#[test]
fn every_link_leads_somewhere() {
    let mut followed = 0;
    for document in documents() {
        for (line, target) in links(&document.text) {
            if target.starts_with("http://") || target.starts_with("https://") {
                continue;
            }
            followed += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let folder = Path::new(&document.path).parent().unwrap_or(Path::new(""));
            let place = if file.is_empty() { root().join(&document.path) } else { root().join(folder).join(file) };
            let path = &document.path;
            assert!(place.exists(), "{path}:{line}: {target} is not there");
            let known = anchor.is_empty() || anchors(&read(&place)).contains(anchor);
            assert!(known, "{path}:{line}: {file} has no heading {anchor:?}");
        }
    }
    assert!(followed > 40, "only {followed} links were found");
}

#[test]
fn anchors_are_made_as_github_makes_them() {
    let text = "# A b\n## `--nodes`, and more!\n## A b\n```sh\n# no heading\n```\n";
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["--nodes-and-more", "a-b", "a-b-1"]);
    let found = links("[a](b.md#c) and [d](https://e) `[f](g)`\n");
    assert_eq!(found, [(1, "b.md#c".to_owned()), (1, "https://e".to_owned())]);
}
