//! Nodes and fleets for tests of pure decisions.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use agent::claims::{Adoption, Answer, Claim, Claims, Judgement, Pull, Verdict};
use agent::facts::{Facts, Look};
use agent::record::{Entry, PullRecord, Record};
use agent::revision::Revision;
use agent::step::Memory;
use jiff::Timestamp;

use talos_proto::node::RebootMode;

use super::{Endpoint, Fencing, FleetNode, Snapshot, Talk};
use crate::kube::fence::{Claimant, Fence, Step};
use crate::kube::nodes::NodeView;

/// The revision of every judgement here.
pub(crate) fn revision() -> Revision {
    "00112233445566778899aabbccddeeff".parse().expect("32 hex digits")
}

/// A node of Talos 1.13 that is Ready and has that verdict; `cp-…` is a control plane. A Stale one has its pull proved
/// and a staged record, so that its next step is the claim.
pub(crate) fn node(name: &str, verdict: Verdict) -> FleetNode {
    let number = name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(1);
    let control_plane = name.starts_with("cp");
    let address = Ipv4Addr::new(10, 0, u8::from(!control_plane), number);
    let unknown = || Claim { answer: Answer::Unknown, evidence: "test".into() };
    let record = (verdict != Verdict::Drifted).then(|| {
        let entry = Entry {
            revision: revision(),
            boot: Some("boot-1".into()),
            cri: None,
            images: Vec::new(),
            pull: PullRecord::None,
            at: Timestamp::UNIX_EPOCH,
            holder: "test".into(),
        };
        Record::staged(entry, None)
    });
    FleetNode {
        kube: NodeView {
            name: name.into(),
            uid: format!("uid-{name}"),
            internal_ip: Some(IpAddr::V4(address)),
            control_plane,
            talos: true,
            ready: true,
            ..NodeView::default()
        },
        talk: Talk::Facts(Box::new(facts("v1.13.9"))),
        judgement: Some(Judgement {
            claims: Claims { configured: unknown(), loaded: unknown(), pull: unknown(), proof: unknown() },
            verdict,
            adoption: Adoption::Reboot,
            revision: Some(revision()),
            record,
            own_try: false,
        }),
        fencing: Fencing::Free,
        memory: Memory { pull: Pull::Proved("image@sha256:0".into()), ..Memory::default() },
        busy: None,
        left_out: false,
        reboot_again: false,
        reboot_mode: RebootMode::default(),
        outage: None,
        mismatch: None,
    }
}

/// Facts in which nothing but the version and the boot was seen.
pub(crate) fn facts(version: &str) -> Facts {
    Facts {
        version: version.parse().expect("a version"),
        boot: Look::Seen("boot-1".into()),
        machine: Look::NotAsked,
        cri: Look::NotAsked,
        cri_started_before: None,
        cri_config_changed: Look::NotAsked,
        registries: Look::NotAsked,
        configs: Look::NotAsked,
        nodename: Look::NotAsked,
        node: Look::NotAsked,
        addresses: Look::NotAsked,
    }
}

/// A fleet whose endpoint node is `cp-1`, in which a canary has passed.
pub(crate) fn fleet(nodes: Vec<FleetNode>) -> Snapshot {
    Snapshot {
        endpoint: Endpoint {
            server: "10.0.0.1:6443".into(),
            node: Some("cp-1".into()),
            rule: "test".into(),
            known: true,
        },
        leader: None,
        canary_passed: true,
        halted: false,
        warnings: BTreeSet::new(),
        nodes,
    }
}

impl FleetNode {
    /// Of Talos 1.14.
    pub(crate) fn live(mut self) -> Self {
        self.talk = Talk::Facts(Box::new(facts("v1.14.0")));
        if let Some(judgement) = &mut self.judgement {
            judgement.adoption = Adoption::Live;
        }
        self
    }

    /// With a fence of a dead run at that step.
    pub(crate) fn residue(mut self, step: Step, boot: &str) -> Self {
        let by =
            Claimant { holder: "dead".into(), lease: "kube-system/talos-ghcr".into(), lease_uid: "u".into(), epoch: 1 };
        let fence = Fence::claimed(by, &self.kube, boot, "r", Timestamp::UNIX_EPOCH).at(step, Timestamp::UNIX_EPOCH);
        self.fencing = Fencing::Residue { raw: fence.render(), fence };
        self
    }

    /// With a fence of this run at that step, claimed in its turn.
    pub(crate) fn ours(self, step: Step, boot: &str) -> Self {
        let mut node = self.residue(step, boot);
        if let Fencing::Residue { raw, fence } = node.fencing {
            node.fencing = Fencing::Ours { raw, fence, in_turn: true };
        }
        node
    }

    /// Without an answer of Talos, and not Ready.
    pub(crate) fn dead(mut self) -> Self {
        self.talk = Talk::Unreachable("no answer".into());
        self.judgement = None;
        self.kube.ready = false;
        self
    }
}
