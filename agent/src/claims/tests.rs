//! The verdict of one node from facts that are built by hand.

use proptest::prelude::*;
use zeroize::Zeroizing;

use super::*;
use crate::credential::{Credential, Unusable};
use crate::facts::{Configs, MachineState, NodeSeen, Registries};
use crate::record::{ANNOTATION, Entry, PullRecord};
use talos_proto::proto::talos::resource::definitions::enums::RuntimeMachineStage;

const HOST: &str = "ghcr.io";
const BOOT: &str = "0f6d7c1e-93a5-4c35-9c1e-5f0a9b1f2d11";
const EARLIER_BOOT: &str = "e0877fc7-30a3-4b1d-9b1d-da4a24ba7ef2";
/// Our clock in all of these.
const NOW: &str = "2026-11-30T12:00:00Z";
/// When `cri.toml` changed in an ordinary boot, and 75 ms later the start of CRI.
const CHANGED: &str = "2026-11-30T10:00:00.100000001Z";
const STARTED: &str = "2026-11-30T10:00:00.175000002Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn new_credential() -> Credential {
    Credential::basic("bot", "secret-new")
}

fn desired() -> Desired {
    [(HOST.parse().unwrap(), new_credential())].into_iter().collect()
}

/// A machine config, with that record as the Node's annotation. Which credential it holds plays no part here: what
/// counts is what Talos says it would use.
fn config(record: Option<&Record>) -> Zeroizing<Vec<u8>> {
    let annotation = record.map_or_else(String::new, |record| {
        let quoted = serde_json::to_string(&record.to_json()).unwrap();
        format!("    nodeAnnotations:\n        {ANNOTATION}: {quoted}\n")
    });
    let text = format!(
        "version: v1alpha1\nmachine:\n    type: worker\n    token: fake00.notarealtoken0000\n{annotation}cluster:\n    secret: not-a-real-secret\n"
    );
    Zeroizing::new(text.into_bytes())
}

fn revision() -> Revision {
    MachineConfig::parse(&config(None)).unwrap().cluster_key().unwrap().revision(&desired())
}

fn another_revision() -> Revision {
    "ffffffffffffffffffffffffffffffff".parse().unwrap()
}

fn process(pid: i32, started: &str) -> CriProcess {
    CriProcess { pid, started: at(started) }
}

fn entry(boot: &str, cri: CriProcess) -> Entry {
    Entry {
        revision: revision(),
        boot: Some(boot.into()),
        cri: Some(cri),
        images: vec!["ghcr.io/acme/app:1".into()],
        pull: PullRecord::Proved,
        at: at("2026-11-30T10:05:00Z"),
        holder: "test".into(),
    }
}

fn staged(boot: &str, cri: CriProcess) -> Record {
    Record::staged(entry(boot, cri), None)
}

fn proved(boot: &str, cri: CriProcess) -> Record {
    Record::proved(entry(boot, cri), None)
}

fn running() -> CriProcess {
    process(2184, STARTED)
}

/// The same record, but of that revision.
fn of(revision: Revision, mut record: Record) -> Record {
    record.revision = revision;
    record
}

fn registries(credential: Result<Credential, Unusable>) -> Look<Registries> {
    Look::Seen(Registries { auths: [(HOST.to_owned(), credential)].into(), mirrored: Vec::new() })
}

/// A node on which all is well, an hour after an ordinary boot: no `persistent` config, the active one unchanged.
fn facts(record: Option<&Record>) -> Facts {
    let configs =
        Configs { active: config(record), active_version: 1, persistent: None, persistent_version: 0, on_disk: None };
    Facts {
        version: "v1.13.9".parse().unwrap(),
        boot: Look::Seen(BOOT.into()),
        machine: Look::Seen(MachineState {
            stage: RuntimeMachineStage::MachineStageRunning,
            ready: true,
            unmet: Vec::new(),
        }),
        cri_started_before: None,
        cri: Look::Seen(running()),
        cri_config_changed: Look::Seen(at(CHANGED)),
        registries: registries(Ok(new_credential())),
        configs: Look::Seen(configs),
        nodename: Look::Seen("w1".into()),
        node: Look::Seen(NodeSeen {
            name: "w1".into(),
            ready: true,
            unschedulable: false,
            annotations: record.map(|record| (ANNOTATION.to_owned(), record.to_json())).into_iter().collect(),
        }),
        addresses: Look::NotAsked,
    }
}

