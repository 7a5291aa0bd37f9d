//! Three control planes and a worker of 1.13.9, with etcd, and Kubernetes beside them.

use prost::Message as _;
use talos_proto::proto::cosi::resource::GetResponse;
use talos_proto::proto::machine::EtcdMemberListRequest;
use talos_proto::proto::talos::resource::definitions::k8s::NodeStatusSpec;

use super::*;
use crate::talos::AlarmType;

const A: &str = "v1.13.9";
const NODES: [(&str, &str); 4] = [("10.5.0.2", "f1"), ("10.5.0.3", "f2"), ("10.5.0.4", "f3"), ("10.5.0.5", "fw1")];
const NOT_BOOTSTRAPPED: Beginning = Beginning { first_boot: true, kubelet: true, etcd: false };
const WHOLE: Beginning = Beginning { first_boot: true, kubelet: true, etcd: true };

/// Every scene and its lists.
pub(super) const SCENES: &[(&str, Lists)] = &[
    ("1.13.9: etcd, not bootstrapped", NOTHING),
    ("1.13.9: etcd", ETCD),
    ("1.13.9: a cluster before its bootstrap", BEFORE_BOOTSTRAP),
    ("1.13.9: a cluster", READY),
];

const NOTHING: Lists = Lists { left_out: &[], different: &[] };

const ETCD: Lists = Lists {
    left_out: &[
        unlike(&["unstarted learner added"], "the lab's etcd has no learners"),
        unlike(&["f3 wiped and joining as a learner"], "the lab's etcd has no learners"),
        unlike(&["forfeit leadership"], "the product gives no leadership up"),
    ],
    different: &[
        unlike(
            &["f3 powered off, target f3 itself", "(EtcdMemberList"],
            "the proxy's first dials of a host that is gone run into the caller's deadline, in the lab they fail at once",
        ),
        unlike(
            &["quorum lost", "(+1)", "EtcdMembers"],
            "EtcdMembers goes some seconds after the quorum, in the lab it stays",
        ),
        unlike(
            &["quorum lost", "(+1)", "get Services etcd"],
            "without a quorum etcd is unhealthy some seconds later, in the lab it stays as it is",
        ),
    ],
};

const UNREAD: [Unlike; 9] = [
    unlike(&["HostnameStatuses"], "the product does not read it, the lab does not have it"),
    unlike(&["Identities"], "the product does not read it, the lab does not have it"),
    unlike(&["KubePrismEndpoints"], "the product does not read it, the lab does not have it"),
    unlike(&["NodeIPs"], "the product does not read it, the lab does not have it"),
    unlike(&["StaticPodStatuses"], "the product does not read it, the lab does not have it"),
    unlike(&["Affiliates"], "the product does not read it, the lab does not have it"),
    unlike(&["NodeLabelSpecs"], "the product does not read it, the lab does not have it"),
    unlike(&["OperatorSpecs"], "the product does not read it, the lab does not have it"),
    unlike(&["(Kubeconfig as"], "the product does not call it"),
];
const BEFORE_BOOTSTRAP: Lists = Lists { left_out: &UNREAD, different: &[] };
const READY: Lists = Lists {
    left_out: &{
        let [a, b, c, d, e, f, g, h, i] = UNREAD;
        let members = "discovery is off in the lab, and Members empty, as real nodes then have it";
        [
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            i,
            unlike(&["discovery on", "Members.cluster"], members),
            unlike(&["f2 cordoned", "Members.cluster"], members),
            unlike(&["fw1 with changed", "Members.cluster"], members),
        ]
    },
    different: &{
        let late = "Talos puts annotations on a Node more than 10 s after a bootstrap, the lab at once";
        let bridge = "pods are on a bridge of the node, which no node of the lab has; the product takes addresses from \
                      `current`, where a pod network is nobody's endpoint";
        [
            unlike(&["ready, discovery off", "get NodeStatuses.kubernetes.talos.dev f1"], late),
            unlike(&["ready, discovery off", "list k8s NodeStatuses"], late),
            unlike(&["pods on a bridge", "NodeAddresses.net.talos.dev current ("], bridge),
            unlike(&["pods on a bridge", "NodeAddresses.net.talos.dev routed ("], bridge),
            unlike(&["pods on a bridge", "NodeAddresses.net.talos.dev default ("], bridge),
            unlike(&["pods on a bridge", "NodeAddresses.net.talos.dev current-only-k8s ("], bridge),
            unlike(&["pods on a bridge", "list network NodeAddresses"], bridge),
            unlike(&["fw1 with changed", "NodeAddresses.net.talos.dev default ("], bridge),
            unlike(&["fw1 with changed", "list network NodeAddresses"], bridge),
        ]
    },
};

async fn bed(beginning: Beginning) -> Bed {
    let role = |name: &str| if name == "fw1" { Role::Worker } else { Role::ControlPlane };
    let nodes = NODES.iter().map(|(_, name)| (config("01.yaml"), (*name).to_owned(), role(name)));
    Bed::of(nodes.collect(), "1.13.9", beginning).await
}

/// The part of a name before the request.
fn phase(call: &Call) -> &str {
    call.name.split(": ").next().unwrap_or_default()
}

#[tokio::test]
async fn w07_etcd_that_was_not_bootstrapped() {
    let bed = bed(NOT_BOOTSTRAPPED).await;
    let mut replay = Replay::new(&bed, &NODES, &[], NOTHING);
    for call in calls(A, "etcd").iter().filter(|call| phase(call) == "not bootstrapped") {
        replay.call("etcd", call).await;
    }
    replay.finish(21);
}

