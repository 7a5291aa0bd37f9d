//! In which order recordings are asked, and what is there when they are.

use serde_json::{Value, json};

use super::play::{Replay, Report, Target};
use super::recording::Recording;
use crate::kube::kind::Kind;
use crate::pki::TlsError;

/// All scripts, each with names of its own, in an order in which one server can have them all. The server has the
/// namespaces `t1` and `t2`.
///
/// # Errors
/// When a certificate cannot be used.
pub async fn all<T: Target>(target: &T) -> Result<Report, TlsError> {
    let mut report = Report::default();
    let mut replay = Replay::new(target)?;
    identities(&mut replay).await;
    report.add(replay.report());
    let mut replay = Replay::new(target)?;
    lists(&mut replay).await;
    report.add(replay.report());
    let mut replay = Replay::new(target)?;
    leases(&mut replay).await;
    report.add(replay.report());
    let mut replay = Replay::new(target)?;
    nodes(&mut replay).await;
    report.add(replay.report());
    let mut replay = Replay::new(target)?;
    evictions(&mut replay).await;
    report.add(replay.report());
    let mut replay = Replay::new(target)?;
    namespaces(&mut replay).await;
    report.add(replay.report());
    let mut replay = Replay::new(target)?;
    watches(&mut replay).await;
    report.add(replay.report());
    Ok(report)
}

/// Who may ask, and whether it is well.
async fn identities<T: Target>(replay: &mut Replay<'_, T>) {
    replay.ask_all("001 003 004 006 008 009 010 011 012 013 016 017 178 501").await;
}

/// While there is nothing else that a list could show.
async fn lists<T: Target>(replay: &mut Replay<'_, T>) {
    let first = |number: &str| Recording::read(number).object()["items"][0].clone();
    for node in [first("528"), node("m2", None, None), node("m3", None, None)] {
        replay.seed(Kind::Node, node).await;
    }
    replay.ask("528").await;
    let mut other = first("166");
    set(&mut other, "name", Some(json!("a3")));
    set(&mut other, "uid", None);
    for pod in [first("166"), other] {
        replay.seed(Kind::Pod, pod).await;
    }
    replay.ask("166").await;
    for name in ["m1", "m2", "m3"] {
        replay.target.remove(Kind::Node, "", name).await;
    }
    for name in ["a2", "a3"] {
        replay.target.remove(Kind::Pod, "t1", name).await;
    }
}

async fn leases<T: Target>(replay: &mut Replay<'_, T>) {
    replay.ask_all("020 021 022 023 024 025 026 028 029 030 031 032 033 034 035 036 037 038 039 040 041 042").await;
    replay.ask_all("043 044 045 046 047 048 049 050 051 052 053 054 055 056 057 058 059 060 061 062 063 064").await;
    replay.ask_all("065 066 067 068 069 070 071 072 073 074").await;
}

async fn nodes<T: Target>(replay: &mut Replay<'_, T>) {
    replay.seed(Kind::Node, node("n1", Some("06ab3a48-20b0-4ee8-848c-a8e58cc4738f"), Some("224"))).await;
    replay.ask_all("079 080 081 082 083 084 085 086 087 088 089").await;
    for number in ["090", "091", "093"] {
        cordon(replay.target, "n1").await;
        replay.ask(number).await;
    }
    replay.ask_all("094 095 096").await;

    for name in ["a-jp", "a-jp2", "a-mp", "a-smp"] {
        replay.seed(Kind::Node, node(name, None, None)).await;
    }
    replay.ask_all("097 098 099 100 101 102 103 104 105 107 108 109 110 111 112 116").await;

    replay.seed(Kind::Node, node("m1", None, None)).await;
    replay.seed(Kind::Node, node("m2", Some("41f08981-57bc-4819-aa36-d0e338c7c9cc"), Some("273"))).await;
    replay.ask_all("502 503 504 505 506 507 508 509 510 511 513").await;
}

