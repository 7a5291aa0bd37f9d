//! docs/runbook.md has the words of everything that can end a run, or leave a node as it is.
//!
//! Each error is made and its words are looked for, so that a message that is changed is changed there too. In the
//! runbook `…` at the end of such words stands for whatever follows.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use agent::adopt::AdoptError;
use agent::claims::Blocked;
use agent::credential::CredentialError;
use agent::machine_config::ConfigError;
use agent::write::WriteError;
use coordinator::cli::connect::ConnectError;
use coordinator::exit::Exit;
use coordinator::gates::{Closed, managers};
use coordinator::hooks::{Hook, HookError};
use coordinator::inventory::InventoryError;
use coordinator::kube::api_servers::ReadError;
use coordinator::kube::drain::{BlockingBudget, DrainError, PodLeft, PodRef, Refusal};
use coordinator::kube::fence::{Fence, FenceError};
use coordinator::kube::kubeconfig::KubeconfigError;
use coordinator::kube::lease::{AcquireError, HeldByAnother, LeaseRecord, ReleaseError};
use coordinator::registry::{ImageFault, ImageProblem, PreflightError, Request};
use coordinator::report::report_file::ReportError;
use kube::core::Status;
use talos_proto::config::TalosConfigError;
use talos_proto::permit::NoPermit;
use talos_proto::{CallError, Why};

use super::markdown::{code_spans, root};
use crate::harness::read;

/// The words of every variant. The compiler asks for one here when there is a new variant.
macro_rules! words_of {
    ($error:ty: $($variant:pat => $sample:expr),+ $(,)?) => {{
        let _ = |error: &$error| match error { $($variant => {})+ };
        vec![$($sample.to_string()),+]
    }};
}

fn text() -> String {
    read(&root().join("docs/runbook.md"))
}

/// Whether one of the spans says it, whole or up to its `…`.
fn is_said(spans: &[String], message: &str) -> bool {
    spans.iter().any(|span| match span.strip_suffix('…') {
        Some(beginning) => beginning.len() > 4 && message.starts_with(beginning),
        None => span == message,
    })
}

#[track_caller]
fn all_said(messages: Vec<String>) {
    let spans = code_spans(&text());
    let missing: Vec<_> = messages.into_iter().filter(|message| !is_said(&spans, message)).collect();
    assert!(missing.is_empty(), "not in docs/runbook.md:\n{}", missing.join("\n"));
}

const NODE: &str = "worker-1";
const OTHER: &str = "…";

fn node() -> String {
    NODE.to_owned()
}

fn other() -> String {
    OTHER.to_owned()
}

fn unread() -> ReadError {
    ReadError::Unreachable { tried: other() }
}

fn no_call() -> CallError {
    let node = "10.0.0.1".parse().unwrap();
    CallError { call: other(), node, endpoint: other(), why: Why::NotFound }
}

#[test]
fn every_exit_code_has_a_section() {
    let text = text();
    let codes = words_of!(Exit:
        Exit::Done => Exit::Done.code(),
        Exit::Failed => Exit::Failed.code(),
        Exit::Differs => Exit::Differs.code(),
        Exit::Refused => Exit::Refused.code(),
        Exit::Stopped => Exit::Stopped.code(),
        Exit::ControlLost => Exit::ControlLost.code(),
        Exit::Usage => Exit::Usage.code(),
        Exit::Signal(_) => Exit::Signal(15).code(),
    );
    let headings = text.lines().filter(|line| line.starts_with("### Exit code"));
    let named: Vec<&str> =
        headings.flat_map(|line| line.split(' ').filter(|word| word.parse::<u8>().is_ok())).collect();
    for code in codes {
        assert_eq!(named.iter().filter(|word| **word == code).count(), 1, "exit code {code} in {named:?}");
    }
}

