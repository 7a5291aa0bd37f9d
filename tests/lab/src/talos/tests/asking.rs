//! Routing, roles, refusals, and what is counted (read.jsonl, etcd.jsonl).

use futures::StreamExt as _;
use http::uri::PathAndQuery;
use talos_proto::proto::cosi::resource::{EventType, ListRequest};
use talos_proto::proto::machine::{EtcdMemberListRequest, ReadRequest};
use tonic::Code;

use super::*;
use crate::talos::AlarmType;
use crate::talos::cosi::kind;
use talos_proto::proto::talos::resource::definitions::runtime::{BootIdSpec, MachineStatusSpec};

fn said(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

#[tokio::test]
async fn routing_is_answered_as_recorded() {
    let bed = Bed::start(1, 1, "1.13.9").await;
    let (own, other) = (bed.address("cp-1"), bed.address("w-1"));
    let mut machine = bed.machine("cp-1", "os:admin");
    for target in [&own, &other] {
        let reply = machine.version(to((), &[("node", target)])).await.unwrap().into_inner();
        assert_eq!(reply.messages.len(), 1);
        assert_eq!(reply.messages[0].version.as_ref().unwrap().tag, "v1.13.9");
    }
    let mut refused = Vec::new();
    for metadata in [
        vec![("node", own.as_str()), ("node", other.as_str())],
        vec![("node", "10.5.0.2:50000")],
        vec![("node", "")],
        vec![("node", "127.255.0.9")],
        vec![("node", "no-such-host")],
    ] {
        refused.push(machine.version(to((), &metadata)).await.unwrap_err());
    }
    assert_eq!(said(&refused[0]), (Code::InvalidArgument, "node metadata must be single-valued"));
    assert_eq!(said(&refused[1]), (Code::Internal, "invalid target \"10.5.0.2:50000\""));
    assert_eq!(said(&refused[2]), (Code::Internal, "invalid target \"\""));
    assert_eq!(
        said(&refused[3]),
        (
            Code::Unavailable,
            "connection error: desc = \"transport: Error while dialing: dial tcp 127.255.0.9:50000: connect: no route \
             to host\""
        )
    );
    assert!(refused[4].message().starts_with("dns: A record lookup error: lookup no-such-host on "));

    let get = to(get_request(&kind::REGISTRIES, "registries"), &[("nodes", &own)]);
    let status = bed.state("cp-1", "os:admin").get(get).await.unwrap_err();
    let text = "one-2-many proxying is not supported for method /cosi.resource.State/Get";
    assert_eq!(said(&status), (Code::InvalidArgument, text));

    let mut worker = bed.machine("w-1", "os:admin");
    for itself in [other.as_str(), "w-1"] {
        worker.version(to((), &[("node", itself)])).await.unwrap();
    }
    let status = worker.version(to((), &[("node", &own)])).await.unwrap_err();
    assert_eq!(said(&status), (Code::PermissionDenied, "no request forwarding"));
}

#[tokio::test]
async fn a_refusal_hides_in_an_ok_with_nodes_metadata() {
    let bed = Bed::start(1, 0, "1.13.9").await;
    let own = bed.address("cp-1");
    let request = to(ApplyConfigurationRequest::default(), &[("nodes", &own)]);
    let reply = bed.machine("cp-1", "os:reader").apply_configuration(request).await.unwrap().into_inner();
    let metadata = reply.messages[0].metadata.as_ref().unwrap();
    assert_eq!(metadata.hostname, own);
    assert_eq!(metadata.error, "rpc error: code = PermissionDenied desc = not authorized");
    let reply = bed.machine("cp-1", "os:reader").version(to((), &[("nodes", &own), ("nodes", "127.255.0.9")])).await;
    let messages = reply.unwrap().into_inner().messages;
    assert_eq!(messages[0].version.as_ref().unwrap().tag, "v1.13.9");
    assert!(messages[1].metadata.as_ref().unwrap().error.contains("no route to host") && messages[1].version.is_none());
}

#[tokio::test]
async fn each_role_reads_what_it_may() {
    let bed = Bed::start(1, 1, "1.13.9").await;
    for (role, denied) in [("os:admin", false), ("os:operator", true), ("os:reader", true)] {
        let mut state = bed.state("cp-1", role);
        for (kind, id) in [(&kind::REGISTRIES, "registries"), (&kind::MACHINE_CONFIG, "v1alpha1")] {
            let result = state.get(get_request(kind, id)).await;
            assert_eq!(result.err().map(|s| s.message().to_owned()), denied.then(|| "not authorized".to_owned()));
        }
        for (kind, id) in [
            (&kind::ETC_FILE, "cri/conf.d/cri.toml"),
            (&kind::ETC_FILE, "cri/conf.d/01-registries.part"),
            (&kind::SERVICE_PID, "cri"),
            (&kind::SERVICE, "etcd"),
            (&kind::MACHINE_STATUS, "machine"),
            (&kind::NODENAME, "nodename"),
            (&kind::NODE_STATUS, "cp-1"),
            (&kind::NODE_ADDRESS, "current"),
            (&kind::ETCD_MEMBER, "local"),
        ] {
            state.get(get_request(kind, id)).await.unwrap_or_else(|status| panic!("{role} {kind:?}: {status}"));
        }
        let read = bed.machine("cp-1", role).read(ReadRequest { path: "/proc/sys/kernel/random/boot_id".into() }).await;
        assert_eq!(read.is_err(), denied);
    }
    let mut state = bed.state("cp-1", "os:reader");
    let missing = state.get(get_request(&kind::SERVICE_PID, "nope")).await.unwrap_err();
    let text = "resource ServicePIDs.runtime.talos.dev(runtime/nope@undefined) doesn't exist";
    assert_eq!(said(&missing), (Code::NotFound, text));
    let unknown = state.get(get_request(&kind::BOOT_ID, "boot-id")).await.unwrap_err();
    let text = "resource type \"BootIDs.runtime.talos.dev\" is not supported";
    assert_eq!(said(&unknown), (Code::PermissionDenied, text));
    let nowhere = GetRequest { namespace: "nons".into(), ..get_request(&kind::SERVICE_PID, "cri") };
    let nowhere = state.get(nowhere).await.unwrap_err();
    assert_eq!(said(&nowhere), (Code::PermissionDenied, "namespace \"nons\" is not supported"));
    let worker = bed.get("w-1", &kind::ETCD_MEMBER, "local").await.unwrap_err();
    assert_eq!(worker.code(), Code::NotFound);
}

#[tokio::test]
async fn a_client_of_another_authority_gets_no_connection() {
    let bed = Bed::start(1, 0, "1.13.9").await;
    let stranger = Bed { ca: Arc::new(Ca::talos()), ..Bed::start(0, 0, "1.13.9").await };
    let pair = stranger.ca.client("", &["os:admin"]);
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(bed.ca.cert_pem()))
        .identity(Identity::from_pem(&pair.cert_pem, &pair.key_pem));
    let endpoint = Endpoint::from_shared(format!("https://{}:50000", bed.address("cp-1"))).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect_lazy();
    MachineServiceClient::new(channel).version(()).await.unwrap_err();
    assert!(bed.log.all().is_empty());
}