async fn evictions<T: Target>(replay: &mut Replay<'_, T>) {
    let budget = Kind::PodDisruptionBudget;
    replay
        .seed_from(Kind::Pod, "132", |a1| {
            before_its_deletion(a1);
            if let Some(conditions) = a1["status"]["conditions"].as_array_mut() {
                conditions.retain(|condition| condition["type"] != "DisruptionTarget");
            }
        })
        .await;
    for name in ["a2", "a3"] {
        replay.seed_from(Kind::Pod, "120", pod("t1", name, |_| {})).await;
    }
    replay.seed_from(budget, "121", |_| {}).await;
    replay.ask("122").await;
    replay.seed_from(budget, "123", |_| {}).await;
    replay.ask_all("124 125").await;
    replay.seed_from(budget, "126", |_| {}).await;
    replay.ask_all("127 128 129").await;
    replay.seed_from(budget, "130", |_| {}).await;
    replay.ask_all("131 132 133 134 135 136 137 138 139").await;
    replay.target.remove(Kind::Pod, "t1", "a1").await;
    replay.ask("141").await;
    replay.seed_from(budget, "142", |_| {}).await;
    replay.ask("143").await;
    replay.target.remove(budget, "t1", "a-second").await;

    replay
        .seed_from(Kind::Pod, "145", |pending| {
            before_its_deletion(pending);
            if let Some(status) = pending["status"].as_object_mut() {
                status.shift_remove("conditions");
            }
        })
        .await;
    replay.ask_all("144 145").await;
    let succeeded = |done: &mut Value| done["status"]["phase"] = json!("Succeeded");
    replay.seed_from(Kind::Pod, "120", pod("t1", "done", succeeded)).await;
    replay.ask_all("146 147").await;

    let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = json!("False");
    replay.seed_from(Kind::Pod, "120", pod("t1", "unr", unready)).await;
    replay.seed_from(budget, "148", |_| {}).await;
    replay.ask("149").await;
    replay.seed_from(budget, "150", |_| {}).await;
    replay.ask("151").await;
    replay.seed_from(budget, "152", |_| {}).await;
    replay.ask_all("153 154").await;
    replay.target.remove(budget, "t1", "a").await;
    replay.ask("155").await;
    let at_once = |pod: &mut Value| pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    replay.seed_from(Kind::Pod, "120", pod("t1", "d2", at_once)).await;
    replay.ask_all("161 162").await;
    let uid = |pod: &mut Value| pod["metadata"]["uid"] = json!("30c3aecc-ddbd-460d-b730-845c6696acd0");
    replay.seed_from(Kind::Pod, "120", pod("default", "e1", uid)).await;
    replay.ask_all("520 521").await;
}

async fn namespaces<T: Target>(replay: &mut Replay<'_, T>) {
    replay.seed_from(Kind::Pod, "120", pod("t2", "p", |_| {})).await;
    replay.target.terminate("t2").await;
    replay.ask_all("168 170 171").await;
}

async fn watches<T: Target>(replay: &mut Replay<'_, T>) {
    replay.ask_all("174 175").await;
}

async fn cordon<T: Target>(target: &T, name: &str) {
    if let Some(mut node) = target.get(Kind::Node, "", name).await {
        node["spec"]["unschedulable"] = json!(true);
        target.put(Kind::Node, node).await;
    }
}

/// A fresh Node, with the names of a recording where a later one speaks of them.
#[must_use]
pub fn node(name: &str, uid: Option<&str>, version: Option<&str>) -> Value {
    let mut node = Recording::read("097").object();
    for (field, value) in [("name", Some(name)), ("uid", uid), ("resourceVersion", version)] {
        set(&mut node, field, value.map(|value| json!(value)));
    }
    node
}

/// Makes another pod out of one that runs.
fn pod<'a>(namespace: &'a str, name: &'a str, change: impl FnOnce(&mut Value) + 'a) -> impl FnOnce(&mut Value) + 'a {
    move |pod| {
        for (field, value) in [
            ("uid", None),
            ("resourceVersion", None),
            ("name", Some(json!(name))),
            ("namespace", Some(json!(namespace))),
            ("labels", Some(json!({"app": "a"}))),
        ] {
            set(pod, field, value);
        }
        change(pod);
    }
}

fn before_its_deletion(pod: &mut Value) {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
        set(pod, field, None);
    }
    set(pod, "generation", Some(json!(1)));
}

fn set(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    match value {
        Some(value) => drop(metadata.insert(field.into(), value)),
        None => drop(metadata.shift_remove(field)),
    }
}
