//! Every message that the tests have seen, for docs/messages.md: `make messages` collects them, and a person reads the page
//! and its changes. What differs from run to run (names, addresses, times) is written as what it is.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;

/// Names the file that messages are added to; without it none are collected.
const FILE: &str = "TALOS_GHCR_MESSAGES";

static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// What stands in a message for what, in this order.
static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let rules = [
        (r"\x1b\[[0-9;]*m", ""),
        (r"[0-9a-f]{16}-(?:gh[0-9.]+|local)-[0-9a-f-]{36}", "HOLDER"),
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", "TIME"),
        (r"/(?:tmp|proc|[A-Za-z]+/[A-Za-z0-9_.-]+/coordinator)/[^ :;,'()]*", "FILE"),
        (r"127\.\d+\.\d+\.200", "REGISTRY"),
        (r"127\.\d+\.\d+\.\d+", "ADDRESS"),
        (r"\b[0-9a-f]{16,64}\b", "HEX"),
        (r"\b\d+h\d\dm\b|\b\d+m\d\ds\b|\b\d+(?:\.\d+)?(?:ms|s)\b|\b\d+\.\d+ s\b", "LENGTH"),
        (r"\b(?:web|default/web)-[0-9a-z]+\b", "POD"),
        (r"\b(worker|cp)-\d+\b", "NODE"),
        (r"NODE(?:, NODE)+", "NODES"),
        (r"\b\d+\b", "N"),
    ];
    rules.into_iter().map(|(from, to)| (Regex::new(from).expect("a pattern"), to)).collect()
});

/// Takes in what a command said.
pub fn collect(stderr: &str, stdout: &str) {
    let Some(file) = std::env::var_os(FILE) else { return };
    let of_stdout = stdout.lines().filter(|line| line.starts_with("Left: ") || line.starts_with("Missing for a run"));
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for line in stderr.lines().chain(of_stdout).filter_map(message) {
        if seen.insert(line.clone()) {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&file).expect("a file");
            writeln!(file, "{line}").expect("it is written");
        }
    }
}

/// The line as the page has it; `None` for what is no message of ours.
fn message(line: &str) -> Option<String> {
    // An event stands behind its time and its node.
    let event = LazyLock::force(&EVENT).captures(line).map(|parts| parts[1].to_owned());
    let is_message = ["error: ", "warning: ", "exit code ", "Left: ", "Missing for a run: ", "stopping: "]
        .iter()
        .any(|it| line.starts_with(it));
    let text = event.or_else(|| is_message.then(|| line.to_owned()))?;
    let text = RULES.iter().fold(text, |text, (from, to)| from.replace_all(&text, *to).into_owned());
    Some(text.trim_end().to_owned())
}

static EVENT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^ *\d+\.\d+s  \S+ +(.*)$").expect("a pattern"));

#[test]
fn what_differs_from_run_to_run_is_written_as_what_it_is() {
    let cases = [
        (
            "    0.1s  run            lease kube-system/talos-ghcr taken as 01e2fcc6cebd0e9f-local-b57126c0-2431-432d-a946-e2f55494bc2e",
            Some("lease kube-system/talos-ghcr taken as HOLDER"),
        ),
        ("   46.6s  worker-1       booted again after 46.6s", Some("booted again after LENGTH")),
        (
            "error: worker-1, worker-2: no answer from 127.3.4.5:50000 within 5s",
            Some("error: NODES: no answer from ADDRESS:N within LENGTH"),
        ),
        ("  some text of another program", None),
    ];
    for (line, expected) in cases {
        assert_eq!(message(line).as_deref(), expected, "{line}");
    }
}
