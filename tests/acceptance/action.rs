//! The action (`action.yml`, `ci/action.sh`) and the examples of `docs/examples/`, each step run as its runner does.

pub mod release;
pub mod runner;

use std::time::Duration;

use lab::faults::When;
use lab::{Held, Options};
use rustix::process::Signal;

use crate::actions::obeyed;
use crate::harness::{Bed, Ended, clean, ended, finish, leaks, read};
use crate::scene::{BOTH, Gate, block_evictions, lease_is_held, only_stale, signal, two_workers};
use release::{Release, program};
use runner::{Map, Pairs, Runner, entries, text, yaml};

/// The variables of a step that rolls.
fn env(bed: &Bed) -> Map {
    let file = |name: &str| bed.lab.dir().join(name).display().to_string();
    Map::from([
        ("TALOSCONFIG".into(), file("talosconfig")),
        ("KUBECONFIG".into(), file("kubeconfig")),
        ("TALOS_GHCR_CREDENTIAL".into(), read(&bed.lab.dir().join("credential-new.json"))),
        ("TALOS_GHCR_IMAGE".into(), bed.lab.image()),
    ])
}

/// The one annotation of a step that failed before the tool was run.
#[track_caller]
fn annotation(failed: Ended, code: i32) -> String {
    let failed = failed.expect(code);
    let errors: Vec<_> = obeyed(&failed).into_iter().collect();
    let [(name, text)] = &errors[..] else { panic!("one command: {}{}", failed.stdout, failed.stderr) };
    assert_eq!(name, "error title=talos-ghcr");
    text.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_the_action_rolls_with_a_binary_that_is_there_and_passes_its_outputs_on() {
    let bed = only_stale(&["worker-1"]).await;
    let mut runner = Runner::of(&bed);
    let (step, output) = runner.action(&[("path", env!("CARGO_BIN_EXE_talos-ghcr"))], &env(&bed));
    let done = finish(step).await.expect(0);
    let outputs = runner.outputs_of_the_action(&output);
    let of = |name: &str| outputs[name].as_str();
    assert_eq!((of("changed"), of("rebooted"), of("unproved"), of("revision").len()), ("true", "worker-1", "", 32));
    assert!(done.stderr.starts_with("::add-mask::"), "nothing is said before the masks: {}", done.stderr);
    bed.assert_done();
    // Another command, and no output of it.
    let input =
        [("path", env!("CARGO_BIN_EXE_talos-ghcr")), ("command", "verify"), ("args", "--claims\nproof -o json")];
    let (step, output) = runner.action(&input, &env(&bed));
    assert_eq!(finish(step).await.expect(0).json()["kind"], "Verification");
    assert_eq!(runner.outputs_of_the_action(&output)["changed"], "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p07_a_cancelled_step_reaches_the_tool_which_gives_back_what_it_holds() {
    let bed = two_workers().await;
    block_evictions(&bed, true);
    let mut gate = Gate::new(&bed);
    let mut runner = Runner::of(&bed);
    let args = BOTH.join(" ");
    let inputs = [("path", env!("CARGO_BIN_EXE_talos-ghcr")), ("args", args.as_str())];
    let (mut step, _) = runner.action(&inputs, &env(&bed));
    let child = step.kill_on_drop(true).spawn().expect("the step starts");
    let held = gate.hold(When::Before, "POST pods/eviction", 1).await;
    // The process that the runner started is the tool itself.
    let process = std::fs::read_link(format!("/proc/{}/exe", child.id().expect("it runs"))).expect("it runs");
    assert_eq!(process, std::fs::canonicalize(env!("CARGO_BIN_EXE_talos-ghcr")).expect("it is there"));
    let environment = std::fs::read(format!("/proc/{}/environ", child.id().expect("it runs"))).expect("it runs");
    assert!(!String::from_utf8_lossy(&environment).contains("INPUT_"), "the step's own variables end with it");
    // As the runner cancels: INT, and TERM when that was not enough.
    signal(&child, Signal::INT);
    tokio::time::sleep(Duration::from_millis(300)).await;
    signal(&child, Signal::TERM);
    held.release();
    drop(gate);
    ended(child).await.expect(130);
    assert!(!lease_is_held(&bed));
    assert!(bed.lab.truth().nodes.iter().all(|node| !node.cordoned && node.fence.is_none() && node.boots == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_the_example_workflow_gets_a_release_and_rolls_with_it() {
    let bed = only_stale(&["worker-1"]).await;
    let release = Release::new(&bed.lab.dir().join("release"), &program(env!("CARGO_BIN_EXE_talos-ghcr"))).await;
    let workflow = yaml("docs/examples/github-workflow.yml");
    let mut job = workflow["jobs"]["roll"].clone();
    // Where this cluster and this release differ from the example's; all else is as it stands there.
    let step = job["steps"].as_sequence_mut().expect("steps").iter_mut().find(|step| step.get("uses").is_some());
    let step = step.expect("the step that uses the action");
    assert_eq!(text(&step["with"]["version"]), release.version(), "the example names the version of this tree");
    step["with"]["base-url"] = release.url().into();
    step["env"]["TALOS_GHCR_IMAGE"] = bed.lab.image().into();
    let mut runner = Runner::of(&bed);
    for (secret, file) in
        [("TALOSCONFIG", "talosconfig"), ("KUBECONFIG", "kubeconfig"), ("GHCR_DOCKER_CONFIG", "credential-new.json")]
    {
        runner.context.insert(format!("secrets.{secret}"), read(&bed.lab.dir().join(file)));
    }
    let names = |ran: &[(String, Ended)]| ran.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let ran = runner.job(&job).await;
    assert_eq!(names(&ran), ["Configuration", "Roll", "Rebooted", "Remove the configuration"], "{ran:#?}");
    assert!(ran.iter().all(|(_, ended)| ended.code() == 0), "{ran:#?}");
    let revision = runner.context["steps.roll.outputs.revision"].clone();
    assert_eq!(ran[2].1.stdout, format!("rebooted worker-1 for revision {revision}\n"));
    bed.assert_done();
    // What the masks hide is in their lines alone.
    for (name, ended) in &ran {
        let said = ended.stdout.lines().chain(ended.stderr.lines()).filter(|line| !line.starts_with("::add-mask::"));
        assert!(!leaks(&bed.lab, &said.collect::<String>()), "{name}");
    }
    let left = |name: &str| runner.temp.join(name).exists();
    assert!(!left("talosconfig") && !left("kubeconfig"), "the secrets are off the runner's disk");
    // The next day there is nothing to do; a step that fails does not keep the last one from its work.
    let ran = runner.job(&job).await;
    assert_eq!(names(&ran), ["Configuration", "Roll", "Remove the configuration"], "{ran:#?}");
    bed.lab.registry().revoke(lab::cluster::USER, bed.lab.new_password());
    release.spoil(b"another archive");
    let ran = runner.job(&job).await;
    assert_eq!(ran.iter().map(|(_, ended)| ended.code()).collect::<Vec<_>>(), [0, 1, 0], "{ran:#?}");
    assert!(
        runner
            .temp
            .read_dir()
            .expect("a folder")
            .flatten()
            .all(|it| !it.file_name().to_string_lossy().ends_with("config"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_of_the_example_workflow_are_its_users_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut runner = Runner::new(dir.path());
    runner.context.insert("secrets.TALOSCONFIG".into(), "$(id) `id`\n'%s\\n'".into());
    runner.context.insert("secrets.KUBECONFIG".into(), "k".into());
    let (step, _) = runner.script(&yaml("docs/examples/github-workflow.yml")["jobs"]["roll"]["steps"][0], &Map::new());
    finish(step).await.expect(0);
    for (file, expected) in [("talosconfig", "$(id) `id`\n'%s\\n'"), ("kubeconfig", "k")] {
        let path = runner.temp.join(file);
        assert_eq!(read(&path), expected, "as it stands in the secret");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file}: {mode:o}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_an_archive_with_another_sum_is_refused_and_nothing_of_it_runs() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let ran = dir.path().join("ran");
    let script = format!("#!/bin/sh\necho ran >> '{}'\n", ran.display());
    let release = Release::new(&dir.path().join("release"), &script).await;
    let mut runner = Runner::new(dir.path());
    let url = release.url();
    let (version, sum) = (release.version(), release.sum());
    let run = async |runner: &mut Runner, more: Pairs<'_>| {
        let mut inputs = vec![("version", version.as_str()), ("base-url", url.as_str())];
        inputs.extend(more);
        finish(runner.action(&inputs, &Map::new()).0).await
    };
    // Right sums: of the release, of the step, both ways to write them.
    run(&mut runner, &[]).await.expect(0);
    run(&mut runner, &[("sha256", &sum.to_uppercase())]).await.expect(0);
    assert_eq!(read(&ran).lines().count(), 2, "it is the archive's program that runs");
    // The step's own sum counts, whatever the release says.
    let refused = annotation(run(&mut runner, &[("sha256", &"0".repeat(64))]).await, 1);
    assert!(refused.contains("does not have the SHA-256 000") && refused.contains("nothing was unpacked"), "{refused}");
    // One that was changed behind its sum, and one that no sum vouches for.
    let good = std::fs::read(release.archive()).expect("the archive");
    release.spoil(&[&good[..], b"x"].concat());
    let refused = annotation(run(&mut runner, &[]).await, 1);
    assert!(refused.contains(&format!("does not have the SHA-256 {sum}")), "{refused}");
    release.spoil(&good);
    let sums = release.archive().with_file_name("SHA256SUMS");
    for text in ["", &format!("{sum}  x{}\n", release.name()), &format!("{sum}  {0}\n{sum}  {0}\n", release.name())] {
        std::fs::write(&sums, text).expect("it can be written");
        let refused = annotation(run(&mut runner, &[]).await, 1);
        assert!(refused.contains("SHA256SUMS of this release does not name"), "{text:?}: {refused}");
    }
    assert_eq!(read(&ran).lines().count(), 2, "nothing ran again");
    // With a sum of the step the release's are not asked for.
    std::fs::remove_file(&sums).expect("it was there");
    run(&mut runner, &[("sha256", &sum)]).await.expect(0);
    std::fs::remove_file(release.archive()).expect("it was there");
    let refused = annotation(run(&mut runner, &[("sha256", &sum)]).await, 1);
    assert!(refused.contains(&release.name()) && refused.contains("could not be fetched"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_what_the_action_cannot_use_is_one_annotation_that_says_why() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let cases: &[(Pairs<'_>, Pairs<'_>, &str)] = &[
        (&[], &[], "neither version nor path is given"),
        (&[("version", "1.2.3"), ("path", "/bin/true")], &[], "both version and path are given"),
        (&[("version", "latest")], &[], "version is 'latest', which is no version"),
        (&[("version", "../../1.2.3")], &[], "which is no version"),
        (&[("version", "1.2.3\n::add-mask::e")], &[], "version is '1.2.3\n::add-mask::e', which is no version"),
        (&[("version", "1.2.3"), ("sha256", "00ff")], &[], "sha256 is '00ff'"),
        (&[("version", "v1.2.3")], &[], "the repository of this action is not known"),
        (
            &[("version", "1.2.3"), ("base-url", "file:///x")],
            &[("RUNNER_OS", "macOS")],
            "this runner's system is macOS",
        ),
        (
            &[("version", "1.2.3"), ("base-url", "file:///x")],
            &[("RUNNER_ARCH", "ARM")],
            "this runner's architecture is ARM",
        ),
        (&[("path", "/nowhere/talos-ghcr")], &[], "path is '/nowhere/talos-ghcr', which is no program"),
        (&[("path", "/etc/passwd")], &[], "which is no program"),
        (&[("path", "/bin/true"), ("sha256", "00ff")], &[], "sha256 belongs to version"),
        (&[("path", "/bin/true"), ("args", "--image 'ghcr.io/acme")], &[], "args cannot be split into words"),
    ];
    for (inputs, environment, why) in cases {
        let mut runner = Runner::new(dir.path());
        for (name, value) in *environment {
            runner.env.insert((*name).into(), (*value).into());
        }
        let said = annotation(finish(runner.action(inputs, &Map::new()).0).await, 64);
        assert!(said.contains(why), "{inputs:?}: {said}");
    }
    // No other protocol than https, whatever the release's place says.
    let mut runner = Runner::new(dir.path());
    let plain = [("version", "1.2.3"), ("base-url", "http://127.0.0.1:9/releases")];
    let refused = finish(runner.action(&plain, &Map::new()).0).await;
    assert!(refused.stderr.contains("Protocol \"http\""), "{}", refused.stderr);
    assert!(annotation(refused, 1).contains("could not be fetched"));
    // A release of the action's own repository, which is looked for at this server.
    runner.context.insert("github.action_repository".into(), "acme/talos-ghcr".into());
    runner.env.insert("GITHUB_SERVER_URL".into(), "https://127.0.0.1:9".into());
    let tools = dir.path().join("tools");
    release::executable(&tools.join("curl"), "#!/bin/sh\nexit 22\n");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let (mut step, _) = runner.action(&[("version", "v1.2.3")], &Map::new());
    step.env("PATH", path);
    let refused = annotation(finish(step).await, 1);
    let url = "https://127.0.0.1:9/acme/talos-ghcr/releases/download/v1.2.3/talos-ghcr_1.2.3_linux_amd64.tar.gz";
    assert!(refused.starts_with(url), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p03_the_actions_arguments_are_words_with_quotes_and_nothing_is_expanded() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let shows = dir.path().join("shows");
    release::executable(&shows, "#!/bin/sh\nprintf '[%s]' \"$@\"\n");
    let path = shows.display().to_string();
    for (args, expected) in [
        ("", "[run]"),
        ("  \n ", "[run]"),
        ("-n a,b\n--max-unavailable 2", "[run][-n][a,b][--max-unavailable][2]"),
        ("--before-command 'flux suspend \"apps\"' \"\"", "[run][--before-command][flux suspend \"apps\"][]"),
        ("$(id) `id` * $HOME ; id & ${IFS}", "[run][$(id)][`id`][*][$HOME][;][id][&][${IFS}]"),
        ("-n %s", "[run][-n][%s]"),
    ] {
        let mut runner = Runner::new(dir.path());
        let (step, _) = runner.action(&[("path", &path), ("args", args)], &Map::new());
        assert_eq!(finish(step).await.expect(0).stdout, expected, "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_of_gitlab_gets_a_release_and_rolls_with_it() {
    let bed = Bed::new(|options: &mut Options| (options.control_planes, options.workers) = (1, 2)).await;
    let release = Release::new(&bed.lab.dir().join("release"), &program(env!("CARGO_BIN_EXE_talos-ghcr"))).await;
    let pipeline = yaml("docs/examples/gitlab-ci.yml");
    let job = &pipeline["registry-credential"];
    assert!(job.get("resource_group").is_some() && job["interruptible"] == false);
    let script: Vec<String> = job["script"].as_sequence().expect("a script").iter().map(text).collect();
    let workspace = bed.lab.dir().join("builds");
    std::fs::create_dir(&workspace).expect("the lab's folder can be written");
    let step = || {
        let mut step = clean("bash");
        step.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", &script.join("\n")]).current_dir(&workspace);
        step.envs(entries(job.get("variables")).iter().map(|(name, value)| (name, text(value))));
        step.envs(bed.lab.product_env()).envs(env(&bed)).env_remove("TALOS_GHCR_CREDENTIAL");
        // A variable of type File.
        step.env("TALOS_GHCR_CREDENTIAL_FILE", bed.lab.credential_file(Held::New));
        step.env("RELEASE", release.url()).env("TALOS_GHCR_REGISTRY", bed.lab.registry().host());
        step.env("TALOS_GHCR_LEASE_DURATION", crate::harness::lease_duration()).env("TALOS_GHCR_NODES", "worker-1");
        step
    };
    assert_eq!(text(&job["variables"]["ARCHIVE"]), release.name(), "the example names what this tree releases");
    let good = std::fs::read(release.archive()).expect("the archive");
    release.spoil(b"another archive");
    let refused = finish(step()).await.expect(1);
    assert!(refused.stdout.contains("FAILED") && !workspace.join("talos-ghcr").exists(), "{refused:?}");
    release.spoil(&good);
    finish(step()).await.expect(0);
    let node = bed.truth_of("worker-1");
    assert_eq!((node.cri_loaded, node.boots, node.cordoned), (Held::New, 1, false));
}
