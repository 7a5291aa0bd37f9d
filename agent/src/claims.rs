//! The four claims about a node and the verdict that follows from them. Pure.
//!
//! The claims are never folded into one boolean, and a pull through Talos is never called a proof of what containerd
//! has loaded: Talos's puller reads the machine config, kubelet's pulls go through CRI. That mistake once marked every
//! node "verified" while each pod sat in ImagePullBackOff for a day.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::credential::Desired;
use crate::facts::{Facts, Look};
use crate::machine_config::MachineConfig;
use crate::record::{CriProcess, Record, RecordState};
use crate::revision::Revision;

/// A time this far ahead of our own clock counts as one in the node's future; less is ordinary skew.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// The longest time after which Talos rolls our TRY back.
const TRY_LIFETIME: SignedDuration = SignedDuration::from_mins(5);

/// Yes, no, or not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It could not be seen.
    Unknown,
}

/// One claim and the evidence that was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Claim {
    /// Whether it holds.
    pub answer: Answer,
    /// Why we say so.
    pub evidence: String,
}

impl Claim {
    fn new(answer: Answer, evidence: impl Into<String>) -> Self {
        Self { answer, evidence: evidence.into() }
    }

    /// Whether it holds for certain.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.answer == Answer::True
    }
}

/// The four claims of design section 5.2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Claims {
    /// The effective registry credential equals the desired one, and that config is persisted.
    pub configured: Claim,
    /// The CRI process that runs now started with what is configured.
    pub loaded: Claim,
    /// The node fetched a private image with the configured credential.
    pub pull: Claim,
    /// The record says `proved` for this revision.
    pub proof: Claim,
}

/// How a node gets from configured to loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Adoption {
    /// Talos >= 1.14 restarts CRI by itself.
    Live,
    /// Before, only a reboot makes containerd read the credential again.
    Reboot,
}

impl fmt::Display for Adoption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Adoption::Live => "live",
            Adoption::Reboot => "reboot",
        })
    }
}

/// Why nothing is done with a node that needs something.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Blocked {
    /// A Talos whose rules this build does not know.
    #[error("{0} is not supported (1.9 and newer are)")]
    Version(String),
    /// No answer from the node.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// Somebody else's TRY or STAGED config: a write would cancel their rollback or drop what they staged.
    #[error(
        "a TRY or a STAGED config of somebody else is in flight; it must be finished or undone (talosctl get machineconfig shows both)"
    )]
    ForeignConfig,
    /// The machine config cannot be edited without a human.
    #[error("machine config: {0}")]
    Config(String),
    /// Another boot has happened since the credential was staged and containerd is still older than its config.
    #[error(
        "times: CRI is older than its config although the node has rebooted since the credential was staged; a second reboot needs --reboot-again"
    )]
    Times,
    /// The desired credential was on the node before the one that is there now: an old job was run again.
    #[error("the given credential is older than the one that is there; --allow-older goes back to it")]
    Older,
    /// Another tool undoes what this run writes.
    #[error("another tool undoes {0} that this run writes: is it managed elsewhere too (Terraform, Omni, talm)?")]
    Undone(&'static str),
    /// A node that restarts CRI by itself has not.
    #[error("CRI was not restarted by Talos in time; --escalate-reboot reboots the node instead")]
    NotAdopted,
    /// Talos <= 1.12 keeps 64 events of a service, and the start of CRI is not among them any more.
    #[error(
        "when CRI started is not known: its start has left the event ring of 64; Talos 1.13 keeps it, or a reboot of the node by hand shows it again"
    )]
    Ring,
    /// The machine that answers is not the one that Kubernetes means.
    #[error("identity: {0}")]
    Identity(String),
    /// The pull with the new credential gave no answer or a refusal.
    #[error("pull: {0}")]
    Pull(String),
    /// The fence on the Node does not parse, or belongs to a run that may live.
    #[error("fence: {0}")]
    Fence(String),
    /// A step of this run failed on the node.
    #[error("{0}")]
    Step(String),
}

/// What a node is, from its claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Configured, loaded and proved.
    Current,
    /// Configured and loaded, but no record says so.
    Unproved,
    /// Configured, not loaded.
    Stale,
    /// Not configured.
    Drifted,
    /// Something that must be known is not, for now.
    Unknown(String),
    /// Needs something that is not done without a human.
    Blocked(Blocked),
    /// The autoscaler is taking the node away.
    Leaving,
    /// The Node is not there any more.
    Gone,
}