/// The config of [`facts`] after an apply: both ids are there.
fn with_persistent(mut facts: Facts, persistent: Zeroizing<Vec<u8>>) -> Facts {
    let Look::Seen(configs) = &mut facts.configs else { panic!("the config is seen") };
    (configs.active_version, configs.persistent_version) = (2, 1);
    configs.persistent = Some(persistent);
    facts
}

/// What an identity with os:reader alone sees of it.
fn as_reader(facts: Facts) -> Facts {
    Facts { boot: Look::NotPermitted, registries: Look::NotPermitted, configs: Look::NotPermitted, ..facts }
}

fn judged(facts: &Facts) -> Judgement {
    judge(facts, &desired(), &Pull::NotTried, at(NOW))
}

fn answers(judgement: &Judgement) -> [Answer; 4] {
    let Claims { configured, loaded, pull, proof } = &judgement.claims;
    [configured.answer, loaded.answer, pull.answer, proof.answer]
}

/// `cri.toml` changed after the CRI process had started, as an apply of this morning leaves it.
fn changed_since_start(facts: Facts) -> Facts {
    Facts { cri_config_changed: Look::Seen(at("2026-11-30T11:00:00.030Z")), ..facts }
}

#[test]
fn n01_configured_loaded_and_proved_is_current() {
    let node = judged(&facts(Some(&proved(BOOT, running()))));
    assert_eq!(node.verdict, Verdict::Current);
    assert_eq!(answers(&node), [Answer::True; 4]);
    assert_eq!(node.revision, Some(revision()));
    assert_eq!((node.adoption, node.own_try), (Adoption::Reboot, false));
    // The proof names an earlier boot's process: the times of this one say that it is loaded.
    let node = judged(&facts(Some(&proved(EARLIER_BOOT, process(1984, "2026-11-29T08:00:00Z")))));
    assert_eq!(node.verdict, Verdict::Current);
}

#[test]
fn n02_a_record_that_says_current_is_not_believed_when_the_config_is_another() {
    let record = proved(BOOT, running());
    let effective = [
        registries(Ok(Credential::basic("bot", "secret-old"))),
        registries(Ok(Credential::basic("other", "secret-new"))),
        registries(Ok(Credential::token("secret-new"))),
        registries(Ok(Credential::None)),
        registries(Err(Unusable::PasswordWithoutUsername)),
        Look::Seen(Registries { auths: Default::default(), mirrored: Vec::new() }),
        Look::Absent,
    ];
    for registries in effective {
        let node = judged(&Facts { registries, ..facts(Some(&record)) });
        assert_eq!(node.verdict, Verdict::Drifted, "{}", node.claims.configured.evidence);
        assert_eq!(node.claims.configured.answer, Answer::False);
        assert!(node.claims.proof.holds(), "the claims stay apart");
    }
}

#[test]
fn n02_each_desired_registry_counts() {
    let two: Desired = [(HOST.parse().unwrap(), new_credential()), ("quay.io".parse().unwrap(), new_credential())]
        .into_iter()
        .collect();
    let node = judge(&facts(None), &two, &Pull::NotTried, at(NOW));
    assert_eq!(node.verdict, Verdict::Drifted);
    assert!(node.claims.configured.evidence.contains("quay.io"), "{}", node.claims.configured.evidence);
}

#[test]
fn n03_cri_older_than_the_change_is_stale() {
    // Somebody else applied it: no record.
    let node = judged(&changed_since_start(facts(None)));
    assert_eq!(node.verdict, Verdict::Stale);
    assert_eq!(answers(&node)[..2], [Answer::True, Answer::False]);
    // We applied it, in this boot, beside the process that runs.
    let record = staged(BOOT, running());
    let node = judged(&with_persistent(changed_since_start(facts(Some(&record))), config(Some(&record))));
    assert_eq!(node.verdict, Verdict::Stale);
    // A start in the very nanosecond of the change proves nothing.
    let node = judged(&Facts { cri_config_changed: Look::Seen(at(STARTED)), ..facts(None) });
    assert_eq!(node.verdict, Verdict::Stale);
}

