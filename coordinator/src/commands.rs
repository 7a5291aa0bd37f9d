//! Commands for people to paste: what a tool must not decide by itself.
//!
//! Each is one JSON patch that tests what it was decided on, so that it does nothing to an object that has changed since.
//! What stands in a cluster may have been written by anybody: it reaches the patch as JSON in ASCII, and the shell in single
//! quotes.

use std::path::PathBuf;

use serde_json::Value;

use crate::kube::fence::{self, Fence, script};
use crate::kube::lease::LeaseRecord;
use crate::kube::nodes::NodeView;
use crate::kube::patch;
use crate::settings::LeaseName;

/// How kubectl reaches the cluster that was looked at: what was given explicitly, for the rest it finds by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubectl {
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--kube-context`.
    pub context: Option<String>,
}

/// One patch of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    namespace: Option<String>,
    kind: &'static str,
    name: String,
    operations: Vec<Value>,
}

impl Patch {
    fn of_node(node: &NodeView, operations: Vec<Value>) -> Self {
        Self { namespace: None, kind: "node", name: node.name.clone(), operations }
    }

    /// What kubectl is called with, word by word.
    #[must_use]
    pub fn words(&self, kubectl: &Kubectl) -> Vec<String> {
        let mut words = vec!["kubectl".to_owned()];
        if let Some(file) = &kubectl.kubeconfig {
            words.extend(["--kubeconfig".to_owned(), file.display().to_string()]);
        }
        // With `=`, for such a name may begin with a dash.
        words.extend(kubectl.context.as_ref().map(|context| format!("--context={context}")));
        if let Some(namespace) = &self.namespace {
            words.extend(["-n".to_owned(), namespace.clone()]);
        }
        let patch = ascii(&Value::from(self.operations.clone()).to_string());
        words.extend(["patch", self.kind, &self.name, "--type=json", "-p", &patch].map(str::to_owned));
        words
    }

    /// The command as it is pasted into a shell.
    #[must_use]
    pub fn text(&self, kubectl: &Kubectl) -> String {
        self.words(kubectl).iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }
}

/// Removes a fence as a run of its own would, with the cordon if it is the fence's.
#[must_use]
pub fn release(node: &NodeView, raw: &str, fence: &Fence) -> Patch {
    Patch::of_node(node, fence::release_patch(node, fence, raw))
}

/// Removes what cannot be read: a fence of ours, else one of the old script. The cordon stays, for nobody knows whose it is.
#[must_use]
pub fn remove_unread(node: &NodeView) -> Patch {
    let keys: &[&str] =
        if node.annotations.contains_key(fence::ANNOTATION) { &[fence::ANNOTATION] } else { &script::KEYS };
    let present = keys.iter().filter_map(|key| Some((patch::annotation(key), node.annotations.get(*key)?)));
    let (tests, removals): (Vec<_>, Vec<_>) =
        present.map(|(path, value)| (patch::test(&path, value), patch::remove(&path))).unzip();
    let uid = patch::test("/metadata/uid", &node.uid);
    Patch::of_node(node, [uid].into_iter().chain(tests).chain(removals).collect())
}

/// Uncordons a node.
#[must_use]
pub fn uncordon(node: &NodeView) -> Patch {
    Patch::of_node(
        node,
        vec![
            patch::test("/metadata/uid", &node.uid),
            patch::test("/spec/unschedulable", true),
            patch::add("/spec/unschedulable", false),
        ],
    )
}

/// Frees a Lease in the place of its holder. A renewal moves the version, so it is refused when the holder lives after all.
#[must_use]
pub fn free_lease(lease: &LeaseName, record: &LeaseRecord) -> Patch {
    let operations = vec![
        patch::test("/metadata/uid", &record.uid),
        patch::test("/metadata/resourceVersion", &record.resource_version),
        patch::test("/spec/holderIdentity", &record.holder),
        patch::add("/spec/holderIdentity", ""),
        patch::add("/spec/leaseDurationSeconds", 1),
    ];
    Patch { namespace: Some(lease.namespace.clone()), kind: "lease", name: lease.name.clone(), operations }
}

/// A word for a POSIX shell.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':' | ',' | '@' | '%' | '+' | '=');
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The same JSON in ASCII: what a terminal would not show, or show as something else, is escaped.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() && !c.is_ascii_control() {
            text.push(c);
            continue;
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;

    /// What a shell makes of a command line.
    fn by_a_shell(line: &str) -> Vec<String> {
        let script = format!("set -- {line}\nprintf '%s\\0' \"$@\"");
        let output = Command::new("/bin/sh").args(["-c", &script]).env_clear().output().unwrap();
        assert!(output.status.success(), "{line}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    const ODD: &str = "a'b\"c$HOME`id`\\n\\'$(id)\n#!;&|*?~ \t\u{1b}[31m\u{202e}é😀";

    #[test]
    fn f18_every_word_comes_out_of_a_shell_as_it_went_in() {
        let mut node = NodeView { name: "worker-1".to_owned(), uid: "u".to_owned(), ..NodeView::default() };
        node.annotations.insert(fence::ANNOTATION.to_owned(), ODD.to_owned());
        let lease = "platform/other".parse().unwrap();
        let record = LeaseRecord::read(&json!({ "spec": { "holderIdentity": ODD } }));
        let kubectl = Kubectl { kubeconfig: Some(PathBuf::from(ODD)), context: Some(format!("-{ODD}")) };
        for patch in [remove_unread(&node), uncordon(&node), free_lease(&lease, &record)] {
            let (line, words) = (patch.text(&kubectl), patch.words(&kubectl));
            assert_eq!(by_a_shell(&line), words, "{line}");
            let json = words.last().unwrap();
            assert!(json.chars().all(|c| c.is_ascii() && !c.is_ascii_control()), "{json}");
            assert_eq!(serde_json::from_str::<Vec<Value>>(json).unwrap(), patch.operations);
        }
    }

    #[test]
    fn f18_every_neighbourhood_of_odd_characters_comes_out_of_a_shell_as_it_went_in() {
        let odd = ['\'', '"', '\\', '$', '`', '\n', '!', ' ', '(', '*', '~', '#', '-', 'a', 'é'];
        for first in odd {
            let pairs = odd.iter().flat_map(|second| odd.iter().map(move |third| (*second, *third)));
            let words: Vec<String> = pairs.map(|(second, third)| String::from_iter([first, second, third])).collect();
            let line = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
            assert_eq!(by_a_shell(&line), words);
        }
        assert_eq!(by_a_shell(&quoted("")), [""]);
    }

    #[test]
    fn what_cannot_be_read_is_removed_with_all_its_keys_and_the_cordon_stays() {
        let mut node =
            NodeView { name: "w".to_owned(), uid: "u".to_owned(), unschedulable: true, ..NodeView::default() };
        for key in script::KEYS {
            node.annotations.insert(key.to_owned(), "x".to_owned());
        }
        let of_script = remove_unread(&node).operations;
        let removed = |operations: &[Value]| operations.iter().filter(|it| it["op"] == "remove").count();
        assert_eq!((of_script.len(), removed(&of_script)), (7, 3));
        node.annotations.insert(fence::ANNOTATION.to_owned(), "x".to_owned());
        assert_eq!(removed(&remove_unread(&node).operations), 1, "one at a time, ours first");
    }

    #[test]
    fn a_lease_is_freed_only_from_exactly_the_record_that_was_seen() {
        let metadata = json!({ "uid": "u", "resourceVersion": "7" });
        let record = LeaseRecord::read(&json!({ "metadata": metadata, "spec": { "holderIdentity": "x" } }));
        let line = free_lease(&"a/b".parse().unwrap(), &record).text(&Kubectl::default());
        assert_eq!(
            line,
            r#"kubectl -n a patch lease b --type=json -p '[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"test","path":"/spec/holderIdentity","value":"x"},{"op":"add","path":"/spec/holderIdentity","value":""},{"op":"add","path":"/spec/leaseDurationSeconds","value":1}]'"#
        );
    }
}
