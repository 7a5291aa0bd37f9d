//! What the documents say must be so.

mod blocks;
mod flags;
mod links;
mod markdown;
mod runbook;
mod safety;

use agent::record::Record;
use coordinator::exit::Exit;
use coordinator::kube::fence::Fence;

use crate::harness::read;
use markdown::{Document, documents, root};

fn lines_with(text: &str, key: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with(r#"{"v":1"#) && line.contains(key)).map(str::to_owned).collect()
}

#[test]
fn the_examples_of_record_and_fence_are_what_the_product_writes() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let [record] = &lines_with(&text, r#""state":"#)[..] else { panic!("one record") };
    assert_eq!(Record::parse(record).expect("a record").to_json(), *record);
    assert!(read(&root().join("agent/src/record.rs")).contains(record), "it is the one of the golden test");
    let [fence] = &lines_with(&text, r#""epoch":"#)[..] else { panic!("one fence") };
    assert_eq!(Fence::parse(fence).expect("a fence").render(), *fence);
}

#[test]
fn every_exit_code_is_in_the_readme() {
    let text = read(&root().join("README.md"));
    let single =
        [Exit::Done, Exit::Failed, Exit::Differs, Exit::Refused, Exit::Stopped, Exit::ControlLost, Exit::Usage];
    let rows = single.iter().map(|exit| format!("| {} |", exit.code()));
    let signals = format!("| {}, {} |", Exit::Signal(2).code(), Exit::Signal(15).code());
    for row in rows.chain([signals]) {
        assert_eq!(text.lines().filter(|line| line.starts_with(&row)).count(), 1, "{row}");
    }
}

#[test]
fn every_path_that_the_documents_name_is_there() {
    let mut named = 0;
    let fixtures = Document { path: "fixtures/README.md".into(), text: read(&root().join("fixtures/README.md")) };
    for document in documents().into_iter().chain([fixtures]) {
        let quoted = document.text.split('`').skip(1).step_by(2);
        let folders =
            [".github/", "agent/", "ci/", "coordinator/", "deploy/", "docs/", "fixtures/", "talos-proto/", "tests/"];
        for path in quoted.filter(|path| folders.iter().any(|folder| path.starts_with(folder)) && !path.contains(' ')) {
            named += 1;
            assert!(root().join(path).exists(), "{} names {path}", document.path);
        }
    }
    assert!(named > 30, "only {named} paths were found");
}