#[test]
fn n03_a_proof_of_another_revision_proves_nothing() {
    let record = of(another_revision(), proved(BOOT, running()));
    let node = judged(&changed_since_start(facts(Some(&record))));
    assert_eq!(node.verdict, Verdict::Stale);
    assert_eq!(answers(&node), [Answer::True, Answer::False, Answer::Unknown, Answer::False]);
}

#[test]
fn n04_configured_and_loaded_without_a_record_is_unproved() {
    let node = judged(&facts(None));
    assert_eq!(node.verdict, Verdict::Unproved);
    assert_eq!(answers(&node), [Answer::True, Answer::True, Answer::Unknown, Answer::False]);
    // Another tool's value in our annotation.
    let mut wiped = facts(None);
    let Look::Seen(configs) = &mut wiped.configs else { panic!("the config is seen") };
    let broken = String::from_utf8(config(None).to_vec()).unwrap();
    let broken = broken.replace("cluster:", &format!("    nodeAnnotations:\n        {ANNOTATION}: nonsense\ncluster:"));
    configs.active = Zeroizing::new(broken.into_bytes());
    let node = judged(&wiped);
    assert_eq!(node.verdict, Verdict::Unproved);
    assert!(node.claims.proof.evidence.contains("does not parse"), "{}", node.claims.proof.evidence);
    assert_eq!(node.record, None);
}

#[test]
fn n05_the_same_credential_written_or_applied_again_changes_nothing() {
    let record = proved(BOOT, running());
    // As `auth`, which is base64 of bot:secret-new.
    let auth = Credential::effective("", "", "Ym90OnNlY3JldC1uZXc=", "").unwrap();
    let node = judged(&Facts { registries: registries(Ok(auth)), ..facts(Some(&record)) });
    assert_eq!(node.verdict, Verdict::Current);
    // Equal bytes applied once more: both configs moved by one, cri.toml did not.
    let mut again = with_persistent(facts(Some(&record)), config(Some(&record)));
    assert_eq!(judged(&again).verdict, Verdict::Current);
    // A comment more in both.
    let Look::Seen(configs) = &mut again.configs else { panic!("the config is seen") };
    configs.active.extend_from_slice(b"# a comment\n");
    configs.persistent = Some(configs.active.clone());
    assert_eq!(judged(&again).verdict, Verdict::Current);
}

#[test]
fn n06_cri_that_restarted_after_the_change_has_loaded_it() {
    let record = staged(BOOT, running());
    let crashed = Facts {
        cri: Look::Seen(process(3977, "2026-11-30T11:00:05.000000001Z")),
        ..with_persistent(changed_since_start(facts(Some(&record))), config(Some(&record)))
    };
    let node = judged(&crashed);
    assert_eq!(node.verdict, Verdict::Unproved);
    assert!(node.claims.loaded.holds());
    assert_eq!(node.claims.proof.answer, Answer::False, "only staged");
    // The same pid by chance: the start tells them apart.
    let node = judged(&Facts { cri: Look::Seen(process(2184, "2026-11-30T11:00:05.000000001Z")), ..crashed });
    assert!(node.claims.loaded.holds());
}

#[test]
fn n11_a_reader_is_told_all_that_can_be_seen() {
    let node = judged(&as_reader(facts(Some(&proved(BOOT, running())))));
    assert_eq!(answers(&node), [Answer::Unknown, Answer::True, Answer::True, Answer::True]);
    assert!(node.claims.configured.evidence.contains("not permitted"), "{}", node.claims.configured.evidence);
    assert!(matches!(&node.verdict, Verdict::Unknown(why) if why.contains("not permitted")), "{:?}", node.verdict);
    assert_eq!(node.revision, None);
    let node = judged(&as_reader(facts(None)));
    assert_eq!(answers(&node), [Answer::Unknown, Answer::True, Answer::Unknown, Answer::False]);
    let node = judged(&as_reader(changed_since_start(facts(None))));
    assert_eq!(answers(&node)[..2], [Answer::Unknown, Answer::False]);
    // Nor can a reader see that another's TRY is in flight.
    assert!(matches!(node.verdict, Verdict::Unknown(_)));
}

