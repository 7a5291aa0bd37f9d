//! What is ill, each by itself: P12 to P14.

use jiff::{SignedDuration, Span};
use lab::Held;
use lab::kube::kind::Kind;
use lab::kube::objects;
use serde_json::json;
use talos_proto::proto::machine::etcd_member_alarm::AlarmType;

use super::{checks, ill, next};
use crate::fences::hold;
use crate::harness::{Bed, Ended};
use crate::scene::two_workers;

/// `doctor`, where one control plane alone is no warning.
async fn doctor(bed: &Bed, replaced: &[(&str, &str)], more: &[&str], code: i32) -> Ended {
    let mut more = more.to_vec();
    more.extend(["--allow-control-plane-outage", "-o", "json"]);
    bed.product_with("doctor", replaced, &more).await.expect(code)
}

#[track_caller]
fn assert_ill(ended: &Ended, expected: &[(&str, &str)]) {
    let ill = ill(ended);
    let ill: Vec<_> = ill.iter().map(|(name, health)| (name.as_str(), health.as_str())).collect();
    assert_eq!(ill, expected, "{}", ended.stdout);
}

/// The same result for each of these.
fn each<'a>(health: &'a str, names: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    names.iter().map(|name| (*name, health)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p12_a_file_that_is_broken_hides_only_what_needs_it() {
    let bed = two_workers().await;
    let broken = bed.write("broken", "context: lab\n");
    let nowhere = "/nonexistent/credential.json";

    let talos = doctor(&bed, &[("--talosconfig", &broken)], &[], 1).await;
    let unseen = ["talos identity", "talos endpoint", "endpoint", "nodes", "etcd", "clocks"];
    let mut expected = vec![("talosconfig", "fault")];
    expected.extend(each("warning", &unseen));
    assert_ill(&talos, &expected);
    for name in unseen {
        assert!(checks(&talos, name).iter().any(|(_, detail)| detail.starts_with("not looked at: ")), "{name}");
    }
    // The Node says which Talos it runs, and the API server what time it is.
    assert_eq!(checks(&talos, "talos versions")[0], ("ok".into(), "v1.13.9 on 3".into()));
    assert!(checks(&talos, "clocks")[0].1.starts_with("1 node: within "));

    let kubernetes = doctor(&bed, &[("--kubeconfig", &broken)], &[], 1).await;
    let unseen = ["api server", "nodes", "reboot managers", "lease", "fences"];
    let mut expected = vec![("kubeconfig", "fault")];
    expected.extend(each("warning", &unseen));
    assert_ill(&kubernetes, &expected);
    assert_eq!(checks(&kubernetes, "talos endpoint")[0].0, "ok");

    let all = [("--talosconfig", broken.as_str()), ("--kubeconfig", &broken), ("--credential-file", nowhere)];
    let all = doctor(&bed, &all, &[], 1).await;
    let faults: Vec<_> = ill(&all).into_iter().filter(|(_, health)| health == "fault").map(|(name, _)| name).collect();
    assert_eq!(faults, ["talosconfig", "kubeconfig", "credential"], "{}", all.stdout);

    // Without a credential all else is looked at.
    let none = doctor(&bed, &[("--credential-file", "")], &[], 0).await;
    assert_ill(&none, &each("warning", &["credential", "registry"]));
    assert_eq!((bed.writes(), bed.lab.unexpected()), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p13_an_identity_that_is_over_or_soon_will_be_is_said_with_how_long() {
    let bed = two_workers().await;
    let expired = bed.write("expired", &bed.lab.talosconfig_lasting("", Span::new().days(-3)));
    let ended = doctor(&bed, &[("--talosconfig", &expired)], &[], 1).await;
    let said = checks(&ended, "talos identity");
    assert!(
        said[0].0 == "fault" && said[0].1.contains("contexts.lab.crt") && said[0].1.contains(" days ago ("),
        "{said:?}"
    );
    assert!(next(&ended, "talos identity").contains("talosctl config new"), "{}", ended.stdout);
    assert_eq!(checks(&ended, "talosconfig")[0].0, "ok");
    assert_eq!(checks(&ended, "kubernetes rights")[0].0, "ok");

    let soon = bed.write("soon", &bed.lab.talosconfig_lasting("", Span::new().days(12)));
    let ended = doctor(&bed, &[("--talosconfig", &soon)], &[], 0).await;
    let said = checks(&ended, "talos identity");
    assert!(
        said[0].0 == "warning" && said[0].1.contains("os:admin, expires in 1") && said[0].1.contains("T00:00:00Z)"),
        "{said:?}"
    );
    assert_ill(&ended, &each("warning", &["talos identity"]));

    // Whose certificate ends first counts, and a stranger's is refused.
    let server = format!("https://{}:6443", bed.lab.node("cp-1").address());
    let masters = &["system:masters"];
    let short = bed.lab.kubeconfig_lasting("kubernetes-admin", masters, &server, Span::new().days(20));
    let short = bed.write("kubeconfig-soon", &short);
    let ended = doctor(&bed, &[("--kubeconfig", &short)], &[], 0).await;
    let said = checks(&ended, "kubernetes identity");
    assert!(said[0].0 == "warning" && said[0].1.contains("CN=kubernetes-admin, expires in "), "{said:?}");
    assert!(next(&ended, "kubernetes identity").contains("kubeconfig"));
    assert_eq!((bed.writes(), bed.lab.unexpected()), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p14_endpoints_and_api_servers_that_do_not_answer() {
    let bed = Bed::default().await;
    bed.lab.talos().set_etcd_alarm("cp-2", Some(AlarmType::Nospace));
    let ended = doctor(&bed, &[], &[], 1).await;
    assert_ill(&ended, &[("etcd", "fault")]);
    assert!(checks(&ended, "etcd")[0].1.contains("Nospace") && next(&ended, "etcd").contains("etcd alarm list"));
    bed.lab.talos().set_etcd_alarm("cp-2", None);

    bed.lab.node("cp-2").cut_off_apid(true);
    bed.lab.server("cp-3").expect("it has one").cut_off(true);
    let ended = doctor(&bed, &[], &[], 1).await;
    let endpoints = checks(&ended, "talos endpoint");
    let down: Vec<_> = endpoints.iter().filter(|(health, _)| health != "ok").collect();
    let address = bed.lab.node("cp-2").address();
    assert!(
        down.len() == 1 && down[0].0 == "warning" && down[0].1.starts_with(&format!("{address}:50000 does not")),
        "{endpoints:?}"
    );
    // The node itself cannot be worked on.
    let nodes = checks(&ended, "nodes");
    assert!(nodes.iter().any(|(health, detail)| health == "fault" && detail.starts_with("cp-2: ")), "{nodes:?}");
    assert!(next(&ended, "nodes").contains(&address.to_string()));
    let servers = checks(&ended, "api server");
    let address = format!("{}:6443 would not be used while", bed.lab.node("cp-3").address());
    assert!(servers.iter().any(|(health, detail)| health == "warning" && detail.starts_with(&address)), "{servers:?}");
    bed.lab.node("cp-2").cut_off_apid(false);

    // The kubeconfig's own is away: a further one that is given shows the cluster all the same.
    bed.lab.server("cp-1").expect("it has one").cut_off(true);
    let further = bed.lab.node("cp-2").address().to_string();
    let ended = doctor(&bed, &[], &["--kube-server", &further], 0).await;
    let servers = checks(&ended, "api server");
    assert!(servers[0].0 == "warning" && servers[0].1.ends_with("; others answer"), "{servers:?}");
    assert_eq!(checks(&ended, "kubernetes rights")[0].0, "ok");
    let ended = doctor(&bed, &[], &[], 1).await;
    assert_eq!(checks(&ended, "api server")[0].0, "fault");
    assert!(next(&ended, "api server").contains("--kube-server"));
    // The registry and the clocks do not need it.
    assert_eq!(checks(&ended, "registry")[0].0, "ok");
    assert!(checks(&ended, "clocks")[0].1.starts_with("3 nodes: within "), "{}", ended.stdout);
    assert_eq!((bed.writes(), bed.lab.unexpected()), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p14_a_clock_that_is_off_a_registry_that_refuses_and_what_stands_in_the_way() {
    let bed = two_workers().await;
    bed.lab.set_clock_offset("worker-2", SignedDuration::from_secs(-42));
    let ended = doctor(&bed, &[], &[], 0).await;
    assert_ill(&ended, &[("clocks", "warning")]);
    let said = checks(&ended, "clocks");
    assert!(
        said[1].1.starts_with("worker-2: 4") && said[1].1.contains(" s behind this machine's (within 0."),
        "{said:?}"
    );
    assert!(next(&ended, "clocks").contains(&bed.lab.node("worker-2").address().to_string()));
    // All of them alike, and seen by a reader at the API server.
    for node in ["cp-1", "worker-1", "worker-2"] {
        bed.lab.set_clock_offset(node, SignedDuration::from_secs(300));
    }
    let ended = doctor(&bed, &[], &[], 0).await;
    let said = checks(&ended, "clocks");
    assert!(
        said.len() == 1
            && said[0].1.starts_with("this machine's is ")
            && said[0].1.contains(" s behind those of all 3 nodes"),
        "{said:?}"
    );
    let reader = bed.lab.dir().join("talosconfig-reader").display().to_string();
    let ended = doctor(&bed, &[("--talosconfig", &reader)], &[], 1).await;
    let said = checks(&ended, "clocks");
    assert!(said[0].1.starts_with("cp-1: ") && said[0].1.contains(" s ahead of this machine's"), "{said:?}");
    assert!(said[1].1.contains("worker-1, worker-2: reading it needs os:admin"), "{said:?}");
    for node in ["cp-1", "worker-1", "worker-2"] {
        bed.lab.set_clock_offset(node, SignedDuration::ZERO);
    }

    let missing = format!("{}/lab/nothing:1", bed.lab.registry().host());
    let ended = doctor(&bed, &[("--image", &missing)], &[], 1).await;
    assert_ill(&ended, &[("registry", "fault")]);
    assert!(next(&ended, "registry").contains("doctor --registry-only"));

    hold(&bed, ("kube-system", "talos-ghcr"), "fedcba9876543210-gh17123456789.2-0a6e2a51-8a0f-4c7a-9a53-54f0a9f4ce10");
    bed.lab.objects().edit_node("worker-1", |node| {
        node["metadata"]["annotations"]["weave.works/kured-reboot-in-progress"] = json!("2026-11-30T08:00:00Z");
    });
    for (name, labels) in
        [("kured-x7k2p", json!({"name": "kured"})), ("tuppr-0", json!({"app.kubernetes.io/name": "tuppr"}))]
    {
        bed.lab.objects().create(Kind::Pod, objects::pod("default", name, "worker-2", &json!([]), &labels));
    }
    let ended = doctor(&bed, &[], &[], 0).await;
    assert_ill(
        &ended,
        &[
            ("reboot managers", "warning"),
            ("reboot managers", "warning"),
            ("reboot managers", "warning"),
            ("lease", "warning"),
        ],
    );
    let said = checks(&ended, "reboot managers");
    assert!(said[0].1.starts_with("kured is installed (1 pod in default) without --annotate-nodes"), "{said:?}");
    assert!(
        said[1].1.starts_with("tuppr is installed") && said[2].1.starts_with("kured is at work on worker-1"),
        "{said:?}"
    );
    let lease = checks(&ended, "lease");
    assert!(lease[0].1.contains("is held by fedcba9876543210-gh17123456789.2"), "{lease:?}");
    assert!(next(&ended, "lease").contains("the next run watches the Lease"), "{}", ended.stdout);
    let truth = bed.lab.truth();
    assert_eq!((bed.writes(), truth.unexpected), (0, vec![]));
    assert!(truth.nodes.iter().all(|node| node.configured == Held::Old && !node.cordoned));
}
