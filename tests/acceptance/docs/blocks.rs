//! Every block of commands in the documents is run, in order, as its reader would: in a folder of its own, against a lab
//! whose files are where the text says.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use lab::Held;
use tokio::process::Command;

use super::markdown::{Block, Document, blocks, documents, prose};
use crate::harness::{Bed, finish, leaks, read};

/// What the documents call the private image, and in the lab is another.
const IMAGE: &str = "ghcr.io/acme/app:1.4.2";
/// Languages of a block that is not run.
const SHOWN: [&str; 5] = ["json", "mermaid", "text", "toml", "yaml"];

/// Blocks that one shell runs one after the other.
struct Session<'a> {
    document: &'a str,
    blocks: Vec<&'a Block>,
}

/// A block with `shell=new` begins anew, on another lab.
fn sessions<'a>(document: &'a str, blocks: &'a [Block]) -> Vec<Session<'a>> {
    let mut sessions: Vec<Session<'a>> = Vec::new();
    for block in blocks.iter().filter(|block| block.language == "sh" && !block.attributes.contains_key("not-run")) {
        if sessions.is_empty() || block.attributes.get("shell").is_some_and(|shell| shell == "new") {
            sessions.push(Session { document, blocks: Vec::new() });
        }
        sessions.last_mut().expect("one was pushed").blocks.push(block);
    }
    sessions
}

/// One script of all blocks: what one exports, the next one has. The output of each goes into a file beside it.
fn script(blocks: &[&Block]) -> String {
    let mut text = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned();
    for (number, block) in blocks.iter().enumerate() {
        let _ = writeln!(text, "echo {} > at", block.line);
        let _ = match block.attributes.get("exit") {
            None => writeln!(text, "{{\n{}}} > {number}.out", block.text),
            // In a shell of its own, for `-e` ends it.
            Some(code) => writeln!(
                text,
                "set +e; ( set -e\n{}) > {number}.out; code=$?; set -e\ntest $code -eq {code} || {{ echo \"exit code $code, not {code}\" >&2; exit 1; }}",
                block.text
            ),
        };
    }
    text
}

/// Where the reader sits: `~/.talos/config`, `~/.kube/config`, `new.json`, and the programs on the path.
fn desk(bed: &Bed) -> tempfile::TempDir {
    let desk = tempfile::tempdir().expect("a temporary folder");
    let put = |from: PathBuf, to: &str| {
        let to = desk.path().join(to);
        std::fs::create_dir_all(to.parent().expect("it is in a folder")).expect("a folder can be made");
        std::fs::copy(&from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    };
    put(bed.lab.dir().join("talosconfig"), ".talos/config");
    put(bed.lab.dir().join("kubeconfig"), ".kube/config");
    put(bed.lab.credential_file(Held::New), "new.json");
    let product = Path::new(env!("CARGO_BIN_EXE_talos-ghcr"));
    let lab = product.with_file_name("talos-ghcr-lab");
    assert!(lab.exists(), "{} is not there: `make build` builds it", lab.display());
    std::fs::create_dir(desk.path().join("bin")).expect("a folder can be made");
    for program in [product, &lab] {
        let link = desk.path().join("bin").join(program.file_name().expect("a program has a name"));
        std::os::unix::fs::symlink(program, link).expect("a link can be made");
    }
    desk
}

async fn walk(session: &Session<'_>) {
    let bed = Bed::new(|options| options.talos = vec!["1.13.9=5".parse().unwrap(), "1.14.0".parse().unwrap()]).await;
    let desk = desk(&bed);
    let text = script(&session.blocks).replace(IMAGE, &bed.lab.image());
    std::fs::write(desk.path().join("script"), &text).expect("a script can be written");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell.args(["-e", "script"]).current_dir(desk.path()).env_clear().envs(bed.lab.product_env());
    shell.env("HOME", desk.path()).env("PATH", format!("{}:{path}", desk.path().join("bin").display()));
    shell.env("TALOS_GHCR_REGISTRY", bed.lab.registry().host());
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = finish(shell).await;
    let Session { document, blocks } = session;
    let at = std::fs::read_to_string(desk.path().join("at")).unwrap_or_default();
    assert_eq!(ended.code(), 0, "{document}:{}:\n{}\n{}", at.trim(), ended.stdout, ended.stderr);
    for (number, block) in blocks.iter().enumerate() {
        let said = read(&desk.path().join(format!("{number}.out")));
        assert!(!leaks(&bed.lab, &said), "{document}:{}: a secret is shown", block.line);
    }
    assert!(!leaks(&bed.lab, &ended.stderr), "{document}: a secret is shown");
    let outputs = blocks.iter().enumerate().map(|(number, _)| read(&desk.path().join(format!("{number}.out"))));
    let said: Vec<(usize, String)> = blocks.iter().map(|block| block.line).zip(outputs).collect();
    samples_are_fresh(document, &said);
}

/// The headers of the tables that a document shows are those of what was really printed before them.
fn samples_are_fresh(document: &str, said: &[(usize, String)]) {
    let all = documents();
    let text = &all.iter().find(|found| found.path == document).expect("it was just read").text;
    let (first, last) = (said.first().map_or(0, |(line, _)| *line), said.last().map_or(0, |(line, _)| *line));
    for sample in blocks(text).iter().filter(|block| block.language == "text") {
        let Some(at) = said.iter().rposition(|(line, _)| *line < sample.line) else { continue };
        // The last block of a session speaks for what is shown right behind it, and not for the next session's.
        if sample.line < first || (at + 1 == said.len() && is_behind_another(text, last, sample.line)) {
            continue;
        }
        for header in sample.text.lines().filter(|line| is_header(line)) {
            let words: Vec<_> = header.split_whitespace().collect();
            let printed = said[at].1.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == words);
            assert!(printed, "{document}:{}: nobody prints {words:?}:\n{}", sample.line, said[at].1);
        }
    }
}

