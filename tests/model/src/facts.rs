//! What the product reads of a node, made from the node's state: facts, a config's bytes, a fleet.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use agent::credential::{Credential, Desired};
use agent::facts::{Configs, Facts, Look, MachineState, Registries};
use agent::machine_config::MachineConfig;
use agent::record::{self, CriProcess, Entry, PullRecord, Record};
use agent::revision::Revision;
use jiff::{SignedDuration, Timestamp};
use talos_proto::proto::talos::resource::definitions::enums::RuntimeMachineStage;
use zeroize::Zeroizing;

use crate::cluster::{Config, Kind, Node};

const HOST: &str = "ghcr.io";

/// The clock of every process; it stands still, for the product compares it with nothing but times in a node's future.
#[must_use]
pub fn now() -> Timestamp {
    Timestamp::from_second(1_796_025_600).unwrap_or_default()
}

/// What every run was given.
#[must_use]
pub fn desired() -> Desired {
    HOST.parse().map(|host| (host, credential("new"))).into_iter().collect()
}

fn credential(password: &str) -> Credential {
    Credential::basic("puller", password)
}

fn config(new: bool, more: &str) -> Zeroizing<Vec<u8>> {
    let password = if new { "new" } else { "old" };
    Zeroizing::new(
        format!(
            "version: v1alpha1\nmachine:\n  token: t\n{more}  registries:\n    config:\n      {HOST}:\n        auth:\n          username: puller\n          password: {password}\ncluster:\n  secret: s\n"
        )
        .into_bytes(),
    )
}

/// The revision of the desired credential in this cluster.
#[must_use]
pub fn revision() -> Option<Revision> {
    static REVISION: OnceLock<Option<Revision>> = OnceLock::new();
    *REVISION.get_or_init(|| {
        let config = MachineConfig::parse(&config(true, "")).ok()?;
        Some(config.cluster_key().ok()?.revision(&desired()))
    })
}

/// The CRI process of a boot.
#[must_use]
pub fn process(boot: u8) -> CriProcess {
    let started = now() - SignedDuration::from_hours(1000 - i64::from(boot));
    CriProcess { pid: 100 + i32::from(boot), started }
}

fn record_line(node: &Node) -> String {
    let Some((rec, revision)) = node.record.zip(revision()) else { return String::new() };
    let entry = Entry {
        revision,
        boot: Some(format!("boot-{}", rec.boot)),
        cri: Some(process(rec.boot)),
        images: Vec::new(),
        pull: if rec.proved { PullRecord::Proved } else { PullRecord::None },
        at: now(),
        holder: "r".to_owned(),
    };
    let record = if rec.proved { Record::proved(entry, None) } else { Record::staged(entry, None) };
    format!("  nodeAnnotations:\n    {}: '{}'\n", record::ANNOTATION, record.to_json())
}

/// What Talos says of the node, or `None` while it is away.
#[must_use]
pub fn facts(node: &Node, kind: Kind, index: usize) -> Option<Facts> {
    if !node.up {
        return None;
    }
    let process = process(node.boot);
    let minute = SignedDuration::from_mins(1);
    let changed = if node.changed_after { process.started + minute } else { process.started - minute };
    let record = record_line(node);
    let active = config(node.config.in_effect(), &record);
    let persistent = match node.config {
        Config::Old | Config::New => active.clone(),
        Config::Try => config(false, ""),
        Config::Foreign => config(false, "  kubelet: {}\n"),
    };
    let auth = credential(if node.config.in_effect() { "new" } else { "old" });
    let auths: BTreeMap<_, _> = [(HOST.to_owned(), Ok(auth))].into();
    Some(Facts {
        version: "v1.13.9".parse().ok()?,
        boot: Look::Seen(node.boot_id()),
        machine: Look::Seen(MachineState {
            stage: RuntimeMachineStage::MachineStageRunning,
            ready: true,
            unmet: Vec::new(),
        }),
        cri: Look::Seen(process),
        cri_started_before: None,
        cri_config_changed: Look::Seen(changed),
        registries: Look::Seen(Registries { auths, mirrored: Vec::new() }),
        configs: Look::Seen(Configs {
            active,
            active_version: 2,
            persistent: Some(persistent),
            persistent_version: 2,
            on_disk: None,
        }),
        nodename: Look::Seen(kind.name(index)),
        node: Look::NotAsked,
        addresses: Look::Seen(vec![kind.address(index)]),
    })
}

/// The same node without a record: what a rule that looks at times alone sees.
#[must_use]
pub fn without_record(facts: &Facts) -> Facts {
    let mut facts = facts.clone();
    if let Look::Seen(configs) = &mut facts.configs {
        let strip = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let mut kept = String::new();
            for line in
                text.lines().filter(|line| !line.contains("nodeAnnotations") && !line.contains(record::ANNOTATION))
            {
                kept.push_str(line);
                kept.push('\n');
            }
            Zeroizing::new(kept.into_bytes())
        };
        configs.active = strip(&configs.active);
        configs.persistent = configs.persistent.as_ref().map(|bytes| strip(bytes));
    }
    facts
}
