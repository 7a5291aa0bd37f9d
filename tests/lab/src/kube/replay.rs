//! The recorded exchanges of a real API server, asked again of the lab's over a real socket (fixtures/kubernetes).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::authz::Rbac;
use super::kind::Kind;
use super::server::{ApiServer, Behind, Shared};
use super::simulated::Simulated;
use super::store::Store;
use crate::faults::{Faults, When};
use crate::net::{KUBE_PORT, Network};
use crate::pki::{Ca, Pair, server_config};
use crate::talos::log::Log;
use crate::testing::{Client, text};
use talos_proto::clock::Clock;

/// A recorded exchange.
struct Capture {
    user: String,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: String,
    code: u16,
    answer_headers: HashMap<String, String>,
    answer: String,
}

fn capture(number: &str) -> Capture {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/kubernetes");
    let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let path = names.into_iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(number));
    let text = std::fs::read_to_string(path.unwrap_or_else(|| panic!("no recording {number}"))).unwrap();
    let (asked, answered) = text.split_once("---- response ----\n").unwrap();
    let (head, body) = asked.split_once("\n\n").unwrap();
    let mut lines = head.lines();
    let user = lines.next().unwrap().trim_start_matches("# user: ").split("   took").next().unwrap().to_owned();
    let (method, target) = lines.next().unwrap().split_once(' ').unwrap();
    let header =
        |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap();
    let (answer_head, answer) = answered.split_once("\n\n").unwrap();
    let mut answer_lines = answer_head.lines();
    let code = answer_lines.next().unwrap().split(' ').next().unwrap().parse().unwrap();
    Capture {
        user,
        method: method.to_owned(),
        target: target.to_owned(),
        headers: lines.map(header).collect(),
        body: body.trim().to_owned(),
        code,
        answer_headers: answer_lines.map(header).collect(),
        answer: answer.trim().to_owned(),
    }
}

/// A bare API server, without controllers, and what of the recordings is called what here.
struct Replay {
    _network: Network,
    server: Arc<ApiServer>,
    shared: Arc<Shared>,
    simulated: Arc<Simulated>,
    address: std::net::Ipv4Addr,
    ca: Ca,
    users: HashMap<String, Pair>,
    /// UIDs and resourceVersions of the recordings, and ours for them.
    ours: HashMap<String, String>,
}

impl Replay {
    async fn start() -> Self {
        let network = Network::take().unwrap();
        let (address, ca, clock) = (network.control_plane(0), Ca::new("kubernetes", "kubernetes"), Clock::system());
        let store = Arc::new(Store::new(clock.clone()));
        for name in ["default", "kube-system", "t1", "t2"] {
            store.create(Kind::Namespace, json!({"metadata": {"name": name}}));
        }
        store.with(|state| {
            state.edit(Kind::Namespace, "", "t2", |t2| {
                t2["metadata"]["deletionTimestamp"] = json!("2026-11-30T08:31:53Z")
            })
        });
        let (log, faults) = (Arc::default(), Arc::default());
        let simulated = Arc::new(Simulated { store, rbac: Rbac::default(), clock: clock.clone() });
        let shared = Arc::new(Shared { log, faults, clock });
        let tls = server_config(&ca.server(&[address.to_string()]), &ca, &[b"http/1.1"], false).unwrap();
        let server = ApiServer::new(
            "cp-1",
            address,
            tls,
            Behind::Simulated(Arc::clone(&simulated)),
            Arc::clone(&shared),
            Handle::current(),
        );
        server.start();
        server.listening().wait_for(|listening| *listening).await.unwrap();
        let users = HashMap::from([
            ("admin".to_owned(), ca.client("admin", &["system:masters"])),
            ("alice".to_owned(), ca.client("alice", &[])),
        ]);
        Self { _network: network, server, shared, simulated, address, ca, users, ours: HashMap::new() }
    }

    async fn client(&self, user: &str) -> Client {
        Client::connect((self.address, KUBE_PORT), self.ca.cert_pem(), self.users.get(user)).await.unwrap()
    }

    fn store(&self) -> &Store {
        &self.simulated.store
    }