#[test]
fn every_reason_to_leave_a_node_is_there() {
    all_said(words_of!(Blocked:
        Blocked::Version(_) => Blocked::Version("Talos v1.8.3".into()),
        Blocked::Unreachable(_) => Blocked::Unreachable(other()),
        Blocked::ForeignConfig => Blocked::ForeignConfig,
        Blocked::Config(_) => Blocked::Config(other()),
        Blocked::Times => Blocked::Times,
        Blocked::Older => Blocked::Older,
        Blocked::Undone(_) => Blocked::Undone("the credential"),
        Blocked::NotAdopted => Blocked::NotAdopted,
        Blocked::Ring => Blocked::Ring,
        Blocked::Identity(_) => Blocked::Identity(other()),
        Blocked::Pull(_) => Blocked::Pull(other()),
        Blocked::Fence(_) => Blocked::Fence(other()),
        // Its words are those of the step that failed: here, and in the tests below.
        Blocked::Step(_) => Blocked::Step("its turn did not come".into()),
    ));
    all_said(vec![Blocked::Undone("the record").to_string()]);
}

#[test]
fn every_closed_gate_is_there() {
    let kured = managers::AtWork { manager: "kured", node: "worker-2".into(), sign: other() };
    all_said(words_of!(Closed:
        Closed::Replaced => Closed::Replaced,
        Closed::Budget { .. } => Closed::Budget { disrupted: 1, class: "workers", names: "worker-2".into(), allowed: 1 },
        Closed::Outage(_) => Closed::Outage(1),
        Closed::Etcd(_) => Closed::Etcd(other()),
        Closed::Machine { .. } => Closed::Machine { name: "cp-2".into(), problem: other() },
        Closed::Manager(_) => Closed::Manager(kured),
        Closed::Command(_) => Closed::Command(format!("{} ended with exit code 1", Hook::Gate)),
        Closed::Kubernetes(_) => Closed::Kubernetes(other()),
    ));
}

#[test]
fn every_end_of_a_drain_is_there() {
    let pod = || PodRef { namespace: "default".into(), name: "db-0".into(), uid: other() };
    let left = || vec![PodLeft { pod: pod(), why: other() }];
    let budget = BlockingBudget {
        namespace: "default".into(),
        name: "db".into(),
        disruptions_allowed: Some(0),
        unhealthy_pod_eviction_policy: "IfHealthyBudget".into(),
        message: other(),
        pods: vec![pod()],
    };
    let refusals = vec![Refusal { pod: pod(), reason: other() }];
    let source = coordinator::kube::api_servers::WriteError::Unreachable { tried: other() };
    all_said(words_of!(DrainError:
        DrainError::Refused { .. } => DrainError::Refused { node: node(), refusals },
        DrainError::Budget { .. } => DrainError::Budget { node: node(), budgets: vec![budget], left: left() },
        DrainError::TimedOut { .. } => DrainError::TimedOut { node: node(), left: left() },
        DrainError::NoPermit { .. } => DrainError::NoPermit { node: node(), source: NoPermit::Lapsed },
        DrainError::Eviction { .. } => DrainError::Eviction { pod: pod(), source },
        DrainError::Read { .. } => DrainError::Read { node: node(), source: unread() },
    ));
}

#[test]
fn every_refusal_of_the_lease_is_there() {
    let lease = || "kube-system/talos-ghcr".to_owned();
    let held = HeldByAnother { lease: lease(), record: LeaseRecord::default(), age: None, why: other() };
    let source = coordinator::kube::api_servers::WriteError::Unreachable { tried: other() };
    all_said(words_of!(AcquireError:
        AcquireError::HeldByAnother(_) => AcquireError::HeldByAnother(Box::new(held)),
        AcquireError::Read { .. } => AcquireError::Read { lease: lease(), source: unread() },
        AcquireError::Write { .. } => AcquireError::Write { lease: lease(), source },
    ));
    all_said(words_of!(NoPermit:
        NoPermit::Lapsed => NoPermit::Lapsed,
        NoPermit::Lost { .. } => NoPermit::Lost { holder: other() },
        NoPermit::Released => NoPermit::Released,
        NoPermit::Stopping => NoPermit::Stopping,
        NoPermit::TooLate { .. } => NoPermit::TooLate { left: Duration::ZERO, needed: Duration::ZERO },
    ));
    // The run ends well all the same: it is one warning, whichever of these it is.
    let _ = |error: &ReleaseError| match error {
        ReleaseError::Write(_) | ReleaseError::Read(_) | ReleaseError::WriterEnded => {}
    };
    assert!(text().contains("`warning: the Lease could not be released …`"));
}