#[test]
fn n11_a_reader_without_the_node_does_not_know_whether_there_is_a_proof() {
    let node = judged(&Facts { node: Look::Absent, ..as_reader(facts(None)) });
    assert_eq!(node.claims.proof.answer, Answer::Unknown);
}

/// A customization part changed `cri.toml`; the credential is as it was.
#[test]
fn n11_a_proof_of_a_revision_that_cannot_be_compared_does_not_outrank_the_times() {
    let earlier = of(another_revision(), proved(BOOT, running()));
    let node = judged(&as_reader(changed_since_start(facts(Some(&earlier)))));
    assert_eq!(node.claims.loaded.answer, Answer::False);
    assert!(node.claims.proof.evidence.contains("not compared"), "{}", node.claims.proof.evidence);
}

#[test]
fn n18_without_the_configs_it_is_not_known_whether_the_credential_is_persisted() {
    let earlier = of(another_revision(), proved(BOOT, running()));
    for configs in [Look::Failed("no answer".into()), Look::Absent, Look::NotPermitted] {
        let node = judged(&Facts { configs, ..changed_since_start(facts(Some(&earlier))) });
        assert_eq!(node.claims.configured.answer, Answer::Unknown);
        assert!(matches!(node.verdict, Verdict::Unknown(_)), "{:?}", node.verdict);
    }
}

#[test]
fn c05_what_another_staged_without_our_annotation_is_not_our_own_try() {
    let mut theirs = config(None);
    theirs.extend_from_slice(b"# theirs\n");
    let record = staged(BOOT, running());
    let node = with_persistent(changed_since_start(facts(Some(&record))), theirs);
    let late = judge(&node, &desired(), &Pull::NotTried, record.at + SignedDuration::from_mins(11));
    assert_eq!((late.own_try, late.verdict), (false, Verdict::Blocked(Blocked::ForeignConfig)));
}

#[test]
fn n15_the_evidence_names_the_cri_config_and_not_the_credential() {
    let node = judged(&changed_since_start(facts(None)));
    assert_eq!(node.verdict, Verdict::Stale);
    let evidence = &node.claims.loaded.evidence;
    assert!(evidence.contains("cri.toml changed 2026-11-30T11:00:00.03Z"), "{evidence}");
    assert!(!evidence.contains("credential"), "{evidence}");
}

#[test]
fn n17_a_try_that_was_rolled_back_leaves_a_proved_process_loaded() {
    let record = proved(BOOT, running());
    let mut node = changed_since_start(facts(Some(&record)));
    let Look::Seen(configs) = &mut node.configs else { panic!("the config is seen") };
    // Applied and rolled back in this boot; the file on disk was never another.
    configs.active_version = 3;
    configs.on_disk = Some(configs.active.clone());
    let judgement = judged(&node);
    assert_eq!(judgement.verdict, Verdict::Current);
    assert!(judgement.claims.loaded.evidence.contains("the record proves"), "{}", judgement.claims.loaded.evidence);
    // Without the proof, or with one of another process or boot, the times count, and they over-report.
    for record in [
        None,
        Some(proved(BOOT, process(2185, STARTED))),
        Some(proved(BOOT, process(2184, CHANGED))),
        Some(proved(EARLIER_BOOT, running())),
    ] {
        let judgement = judged(&changed_since_start(facts(record.as_ref())));
        assert_eq!(judgement.verdict, Verdict::Stale, "{record:?}");
    }
}

#[test]
fn n18_no_persistent_config_after_an_ordinary_reboot_means_that_nothing_is_staged() {
    let node = facts(Some(&proved(BOOT, running())));
    assert!(node.configs.seen().is_some_and(|configs| configs.persistent.is_none()));
    assert_eq!(judged(&node).verdict, Verdict::Current);
}