#[tokio::test]
async fn the_state_of_a_node_that_runs() {
    let bed = Bed::start(1, 0, "1.14.0-rc.1").await;
    let boot: BootIdSpec = spec(&bed.get("cp-1", &kind::BOOT_ID, "boot-id").await.unwrap());
    let path = ReadRequest { path: "/proc/sys/kernel/random/boot_id".into() };
    let bytes =
        bed.machine("cp-1", "os:admin").read(path).await.unwrap().into_inner().next().await.unwrap().unwrap().bytes;
    assert_eq!(bytes, format!("{}\n", boot.boot_id).into_bytes());
    let status: MachineStatusSpec = spec(&bed.get("cp-1", &kind::MACHINE_STATUS, "machine").await.unwrap());
    assert!(status.status.unwrap().ready);
    assert_eq!(bed.version("cp-1", &kind::ETC_FILE, "cri/conf.d/01-registries.part").await, "-");
    let file = bed.get("cp-1", &kind::ETC_FILE, "cri/conf.d/cri.toml").await.unwrap();
    let cri = bed.get("cp-1", &kind::SERVICE_PID, "cri").await.unwrap();
    let (updated, created) = (metadata(&file).updated.unwrap(), metadata(&cri).created.unwrap());
    let gap = i64::from(created.nanos - updated.nanos) + (created.seconds - updated.seconds) * 1_000_000_000;
    assert!((35_000_000..140_000_000).contains(&gap), "{gap}");

    let services = bed.machine("cp-1", "os:reader").service_list(()).await.unwrap().into_inner();
    let cri = services.messages[0].services.iter().find(|service| service.id == "cri").unwrap();
    let texts: Vec<_> = cri.events.as_ref().unwrap().events.iter().map(|event| event.msg.as_str()).collect();
    assert!(texts.iter().any(|text| text.starts_with("Process Process([") && text.contains("started with PID ")));
    assert_eq!(texts.last(), Some(&"Health check successful"));

    let list = ListRequest { namespace: "config".into(), r#type: kind::MACHINE_CONFIG.name.into(), options: None };
    let list = bed.state("cp-1", "os:admin").list(list).await.unwrap().into_inner();
    let ids: Vec<_> = list.map(|reply| metadata(&reply.unwrap().resource.unwrap()).id.clone()).collect().await;
    assert_eq!(ids, ["v1alpha1"], "nothing was applied in this boot");
}

#[tokio::test]
async fn a_watch_of_one_id_begins_with_what_is_there() {
    let bed = Bed::start(1, 0, "1.13.9").await;
    let mut there = bed.watch("cp-1", &kind::ETC_FILE, Some("cri/conf.d/cri.toml")).await;
    let mut absent = bed.watch("cp-1", &kind::MACHINE_CONFIG, Some("persistent")).await;
    for (stream, expected) in [(&mut there, EventType::Created), (&mut absent, EventType::Destroyed)] {
        assert!(stream.message().await.unwrap().unwrap().event.is_empty());
        assert_eq!(stream.message().await.unwrap().unwrap().event[0].event_type(), expected);
    }
    bed.apply("cp-1", &config(Role::ControlPlane, "1.13.9", "cp-1", NEW), Mode::NoReboot).await.unwrap();
    let event = there.message().await.unwrap().unwrap().event.remove(0);
    assert_eq!(event.event_type(), EventType::Updated);
    assert_eq!(absent.message().await.unwrap().unwrap().event[0].event_type(), EventType::Created);
}

#[tokio::test]
async fn etcd_answers_only_where_it_runs() {
    let bed = Bed::start(3, 1, "1.13.9").await;
    let mut machine = bed.machine("cp-1", "os:reader");
    let members = machine.etcd_member_list(EtcdMemberListRequest::default()).await.unwrap().into_inner();
    assert_eq!(members.messages[0].members.len(), 3);
    let status = machine.etcd_status(()).await.unwrap().into_inner().messages.remove(0).member_status.unwrap();
    assert_eq!((status.leader, status.errors.len()), (status.member_id, 0));
    assert_eq!(machine.etcd_alarm_list(()).await.unwrap().into_inner().messages[0].member_alarms, []);
    bed.talos.set_etcd_alarm("cp-2", Some(AlarmType::Nospace));
    assert_eq!(machine.etcd_alarm_list(()).await.unwrap().into_inner().messages[0].member_alarms.len(), 1);

    let worker = bed.machine("w-1", "os:reader").etcd_status(()).await.unwrap_err();
    assert_eq!(said(&worker), (Code::Unimplemented, "etcd status is only available on control plane nodes"));

    bed.talos.set_etcd_running("cp-1", false);
    let mut request = Request::new(());
    request.set_timeout(Duration::from_millis(150));
    let started = bed.clock.now();
    machine.etcd_status(request).await.unwrap_err();
    assert!(bed.clock.now().since(started) >= Duration::from_millis(140));
    bed.talos.set_etcd_running("cp-2", false);
    let mut survivor = bed.machine("cp-3", "os:reader");
    let lost = survivor.etcd_member_list(EtcdMemberListRequest::default()).await.unwrap_err();
    assert_eq!(said(&lost), (Code::Unknown, "etcdserver: no leader"));
}

#[tokio::test]
async fn requests_count_where_they_enter_and_the_unknown_ones_are_noted() {
    let bed = Bed::start(2, 0, "1.13.9").await;
    let other = bed.address("cp-2");
    bed.machine("cp-1", "os:reader").version(to((), &[("node", &other)])).await.unwrap();
    bed.machine("cp-1", "os:reader").reboot(RebootRequest::default()).await.unwrap_err();
    let get = to(get_request(&kind::NODENAME, "nodename"), &[("node", &other)]);
    bed.state("cp-1", "os:reader").get(get).await.unwrap();
    let counters = bed.talos.node("cp-1").counters();
    assert_eq!((counters.reads, counters.writes), (2, 1));
    assert_eq!(counters.by_method["/machine.MachineService/Version"], 1);
    assert_eq!(bed.talos.node("cp-2").counters().reads, 0);
    let targets: Vec<_> = bed.log.all().into_iter().map(|entry| entry.target).collect();
    assert_eq!(targets, ["cp-2", "cp-1", "cp-2 Nodenames.kubernetes.talos.dev/nodename"]);
    assert_eq!(bed.faults.mutations(), 0, "a refused request is no mutation");

    let mut grpc = tonic::client::Grpc::new(bed.channel("cp-1", "os:admin"));
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static("/machine.MachineService/NoSuchMethod");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let status = grpc.unary(Request::new(()), path, codec).await.unwrap_err();
    let text = "unknown method NoSuchMethod for service machine.MachineService";
    assert_eq!(said(&status), (Code::Unimplemented, text));
    assert_eq!(bed.log.surprises().len(), 1);
}
