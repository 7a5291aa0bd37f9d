//! How each node is rebooted: `--reboot-mode`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use talos_proto::node::RebootMode;

/// One value of the flag: a mode for all nodes, or for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeOf {
    /// The Node's name; without it the mode is for every node that is not named.
    pub node: Option<String>,
    /// The mode.
    pub mode: RebootMode,
}

impl FromStr for ModeOf {
    type Err = String;

    /// `MODE` or `NODE=MODE`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None => Ok(Self { node: None, mode: text.parse()? }),
            Some(("", _)) => Err(format!("{text:?} names no node; write MODE or NODE=MODE")),
            Some((node, mode)) => Ok(Self { node: Some(node.to_owned()), mode: mode.parse()? }),
        }
    }
}

impl fmt::Display for ModeOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Some(node) => write!(f, "{node}={}", self.mode),
            None => write!(f, "{}", self.mode),
        }
    }
}

/// The modes of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebootModes {
    others: RebootMode,
    named: BTreeMap<String, RebootMode>,
}

impl RebootModes {
    /// From all values of the flag.
    ///
    /// # Errors
    /// When two of them contradict each other.
    pub fn new(values: Vec<ModeOf>) -> Result<Self, String> {
        let (mut others, mut named) = (None, BTreeMap::new());
        for ModeOf { node, mode } in values {
            let (before, whose) = match node {
                Some(node) => (named.insert(node.clone(), mode), node),
                None => (others.replace(mode), "all nodes".to_owned()),
            };
            if let Some(before) = before.filter(|before| *before != mode) {
                return Err(format!("{before} and {mode} are given for {whose}; give one"));
            }
        }
        Ok(Self { others: others.unwrap_or_default(), named })
    }

    /// The mode of a node.
    #[must_use]
    pub fn of(&self, node: &str) -> RebootMode {
        self.named.get(node).copied().unwrap_or(self.others)
    }

    /// The nodes that have one of their own.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.named.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(values: &[&str]) -> Result<RebootModes, String> {
        RebootModes::new(values.iter().map(|value| value.parse()).collect::<Result<_, _>>()?)
    }

    #[test]
    fn r10_a_node_has_its_own_mode_or_that_of_all() {
        let given = modes(&["gpu-1=powercycle", "default", "w=1=force"]);
        assert!(given.unwrap_err().contains("1=force"));
        let given = modes(&["force", "gpu-1=powercycle", "cp-1=default"]).unwrap();
        assert_eq!(given.of("gpu-1"), RebootMode::Powercycle);
        assert_eq!((given.of("cp-1"), given.of("worker-1")), (RebootMode::Default, RebootMode::Force));
        assert_eq!(modes(&[]).unwrap().of("worker-1"), RebootMode::Default);
    }

    #[test]
    fn r10_what_is_no_mode_or_given_twice_is_a_mistake() {
        for (values, word) in [
            (&["cold"][..], "cold"),
            (&["=force"], "names no node"),
            (&["w="], "is no reboot mode"),
            (&["force", "default"], "all nodes"),
            (&["w=force", "w=powercycle"], "for w"),
        ] {
            assert!(modes(values).unwrap_err().contains(word), "{values:?}");
        }
        assert!(modes(&["w=force", "w=force"]).is_ok());
    }
}