impl Verdict {
    /// Every [`Verdict::name`].
    pub const NAMES: [&'static str; 8] =
        ["Current", "Unproved", "Stale", "Drifted", "Unknown", "Blocked", "Leaving", "Gone"];

    /// The verdict's name, without its reason.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Current => "Current",
            Verdict::Unproved => "Unproved",
            Verdict::Stale => "Stale",
            Verdict::Drifted => "Drifted",
            Verdict::Unknown(_) => "Unknown",
            Verdict::Blocked(_) => "Blocked",
            Verdict::Leaving => "Leaving",
            Verdict::Gone => "Gone",
        }
    }

    /// Why, for the verdicts that have a reason of their own.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            Verdict::Unknown(reason) => Some(reason.clone()),
            Verdict::Blocked(blocked) => Some(blocked.to_string()),
            _ => None,
        }
    }
}

/// What this run knows of a pull on the node; lost with the process, which only makes the next run pull again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pull {
    /// Not tried in this run.
    NotTried,
    /// The image was fetched from the registry; its digest-pinned name.
    Proved(String),
    /// It cannot be proved here, which does not say that it would fail.
    Unprovable(String),
    /// No answer, or a refusal.
    Failed(String),
}

/// Everything that is concluded from the facts of one node.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The four claims.
    pub claims: Claims,
    /// The verdict.
    pub verdict: Verdict,
    /// How it adopts.
    pub adoption: Adoption,
    /// The desired set's revision under this cluster's key, when the machine config may be read.
    pub revision: Option<Revision>,
    /// The record, when there is one that parses.
    pub record: Option<Record>,
    /// A config of our own is being tried on this node and will be rolled back by Talos.
    pub own_try: bool,
}

/// Judges one node. `now` is our clock, used only to recognise a time in the node's future.
#[must_use]
pub fn judge(facts: &Facts, desired: &Desired, pull: &Pull, now: Timestamp) -> Judgement {
    let record_text = facts.record_text();
    let record = record_text.as_deref().map(Record::parse);
    let good_record = record.as_ref().and_then(|parsed| parsed.as_ref().ok()).cloned();
    let parsed = facts.configs.seen().map(|configs| MachineConfig::parse(&configs.active));
    let revision = match &parsed {
        // Without a credential there is nothing to compare a record's revision with.
        Some(Ok(config)) if !desired.is_empty() => config.cluster_key().ok().map(|key| key.revision(desired)),
        _ => None,
    };
    let adoption = if facts.version.adopts_live() { Adoption::Live } else { Adoption::Reboot };
    let same_record = good_record.as_ref().filter(|record| Some(record.revision) == revision || revision.is_none());
    // A proof of a revision that could not be compared may be of an earlier credential: then the times count.
    let names_state = same_record.filter(|record| revision.is_some() || record.state == RecordState::Staged);

    let (in_effect, effect_evidence) = in_effect(facts, desired);
    let settled = facts.configs.seen().is_none_or(crate::facts::Configs::settled);
    let own_try = !settled && is_own_try(facts, good_record.as_ref(), now);
    let configured = match (in_effect, settled) {
        (Answer::True, false) => Claim::new(Answer::False, "in effect but not persisted: a TRY or STAGED is in flight"),
        // Without the two configs nothing says that a boot would bring this back.
        (Answer::True, true) if facts.configs.seen().is_none() => Claim::new(
            Answer::Unknown,
            format!("{effect_evidence}, but not whether it is persisted: {}", facts.configs.reason()),
        ),
        (answer, _) => Claim::new(answer, effect_evidence),
    };
    let (loaded, blocked_by_times) = loaded(facts, names_state, now);
    let claims = Claims {
        configured,
        loaded,
        pull: match pull {
            // An earlier pull spoke of what was configured then.
            Pull::NotTried => match same_record.filter(|_| in_effect != Answer::False) {
                Some(record)
                    if record.state == RecordState::Proved && record.pull == crate::record::PullRecord::Proved =>
                {
                    Claim::new(Answer::True, format!("the record of {} says so", record.at))
                }
                _ => Claim::new(Answer::Unknown, "not tried"),
            },
            Pull::Proved(name) => Claim::new(Answer::True, format!("pulled {name}")),
            Pull::Unprovable(why) => Claim::new(Answer::Unknown, format!("unprovable: {why}")),
            Pull::Failed(why) => Claim::new(Answer::False, why.clone()),
        },
        proof: proof(record.as_ref(), same_record, facts),
    };
    let verdict = verdict(facts, &claims, &parsed, settled, own_try, blocked_by_times);
    Judgement { claims, verdict, adoption, revision, record: good_record, own_try }
}