#[tokio::test]
async fn w07_etcd_in_health_with_alarms_and_without_members() {
    let bed = bed(WHOLE).await;
    let mut replay = Replay::new(&bed, &NODES, &[], ETCD);
    let calls = calls(A, "etcd");
    let list = bed.machine("f1", "os:reader").etcd_member_list(EtcdMemberListRequest::default()).await.unwrap();
    replay.lab.meet(&list.into_inner().encode_to_vec());
    let healthy = calls.iter().find(|call| call.rpc() == "EtcdMemberList" && !call.replies.is_empty());
    replay.real.meet(&healthy.unwrap().replies[0].bytes());
    let mut before = String::new();
    for call in calls.iter().filter(|call| phase(call) != "not bootstrapped") {
        let phase = phase(call);
        if phase != before {
            enter(&bed, phase).await;
            replay.forget();
            before = phase.to_owned();
        }
        replay.call("etcd", call).await;
    }
    replay.finish(142);
}

/// Puts the cluster into the state of a phase.
async fn enter(bed: &Bed, phase: &str) {
    let talos = &bed.talos;
    if phase.starts_with("healthy 3 members") {
        talos.set_etcd_leader("f1");
    } else if phase.starts_with("NOSPACE alarm raised on f3") {
        talos.set_etcd_alarm("f3", None);
        talos.set_etcd_alarm("f3", Some(AlarmType::Nospace));
    } else if phase.starts_with("two members NOSPACE") {
        talos.set_etcd_alarm("f1", Some(AlarmType::Nospace));
        talos.set_etcd_alarm("f3", Some(AlarmType::Corrupt));
    } else if phase.starts_with("after leadership was forfeited") {
        talos.set_etcd_alarm("f1", None);
        talos.set_etcd_alarm("f3", None);
        talos.set_etcd_leader("f2");
    } else if phase.starts_with("f3 powered off (+0)") {
        talos.node("f3").stop();
    } else if phase.starts_with("quorum lost") {
        talos.node("f2").stop();
    }
    bed.clock.sleep(Duration::from_millis(20)).await;
}

#[tokio::test]
async fn w07_a_cluster_before_its_bootstrap() {
    let bed = bed(NOT_BOOTSTRAPPED).await;
    let mut replay = Replay::new(&bed, &NODES, &[], BEFORE_BOOTSTRAP);
    for call in calls(A, "cluster").iter().filter(|call| phase(call).starts_with("before bootstrap")) {
        replay.call("cluster", call).await;
    }
    replay.finish(46);
}

#[tokio::test]
async fn w07_a_cluster_that_is_ready() {
    let bed = bed(WHOLE).await;
    let mut replay = Replay::new(&bed, &NODES, &[], READY);
    let list = bed.machine("f1", "os:reader").etcd_member_list(EtcdMemberListRequest::default()).await.unwrap();
    replay.lab.meet(&list.into_inner().encode_to_vec());
    let vip = "127.255.255.50";
    replay.also("10.5.0.50", vip);
    let calls = calls(A, "cluster");
    let mut before = String::new();
    for call in calls.iter().filter(|call| !phase(call).starts_with("before bootstrap")) {
        if phase(call) != before {
            before = phase(call).to_owned();
            replay.forget();
            let of_phase: Vec<_> = calls.iter().filter(|call| phase(call) == before).collect();
            set_up(&bed, &of_phase, vip).await;
        }
        replay.call("cluster", call).await;
    }
    replay.finish(193);
}

/// The Node as Kubernetes has it, the annotations in the machine config and the holder of the virtual address: a phase's
/// own recordings tell.
async fn set_up(bed: &Bed, calls: &[&Call], vip: &str) {
    let target = calls[0].target();
    let name = NODES.iter().find(|(address, _)| *address == target).unwrap().1;
    let get = |what: &str| {
        let call = calls.iter().find(|call| call.name.contains(what) && !call.replies.is_empty());
        let reply = call.map(|call| call.replies[0].bytes())?;
        let resource = GetResponse::decode(reply.as_slice()).unwrap().resource?;
        Some(resource.spec.unwrap_or_default().proto_spec)
    };
    let status = get(&format!("get NodeStatuses.kubernetes.talos.dev {name}")).unwrap();
    let status = NodeStatusSpec::decode(status.as_slice()).unwrap();
    let owned = status.annotations.iter().filter(|(key, _)| key.starts_with("lab.example.com/"));
    let owned: Vec<_> = owned.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    if !owned.is_empty() {
        bed.apply(name, &annotated(&owned), Mode::NoReboot).await.unwrap();
        bed.clock.sleep(SETTLED).await;
    }
    bed.cluster.change(name, |seen| {
        (seen.ready, seen.unschedulable) = (status.node_ready, status.unschedulable);
        seen.labels = status.labels.clone().into_iter().collect();
        seen.annotations = status.annotations.clone().into_iter().collect();
    });
    let holds = get("get NodeAddresses.net.talos.dev current").is_some_and(|spec| {
        let virtual_address = [10, 5, 0, 50];
        spec.windows(4).any(|bytes| bytes == virtual_address)
    });
    for (_, other) in NODES {
        bed.talos.node(other).set_vip((holds && other == name).then(|| vip.parse().unwrap()));
    }
    bed.clock.sleep(SETTLED).await;
}

/// The machine config with these annotations.
fn annotated(annotations: &[(&str, &str)]) -> String {
    let text = String::from_utf8(config("01.yaml")).unwrap();
    let recorded = "    nodeAnnotations:\n        lab.example.com/owner: alice\n";
    assert!(text.contains(recorded));
    let lines: String = annotations.iter().map(|(key, value)| format!("        {key}: {value:?}\n")).collect();
    text.replace(recorded, &format!("    nodeAnnotations:\n{lines}"))
}
