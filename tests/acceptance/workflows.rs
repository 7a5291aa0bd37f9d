//! The project's own workflows, and those that others copy.

use std::collections::BTreeSet;

use serde_yaml::Value;

use crate::action::runner::{entries, root, text, yaml};
use crate::harness::read;

/// The files in `.github/workflows/`.
fn workflows() -> Vec<String> {
    let files = std::fs::read_dir(root().join(".github/workflows")).expect("there are workflows").flatten();
    let mut names: Vec<_> = files.map(|file| format!(".github/workflows/{}", file.file_name().display())).collect();
    names.sort();
    assert!(names.len() >= 2, "{names:?}");
    names
}

/// The steps of all jobs of a workflow.
fn steps(workflow: &Value) -> Vec<Value> {
    let jobs = entries(workflow.get("jobs"));
    let steps = jobs.iter().flat_map(|(_, job)| job["steps"].as_sequence().cloned().unwrap_or_default());
    steps.collect()
}

#[test]
fn every_action_that_a_workflow_uses_is_pinned_to_a_commit() {
    for file in workflows() {
        let lines = read(&root().join(&file));
        let used: Vec<&str> =
            lines.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("uses: ")).collect();
        let parsed = steps(&yaml(&file)).iter().filter(|step| step.get("uses").is_some()).count();
        assert_eq!(used.len(), parsed, "{file}: all of them are looked at");
        for used in used {
            let (commit, version) = used.split_once('@').and_then(|(_, at)| at.split_once(" # v")).unwrap_or_default();
            assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{file}: {used}");
            assert!(version.starts_with(|char: char| char.is_ascii_digit()), "{file}: the version is named: {used}");
        }
    }
}

#[test]
fn a_workflow_has_no_more_rights_than_it_names_and_an_end_in_time() {
    for file in workflows().iter().map(String::as_str).chain(["docs/examples/github-workflow.yml"]) {
        let workflow = yaml(file);
        let all = entries(workflow.get("permissions"));
        assert!(workflow.get("permissions").is_some(), "{file} says what it may do");
        assert!(all.iter().all(|(_, right)| right == "read"), "{file}: only a job may write: {all:?}");
        for (job, it) in entries(workflow.get("jobs")) {
            assert!(it["timeout-minutes"].is_u64(), "{file}: {job} ends");
            let writes = entries(it.get("permissions")).into_iter().any(|(_, right)| right == "write");
            let scripts = it["steps"].as_sequence().expect("steps").iter().filter_map(|step| step.get("run").map(text));
            let builds = scripts.into_iter().any(|script| script.contains("make ") || script.contains("cargo "));
            assert!(!(writes && builds), "{file}: {job} runs the code of dependencies with the right to write");
        }
    }
}

#[test]
fn what_a_script_of_a_workflow_runs_is_there_and_none_has_an_expression_in_it() {
    let makefile = read(&root().join("Makefile"));
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', ' ', '#', '.']))
        .filter_map(|line| line.split_once(':').map(|(target, _)| target))
        .collect();
    let files = workflows();
    let action = yaml("action.yml")["runs"]["steps"].as_sequence().cloned().unwrap_or_default();
    let examples = steps(&yaml("docs/examples/github-workflow.yml"));
    let all = files.iter().flat_map(|file| steps(&yaml(file))).chain(action).chain(examples);
    let (mut made, mut called) = (0, 0);
    for script in all.filter_map(|step| step.get("run").map(text)) {
        assert!(!script.contains("${{"), "an expression would become text of the script: {script}");
        for line in script.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first() == Some(&"make") {
                made += 1;
                assert!(targets.contains(words[1]), "there is no make {}", words[1]);
            }
            for word in words.iter().map(|word| word.trim_matches('"').trim_start_matches("$GITHUB_ACTION_PATH/")) {
                if word.starts_with("ci/") || word.starts_with(".ci/") {
                    called += 1;
                    assert!(root().join(word).exists(), "{word}");
                }
            }
        }
    }
    assert!(made >= 1 && called >= 2, "{made} targets and {called} scripts were found");
}
