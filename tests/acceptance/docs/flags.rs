//! Every flag that the documents name exists.

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use coordinator::cli::args::Cli;

use super::markdown::{blocks, code_spans, documents, root};
use crate::harness::read;

/// Flags of other programs, and whose.
const FOREIGN: [(&str, &str); 18] = [
    ("--allow-incomplete-fanout", "the bash script"),
    ("--annotate-nodes", "kured"),
    ("--check-only", "the bash script"),
    ("--clusterrole", "kubectl"),
    ("--drain", "talosctl"),
    ("--dry-run", "talosctl"),
    ("--lib", "cargo test"),
    ("--locked", "cargo"),
    ("--mode", "talosctl"),
    ("--path", "cargo"),
    ("--record-runtime-proof", "the bash script"),
    ("--recover-fences", "the bash script"),
    ("--requestheader-", "kube-apiserver, a family of them"),
    ("--reuse-runtime-proof", "the bash script"),
    ("--roles", "talosctl"),
    ("--show-managed-fields", "kubectl"),
    ("--test", "cargo test"),
    ("--user", "kubectl"),
];
/// The bash script's flag that has the name of a command here.
const FENCES: &str = "--fences";

fn flags_of(command: &clap::Command, into: &mut BTreeSet<String>) {
    into.extend(command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))));
    command.get_subcommands().for_each(|command| flags_of(command, into));
}

/// The words of a text that look like a long flag.
fn flags_in(text: &str) -> Vec<String> {
    let words = text.split(|char: char| !(char.is_ascii_alphanumeric() || char == '-'));
    let flags = words
        .filter(|word| word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase())));
    flags.map(str::to_owned).collect()
}

#[test]
fn every_flag_that_is_named_exists() {
    let mut known: BTreeSet<String> = ["--help", "--version", FENCES].map(str::to_owned).into();
    flags_of(&Cli::command(), &mut known);
    flags_of(&lab::cli::Cli::command(), &mut known);
    let (mut named, mut foreign, mut unknown) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    // What the tests have seen holds wrong flags, too.
    for document in documents().into_iter().filter(|document| document.path != "docs/messages.md") {
        let blocks =
            blocks(&document.text).into_iter().filter(|block| matches!(block.language.as_str(), "sh" | "text"));
        for text in code_spans(&document.text).into_iter().chain(blocks.map(|block| block.text)) {
            for flag in flags_in(&text) {
                match FOREIGN.iter().find(|(name, _)| *name == flag) {
                    Some((name, _)) => drop(foreign.insert(*name)),
                    None if known.contains(&flag) => drop(named.insert(flag)),
                    None => unknown.push(format!("{}: there is no flag {flag}", document.path)),
                }
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert!(named.len() > 30, "only {named:?} were found");
    let listed: BTreeSet<&str> = FOREIGN.iter().map(|(name, _)| *name).collect();
    assert_eq!(foreign, listed, "nobody names these any more");
}

/// What a table says of a flag without a value of its own.
const NO_DEFAULT: [&str; 5] = ["-", "all nodes", "default", "no", "none"];

#[test]
fn the_table_of_flags_has_the_defaults_of_the_flags() {
    let cli = Cli::command();
    let args: Vec<_> = cli.get_subcommands().flat_map(clap::Command::get_arguments).collect();
    let text = read(&root().join("docs/reference.md"));
    let rows = text.lines().skip_while(|line| *line != "| flag | default | what |").skip(2);
    let mut compared = 0;
    for row in rows.take_while(|line| line.starts_with('|')) {
        let [flags, defaults, _] = &row.trim_matches(['|', ' ']).splitn(3, " | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let plain = defaults.replace('`', "");
        let flags: Vec<&str> =
            flags.split('`').skip(1).step_by(2).map(|flag| flag.split(' ').next().unwrap()).collect();
        // One word may stand for all flags of a row.
        let defaults = plain.split(", ").cycle().take(flags.len());
        for (flag, default) in flags.iter().zip(defaults) {
            let name = flag.trim_start_matches('-');
            let arg = args.iter().find(|arg| {
                arg.get_long() == Some(name) || arg.get_short().is_some_and(|short| name == short.to_string())
            });
            let values = arg.unwrap_or_else(|| panic!("there is no flag {flag}")).get_default_values();
            let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
            let same = if NO_DEFAULT.contains(&default) {
                values.is_empty() || values == ["false"]
            } else {
                values == [default]
            };
            assert!(same, "{flag}: the default is {values:?}, not {default}");
            compared += 1;
        }
    }
    assert!(compared > 20, "only {compared} were found");
}
