//! The objects of the API server and the machines behind them.

use std::net::{IpAddr, Ipv4Addr};

use coordinator::holder::{Evidence, Holder};
use coordinator::kube::fence;
use coordinator::kube::lease::{Timing, new_lease};
use coordinator::kube::nodes::NodeView;
use serde_json::{Value, json};

use crate::memo::Text;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A worker.
    Worker,
    /// A control plane.
    Plane,
    /// The control plane that the kubeconfig names.
    Endpoint,
}

impl Kind {
    /// The Node's name. The endpoint node's sorts before the other control planes', so that only its rank puts it last.
    #[must_use]
    pub fn name(self, index: usize) -> String {
        match self {
            Kind::Worker => format!("worker-{index}"),
            Kind::Plane => format!("cp-{}", index + 1),
            Kind::Endpoint => "cp-0".to_owned(),
        }
    }

    /// Its address.
    #[must_use]
    pub fn address(self, index: usize) -> IpAddr {
        let last = u8::try_from(index).unwrap_or(u8::MAX);
        IpAddr::V4(Ipv4Addr::new(10, 0, u8::from(self == Kind::Worker), last))
    }

    /// Whether it is a control plane.
    #[must_use]
    pub fn is_plane(self) -> bool {
        self != Kind::Worker
    }
}

/// One node: its Node object and its machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The UID; a node that was replaced has another.
    pub uid: u8,
    /// The fence, as it stands in the annotation.
    pub fence: Option<Text>,
    /// `spec.unschedulable`.
    pub cordoned: bool,
    /// The machine answers and its kubelet is Ready.
    pub up: bool,
    /// Which boot this is.
    pub boot: u8,
    /// Its machine config.
    pub config: Config,
    /// The record in the active config.
    pub record: Option<Rec>,
    /// The running CRI holds the desired credential: the truth, which no decision sees.
    pub loaded: bool,
    /// By the node's clock `cri.toml` changed after CRI had started.
    pub changed_after: bool,
    /// The node's clock was stepped: the next pair of times is the wrong way round.
    pub lying: bool,
}

/// A machine config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// The old credential.
    Old,
    /// The desired one as a TRY: the old one is persisted.
    Try,
    /// The desired one.
    New,
    /// The old one is active, and somebody has staged another config.
    Foreign,
}

impl Config {
    /// The desired credential is in effect.
    #[must_use]
    pub fn in_effect(self) -> bool {
        matches!(self, Config::Try | Config::New)
    }
}

/// The record, of the desired revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rec {
    /// `proved`, else `staged`.
    pub proved: bool,
    /// The boot, and so the CRI process, that it names.
    pub boot: u8,
}

impl Node {
    /// A node with the old credential.
    #[must_use]
    pub fn old(uid: u8) -> Self {
        Self {
            uid,
            fence: None,
            cordoned: false,
            up: true,
            boot: 1,
            config: Config::Old,
            record: None,
            loaded: false,
            changed_after: false,
            lying: false,
        }
    }

    /// `cri.toml` was written now.
    pub fn touched(&mut self) {
        self.changed_after = !std::mem::take(&mut self.lying);
    }

    /// The machine has booted.
    pub fn booted(&mut self) {
        self.up = true;
        self.boot += 1;
        if self.config == Config::Try {
            self.config = Config::Old;
            self.record = None;
        }
        if self.config == Config::Foreign {
            self.config = Config::Old;
        }
        self.loaded = self.config == Config::New;
        self.changed_after = std::mem::take(&mut self.lying);
    }

    /// The boot id.
    #[must_use]
    pub fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    /// The Node as the product reads it. `version` stands for the resourceVersion.
    #[must_use]
    pub fn view(&self, kind: Kind, index: usize, version: &str) -> NodeView {
        NodeView {
            name: kind.name(index),
            uid: format!("node-{}", self.uid),
            resource_version: version.to_owned(),
            internal_ip: Some(kind.address(index)),
            control_plane: kind.is_plane(),
            talos: true,
            unschedulable: self.cordoned,
            ready: self.up,
            boot_id: self.boot_id(),
            annotations: self
                .fence
                .iter()
                .map(|value| (fence::ANNOTATION.to_owned(), value.to_string()))
                .chain([("test".to_owned(), String::new())])
                .collect(),
            has_annotations: true,
            ..NodeView::default()
        }
    }

    /// Applies a JSON patch to the Node object as an API server does: all of it or nothing.
    #[must_use]
    pub fn patched(&self, patch: &str, version: &str) -> Option<Self> {
        let mut object = json!({
            "metadata": {
                "uid": format!("node-{}", self.uid),
                "resourceVersion": version,
                "annotations": { "test": "" },
            },
            "spec": { "unschedulable": self.cordoned },
        });
        if let Some(value) = &self.fence {
            object["metadata"]["annotations"][fence::ANNOTATION] = Value::from(&**value);
        }
        apply(&mut object, patch)?;
        Some(Self {
            fence: object["metadata"]["annotations"][fence::ANNOTATION].as_str().map(Text::from),
            cordoned: object["spec"]["unschedulable"] == true,
            ..self.clone()
        })
    }
}

fn apply(object: &mut Value, patch: &str) -> Option<()> {
    let patch: json_patch::Patch = serde_json::from_str(patch).ok()?;
    json_patch::patch(object, &patch).ok()
}

/// The Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// `metadata.uid`.
    pub uid: u8,
    /// The run that holds it.
    pub holder: Option<u8>,
    /// `spec.leaseTransitions`.
    pub transitions: i64,
}

/// The identity of a run.
#[must_use]
pub fn identity(run: usize) -> String {
    format!("r{run}")
}

/// `renewTime` of a record that stands as it was read.
pub const STANDS: &str = "2026-11-30T08:00:00.000000Z";
/// `renewTime` after it was renewed.
pub const MOVED: &str = "2026-11-30T08:02:00.000000Z";

/// A run as a holder, on a machine that it shares with the others or not.
#[must_use]
pub fn holder(run: usize, machine: usize) -> Holder {
    Holder {
        identity: identity(run),
        evidence: Evidence {
            boot_id: Some(format!("machine-{machine}")),
            pid_namespace: Some("pid:[1]".to_owned()),
            pid: i32::try_from(run + 100).ok(),
            process_start: Some(1),
            ..Evidence::default()
        },
    }
}

impl Lease {
    /// The object. `version` stands for the resourceVersion, and `time` is its `renewTime`.
    #[must_use]
    pub fn object(&self, machine: impl Fn(usize) -> usize, timing: &Timing, version: &str, time: &str) -> Value {
        let run = usize::from(self.holder.unwrap_or(0));
        let mut object = new_lease(("kube-system", "talos-ghcr"), &holder(run, machine(run)), timing, time);
        object["metadata"]["uid"] = Value::from(format!("lease-{}", self.uid));
        object["metadata"]["resourceVersion"] = Value::from(version);
        object["spec"]["leaseTransitions"] = Value::from(self.transitions);
        if self.holder.is_none() {
            object["spec"]["holderIdentity"] = Value::from("");
            object["metadata"]["annotations"] = json!({});
        }
        object
    }

    /// The Lease after a JSON patch of its object.
    #[must_use]
    pub fn patched(&self, mut object: Value, patch: &str) -> Option<Self> {
        apply(&mut object, patch)?;
        let spec = &object["spec"];
        let holder = spec["holderIdentity"].as_str().and_then(|text| text.strip_prefix('r')?.parse().ok());
        Some(Self { uid: self.uid, holder, transitions: spec["leaseTransitions"].as_i64().unwrap_or(0) })
    }
}
