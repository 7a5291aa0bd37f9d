//! A runner of GitHub Actions, as far as the action and the example need one: steps are run as it runs them
//! (docs.github.com, "Workflow syntax", `jobs.<job_id>.steps[*].shell`), and a few expressions are evaluated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_yaml::Value;
use tokio::process::Command;

use crate::harness::{Bed, Ended, clean, finish, lease_duration, read};

/// Inputs or variables, as a test writes them.
pub type Pairs<'a> = &'a [(&'a str, &'a str)];
/// Names and values.
pub type Map = BTreeMap<String, String>;

/// The top of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A YAML file of the repository.
pub fn yaml(path: &str) -> Value {
    serde_yaml::from_str(&read(&root().join(path))).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text of a scalar, as YAML's core schema writes it.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(bool) => bool.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Null => String::new(),
        other => panic!("no scalar: {other:?}"),
    }
}

/// A mapping of scalars, in the file's order; none is empty.
pub fn entries(value: Option<&Value>) -> Vec<(String, Value)> {
    let mapping = value.and_then(Value::as_mapping).cloned().unwrap_or_default();
    mapping.into_iter().map(|(key, value)| (text(&key), value)).collect()
}

/// One job on one machine.
pub struct Runner {
    /// `RUNNER_TEMP`; beside it are the files in which steps leave outputs.
    pub temp: PathBuf,
    /// What is set for each step besides: the machine's environment, and what a test wants of the tool.
    pub env: Map,
    /// What `${{ … }}` may name, by its whole path.
    pub context: Map,
    steps: usize,
}

impl Runner {
    /// A fresh job on Linux on x86-64, in this folder.
    pub fn new(dir: &Path) -> Self {
        let temp = dir.join("temp");
        std::fs::create_dir_all(&temp).expect("the folder can be written");
        let path = temp.display().to_string();
        let env = [
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_SERVER_URL", "https://github.example"),
            ("RUNNER_OS", "Linux"),
            ("RUNNER_ARCH", "X64"),
            ("RUNNER_TEMP", &path),
        ];
        let context = [("runner.temp", path.as_str()), ("github.token", "a-token-of-the-job")];
        let map =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Self { env: map(&env), context: map(&context), temp, steps: 0 }
    }

    /// The same, with what the tool must be told of the lab: the authority of its registry, and its pace.
    pub fn of(bed: &Bed) -> Self {
        let mut runner = Self::new(&bed.lab.dir().join("runner"));
        runner.env.extend(bed.lab.product_env());
        runner.env.insert("TALOS_GHCR_LEASE_DURATION".into(), lease_duration().into());
        runner.env.insert("TALOS_GHCR_REGISTRY".into(), bed.lab.registry().host());
        runner
    }