#[test]
fn everything_that_keeps_a_fence_from_being_written_is_there() {
    let source = Fence::parse("{").expect_err("it is no fence");
    let write = coordinator::kube::api_servers::WriteError::Unreachable { tried: other() };
    all_said(words_of!(FenceError:
        FenceError::NoPermit(_) => FenceError::NoPermit(NoPermit::Stopping),
        FenceError::Gone { .. } => FenceError::Gone { node: node() },
        FenceError::Replaced { .. } => FenceError::Replaced { node: node(), uid: other() },
        FenceError::Leaving { .. } => FenceError::Leaving { node: node() },
        FenceError::CordonChanged { .. } => FenceError::CordonChanged { node: node(), cordoned: true },
        FenceError::Tainted { .. } => FenceError::Tainted { node: node(), taint: other() },
        FenceError::Fenced { .. } => FenceError::Fenced { node: node(), value: other() },
        FenceError::Changed { .. } => FenceError::Changed { node: node(), now: Some(other()) },
        FenceError::Parse { .. } => FenceError::Parse { node: node(), source },
        FenceError::Write { .. } => FenceError::Write { node: node(), source: write },
        FenceError::Read { .. } => FenceError::Read { node: node(), source: unread() },
        FenceError::Contended { .. } => FenceError::Contended { node: node() },
    ));
    all_said(vec![FenceError::CordonChanged { node: node(), cordoned: false }.to_string()]);
}

#[test]
fn every_refusal_of_the_registry_is_there() {
    let host = || "ghcr.io".parse::<agent::credential::RegistryHost>().unwrap();
    let image = || "ghcr.io/acme/app:1.4.2".parse::<agent::image::ImageRef>().unwrap();
    let request = Request::Challenge;
    let problems = vec![ImageProblem { image: image(), what: ImageFault::NotFound }];
    // What stands for a failed connection is made by a client alone; the words of the rest are the same.
    let unreachable = format!("the registry {} could not be asked ({request})", host());
    all_said(words_of!(PreflightError:
        PreflightError::Roots(_) => PreflightError::Roots(io::Error::other(OTHER)),
        PreflightError::Unreachable { .. } => unreachable,
        PreflightError::TimedOut { .. } => PreflightError::TimedOut { host: host(), request: request.clone(), after: Duration::ZERO },
        PreflightError::BadCredential { .. } => PreflightError::BadCredential { host: host(), status: 401, realm: other() },
        PreflightError::Images { .. } => PreflightError::Images { host: host(), problems },
        PreflightError::RateLimited { .. } => PreflightError::RateLimited { host: host(), request: request.clone(), retry_after: None },
        PreflightError::InsecureRealm { .. } => PreflightError::InsecureRealm { host: host(), realm: other() },
        PreflightError::Challenge { .. } => PreflightError::Challenge { host: host() },
        PreflightError::NoToken { .. } => PreflightError::NoToken { host: host(), realm: other() },
        PreflightError::TokenNotTaken { .. } => PreflightError::TokenNotTaken { host: host(), image: Box::new(image()) },
        PreflightError::TokenForBasic { .. } => PreflightError::TokenForBasic { host: host() },
        PreflightError::Unexpected { .. } => PreflightError::Unexpected { host: host(), request, status: 500 },
        PreflightError::ForeignImage { .. } => PreflightError::ForeignImage { image: Box::new(image()) },
        PreflightError::NoCredential { .. } => PreflightError::NoCredential { host: host() },
    ));
}