fn verdict(
    facts: &Facts,
    claims: &Claims,
    parsed: &Option<Result<MachineConfig, crate::machine_config::ConfigError>>,
    settled: bool,
    own_try: bool,
    blocked_by_times: bool,
) -> Verdict {
    if !facts.version.at_least(1, 9) {
        return Verdict::Blocked(Blocked::Version(format!("Talos {}", facts.version)));
    }
    if let Some(Err(error)) = parsed {
        return Verdict::Blocked(Blocked::Config(talos_proto::chain(error)));
    }
    if !settled && !own_try {
        return Verdict::Blocked(Blocked::ForeignConfig);
    }
    match (claims.configured.answer, claims.loaded.answer) {
        (Answer::Unknown, _) => Verdict::Unknown(format!("configured: {}", claims.configured.evidence)),
        (Answer::False, _) => Verdict::Drifted,
        (Answer::True, Answer::Unknown) if facts.cri_started_before.is_some() => Verdict::Blocked(Blocked::Ring),
        (Answer::True, Answer::Unknown) => Verdict::Unknown(format!("loaded: {}", claims.loaded.evidence)),
        (Answer::True, Answer::False) if blocked_by_times => Verdict::Blocked(Blocked::Times),
        (Answer::True, Answer::False) => Verdict::Stale,
        (Answer::True, Answer::True) if claims.proof.holds() => Verdict::Current,
        (Answer::True, Answer::True) => Verdict::Unproved,
    }
}

/// Whether the effective credential of each desired host is the desired one.
fn in_effect(facts: &Facts, desired: &Desired) -> (Answer, String) {
    if desired.is_empty() {
        return (Answer::Unknown, "no credential was given to compare with".into());
    }
    let registries = match &facts.registries {
        Look::Seen(registries) => registries,
        // No RegistryConfigs at all is a node without any registry configuration.
        Look::Absent => return (Answer::False, "the node has no registry configuration".into()),
        other => return (Answer::Unknown, other.reason().to_owned()),
    };
    for (host, wanted) in desired.iter() {
        match registries.auths.get(host.as_str()) {
            None => return (Answer::False, format!("no credential for {host}")),
            Some(Err(unusable)) => return (Answer::False, format!("{host}: {unusable}")),
            Some(Ok(has)) if !has.same_as(wanted) => return (Answer::False, format!("another credential for {host}")),
            Some(Ok(_)) => {}
        }
    }
    let hosts: Vec<_> = desired.hosts().map(ToString::to_string).collect();
    (Answer::True, format!("effective for {}", hosts.join(", ")))
}

/// A TRY of ours: the active config carries a staged record that the persisted one does not, and it is so young that
/// Talos has not rolled it back yet. Later it is a STAGED config of somebody who does not keep our annotation.
fn is_own_try(facts: &Facts, active: Option<&Record>, now: Timestamp) -> bool {
    let Some(configs) = facts.configs.seen() else { return false };
    let Some(active) = active.filter(|record| record.state == RecordState::Staged) else { return false };
    if now.duration_since(active.at) > TRY_LIFETIME + SKEW {
        return false;
    }
    let persisted = configs
        .persisted()
        .and_then(|bytes| MachineConfig::parse(bytes).ok())
        .and_then(|config| config.annotation(crate::record::ANNOTATION))
        .and_then(|text| Record::parse(&text).ok());
    persisted.as_ref() != Some(active)
}