    /// Replaces each `${{ … }}`.
    fn evaluate(&self, text: &str) -> String {
        let mut parts = text.split("${{");
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (expression, rest) = part.split_once("}}").unwrap_or_else(|| panic!("not closed: {text}"));
            out.push_str(&self.expression(expression.trim()));
            out.push_str(rest);
        }
        out
    }

    fn expression(&self, expression: &str) -> String {
        if expression == "always()" {
            return "true".into();
        }
        if let Some((left, "''")) = expression.split_once(" != ") {
            return (!self.expression(left).is_empty()).to_string();
        }
        // A secret, an input or an output that is not there is empty; any other name is a mistake.
        let optional = expression.starts_with("steps.") || expression == "github.action_repository";
        match self.context.get(expression) {
            Some(value) => value.clone(),
            None if optional => String::new(),
            None => panic!("nobody knows ${{{{ {expression} }}}}"),
        }
    }

    /// A `run` step, not started yet; and the file that it writes its outputs to.
    pub fn script(&mut self, step: &Value, outer: &Map) -> (Command, PathBuf) {
        self.steps += 1;
        let file = |name: &str| self.temp.with_file_name(format!("{name}-{}", self.steps));
        let (script, output) = (file("script"), file("output"));
        std::fs::write(&script, self.evaluate(&text(&step["run"]))).expect("it can be written");
        let mut command = clean("bash");
        match step.get("shell").map(text).as_deref() {
            Some("bash") => command.args(["--noprofile", "--norc", "-eo", "pipefail"]),
            None => command.arg("-e"),
            other => panic!("another shell: {other:?}"),
        };
        command.arg(&script).current_dir(&self.temp);
        command.envs(&self.env).envs(outer);
        command.envs(entries(step.get("env")).iter().map(|(name, value)| (name, self.evaluate(&text(value)))));
        for (variable, path) in [("GITHUB_OUTPUT", &output), ("GITHUB_STEP_SUMMARY", &file("summary"))] {
            std::fs::write(path, "").expect("it can be written");
            command.env(variable, path);
        }
        (command, output)
    }

    /// The action's one step with these inputs, not started yet; and the file that it writes its outputs to.
    pub fn action(&mut self, with: Pairs<'_>, env: &Map) -> (Command, PathBuf) {
        let action = yaml("action.yml");
        assert_eq!(action["runs"]["using"], "composite");
        let known = entries(action.get("inputs"));
        let unknown = with.iter().find(|(name, _)| !known.iter().any(|(known, _)| known == name));
        assert_eq!(unknown, None, "the action has no such input");
        for (name, input) in known {
            let given = with.iter().find(|(given, _)| *given == name).map(|(_, value)| (*value).to_owned());
            let value = given.unwrap_or_else(|| text(&input["default"]));
            self.context.insert(format!("inputs.{name}"), value);
        }
        let [step] = &action["runs"]["steps"].as_sequence().expect("steps")[..] else { panic!("one step") };
        let mut env = env.clone();
        env.insert("GITHUB_ACTION_PATH".into(), root().canonicalize().expect("it is there").display().to_string());
        self.script(step, &env)
    }

    /// The outputs of the action, as the workflow that uses it reads them.
    pub fn outputs_of_the_action(&self, output: &Path) -> Map {
        let action = yaml("action.yml");
        let id = text(&action["runs"]["steps"][0]["id"]);
        let mut inner = Self { temp: self.temp.clone(), env: Map::new(), context: Map::new(), steps: 0 };
        for (name, value) in written(output) {
            inner.context.insert(format!("steps.{id}.outputs.{name}"), value);
        }
        let outputs = entries(action.get("outputs")).into_iter();
        outputs.map(|(name, output)| (name, inner.evaluate(&text(&output["value"])))).collect()
    }

    /// All steps of a job, one after the other; gives what each said that was not skipped, by its name.
    pub async fn job(&mut self, job: &Value) -> Vec<(String, Ended)> {
        let mut ran: Vec<(String, Ended)> = Vec::new();
        for step in job["steps"].as_sequence().expect("a job has steps") {
            let failed = ran.iter().any(|(_, ended)| ended.code() != 0);
            let condition = step.get("if").map(text).unwrap_or_default();
            let wanted = condition.is_empty() || self.evaluate(&condition) == "true";
            if !wanted || (failed && !condition.contains("always()")) {
                continue;
            }
            let (command, output) = if step.get("uses").is_some() {
                let with = entries(step.get("with")).into_iter();
                let with: Vec<(String, String)> =
                    with.map(|(name, value)| (name, self.evaluate(&text(&value)))).collect();
                let with: Vec<(&str, &str)> =
                    with.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                let env = entries(step.get("env")).into_iter();
                let env = env.map(|(name, value)| (name, self.evaluate(&text(&value)))).collect();
                self.action(&with, &env)
            } else {
                self.script(step, &Map::new())
            };
            let ended = finish(command).await;
            if let Some(id) = step.get("id").map(text) {
                for (name, value) in self.outputs_of_the_action(&output) {
                    self.context.insert(format!("steps.{id}.outputs.{name}"), value);
                }
            }
            ran.push((text(&step["name"]), ended));
        }
        ran
    }
}

/// What a step wrote to `GITHUB_OUTPUT`.
pub fn written(output: &Path) -> Map {
    let text = read(output);
    let mut lines = text.lines();
    let mut found = Map::new();
    while let Some((name, delimiter)) = lines.next().and_then(|line| line.split_once("<<")) {
        let value: Vec<&str> = lines.by_ref().take_while(|line| *line != delimiter).collect();
        assert!(delimiter.len() > 30, "nobody can guess it: {delimiter}");
        found.insert(name.to_owned(), value.join("\n"));
    }
    found
}
