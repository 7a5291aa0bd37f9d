//! What the client does on the wire: large replies, long silence, the image calls of each version.

use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use prost::Message as _;
use tonic::Code;

use super::field_tables::{VERSIONS, table};
use super::memory::{Answer, Asked, node};
use crate::cosi::Change;
use crate::error::{Why, chain};
use crate::permit::Permit;
use crate::proto::cosi::resource::{
    Event, EventType, GetResponse, ListResponse, Metadata, Resource, Spec, WatchResponse,
};
use crate::proto::machine::{ImageListResponse, ImagePullResponse, ImageServiceListResponse, ImageServicePullResponse};
use crate::proto::resource::config::MachineConfigSpec;
use crate::proto::talos::resource::definitions::k8s::NodenameSpec;
use crate::resources::{ACTIVE, MachineConfigs, Nodenames};
use crate::version::TalosVersion;

const MIB: usize = 1 << 20;

fn resource(spec: &impl prost::Message) -> Resource {
    let metadata = Metadata { id: ACTIVE.into(), version: "1".into(), ..Metadata::default() };
    let spec = Spec { proto_spec: spec.encode_to_vec(), yaml_spec: String::new() };
    Resource { metadata: Some(metadata), spec: Some(spec) }
}

fn config(length: usize) -> Resource {
    resource(&MachineConfigSpec { yaml_marshalled: vec![b'#'; length] })
}

/// By Get and by List, of which the latter is a stream.
fn with_config(length: usize) -> impl Fn(&Asked) -> Answer {
    move |asked| match asked.path.as_str() {
        "/cosi.resource.State/Get" => Answer::one(GetResponse { resource: Some(config(length)) }.encode_to_vec()),
        _ => Answer::one(ListResponse { resource: Some(config(length)) }.encode_to_vec()),
    }
}

#[tokio::test(start_paused = true)]
async fn w03_a_reply_of_31_mib_is_received() {
    let (node, _) = node(with_config(31 * MIB), |target| target);
    let got = node.get::<MachineConfigs>(ACTIVE).await.unwrap().unwrap();
    assert_eq!(got.spec.yaml_marshalled.len(), 31 * MIB);
    let listed = node.list::<MachineConfigs>().await.unwrap();
    assert_eq!(listed.iter().map(|it| it.spec.yaml_marshalled.len()).collect::<Vec<_>>(), [31 * MIB]);
}

/// apid sends none: its own limit is 32 MiB. What is larger is not the node's refusal, and another endpoint is no better.
#[tokio::test(start_paused = true)]
async fn w03_a_reply_of_33_mib_is_named() {
    let (node, wire) = node(with_config(33 * MIB), |target| target);
    let errors = [
        node.get::<MachineConfigs>(ACTIVE).await.map(drop).unwrap_err(),
        node.list::<MachineConfigs>().await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error.why, Why::Reply { .. }), "{:?}", error.why);
        let words = chain(&error);
        assert!(
            words.contains("message length too large") && words.contains("the limit is: 33554432 bytes"),
            "{words}"
        );
    }
    assert_eq!(wire.asked().len(), 2, "asked once each");
}

/// A watch that says what is there, is silent for half an hour, and then goes on.
async fn silent_watch(adjust: impl FnOnce(tonic::transport::Endpoint) -> tonic::transport::Endpoint) -> usize {
    const SILENCE: Duration = Duration::from_secs(30 * 60);
    let changed = |name: &str| {
        let spec = NodenameSpec { nodename: name.into(), ..NodenameSpec::default() };
        let event =
            Event { resource: Some(resource(&spec)), event_type: EventType::Updated.into(), ..Event::default() };
        WatchResponse { event: vec![event] }.encode_to_vec()
    };
    let answers = move |_: &Asked| {
        let begin = stream::iter([WatchResponse::default().encode_to_vec(), changed("before")]);
        let after = changed("after");
        let clock = crate::clock::Clock::paused(jiff::Timestamp::UNIX_EPOCH);
        let later = async move {
            clock.sleep(SILENCE).await;
            after
        };
        Answer::stream(begin.chain(stream::once(later)).chain(stream::pending()))
    };
    let (node, wire) = node(answers, adjust);
    let mut watch = node.watch::<Nodenames>(Some("nodename")).await.unwrap();
    let begun = node.talos().clock().now();
    for expected in ["before", "after"] {
        let change = watch.next(2 * SILENCE).await.unwrap();
        let Some(Change::Present(seen)) = change else { panic!("{change:?}") };
        assert_eq!(seen.spec.nodename, expected);
    }
    assert_eq!(node.talos().clock().now().since(begun).as_secs(), SILENCE.as_secs());
    assert_eq!(wire.asked().len(), 1, "one watch, never begun again");
    wire.pings()
}