#[test]
fn everything_that_keeps_a_run_from_seeing_is_there() {
    let lease = InventoryError::Lease { name: OTHER.into(), source: unread() };
    let known = other();
    all_said(words_of!(InventoryError:
        InventoryError::Nodes(_) => InventoryError::Nodes(unread()),
        InventoryError::Lease { .. } => lease,
        InventoryError::NothingJoined { .. } => InventoryError::NothingJoined { nodes: 6, first: other() },
        InventoryError::NobodyAnswered { .. } => InventoryError::NobodyAnswered { nodes: 6, first: other() },
        InventoryError::NoSuchNode { .. } => InventoryError::NoSuchNode { flag: "nodes", name: "worker-9".into(), known },
    ));
    all_said(words_of!(ReadError:
        ReadError::Refused(_) => ReadError::Refused(Box::new(Status::failure(OTHER, OTHER))),
        ReadError::Untrusted { .. } => ReadError::Untrusted { tried: other() },
        ReadError::Unreachable { .. } => unread(),
        ReadError::Other(_) => ReadError::Other(Box::new(kube::Error::LinesCodecMaxLineLengthExceeded)),
    ));
}

#[test]
fn every_failure_of_a_command_is_there() {
    all_said(words_of!(HookError:
        HookError::Start { .. } => HookError::Start { hook: Hook::Check, source: io::Error::other(OTHER) },
        HookError::TimedOut { .. } => HookError::TimedOut { hook: Hook::Before, limit: Duration::from_secs(300) },
        HookError::Lapsed { .. } => HookError::Lapsed { hook: Hook::Before },
        HookError::Answer { .. } => HookError::Answer { hook: Hook::Check, code: 3 },
        HookError::Ended { .. } => HookError::Ended { hook: Hook::Before, status: ExitStatus::from_raw(9) },
    ));
}

#[test]
fn every_failure_of_a_config_is_there() {
    all_said(words_of!(WriteError:
        WriteError::Read(_) => WriteError::Read(no_call()),
        WriteError::NoConfig => WriteError::NoConfig,
        WriteError::ForeignConfig => WriteError::ForeignConfig,
        WriteError::Edit(_) => WriteError::Edit(ConfigError::NoMachineDocument),
        WriteError::NoPermit(_) => WriteError::NoPermit(NoPermit::Lapsed),
        WriteError::Refused(_) => WriteError::Refused(no_call()),
        WriteError::Contended => WriteError::Contended,
        WriteError::NotSeen(_) => WriteError::NotSeen(None),
        WriteError::NotEffective => WriteError::NotEffective,
    ));
    all_said(words_of!(AdoptError:
        AdoptError::Watch(_) => AdoptError::Watch(no_call()),
        AdoptError::TimedOut(_) => AdoptError::TimedOut(Duration::from_secs(180)),
    ));
}

#[test]
fn every_fault_of_the_input_is_there() {
    let file = || OTHER.into();
    let talosconfig = TalosConfigError::Document { file: file(), problem: other() };
    let identity = talos_proto::identity::IdentityError::Value { path: other(), problem: other() };
    let kubeconfig = KubeconfigError::NoContext { files: other(), known: other() };
    all_said(words_of!(ConnectError:
        ConnectError::NoCredential => ConnectError::NoCredential,
        ConnectError::ReadCredential { .. } => ConnectError::ReadCredential { file: file(), source: io::Error::other(OTHER) },
        ConnectError::Credential(_) => ConnectError::Credential(CredentialError::Blank),
        ConnectError::Flag { .. } => ConnectError::Flag { flag: "lease-duration", problem: other() },
        ConnectError::TalosConfig(_) => ConnectError::TalosConfig(talosconfig),
        ConnectError::Identity { .. } => ConnectError::Identity { file: file(), source: identity },
        // Its cause is of the client's making alone.
        ConnectError::Channel(_) => "endpoint 10.0.0.1:50000 cannot be used",
        ConnectError::Kubeconfig(_) => ConnectError::Kubeconfig(kubeconfig),
    ));
}

