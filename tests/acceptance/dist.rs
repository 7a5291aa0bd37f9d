//! What `make dist` and `make image` put together, with a script in the place of the binary: a release build takes
//! minutes, and `ci/dist.sh` itself looks at what it built.

use std::path::{Path, PathBuf};

use crate::action::release::{executable, program};
use crate::action::runner::root;
use crate::harness::{Ended, clean, finish, read};

/// The version of this tree.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A script of `ci/`, to its end.
async fn script(name: &str, arguments: &[&Path], env: &[(&str, &str)]) -> Ended {
    let mut command = clean("bash");
    command.arg(root().join("ci").join(name)).args(arguments);
    // cargo is asked for the licences of what this test was built with.
    for variable in ["HOME", "CARGO_HOME", "RUSTUP_HOME"] {
        if let Some(value) = std::env::var_os(variable) {
            command.env(variable, value);
        }
    }
    command.env("CARGO_NET_OFFLINE", "true").envs(env.iter().copied());
    finish(command).await
}

/// The names in an archive, and what `tar` says of each.
async fn listed(archive: &Path) -> Vec<(String, String)> {
    let mut tar = clean("tar");
    tar.args(["--utc", "--full-time", "--numeric-owner", "-tvzf"]).arg(archive);
    let lines = finish(tar).await.expect(0).stdout;
    let lines = lines.lines().map(|line| line.rsplit_once(' ').expect("a name is last"));
    lines.map(|(says, name)| (name.to_owned(), says.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_holds_the_binary_its_licences_and_its_manual_and_the_image_is_made_of_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| dir.path().join(name);
    let product = program(env!("CARGO_BIN_EXE_talos-ghcr"));
    executable(&path("binary"), &product);
    let target = PathBuf::from(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    script("stage.sh", &[&path("binary"), &path("binary"), &target, &path("stage")], &[]).await.expect(0);
    let pack: [&Path; 4] = [&path("dist"), Path::new(VERSION), Path::new("amd64"), &path("stage")];
    script("pack.sh", &pack, &[("SOURCE_DATE_EPOCH", "1800000000")]).await.expect(0);

    let archive = path("dist").join(format!("talos-ghcr_{VERSION}_linux_amd64.tar.gz"));
    let top = format!("talos-ghcr_{VERSION}_linux_amd64/");
    let found = listed(&archive).await;
    let names: Vec<&str> = found.iter().filter_map(|(name, _)| name.strip_prefix(&top)).collect();
    assert_eq!(names.len(), found.len(), "all in one folder: {found:?}");
    assert!(names.is_sorted(), "{names:?}");
    for name in [
        "talos-ghcr",
        "LICENSE",
        "README.md",
        "THIRD-PARTY-LICENSES.txt",
        "completions/talos-ghcr.bash",
        "completions/_talos-ghcr",
        "completions/talos-ghcr.fish",
        "man/talos-ghcr.1",
        "man/talos-ghcr-run.1",
    ] {
        let file = path("stage").join(name);
        assert!(names.contains(&name), "{name}: {names:?}");
        assert!(std::fs::metadata(&file).expect("it was packed from there").len() > 50, "{name} says something");
    }
    for (name, says) in &found {
        assert!(says.contains(" 0/0 ") && says.contains("2027-01-15 08:00:00"), "{name}: {says}");
        let mode = if name.ends_with('/') || name.ends_with("/talos-ghcr") { "rwxr-xr-x" } else { "rw-r--r--" };
        assert_eq!(&says[1..10], mode, "{name}");
    }
    let licences = read(&path("stage").join("THIRD-PARTY-LICENSES.txt"));
    for crate_of_the_binary in ["\nring ", "\ntokio ", "\nkube ", "\nclap "] {
        assert!(licences.contains(crate_of_the_binary), "{crate_of_the_binary}");
    }
    for other in ["\ntempfile ", "\nprotox ", "\nsyn ", "\ncoordinator "] {
        assert!(!licences.contains(other), "{other:?} is in no binary, or is ours");
    }
    assert_image(dir.path()).await;
}

/// Runs `ci/image.sh` with a tool that only shows what it was given, and compares that with the Containerfile.
async fn assert_image(dir: &Path) {
    let tool = dir.join("tool");
    executable(&tool, "#!/bin/sh\nprintf '%s\\n' \"$@\"\nfor context; do :; done\ncd \"$context\" && find . -type f\n");
    executable(&dir.join("bundle"), "certificates");
    let (tool, dist, bundle) =
        (tool.display().to_string(), dir.join("dist").display().to_string(), dir.join("bundle").display().to_string());
    let env =
        [("TOOL", tool.as_str()), ("DIST", dist.as_str()), ("CA_BUNDLE", bundle.as_str()), ("REVISION", "c0ffee")];
    let built = script("image.sh", &[], &env).await.expect(0);
    let given: Vec<&str> = built.stdout.lines().collect();
    for argument in [&format!("talos-ghcr:{VERSION}"), "linux/amd64", "REVISION=c0ffee", &format!("VERSION={VERSION}")]
    {
        assert!(given.contains(&argument), "{argument}: {given:?}");
    }
    let text = read(&root().join("Containerfile"));
    let text = text.replace("\\\n", " ");
    let instructions: Vec<(&str, Vec<&str>)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, rest)| (name, rest.split_whitespace().collect()))
        .collect();
    let of = |wanted: &str| {
        instructions.iter().filter(|(name, _)| *name == wanted).map(|(_, rest)| rest).collect::<Vec<_>>()
    };
    let copied: Vec<&str> = of("COPY").iter().flat_map(|rest| rest[..rest.len() - 1].iter().copied()).collect();
    assert!(copied.contains(&"talos-ghcr") && copied.contains(&"ca-certificates.crt"), "{copied:?}");
    for file in copied {
        assert!(given.contains(&format!("./{file}").as_str()), "the context has no {file}: {given:?}");
    }
    assert_eq!(of("USER"), [&vec!["65532:65532"]], "not root, and a number: Kubernetes compares it for runAsNonRoot");
    assert_eq!(of("ENTRYPOINT"), [&vec!["[\"/talos-ghcr\"]"]]);
    for arg in of("ARG") {
        assert!(given.iter().any(|it| it.starts_with(&format!("{}=", arg[0]))), "{arg:?} is given: {given:?}");
    }
    // Without an archive it says what to do.
    let nothing = dir.join("nothing").display().to_string();
    let refused = script("image.sh", &[], &[("TOOL", tool.as_str()), ("DIST", nothing.as_str())]).await.expect(1);
    assert!(refused.stderr.contains("run make dist first"), "{}", refused.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_files_are_packed_into_the_same_bytes_wherever_and_whenever() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut archives = Vec::new();
    for (place, order) in [("one", ["b", "a"]), ("two/deeper", ["a", "b"])] {
        let stage = dir.path().join(place).join("stage");
        for name in order {
            executable(&stage.join(name), name);
        }
        if place != "one" {
            // Another umask, and other times by themselves.
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(stage.join("a"), std::fs::Permissions::from_mode(0o700)).expect("it is ours");
        }
        let out = dir.path().join(place).join("out");
        let pack: [&Path; 4] = [&out, Path::new("1.2.3"), Path::new("arm64"), &stage];
        script("pack.sh", &pack, &[("SOURCE_DATE_EPOCH", "1800000000"), ("LANG", "de_DE.UTF-8")]).await.expect(0);
        let archive = std::fs::read(out.join("talos-ghcr_1.2.3_linux_arm64.tar.gz")).expect("it was made");
        archives.push((archive, read(&out.join("SHA256SUMS"))));
    }
    assert_eq!(archives[0], archives[1]);
    assert!(archives[0].1.ends_with("  talos-ghcr_1.2.3_linux_arm64.tar.gz\n"), "{}", archives[0].1);
    // Sums that do not say how old the files are would be of no use.
    let pack: [&Path; 4] = [dir.path(), Path::new("1.2.3"), Path::new("arm64"), dir.path()];
    let refused = script("pack.sh", &pack, &[]).await;
    assert!(refused.code() != 0 && refused.stderr.contains("SOURCE_DATE_EPOCH"), "{}", refused.stderr);
}