/// apid's grpc-go closes a connection after three pings that come faster than every five minutes.
#[tokio::test(start_paused = true)]
async fn w04_no_ping_is_sent_in_a_watch_that_is_silent_for_30_minutes() {
    assert_eq!(silent_watch(|target| target).await, 0);
    // The count would see them.
    let every = |target: tonic::transport::Endpoint| target.http2_keep_alive_interval(Duration::from_secs(60));
    assert!(silent_watch(every).await >= 25);
}

const IMAGE: &str = "ghcr.io/a/b:c";

/// As a Talos of that version, which knows the calls of its own table.
fn image_server(version: &str) -> impl Fn(&Asked) -> Answer + use<> {
    let rows = table("services.tsv").into_iter().filter(|row| row[0] == version);
    let known: Vec<String> = rows.map(|row| format!("/{}/{}", row[1], row[2])).collect();
    move |asked| {
        if !known.contains(&asked.path) {
            return Answer::refusal(Code::Unimplemented);
        }
        let name = || IMAGE.to_owned();
        match asked.path.as_str() {
            "/machine.MachineService/ImageList" => {
                Answer::one(ImageListResponse { name: name(), ..ImageListResponse::default() }.encode_to_vec())
            }
            "/machine.MachineService/ImagePull" => Answer::one(ImagePullResponse::default().encode_to_vec()),
            "/machine.ImageService/List" => Answer::one(
                ImageServiceListResponse { name: name(), ..ImageServiceListResponse::default() }.encode_to_vec(),
            ),
            "/machine.ImageService/Pull" => {
                let response = crate::proto::machine::image_service_pull_response::Response::Name(name());
                Answer::one(ImageServicePullResponse { response: Some(response) }.encode_to_vec())
            }
            "/machine.ImageService/Remove" => Answer::one(Vec::new()),
            other => panic!("{other} is asked for"),
        }
    }
}

/// The call by its name, and the message in hex with the image spelled out.
fn spelled(asked: &Asked) -> (String, String) {
    assert_eq!(asked.node, "10.0.0.5", "the node that is meant");
    let image: String = IMAGE.bytes().map(|byte| format!("{byte:02x}")).collect();
    let hex: String = asked.message.iter().map(|byte| format!("{byte:02x}")).collect();
    (asked.path.clone(), hex.replace(&image, "IMAGE"))
}

/// Both generations answer until 1.14; which one is asked is the version's matter, for only the younger can remove.
#[tokio::test(start_paused = true)]
async fn n09_each_version_is_asked_for_images_by_its_own_calls() {
    let limit = Duration::from_secs(60);
    for version in VERSIONS {
        let (node, wire) = node(image_server(version), |target| target);
        let clock = node.talos().clock();
        let permit = || Permit::until(clock.clone(), clock.now() + Duration::from_secs(600));
        let younger = version.parse::<TalosVersion>().unwrap().at_least(1, 13);
        let expected: &[(&str, &str)] = if younger {
            assert_eq!(node.system_images().await.unwrap(), [IMAGE], "{version}");
            assert_eq!(node.pull_system_image(permit(), IMAGE, limit).await.unwrap(), IMAGE, "{version}");
            node.remove_system_image(permit(), IMAGE, limit).await.unwrap();
            &[
                ("/machine.ImageService/List", "0a0408011001"),
                ("/machine.ImageService/Pull", "0a04080110011a0dIMAGE"),
                ("/machine.ImageService/Remove", "0a0408011001120dIMAGE"),
            ]
        } else {
            let error = node.system_images().await.unwrap_err();
            assert!(matches!(error.why, Why::NotSupported), "{version}: {:?}", error.why);
            assert_eq!(node.system_images_before_1_13().await.unwrap(), [IMAGE], "{version}");
            node.pull_system_image_before_1_13(permit(), IMAGE, limit).await.unwrap();
            &[
                ("/machine.ImageService/List", "0a0408011001"),
                ("/machine.MachineService/ImageList", "0801"),
                ("/machine.MachineService/ImagePull", "0801120dIMAGE"),
            ]
        };
        let asked: Vec<_> = wire.asked().iter().map(spelled).collect();
        let asked: Vec<_> = asked.iter().map(|(path, hex)| (path.as_str(), hex.as_str())).collect();
        assert_eq!(asked, expected, "{version}");
    }
}