/// Whether the running CRI process started with what is configured; and whether only the times say that it did not
/// although the reboot for this revision has happened. The order of the rules is the one of design section 5.2.
fn loaded(facts: &Facts, record: Option<&Record>, now: Timestamp) -> (Claim, bool) {
    let (process, changed) = match (&facts.cri, &facts.cri_config_changed) {
        (Look::Seen(process), Look::Seen(changed)) => (process, *changed),
        (_, Look::Seen(changed)) if facts.cri_started_before.is_some_and(|bound| bound <= *changed) => {
            let evidence = format!("the start of CRI is older than its event ring, cri.toml changed {changed}");
            return (Claim::new(Answer::False, evidence), false);
        }
        (_, Look::Seen(_)) if facts.cri_started_before.is_some() => {
            let evidence = "the start of CRI has left its event ring, and cri.toml is older than what is kept: it cannot be told which was first";
            return (Claim::new(Answer::Unknown, evidence), false);
        }
        (Look::Absent, _) => return (Claim::new(Answer::Unknown, "CRI is not running now"), false),
        (Look::Seen(_), other) => return (Claim::new(Answer::Unknown, format!("cri.toml: {}", other.reason())), false),
        (other, _) => return (Claim::new(Answer::Unknown, format!("CRI process: {}", other.reason())), false),
    };
    let named = record.filter(|record| names_process(record, facts, process));
    match named.map(|record| record.state) {
        Some(RecordState::Staged) => {
            let evidence = format!("CRI process {} still runs, which was running when it was staged", process.pid);
            return (Claim::new(Answer::False, evidence), false);
        }
        Some(RecordState::Proved) => {
            let evidence = format!("the record proves CRI process {}, which still runs", process.pid);
            return (Claim::new(Answer::True, evidence), false);
        }
        None => {}
    }
    let times = format!("CRI process {} started {}, cri.toml changed {changed}", process.pid, process.started);
    if [process.started, changed].iter().any(|time| time.duration_since(now) > SKEW) {
        return (Claim::new(Answer::Unknown, format!("{times}: in the future, a clock was stepped")), false);
    }
    if process.started > changed {
        return (Claim::new(Answer::True, times), false);
    }
    // Not loaded by the times alone. If the record was staged in an earlier boot, its reboot is over: a second one
    // would be decided by a clock that cannot be trusted.
    let rebooted_since = record.is_some_and(|record| {
        record.state == RecordState::Staged
            && matches!((&record.boot, facts.kernel_boot()), (Some(staged), Some(now)) if staged != now)
    });
    (Claim::new(Answer::False, times), rebooted_since)
}

/// Whether the record speaks of the CRI process that runs now.
fn names_process(record: &Record, facts: &Facts, process: &CriProcess) -> bool {
    let same_boot = match (&record.boot, facts.kernel_boot()) {
        (Some(recorded), Some(now)) => recorded == now,
        // Without the boot id the start time in nanoseconds names the process well enough.
        _ => true,
    };
    same_boot && record.cri.as_ref() == Some(process)
}

fn proof(record: Option<&Result<Record, crate::record::RecordError>>, same: Option<&Record>, facts: &Facts) -> Claim {
    match (record, same) {
        (None, _) if facts.configs.seen().is_none() && facts.node.seen().is_none() => {
            Claim::new(Answer::Unknown, format!("node annotations: {}", facts.node.reason()))
        }
        (None, _) => Claim::new(Answer::False, "no record"),
        (Some(Err(error)), _) => Claim::new(Answer::False, format!("the record does not parse: {error}")),
        (Some(Ok(record)), None) => {
            Claim::new(Answer::False, format!("the record is of another revision, {}", record.revision.rev16()))
        }
        (Some(Ok(_)), Some(record)) => match record.state {
            RecordState::Proved if facts.configs.seen().is_none() => {
                let words = format!("proved {} by {}; of which credential was not compared", record.at, record.holder);
                Claim::new(Answer::True, words)
            }
            RecordState::Proved => Claim::new(Answer::True, format!("proved {} by {}", record.at, record.holder)),
            RecordState::Staged => {
                Claim::new(Answer::False, format!("only staged, {} by {}", record.at, record.holder))
            }
        },
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Judgements and facts for tests of what follows from them.
    use super::*;
    use crate::record::{Entry, PullRecord};

    pub(crate) fn revision() -> Revision {
        "00112233445566778899aabbccddeeff".parse().expect("32 hex digits")
    }

    pub(crate) fn entry(boot: &str, pid: i32, started: Timestamp) -> Entry {
        Entry {
            revision: revision(),
            boot: Some(boot.into()),
            cri: Some(CriProcess { pid, started }),
            images: Vec::new(),
            pull: PullRecord::None,
            at: Timestamp::UNIX_EPOCH,
            holder: "test".into(),
        }
    }

    /// A judgement with that verdict and a staged record of the same revision.
    pub(crate) fn judgement(verdict: Verdict, adoption: Adoption) -> Judgement {
        let unknown = || Claim::new(Answer::Unknown, "test");
        Judgement {
            claims: Claims { configured: unknown(), loaded: unknown(), pull: unknown(), proof: unknown() },
            verdict,
            adoption,
            revision: Some(revision()),
            record: Some(Record::staged(entry("boot-1", 1, Timestamp::UNIX_EPOCH), None)),
            own_try: false,
        }
    }
}

#[cfg(test)]
mod tests;