#[test]
fn n19_without_a_cri_process_nothing_is_known_and_never_stale() {
    let not_seen = [Look::Absent, Look::NotSupported, Look::Failed("no answer".into()), Look::NotAsked];
    for record in [None, Some(staged(BOOT, running())), Some(proved(BOOT, running()))] {
        for cri in &not_seen {
            let node = judged(&Facts { cri: cri.clone(), ..facts(record.as_ref()) });
            assert_eq!(node.claims.loaded.answer, Answer::Unknown, "{cri:?} {record:?}");
            assert!(matches!(node.verdict, Verdict::Unknown(_)), "{cri:?}: {:?}", node.verdict);
        }
        // Nor without the time of the file.
        for look in [Look::Absent, Look::Failed("no answer".into())] {
            let node = judged(&Facts { cri_config_changed: look, ..facts(record.as_ref()) });
            assert!(matches!(node.verdict, Verdict::Unknown(_)), "{:?}", node.verdict);
        }
    }
}

#[test]
fn n22_a_clock_that_was_stepped_back_cannot_make_a_staged_process_loaded() {
    // CRI started before the time was synchronised, an hour ahead; the apply came after the step back.
    let early = process(2184, "2026-11-30T11:00:00Z");
    let record = staged(BOOT, early);
    let stepped = Facts { cri: Look::Seen(early), ..facts(Some(&record)) };
    assert!(early.started > at(CHANGED), "by the times alone it would be loaded");
    let node = judged(&with_persistent(stepped, config(Some(&record))));
    assert_eq!(node.verdict, Verdict::Stale);
    assert_eq!(node.claims.loaded.answer, Answer::False);
}

#[test]
fn n23_still_older_by_times_after_the_boot_that_followed_is_blocked_and_not_stale() {
    let record = staged(EARLIER_BOOT, process(1984, "2026-11-29T08:00:00Z"));
    let node = judged(&changed_since_start(facts(Some(&record))));
    assert_eq!(node.verdict, Verdict::Blocked(Blocked::Times));
    assert_eq!(node.claims.loaded.answer, Answer::False);
    assert!(node.verdict.reason().is_some_and(|reason| reason.contains("--reboot-again")));
    // The usual end of that boot.
    assert_eq!(judged(&facts(Some(&record))).verdict, Verdict::Unproved);
    // Staged in this boot beside a process that is gone since: no reboot has been for it yet.
    let record = staged(BOOT, process(1984, "2026-11-30T09:00:00Z"));
    assert_eq!(judged(&changed_since_start(facts(Some(&record)))).verdict, Verdict::Stale);
    // Which boot this is must be known to say so.
    let record = staged(EARLIER_BOOT, process(1984, "2026-11-29T08:00:00Z"));
    let node = Facts { boot: Look::Failed("no answer".into()), ..changed_since_start(facts(Some(&record))) };
    assert_eq!(judged(&node).verdict, Verdict::Stale);
}

#[test]
fn n10_a_time_in_the_future_says_nothing() {
    let ahead = "2026-11-30T12:05:00.000000001Z";
    for facts in [
        Facts { cri: Look::Seen(process(2184, ahead)), ..facts(None) },
        Facts { cri_config_changed: Look::Seen(at(ahead)), ..facts(None) },
    ] {
        let node = judged(&facts);
        assert_eq!(node.claims.loaded.answer, Answer::Unknown);
        assert!(matches!(&node.verdict, Verdict::Unknown(why) if why.contains("future")), "{:?}", node.verdict);
    }
    // Ordinary skew between two clocks is no step.
    let node = judged(&Facts { cri: Look::Seen(process(2184, "2026-11-30T12:04:59Z")), ..facts(None) });
    assert_eq!(node.verdict, Verdict::Unproved);
    // A record that names the process needs no times.
    let record = proved(BOOT, process(2184, ahead));
    let node = judged(&Facts { cri: Look::Seen(process(2184, ahead)), ..facts(Some(&record)) });
    assert_eq!(node.verdict, Verdict::Current);
}

