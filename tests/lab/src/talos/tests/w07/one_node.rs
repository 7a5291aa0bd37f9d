//! A control plane without Kubernetes, and in one recording a worker beside it.

use super::*;
use crate::talos::Namespace;

const A: &str = "v1.13.9";
const B: &str = "v1.14.0-rc.1";
const WITHOUT_KUBERNETES: Beginning = Beginning { first_boot: true, kubelet: false, etcd: false };

/// Every scene and its lists.
pub(super) const SCENES: &[(&str, Lists)] = &[
    ("1.13.9: reads", READS_A),
    ("1.14.0-rc.1: reads", READS_B),
    ("1.14.0-rc.1: reads after a boot from STATE", NOTHING),
    ("1.13.9: writes", WRITES_A),
    ("1.14.0-rc.1: writes", WRITES_B),
    ("1.13.9: the 30 variants", VARIANTS),
    ("1.13.9: pulls", NOTHING),
    ("1.13.9: pulls into system", NOTHING),
    ("1.14.0-rc.1: pulls into system", NOTHING),
    ("1.13.9: a reboot", REBOOT_A),
    ("1.14.0-rc.1: a reboot", REBOOT_B),
];

const NOTHING: Lists = Lists { left_out: &[], different: &[] };

const NO_EVENTS: Unlike = unlike(&["(Events as"], "the product reads no events");
const DARK: Unlike = unlike(
    &["version while rebooting (Version as admin) expecting 14"],
    "the endpoint itself is dark: code and words are the client's own",
);
const HOSTNAME: Unlike = unlike(&["HostnameStatuses"], "the product does not read it, the lab does not have it");
const RESOLVER: Unlike = unlike(&["node=unknown name"], "the words are those of the name server beside the node");
const YAML_WORDS: Unlike =
    unlike(&["apply broken YAML"], "code and first words are the same, the rest is the YAML library's own");
const NO_RESTART: Unlike = unlike(&["service restart"], "the product restarts no service");

const READS_A: Lists = Lists { left_out: &[NO_EVENTS], different: &[HOSTNAME, RESOLVER] };
const READS_B: Lists = READS_A;
const WRITES_A: Lists = Lists {
    left_out: &[
        unlike(&["at once after apply", "RegistryConfigs"], "a race of 10 ms, on real nodes too"),
        unlike(&["at once after apply", "EtcFileStatuses"], "a race of 30 ms, on real nodes too"),
        NO_RESTART,
    ],
    different: &[
        YAML_WORDS,
        unlike(
            &["apply no-reboot, needs a reboot"],
            "both show a diff with the secrets; Talos's is of the config as it writes it itself, with another order of keys",
        ),
    ],
};
const WRITES_B: Lists = Lists {
    left_out: &[
        unlike(&["at once after apply", "RegistryConfigs"], "a race of 10 ms, on real nodes too"),
        unlike(&["at once after apply", "EtcFileStatuses"], "a race of 30 ms, on real nodes too"),
        unlike(&["at once after apply", "ServicePIDs.runtime.talos.dev cri"], "CRI was just being restarted"),
        unlike(&["within try", "RegistryConfigs"], "a race of 10 ms, on real nodes too"),
        unlike(&["within try", "EtcFileStatuses"], "a race of 30 ms, on real nodes too"),
        unlike(&["within try", "ServicePIDs.runtime.talos.dev cri"], "CRI was just being restarted"),
        NO_RESTART,
    ],
    different: &[YAML_WORDS],
};
const VARIANTS: Lists = NOTHING;
const REBOOT_A: Lists = Lists { left_out: &[NO_EVENTS, DARK], different: &[] };
const REBOOT_B: Lists = REBOOT_A;

/// A name that 1.14 gave itself, for the same machine config.
const NAME_B: &str = "talos-vc7-ari";

async fn bed(version: &str, config_name: &str, beginning: Beginning, worker: bool) -> Bed {
    let name = if version == B { NAME_B } else { "cp1" };
    let mut nodes = vec![(config(config_name), name.to_owned(), Role::ControlPlane)];
    if worker {
        nodes.push((config(config_name), "w1".to_owned(), Role::Worker));
    }
    Bed::of(nodes, version.trim_start_matches('v'), beginning).await
}

fn alone(version: &str) -> &'static [(&'static str, &'static str)] {
    if version == B { &[("10.5.0.2", NAME_B)] } else { &[("10.5.0.2", "cp1")] }
}

async fn reads(version: &str, nodes: &[(&str, &str)], lists: Lists, alike: usize) {
    let bed = bed(version, "01.yaml", WITHOUT_KUBERNETES, nodes.len() > 1).await;
    let mut replay = Replay::new(&bed, nodes, &[], lists);
    for call in calls(version, "read").iter().filter(|call| !call.name.starts_with("bootid: ")) {
        replay.call("read", call).await;
    }
    replay.finish(alike);
}

#[tokio::test]
async fn w07_reads_of_1_13() {
    reads(A, &[("10.5.0.2", "cp1"), ("10.5.0.3", "w1")], READS_A, 136).await;
}

#[tokio::test]
async fn w07_reads_of_1_14() {
    reads(B, alone(B), READS_B, 139).await;
}

#[tokio::test]
async fn w07_reads_of_1_14_after_a_boot_from_state() {
    let beginning = Beginning { first_boot: false, ..WITHOUT_KUBERNETES };
    let bed = bed(B, "09.yaml", beginning, false).await;
    let mut replay = Replay::new(&bed, alone(B), &[], NOTHING);
    for call in calls(B, "read").iter().filter(|call| call.name.starts_with("bootid: ")) {
        replay.call("read", call).await;
    }
    replay.finish(39);
}

