//! The document about what was read.

use serde_json::json;

use super::*;
use crate::holder::{Evidence, Holder};
use crate::kube::fence::{ANNOTATION, Claimant, script};

const NOW: &str = "2026-11-30T08:10:00Z";

fn names() -> [LeaseName; 2] {
    ["kube-system/talos-ghcr", "flux-system/ghcr-auth-refresh"].map(|name| name.parse().unwrap())
}

fn node(name: &str) -> NodeView {
    NodeView { name: name.into(), uid: format!("uid-{name}"), unschedulable: true, ..NodeView::default() }
}

/// With a fence of `dead` under that Lease.
fn fenced(name: &str, lease: &str) -> NodeView {
    let view = NodeView { unschedulable: false, ..node(name) };
    let by = Claimant { holder: "dead".into(), lease: lease.into(), lease_uid: "l".into(), epoch: 7 };
    let fence = Fence::claimed(by, &view, "b1", "r", "2026-11-30T08:00:00Z".parse().unwrap());
    let annotations = [(ANNOTATION.to_owned(), fence.render())].into();
    NodeView { annotations, unschedulable: true, ..view }
}

fn held(holder: &str, evidence: Option<&Evidence>) -> Option<LeaseRecord> {
    let annotation = evidence.map(|evidence| {
        let mut value = serde_json::to_value(evidence).unwrap();
        value["holder"] = json!(holder);
        value.to_string()
    });
    let object = json!({
        "metadata": { "uid": "l", "resourceVersion": "9", "annotations": { "talos-ghcr/holder": annotation } },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": 180, "renewTime": "2026-11-30T08:09:00.000000Z" },
    });
    Some(LeaseRecord::read(&object))
}

fn shown(nodes: Vec<NodeView>, leases: &[(&str, Option<LeaseRecord>)]) -> FencesDocument {
    let [ours, script] = names();
    let leases = leases.iter().map(|(name, record)| (name.parse().unwrap(), record.clone())).collect();
    let names = LeaseNames { ours: &ours, script: &script };
    document(&Seen { nodes, leases, ..Seen::default() }, names, &Kubectl::default(), NOW.parse().unwrap())
}

/// Evidence of this very process, which lives.
fn alive() -> Evidence {
    Holder::this_process("r", &talos_proto::clock::Clock::system()).evidence
}

/// Of one that had this number before.
fn dead() -> Evidence {
    Evidence { process_start: Some(1), ..alive() }
}

#[test]
fn f17_nothing_held() {
    let document = shown(vec![NodeView { unschedulable: true, ..node("w1") }], &[("kube-system/talos-ghcr", None)]);
    assert!(!document.held && document.fences.is_empty() && document.decisions.is_empty());
    assert_eq!(document.next_run, "takes the Lease kube-system/talos-ghcr, which nobody holds");
}

#[test]
fn f17_what_the_next_run_does_follows_the_life_of_the_holder() {
    let ours = "kube-system/talos-ghcr";
    let cases = [
        (held("dead", Some(&alive())), "alive", "refuses with exit 3: the Lease"),
        (held("dead", Some(&dead())), "dead", "takes the Lease kube-system/talos-ghcr over"),
        (
            held("dead", None),
            "unknown",
            "watches the Lease kube-system/talos-ghcr: takes it over when it stood unchanged for 5m00s",
        ),
        (held("next", None), "gone", "watches the Lease"),
        (held("", None), "gone", "takes the Lease"),
        (None, "gone", "takes the Lease"),
    ];
    for (record, state, next) in cases {
        let document = shown(vec![fenced("w1", ours)], &[(ours, record)]);
        let fence = &document.fences[0];
        let action = if state == "alive" { "leave" } else { "adopt" };
        assert_eq!((fence.action, fence.life.as_ref().unwrap().state), (action, state), "{}", document.next_run);
        assert_eq!(document.refused, state == "alive");
        assert!(document.next_run.starts_with(next), "{next}: {}", document.next_run);
        assert_eq!((fence.cordon, fence.age_seconds), ("fence", Some(600.0)));
        assert!(document.held && document.decisions.is_empty(), "a run takes it by itself");
    }
}

#[test]
fn f17_a_fence_under_another_lease_is_adopted_only_when_that_is_not_held() {
    let other = "a/b";
    for (record, action, decisions) in [
        (held("dead", None), "leave", 1),
        (held("dead", Some(&alive())), "leave", 0),
        (held("dead", Some(&dead())), "adopt", 0),
        (held("", None), "adopt", 0),
        (None, "adopt", 0),
    ] {
        let document = shown(vec![fenced("w1", other)], &[(other, record.clone())]);
        assert_eq!((document.fences[0].action, document.decisions.len()), (action, decisions), "{record:?}");
    }
}

#[test]
fn f17_the_scripts_lease_holds_a_run_up_unless_its_holder_is_dead() {
    let script_lease = "flux-system/ghcr-auth-refresh";
    let mut view = node("w1");
    view.annotations.insert(script::OWNER.to_owned(), "0123-gh17.2-8-9".to_owned());
    view.annotations.insert(script::PHASE.to_owned(), "mutating".to_owned());
    let document = shown(vec![view.clone()], &[(script_lease, held("0123456789abcdef-gh17.2-8-77", None))]);
    assert!(document.next_run.starts_with("refuses with exit 3: the old script's Lease"), "{}", document.next_run);
    let fence = &document.fences[0];
    assert_eq!((fence.of, fence.action, fence.step.as_deref()), ("script", "leave", Some("mutating")));
    assert_eq!((fence.cordon, fence.run.as_deref()), ("unknown", Some("17, attempt 2")));
    assert_eq!(fence.life.as_ref().unwrap().state, "unknown");
    let objects: Vec<_> = document.decisions.iter().map(|it| it.object.as_str()).collect();
    assert_eq!(objects, ["node w1", "Lease flux-system/ghcr-auth-refresh"]);
    let document = shown(vec![view], &[(script_lease, None)]);
    assert_eq!((document.fences[0].action, document.decisions.len()), ("adopt", 1));
}

#[test]
fn f17_two_fences_on_one_node_are_both_told() {
    let mut view = fenced("w1", "kube-system/talos-ghcr");
    view.annotations.insert(script::OWNER.to_owned(), "o".to_owned());
    assert_eq!(shown(vec![view], &[]).warnings.len(), 1);
}

#[test]
fn f18_what_is_shown_of_a_holder_cannot_move_the_cursor() {
    let odd = "x\u{1b}[2J\ny\u{202e}";
    let document = shown(Vec::new(), &[("kube-system/talos-ghcr", held(odd, None))]);
    let text = crate::report::fences::text(&document, true);
    assert!(text.contains(r"holder    x\u{1b}[2J\u{a}y\u{202e}"), "{text}");
}