#[test]
fn c05_a_try_or_a_staged_config_of_somebody_else_blocks() {
    let record = proved(BOOT, running());
    let other = || {
        let mut other = config(Some(&record));
        other.extend_from_slice(b"# theirs\n");
        other
    };
    let base = || facts(Some(&record));
    // STAGED: another config waits for the boot.
    let staged_by_other = with_persistent(base(), other());
    // TRY over a persisted config.
    let mut tried = with_persistent(base(), config(Some(&record)));
    let Look::Seen(configs) = &mut tried.configs else { panic!("the config is seen") };
    configs.active = other();
    // TRY where no `persistent` is since the boot: the file on disk tells, and where it cannot be read the counter.
    let mut on_disk = base();
    let Look::Seen(configs) = &mut on_disk.configs else { panic!("the config is seen") };
    (configs.active_version, configs.on_disk) = (2, Some(other()));
    let mut unread = base();
    let Look::Seen(configs) = &mut unread.configs else { panic!("the config is seen") };
    configs.active_version = 2;
    for facts in [staged_by_other, tried, on_disk, unread] {
        let node = judged(&facts);
        assert_eq!(node.verdict, Verdict::Blocked(Blocked::ForeignConfig));
        assert!(!node.own_try);
        assert_eq!(node.claims.configured.answer, Answer::False, "what a boot would bring is not configured");
        // Also when the credential in effect is another: a write would cancel their rollback.
        let drifted = Facts { registries: registries(Ok(Credential::None)), ..facts };
        assert_eq!(judged(&drifted).verdict, Verdict::Blocked(Blocked::ForeignConfig));
    }
}

#[test]
fn c05_our_own_canary_is_known_by_its_record_and_waited_out() {
    let record = staged(BOOT, running());
    let before = of(another_revision(), proved(BOOT, running()));
    for persisted in [config(None), config(Some(&before))] {
        let soon = record.at + SignedDuration::from_mins(4);
        let node = with_persistent(changed_since_start(facts(Some(&record))), persisted.clone());
        let node = judge(&node, &desired(), &Pull::NotTried, soon);
        assert!(node.own_try);
        assert_eq!(node.verdict, Verdict::Drifted, "not configured until it is permanent");
        assert_eq!(node.claims.configured.answer, Answer::False);
        // Where there is no `persistent` since the boot.
        let mut on_disk = changed_since_start(facts(Some(&record)));
        let Look::Seen(configs) = &mut on_disk.configs else { panic!("the config is seen") };
        (configs.active_version, configs.on_disk) = (2, Some(persisted));
        assert!(judge(&on_disk, &desired(), &Pull::NotTried, soon).own_try);
    }
    // Made permanent, and then somebody tries something on top: not ours.
    let mut theirs = with_persistent(facts(Some(&record)), config(Some(&record)));
    let Look::Seen(configs) = &mut theirs.configs else { panic!("the config is seen") };
    configs.active.extend_from_slice(b"# theirs\n");
    let node = judged(&theirs);
    assert!(!node.own_try);
    assert_eq!(node.verdict, Verdict::Blocked(Blocked::ForeignConfig));
}

#[test]
fn n09_adoption_follows_the_version_and_older_ones_are_blocked_by_name() {
    let of = |version: &str| judged(&Facts { version: version.parse().unwrap(), ..facts(None) });
    for (version, adoption) in [
        ("v1.9.6", Adoption::Reboot),
        ("v1.12.11", Adoption::Reboot),
        ("v1.13.0", Adoption::Reboot),
        ("v1.13.9", Adoption::Reboot),
        ("v1.14.0-rc.1", Adoption::Live),
        ("v1.15.2", Adoption::Live),
    ] {
        let node = of(version);
        assert_eq!((node.adoption, node.verdict), (adoption, Verdict::Unproved), "{version}");
    }
    for version in ["v1.8.4", "v1.6.0"] {
        let node = of(version);
        assert_eq!(node.verdict, Verdict::Blocked(Blocked::Version(format!("Talos {version}"))));
    }
}

#[test]
fn k05_a_config_that_cannot_be_read_blocks() {
    let mut node = facts(None);
    let Look::Seen(configs) = &mut node.configs else { panic!("the config is seen") };
    configs.active = Zeroizing::new(b"version: v1alpha1\nmachine: [\n".to_vec());
    assert!(matches!(judged(&node).verdict, Verdict::Blocked(Blocked::Config(_))));
}

