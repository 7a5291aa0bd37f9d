//! What `--nodes` and `--exclude` left out: a success does not speak of it, so it is counted, and named where it is not
//! current. Pure.

use std::collections::BTreeMap;

use agent::claims::Verdict;
use schemars::JsonSchema;
use serde::Serialize;

use crate::fleet::{FleetNode, Snapshot, Talk};

/// Names that a line for people holds; a document has all.
const NAMED: usize = 10;

/// The nodes that flags left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// How many of them are current all the same.
    pub current: usize,
    /// The others by name, with their verdict.
    pub not_current: BTreeMap<String, &'static str>,
}

impl LeftOut {
    /// Of that fleet. Another system is no part of it, and a node that leaves needs nothing.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut left_out = Self::default();
        let is_left_out = |node: &&FleetNode| node.left_out && !matches!(node.talk, Talk::NotTalos(_));
        for node in snapshot.nodes.iter().filter(is_left_out) {
            match node.verdict() {
                Verdict::Leaving | Verdict::Gone => {}
                Verdict::Current => left_out.current += 1,
                verdict => drop(left_out.not_current.insert(node.name().to_owned(), verdict.name())),
            }
        }
        left_out
    }

    /// In one line for people; `None` when nothing was left out.
    #[must_use]
    pub fn words(&self) -> Option<String> {
        let all = self.current + self.not_current.len();
        if all == 0 {
            return None;
        }
        let nodes = if all == 1 { "node" } else { "nodes" };
        let mut words = format!("Left out by --nodes or --exclude: {all} {nodes}");
        if self.not_current.is_empty() {
            words.push_str(", current");
            return Some(words);
        }
        let named = self.not_current.iter().take(NAMED).map(|(name, verdict)| format!("{name} ({verdict})"));
        let names: Vec<_> = named.collect();
        words.push_str(&format!(", {} of them not current: {}", self.not_current.len(), names.join(", ")));
        if let Some(more) = self.not_current.len().checked_sub(NAMED).filter(|more| *more > 0) {
            words.push_str(&format!(" and {more} more"));
        }
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(current: usize, not_current: &[(&str, &'static str)]) -> LeftOut {
        let not_current = not_current.iter().map(|(name, verdict)| ((*name).to_owned(), *verdict)).collect();
        LeftOut { current, not_current }
    }

    #[test]
    fn what_is_not_current_is_named_and_a_long_list_is_cut() {
        assert_eq!(left_out(0, &[]).words(), None);
        let all_well = "Left out by --nodes or --exclude: 1 node, current";
        assert_eq!(left_out(1, &[]).words().as_deref(), Some(all_well));
        let two = left_out(2, &[("w1", "Drifted"), ("w2", "Blocked")]).words().unwrap();
        assert_eq!(two, "Left out by --nodes or --exclude: 4 nodes, 2 of them not current: w1 (Drifted), w2 (Blocked)");
        let names: Vec<String> = (10..22).map(|number| format!("w{number}")).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "Stale")).collect();
        let words = left_out(0, &many).words().unwrap();
        assert!(words.contains("12 of them not current: w10 (Stale), ") && words.ends_with("w19 (Stale) and 2 more"));
    }
}
