//! What `make dist` puts together.

use std::path::Path;

use crate::action::release::executable;
use crate::action::runner::root;
use crate::harness::{Ended, clean, finish, read};

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