#[test]
fn the_pull_of_this_run_is_believed_before_the_record() {
    let node = facts(Some(&proved(BOOT, running())));
    let pull = |pull| judge(&node, &desired(), &pull, at(NOW)).claims.pull;
    assert_eq!(pull(Pull::NotTried).answer, Answer::True);
    assert_eq!(pull(Pull::Proved("ghcr.io/acme/app@sha256:0".into())).answer, Answer::True);
    let unprovable = pull(Pull::Unprovable("present".into()));
    assert_eq!((unprovable.answer, unprovable.evidence.as_str()), (Answer::Unknown, "unprovable: present"));
    assert_eq!(pull(Pull::Failed("no answer".into())).answer, Answer::False);
    // A pull is no proof of what containerd has loaded.
    let stale = changed_since_start(facts(None));
    let node = judge(&stale, &desired(), &Pull::Proved("x@sha256:0".into()), at(NOW));
    assert_eq!(node.verdict, Verdict::Stale);
}

#[test]
fn s09_no_evidence_holds_a_credential() {
    let old = Credential::basic("bot", "secret-old");
    for registries in [registries(Ok(new_credential())), registries(Ok(old))] {
        let shown = format!("{:?}", judged(&Facts { registries, ..facts(Some(&staged(BOOT, running()))) }));
        assert!(!shown.contains("secret-"), "{shown}");
    }
}

/// Any time that a node can send, the ends of the range included.
fn any_time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        Just(Timestamp::MIN),
        Just(Timestamp::MAX),
        Just(at(CHANGED)),
        Just(at(STARTED)),
        (Timestamp::MIN.as_second()..Timestamp::MAX.as_second(), 0..1_000_000_000_i32)
            .prop_map(|(second, nano)| Timestamp::new(second, nano).unwrap_or(Timestamp::UNIX_EPOCH)),
    ]
}

/// Our own clock, which may be as wrong as the node's.
fn our_clock() -> impl Strategy<Value = Timestamp> {
    any_time()
}

fn any_record() -> impl Strategy<Value = Option<Record>> {
    let state = prop_oneof![Just(RecordState::Staged), Just(RecordState::Proved)];
    let boot = prop_oneof![Just(None), Just(Some(BOOT.to_owned())), Just(Some(EARLIER_BOOT.to_owned()))];
    let record = (state, boot, 1..3_i32, any_time(), any::<bool>(), any::<bool>()).prop_map(
        |(state, boot, pid, started, named, same)| {
            let mut record = proved(BOOT, CriProcess { pid, started });
            record.cri = record.cri.filter(|_| named);
            (record.state, record.boot) = (state, boot);
            if same { record } else { of(another_revision(), record) }
        },
    );
    proptest::option::of(record)
}

fn any_look<T: Clone + std::fmt::Debug + 'static>(value: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Look<T>> {
    prop_oneof![
        6 => value.prop_map(Look::Seen),
        1 => Just(Look::Absent),
        1 => Just(Look::NotPermitted),
        1 => Just(Look::NotSupported),
        1 => Just(Look::Failed("no answer".into())),
    ]
    .boxed()
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let cri = any_look((1..3_i32, any_time()).prop_map(|(pid, started)| CriProcess { pid, started }));
    let credential = prop_oneof![
        Just(Ok(new_credential())),
        Just(Ok(Credential::None)),
        Just(Err(Unusable::PasswordWithoutUsername)),
    ];
    let auths = any_look(
        credential
            .prop_map(|credential| Registries { auths: [(HOST.to_owned(), credential)].into(), mirrored: Vec::new() }),
    );
    let configs = any_look(
        (any_record(), 0..4_u64, proptest::option::of(any_record()), proptest::option::of(any_record())).prop_map(
            |(active, active_version, persistent, on_disk)| Configs {
                active: config(active.as_ref()),
                active_version,
                persistent_version: u64::from(persistent.is_some()),
                persistent: persistent.map(|record| config(record.as_ref())),
                on_disk: on_disk.map(|record| config(record.as_ref())),
            },
        ),
    );
    let version = prop_oneof![Just("v1.12.11"), Just("v1.13.9"), Just("v1.14.0-rc.1")];
    let boot = any_look(prop_oneof![Just(BOOT.to_owned()), Just(EARLIER_BOOT.to_owned())]);
    (version, boot, cri, any_look(any_time()), auths, configs, any_record()).prop_map(
        |(version, boot, cri, cri_config_changed, registries, configs, record)| Facts {
            version: version.parse().unwrap(),
            boot,
            cri,
            cri_config_changed,
            registries,
            configs,
            ..facts(record.as_ref())
        },
    )
}