fn is_behind_another(text: &str, from: usize, to: usize) -> bool {
    blocks(text).iter().any(|block| block.language == "sh" && block.line > from && block.line < to)
}

/// At least two words, all in capitals.
fn is_header(line: &str) -> bool {
    let capital = |word: &str| word.chars().all(|char| char.is_ascii_uppercase());
    line.split_whitespace().count() > 1 && line.split_whitespace().all(capital)
}

fn of(document: &Document) -> Vec<Block> {
    blocks(&document.text)
}

#[test]
fn every_block_is_marked_with_what_it_is_and_few_are_not_run() {
    let (mut run, mut not_run) = (0, Vec::new());
    for document in documents() {
        // An indented block has no mark.
        for (line, text) in prose(&document.text) {
            let command =
                ["make ", "cargo ", "talos-ghcr", "kubectl "].iter().any(|word| text.trim_start().starts_with(word));
            assert!(
                !(command && text.starts_with("    ")),
                "{}:{line}: commands stand in a block of sh",
                document.path
            );
        }
        for block in of(&document) {
            let place = format!("{}:{}", document.path, block.line);
            let known = ["exit", "not-run", "shell"];
            assert!(
                block.attributes.keys().all(|name| known.contains(&name.as_str())),
                "{place}: {:?}",
                block.attributes
            );
            match block.attributes.get("not-run") {
                _ if SHOWN.contains(&block.language.as_str()) => {}
                _ if block.language != "sh" => {
                    panic!("{place}: a block of {:?} is neither run nor shown", block.language)
                }
                None => run += 1,
                Some(why) => {
                    assert!(why.split(' ').count() > 2, "{place}: why is it not run?");
                    not_run.push(place);
                }
            }
        }
    }
    assert!(run >= 20, "only {run} blocks are run");
    assert!(not_run.len() <= 10, "too many blocks are not run: {not_run:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_documents_do_what_they_say() {
    let documents = documents();
    let all: Vec<(&str, Vec<Block>)> = documents.iter().map(|found| (found.path.as_str(), of(found))).collect();
    let sessions = all.iter().flat_map(|(path, blocks)| sessions(path, blocks));
    // They wait most of the time.
    futures::future::join_all(sessions.map(|session| async move { walk(&session).await })).await;
}