    /// Stores an object as the recordings had it.
    fn seed(&mut self, kind: Kind, mut object: Value) {
        let version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        object["metadata"].as_object_mut().unwrap().shift_remove("managedFields");
        let stored = self.store().with(|state| state.create(kind, object));
        if let Some(version) = version {
            self.ours.insert(version, stored["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
        }
    }

    /// Stores the object that an exchange answered with, for requests that the product does not make.
    fn seed_from(&mut self, kind: Kind, number: &str, change: impl FnOnce(&mut Value)) {
        let mut object: Value = serde_json::from_str(&capture(number).answer).unwrap();
        change(&mut object);
        self.seed(kind, object);
    }

    async fn ask_all(&mut self, numbers: &str) {
        for number in numbers.split_whitespace() {
            self.ask(number).await;
        }
    }

    /// Asks the request of a recording and compares the answers.
    async fn ask(&mut self, number: &str) {
        let capture = capture(number);
        let mut body = serde_json::from_str::<Value>(&capture.body).unwrap_or(Value::Null);
        replace_strings(&mut body, &self.ours);
        let body = if body.is_null() { capture.body.clone() } else { body.to_string() };
        let mut request =
            Request::builder().method(capture.method.as_str()).uri(&capture.target).header("host", "kube");
        for (name, value) in &capture.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let response = self.client(&capture.user).await.send(request).await.unwrap();
        let headers = response.headers().clone();
        let code = response.status().as_u16();
        let answer = text(response).await;
        assert_eq!(code, capture.code, "{number}: {answer}");
        for name in ["retry-after", "warning", "content-type"] {
            let found = headers.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(found, capture.answer_headers.get(name).map(String::as_str), "{number}: header {name}");
        }
        let Ok(mut expected) = serde_json::from_str::<Value>(&capture.answer) else {
            assert_eq!(answer.trim(), capture.answer, "{number}");
            return;
        };
        let mut found: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{number}: {answer}"));
        self.learn(number, &expected["metadata"], &found["metadata"]);
        replace_strings(&mut expected, &self.ours);
        normalise(&mut expected, &self.ours);
        normalise(&mut found, &HashMap::new());
        assert_eq!(found, expected, "{number}");
    }

    /// What the recording called that and we call this; the same there must be the same here.
    fn learn(&mut self, number: &str, theirs: &Value, ours: &Value) {
        for field in ["uid", "resourceVersion"] {
            let (Some(theirs), Some(ours)) = (theirs[field].as_str(), ours[field].as_str()) else { continue };
            let before = self.ours.insert(theirs.to_owned(), ours.to_owned());
            assert!(
                before.is_none_or(|before| before == ours),
                "{number}: {field} moved, and did not in the recording"
            );
        }
    }
}

fn replace_strings(value: &mut Value, by: &HashMap<String, String>) {
    match value {
        Value::String(text) => {
            if let Some(other) = by.get(text.as_str()) {
                other.clone_into(text);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| replace_strings(value, by)),
        Value::Object(all) => all.values_mut().for_each(|value| replace_strings(value, by)),
        _ => {}
    }
}

/// Takes out what no two servers can have in common.
fn normalise(value: &mut Value, names: &HashMap<String, String>) {
    const VARIABLE: [&str; 5] =
        ["creationTimestamp", "deletionTimestamp", "lastTransitionTime", "resourceVersion", "uid"];
    match value {
        Value::Object(all) => {
            all.shift_remove("managedFields");
            for (name, value) in all.iter_mut() {
                if VARIABLE.contains(&name.as_str()) {
                    *value = json!("*");
                } else if name == "message"
                    && let Some(text) = value.as_str()
                {
                    *value = json!(normalise_text(text, names));
                } else {
                    normalise(value, names);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| normalise(value, names)),
        _ => {}
    }
}

/// A message with our UIDs in place of theirs, without a resourceVersion and without a whole object in it.
fn normalise_text(text: &str, names: &HashMap<String, String>) -> String {
    let mut text = text.to_owned();
    for (theirs, ours) in names.iter().filter(|(theirs, _)| theirs.len() == 36) {
        text = text.replace(theirs.as_str(), ours);
    }
    if let (Some(start), Some(end)) = (text.find("ResourceVersion in record ("), text.find("). The object")) {
        text.replace_range(start + 27..end, "*");
    }
    if let (Some(start), Some(end)) = (text.find("\"{"), text.rfind("}\"")) {
        text.replace_range(start..end, "\"{*");
    }
    text
}

fn node(name: &str, uid: Option<&str>, version: Option<&str>) -> Value {
    let mut node: Value = serde_json::from_str(&capture("097").answer).unwrap();
    let metadata = node["metadata"].as_object_mut().unwrap();
    for (field, value) in [("name", Some(name)), ("uid", uid), ("resourceVersion", version)] {
        metadata.shift_remove(field);
        if let Some(value) = value {
            metadata.insert(field.into(), json!(value));
        }
    }
    node
}

fn pod(namespace: &str, name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut pod: Value = serde_json::from_str(&capture("120").answer).unwrap();
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.shift_remove("uid");
    metadata.shift_remove("resourceVersion");
    metadata.insert("name".into(), json!(name));
    metadata.insert("namespace".into(), json!(namespace));
    metadata.insert("labels".into(), json!({"app": "a"}));
    change(&mut pod);
    pod
}

#[tokio::test]
async fn identities_and_health_are_answered_as_the_real_server_does() {
    let mut replay = Replay::start().await;
    replay.ask_all("001 003 004 006 008 009 010 011 012 013 016 017 178 501").await;
}

#[tokio::test]
async fn leases_are_answered_as_by_the_real_server() {
    let mut replay = Replay::start().await;
    replay.ask_all("020 021 022 023 024 025 026 028 029 030 031 032 033 034 035 036 037 038 039 040 041 042").await;
    replay.ask_all("043 044 045 046 047 048 049 050 051 052 053 054 055 056 057 058 059 060 061 062 063 064").await;
    replay.ask_all("065 066 067 068 069 070 071 072 073 074 170 171").await;
}

#[tokio::test]
async fn nodes_are_answered_as_by_the_real_server() {
    let mut replay = Replay::start().await;
    replay.seed(Kind::Node, node("n1", Some("06ab3a48-20b0-4ee8-848c-a8e58cc4738f"), Some("224")));
    replay.ask_all("079 080 081 082 083 084 085 086 087 088 089").await;
    let cordon = |node: &mut Value| node["spec"]["unschedulable"] = json!(true);
    replay.store().edit_node("n1", cordon).unwrap();
    replay.ask("090").await;
    replay.store().edit_node("n1", cordon).unwrap();
    replay.ask("091").await;
    replay.store().edit_node("n1", cordon).unwrap();
    replay.ask_all("093 094 095 096").await;

    replay.seed(Kind::Node, node("a-jp", None, None));
    for name in ["a-jp2", "a-mp", "a-smp"] {
        replay.seed(Kind::Node, node(name, None, None));
    }
    replay.ask_all("097 098 099 100 101 102 103 104 105 107 108 109 110 111 112 116").await;

    replay.seed(Kind::Node, node("m1", None, None));
    replay.seed(Kind::Node, node("m2", Some("41f08981-57bc-4819-aa36-d0e338c7c9cc"), Some("273")));
    replay.ask_all("502 503 504 505 506 507 508 509 510 511 513").await;
}

#[tokio::test]
async fn evictions_are_answered_as_by_the_real_server() {
    let mut replay = Replay::start().await;
    replay.seed_from(Kind::Pod, "132", |a1| {
        let metadata = a1["metadata"].as_object_mut().unwrap();
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
            metadata.shift_remove(field);
        }
        metadata.insert("generation".into(), json!(1));
        a1["status"]["conditions"].as_array_mut().unwrap().retain(|condition| condition["type"] != "DisruptionTarget");
    });
    for name in ["a2", "a3"] {
        replay.seed(Kind::Pod, pod("t1", name, |_| {}));
    }
    replay.seed_from(Kind::PodDisruptionBudget, "121", |_| {});
    replay.ask("122").await;
    replay.seed_from(Kind::PodDisruptionBudget, "123", |_| {});
    replay.ask_all("124 125").await;
    replay.seed_from(Kind::PodDisruptionBudget, "126", |_| {});
    replay.ask_all("127 128").await;
    expect_budget(&replay, "129");
    replay.seed_from(Kind::PodDisruptionBudget, "130", |_| {});
    replay.ask_all("131 132").await;
    expect_budget(&replay, "133");
    replay.ask_all("134 135 136 137 138 139").await;
    replay.store().remove(Kind::Pod, "t1", "a1");
    replay.ask("141").await;
    replay.seed_from(Kind::PodDisruptionBudget, "142", |_| {});
    replay.ask("143").await;
    replay.store().remove(Kind::PodDisruptionBudget, "t1", "a-second");

    replay.seed_from(Kind::Pod, "145", |pending| {
        let metadata = pending["metadata"].as_object_mut().unwrap();
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
            metadata.shift_remove(field);
        }
        metadata.insert("generation".into(), json!(1));
        pending["status"].as_object_mut().unwrap().shift_remove("conditions");
    });
    replay.ask_all("144 145").await;
    replay.seed(Kind::Pod, pod("t1", "done", |done| done["status"]["phase"] = json!("Succeeded")));
    replay.ask_all("146 147").await;

    let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = json!("False");
    replay.seed(Kind::Pod, pod("t1", "unr", unready));
    replay.seed_from(Kind::PodDisruptionBudget, "148", |_| {});
    replay.ask("149").await;
    replay.seed_from(Kind::PodDisruptionBudget, "150", |_| {});
    replay.ask("151").await;
    replay.seed_from(Kind::PodDisruptionBudget, "152", |_| {});
    replay.ask_all("153 154").await;
    replay.store().remove(Kind::PodDisruptionBudget, "t1", "a");
    replay.ask("155").await;
    replay.seed(Kind::Pod, pod("t1", "d2", |pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(0)));
    replay.ask_all("161 162").await;
    replay.seed(Kind::Pod, pod("t2", "p", |_| {}));
    replay.ask("168").await;
    let uid = |pod: &mut Value| pod["metadata"]["uid"] = json!("30c3aecc-ddbd-460d-b730-845c6696acd0");
    replay.seed(Kind::Pod, pod("default", "e1", uid));
    replay.ask_all("520 521").await;
}

fn expect_budget(replay: &Replay, number: &str) {
    let mut expected: Value = serde_json::from_str(&capture(number).answer).unwrap();
    let found = replay.store().get(Kind::PodDisruptionBudget, "t1", "a").unwrap();
    let mut found = found["status"].clone();
    for status in [&mut expected["status"], &mut found] {
        normalise(status, &HashMap::new());
        status["disruptedPods"]["a1"] = json!("*");
    }
    assert_eq!(found, expected["status"], "{number}");
}

#[tokio::test]
async fn a_watch_sees_changes_and_is_told_when_it_is_too_old() {
    let mut replay = Replay::start().await;
    replay.seed(Kind::Node, node("n1", None, None));
    let start = replay.store().get(Kind::Node, "", "n1").unwrap()["metadata"]["resourceVersion"].clone();
    replay.ask_all("174 175").await;
    let mut client = replay.client("admin").await;
    let target = |version: &str| {
        format!("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dn1&timeoutSeconds=1&resourceVersion={version}")
    };
    replay.seed(Kind::Node, node("n2", None, None));
    replay.store().edit_node("n1", |node| node["spec"]["unschedulable"] = json!(true));
    replay.store().remove(Kind::Node, "", "n1");
    let (code, lines) = client.ask("GET", &target(start.as_str().unwrap()), "").await;
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(code, 200);
    assert_eq!(events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>(), ["MODIFIED", "DELETED"]);
    assert_eq!(events[0]["object"]["spec"]["unschedulable"], true);

    replay.store().with(super::store::State::compact);
    let (code, lines) = client.ask("GET", &target("1"), "").await;
    let event: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!((code, &event["type"]), (200, &json!("ERROR")));
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
}

#[tokio::test]
async fn what_the_product_does_not_ask_is_501_and_noted() {
    let replay = Replay::start().await;
    let mut client = replay.client("admin").await;
    for (method, path) in [("DELETE", "/api/v1/nodes/n1"), ("GET", "/api/v1/secrets"), ("POST", "/api/v1/nodes")] {
        assert_eq!(client.ask(method, path, "{}").await.0, 501);
    }
    assert_eq!(replay.shared.log.surprises().len(), 3);
}

#[tokio::test]
async fn a_request_is_held_at_a_crash_point_and_cut() {
    for (when, holder) in [(When::Before, Value::Null), (When::After, json!("x"))] {
        let replay = Replay::start().await;
        let (log, faults): (&Arc<Log>, &Arc<Faults>) = (&replay.shared.log, &replay.shared.faults);
        let mut point = faults.crash_point(1, when);
        let mut client = replay.client("admin").await;
        let body = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}).to_string();
        let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
        let request = Request::builder().method("POST").uri(path).body(Full::new(Bytes::from(body))).unwrap();
        let (answer, ()) = tokio::join!(client.send(request), async {
            let mutation = point.reached().await.unwrap();
            assert_eq!(mutation.what, format!("kubernetes/cp-1 POST leases {path}"));
            point.cut();
        });
        assert!(answer.is_err(), "the connection was closed without an answer");
        let lease =
            replay.store().get(Kind::Lease, "kube-system", "l").map(|lease| lease["spec"]["holderIdentity"].clone());
        assert_eq!(lease.unwrap_or_default(), holder);
        assert_eq!(log.writes().len(), usize::from(when == When::After), "what never happened is not counted");
    }
}

#[tokio::test]
async fn a_stopped_server_refuses_and_a_started_one_answers_again() {
    let replay = Replay::start().await;
    let mut client = replay.client("admin").await;
    assert_eq!(client.ask("GET", "/readyz", "").await, (200, "ok".into()));
    let mut listening = replay.server.listening();
    replay.server.stop();
    listening.wait_for(|listening| !listening).await.unwrap();
    let refused = Client::connect((replay.address, KUBE_PORT), replay.ca.cert_pem(), None).await;
    assert_eq!(refused.err().unwrap().kind(), std::io::ErrorKind::ConnectionRefused);
    replay.server.start();
    listening.wait_for(|listening| *listening).await.unwrap();
    assert_eq!(replay.client("admin").await.ask("GET", "/readyz", "").await.0, 200);
}