proptest! {
    /// Every combination of facts has a judgement, and its parts agree with each other.
    #[test]
    fn judge_is_total_and_consistent(facts in any_facts(), now in our_clock()) {
        let node = judge(&facts, &desired(), &Pull::NotTried, now);
        let Claims { configured, loaded, proof, .. } = &node.claims;
        match &node.verdict {
            Verdict::Current => prop_assert!(configured.holds() && loaded.holds() && proof.holds()),
            Verdict::Unproved => prop_assert!(configured.holds() && loaded.holds() && !proof.holds()),
            Verdict::Stale => prop_assert!(configured.holds() && loaded.answer == Answer::False),
            Verdict::Drifted => prop_assert_eq!(configured.answer, Answer::False),
            Verdict::Unknown(_) => {
                prop_assert!(configured.answer == Answer::Unknown || loaded.answer == Answer::Unknown);
            }
            Verdict::Blocked(_) => {}
            Verdict::Leaving | Verdict::Gone => prop_assert!(false, "not for one node to say"),
        }
        if facts.cri.seen().is_none() {
            prop_assert_eq!(loaded.answer, Answer::Unknown);
        }
    }

    /// While the process runs that a staged record of this revision names, no clock makes it loaded: else the node
    /// would be left with the old credential.
    #[test]
    fn s03_a_process_that_is_named_as_staged_is_never_loaded_whatever_the_times(
        started in any_time(), changed in any_time(), now in our_clock(), live in any::<bool>(),
    ) {
        let record = staged(BOOT, CriProcess { pid: 2184, started });
        let node = Facts {
            version: if live { "v1.14.0" } else { "v1.13.9" }.parse().unwrap(),
            cri: Look::Seen(CriProcess { pid: 2184, started }),
            cri_config_changed: Look::Seen(changed),
            ..with_persistent(facts(Some(&record)), config(Some(&record)))
        };
        let node = judge(&node, &desired(), &Pull::NotTried, now);
        prop_assert_eq!(node.claims.loaded.answer, Answer::False);
        prop_assert_eq!(node.verdict, Verdict::Stale);
    }

    /// While the process runs that a proof of this revision names, no clock asks for a reboot.
    #[test]
    fn s03_a_proved_process_is_never_rebooted_whatever_the_times(
        started in any_time(), changed in any_time(), now in our_clock(),
    ) {
        let record = proved(BOOT, CriProcess { pid: 2184, started });
        let node = Facts {
            cri: Look::Seen(CriProcess { pid: 2184, started }),
            cri_config_changed: Look::Seen(changed),
            ..facts(Some(&record))
        };
        prop_assert_eq!(judge(&node, &desired(), &Pull::NotTried, now).verdict, Verdict::Current);
    }

    /// A credential that was staged in an earlier boot never asks for a second reboot by itself.
    #[test]
    fn n23_no_second_reboot_for_one_revision_whatever_the_times(
        started in any_time(), changed in any_time(), now in our_clock(),
    ) {
        let record = staged(EARLIER_BOOT, process(1984, "2026-11-29T08:00:00Z"));
        let node = Facts {
            cri: Look::Seen(CriProcess { pid: 2184, started }),
            cri_config_changed: Look::Seen(changed),
            ..facts(Some(&record))
        };
        prop_assert_ne!(judge(&node, &desired(), &Pull::NotTried, now).verdict, Verdict::Stale);
    }
}