#[test]
fn every_fault_of_a_report_is_there() {
    let file = || OTHER.into();
    let make = serde_json::from_str::<u8>("{").expect_err("it is no number");
    all_said(words_of!(ReportError:
        ReportError::Ending(_) => ReportError::Ending(file()),
        ReportError::Make(_) => ReportError::Make(make),
        ReportError::Write { .. } => ReportError::Write { file: file(), source: io::Error::other(OTHER) },
    ));
}

#[test]
fn what_the_action_says_of_a_download_is_there() {
    let (text, script) = (text(), read(&root().join("ci/action.sh")));
    let spans = code_spans(&text);
    let said = [" could not be fetched ", " does not have the SHA-256 ", " does not name ", " cannot be unpacked "];
    let downloads = script.lines().filter(|line| line.contains("fail 1 \"") && !line.contains("no curl"));
    assert_eq!(downloads.count(), said.len(), "the action fails in another way too");
    for words in said {
        assert!(script.contains(words), "the action does not say {words:?} any more");
        assert!(spans.iter().any(|span| span.contains(words)), "not in docs/runbook.md: {words}");
    }
}

/// What the run itself says, and where its source says it.
const SAID_BY_A_RUN: [(&str, &str); 21] = [
    ("coordinator/src/rollout/reboot.rs", "not ready after "),
    ("coordinator/src/rollout/reboot.rs", "did not come back within "),
    ("coordinator/src/rollout/reboot.rs", "it did not reboot within "),
    ("coordinator/src/fleet.rs", "it cannot be rebooted with the mode "),
    ("coordinator/src/rollout/mod.rs", "still cordoned: the old script did not record "),
    ("coordinator/src/rollout/mod.rs", "its fence is kept: "),
    ("coordinator/src/decide.rs", "its place in the budget is taken by "),
    ("coordinator/src/decide.rs", "which node serves the kubeconfig's address is not known "),
    ("coordinator/src/decide.rs", "not begun: the roll was stopped "),
    ("coordinator/src/decide.rs", "its turn did not come"),
    ("coordinator/src/rollout/disrupt.rs", "gate: "),
    ("coordinator/src/rollout/others.rs", "the old script's Lease "),
    ("coordinator/src/rollout/mod.rs", "the lease was lost to "),
    ("coordinator/src/rollout/mod.rs", "run needs the Talos role os:admin "),
    ("coordinator/src/rollout/mod.rs", "the kubeconfig's user may not: "),
    ("coordinator/src/rollout/mod.rs", "not done after {rounds} rounds (--max-rounds): "),
    ("coordinator/src/rollout/mod.rs", "not confirmed; nothing was changed"),
    ("coordinator/src/rollout/hooks.rs", "{} ended with exit code {code}; nothing was changed"),
    ("coordinator/src/rollout/hooks.rs", "{} ended with exit code {code}\""),
    ("coordinator/src/rollout/hooks.rs", "{} still finds something to do after all was done"),
    ("coordinator/src/rollout/credential.rs", "the old credential is back"),
];

#[test]
fn what_the_run_itself_says_is_there_and_is_still_said() {
    let spans = code_spans(&text());
    for (file, words) in SAID_BY_A_RUN {
        assert!(read(&root().join(file)).contains(words), "{file} does not say {words:?} any more");
        let filled = words.replace("{rounds}", "20").replace("{code}", "1").replace('"', "");
        let said = ["--before-command", "--after-command", "--check-command"].map(|hook| filled.replace("{}", hook));
        let found = said.iter().any(|words| is_said(&spans, words) || spans.iter().any(|span| span.starts_with(words)));
        assert!(found || text().contains(words), "not in docs/runbook.md: {words}");
    }
}