async fn writes(version: &str, lists: Lists, alike: usize) {
    let bed = bed(version, "01.yaml", WITHOUT_KUBERNETES, false).await;
    let mut replay = Replay::new(&bed, alone(version), &[], lists);
    let mut group = String::new();
    for call in &calls(version, "write") {
        // What was looked at later than at once was looked at when all was over.
        let of = call.name.split(": get ").next().unwrap_or_default();
        if of != group && call.rpc() == "Get" && !of.contains("at once") {
            bed.clock.sleep(SETTLED).await;
        }
        if of.contains("rolled back") && of != group {
            bed.clock.sleep(Duration::from_millis(800)).await;
        }
        group = of.to_owned();
        replay.call("write", call).await;
    }
    replay.finish(alike);
}

#[tokio::test]
async fn w07_writes_of_1_13() {
    writes(A, WRITES_A, 66).await;
}

#[tokio::test]
async fn w07_writes_of_1_14() {
    writes(B, WRITES_B, 68).await;
}

#[tokio::test]
async fn w07_the_30_variants_one_after_another() {
    let bed = bed(A, "02.yaml", WITHOUT_KUBERNETES, false).await;
    let mut replay = Replay::new(&bed, alone(A), &[], VARIANTS);
    let calls = calls(A, "variants");
    for call in &calls {
        replay.call("variants", call).await;
        if call.rpc() == "ApplyConfiguration" {
            bed.clock.sleep(Duration::from_millis(100)).await;
        }
    }
    let applied = calls.iter().filter(|call| call.rpc() == "ApplyConfiguration");
    assert_eq!(applied.count(), 30);
    replay.finish(120);
}

const DIGESTS_A: [(&str, &str); 1] = [("0", "sha256:b70f8ac8a4eb2551a3120f98d546d993bc6f59dde5e9462c3a8520575a2bc9fd")];

async fn pulls(version: &str, file: &str, digests: &[(&str, &str)], present: &[&str], alike: usize) {
    let bed = bed(version, "01.yaml", WITHOUT_KUBERNETES, false).await;
    let by_tag = digests.iter().map(|(tag, digest)| ((*tag).to_owned(), (*digest).to_owned()));
    bed.registry.digests.lock().unwrap().extend(by_tag);
    for (tag, digest) in digests.iter().filter(|(tag, _)| present.contains(tag)) {
        bed.talos.node(alone(version)[0].1).preload_image(
            Namespace::Cri,
            &format!("reg.lab.test/lab/app:{tag}"),
            digest,
        );
    }
    let digests: Vec<_> = digests.iter().map(|(_, digest)| *digest).collect();
    if present.contains(&"1") {
        // The recorder had removed this name before.
        let node = bed.talos.node(alone(version)[0].1);
        assert!(node.state().images.remove(Namespace::Cri, digests[1]));
    }
    let mut replay = Replay::new(&bed, alone(version), &digests, NOTHING);
    for call in &calls(version, file) {
        if call.name.contains("refuses the credential") {
            *bed.registry.password.lock().unwrap() = NEW;
        }
        replay.call(file, call).await;
    }
    replay.finish(alike);
}

#[tokio::test]
async fn w07_pulls_of_1_13() {
    let digests = [("0", DIGEST), ("1", "sha256:a9a348f623de868de944a4fdea3fe4c948c731754fa231970826cf75a64cefd7")];
    pulls(A, "pull", &digests, &[], 10).await;
}

#[tokio::test]
async fn w07_pulls_into_system_of_1_13() {
    pulls(A, "pull-system", &DIGESTS_A, &[], 21).await;
}

#[tokio::test]
async fn w07_pulls_into_system_of_1_14() {
    let digests = [
        ("0", "sha256:b670ae07bd8b352f78767b9a4a91a00e152767e8ac8e0818e2ccdeca5c24e9e9"),
        ("1", "sha256:95aa5edd529543afd1f2131163ddf9b8dc2188d79da7bbf550efa1d0b0c2429a"),
    ];
    pulls(B, "pull-system", &digests, &["0", "1"], 21).await;
}

async fn reboot(version: &str, config_name: &str, beginning: Beginning, files: &[&str], lists: Lists, alike: usize) {
    let bed = bed(version, config_name, beginning, false).await;
    let node = bed.talos.node(alone(version)[0].1);
    let mut replay = Replay::new(&bed, alone(version), &[], lists);
    let calls = files.iter().flat_map(|file| calls(version, file)).collect::<Vec<_>>();
    for (index, call) in calls.iter().enumerate() {
        if index > 0 && calls[index - 1].code == Code::Unavailable as i32 {
            bed.until("it is back", || node.is_up() && node.boots() == 1).await;
            bed.clock.sleep(SETTLED).await;
            replay.reboot();
        }
        replay.call("reboot", call).await;
    }
    replay.finish(alike);
}

#[tokio::test]
async fn w07_a_reboot_of_1_13() {
    reboot(A, "02.yaml", WITHOUT_KUBERNETES, &["reboot", "restarted"], REBOOT_A, 21).await;
}

#[tokio::test]
async fn w07_a_reboot_of_1_14() {
    let beginning = Beginning { first_boot: false, ..WITHOUT_KUBERNETES };
    reboot(B, "09.yaml", beginning, &["reboot"], REBOOT_B, 22).await;
}
