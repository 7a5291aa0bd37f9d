//! Every block of commands in the documents is run, in order, as its reader would: in a folder of its own, against a lab
//! whose files are where the text says.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use lab::Held;
use tokio::process::Command;

use super::markdown::{Block, Document, blocks, documents, prose};
use crate::harness::{Bed, finish, leaks};

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
            None => writeln!(text, "{{\n{}}} > {number}.out 2> {number}.err", block.text),
            // In a shell of its own, for `-e` ends it.
            Some(code) => writeln!(
                text,
                "set +e; ( set -e\n{}) > {number}.out 2> {number}.err; code=$?; set -e\ntest $code -eq {code} || {{ echo \"exit code $code, not {code}\" >&2; exit 1; }}",
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
    let file = |name: String| std::fs::read_to_string(desk.path().join(name)).unwrap_or_default();
    let said = blocks.iter().enumerate().map(|(number, block)| Said {
        line: block.line,
        stdout: file(format!("{number}.out")),
        stderr: file(format!("{number}.err")),
    });
    let said: Vec<Said> = said.collect();
    let all: String = said.iter().map(|said| format!("{}{}", said.stdout, said.stderr)).collect();
    assert_eq!(ended.code(), 0, "{document}:{}:\n{}\n{all}", file("at".into()).trim(), ended.stderr);
    assert!(!leaks(&bed.lab, &all), "{document}: a secret is shown");
    samples_are_fresh(document, &said);
}

/// What a block of commands has printed.
struct Said {
    line: usize,
    stdout: String,
    stderr: String,
}

/// What a document shows as printed is what was printed, by the commands before it: the headers of tables, the steps of
/// plans, the labels of paragraphs, and the words of events, whatever their numbers are.
fn samples_are_fresh(document: &str, said: &[Said]) {
    let all = documents();
    let text = &all.iter().find(|found| found.path == document).expect("it was just read").text;
    let blocks = blocks(text);
    // No block is run at a terminal; what one shows is looked at by the tests of it (`terminal`).
    let printed =
        |block: &&Block| block.language == "text" && block.attributes.get("at").is_none_or(|at| at != "terminal");
    for sample in blocks.iter().filter(printed) {
        let before = blocks.iter().rfind(|block| block.language == "sh" && block.line < sample.line);
        let Some(said) = before.and_then(|block| said.iter().find(|said| said.line == block.line)) else { continue };
        let compared = sample.text.lines().filter_map(told);
        let mut any = false;
        for shown in compared {
            let mut printed = said.stdout.lines().chain(said.stderr.lines());
            let found = printed.any(|line| told(line).as_ref() == Some(&shown));
            assert!(found, "{document}:{}: nobody prints {shown:?}:\n{}\n{}", sample.line, said.stdout, said.stderr);
            any = true;
        }
        assert!(any, "{document}:{}: nothing of this can be compared", sample.line);
    }
}

/// What of a line is the same whenever it is printed.
fn told(line: &str) -> Option<String> {
    [header, chain, finding, gates, label, event].iter().find_map(|of| of(line))
}

/// `stage > pull > cordon`: the steps in a row of a plan.
fn chain(line: &str) -> Option<String> {
    line.split("  ").find(|cell| cell.contains(" > ")).map(|cell| cell.trim().to_owned())
}

/// `registry  ok  …`: a row of `doctor`.
fn finding(line: &str) -> Option<String> {
    let mut cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    let (name, result) = (cells.next()?, cells.next()?);
    matches!(result, "ok" | "warning" | "fault").then(|| format!("{name}: {result}"))
}

/// `Gates of worker-1: open now`: which node it is may differ.
fn gates(line: &str) -> Option<String> {
    let (_, state) = line.strip_prefix("Gates of ")?.split_once(": ")?;
    Some(format!("gates: {state}"))
}

/// At least two words, all in capitals: the header of a table.
fn header(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let capitals = words.iter().all(|word| word.chars().all(|char| char.is_ascii_uppercase()));
    (words.len() > 1 && capitals).then(|| words.join(" "))
}

/// `  evidence  dead: …`: the label of a value.
fn label(line: &str) -> Option<String> {
    let (label, _) = line.strip_prefix("  ")?.split_once("  ")?;
    let word = |word: &str| !word.is_empty() && word.chars().all(|char| char.is_ascii_lowercase());
    label.split(' ').all(word).then(|| label.to_owned())
}

/// `  1.7s  worker-1  drained: 2 pods evicted, 1 stay`: what happened, with `#` for each number.
fn event(line: &str) -> Option<String> {
    let (time, rest) = line.trim_start().split_once("  ")?;
    time.strip_suffix('s')?.parse::<f64>().ok()?;
    let (_, what) = rest.split_once(' ')?;
    let mut words = String::new();
    for char in what.trim().chars() {
        match char {
            '0'..='9' | '.' if words.ends_with('#') => {}
            '0'..='9' => words.push('#'),
            other => words.push(other),
        }
    }
    Some(words)
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
            let known = ["at", "exit", "not-run", "shell"];
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
