//! Pulls through Talos (pull.jsonl, pull-system.jsonl).

use futures::StreamExt as _;
use talos_proto::proto::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace};
use talos_proto::proto::machine::image_service_pull_response::Response as Step;
use talos_proto::proto::machine::{ImageServiceListRequest, ImageServicePullRequest, ImageServiceRemoveRequest};
use tonic::Code;

use super::*;
use crate::talos::Namespace;

fn containerd(namespace: ContainerdNamespace) -> Option<ContainerdInstance> {
    Some(ContainerdInstance { driver: ContainerDriver::Cri.into(), namespace: namespace.into() })
}

async fn pull(bed: &Bed, role: &str, image: &str, timeout: Duration) -> Result<Vec<Step>, Status> {
    let mut request = Request::new(ImageServicePullRequest {
        containerd: containerd(ContainerdNamespace::NsSystem),
        image_ref: image.to_owned(),
    });
    request.set_timeout(timeout);
    let mut stream = bed.images("w-1", role).pull(request).await?.into_inner();
    let mut steps = Vec::new();
    while let Some(reply) = stream.message().await? {
        steps.extend(reply.response);
    }
    Ok(steps)
}

const LONG: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_pull_leaves_three_names_and_asks_only_once() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let pinned = format!("ghcr.io/lab/app@{DIGEST}");
    let steps = pull(&bed, "os:operator", "ghcr.io/lab/app:0", LONG).await.unwrap();
    assert!(matches!(&steps[0], Step::PullProgress(_)));
    assert_eq!(steps.last(), Some(&Step::Name(pinned.clone())));
    assert_eq!(*bed.registry.pulls(), ["ghcr.io/lab/app:0 puller"]);

    let steps = pull(&bed, "os:operator", "ghcr.io/lab/app:0", LONG).await.unwrap();
    assert_eq!(steps, [Step::Name(pinned.clone())]);
    assert_eq!(bed.registry.pulls().len(), 1, "a present image is OK without a request");

    let list = |namespace| {
        let mut images = bed.images("w-1", "os:reader");
        async move {
            let list = ImageServiceListRequest { containerd: containerd(namespace) };
            let images = images.list(list).await.unwrap().into_inner();
            images.map(|image| image.unwrap().name).collect::<Vec<_>>().await
        }
    };
    let names = list(ContainerdNamespace::NsSystem).await;
    assert_eq!(names, ["ghcr.io/lab/app:0", &pinned, DIGEST]);
    assert!(
        list(ContainerdNamespace::NsCri).await.is_empty() && bed.talos.node("w-1").images(Namespace::Cri).is_empty()
    );

    for name in names {
        let remove = ImageServiceRemoveRequest {
            containerd: containerd(ContainerdNamespace::NsSystem),
            image_ref: name.clone(),
        };
        let denied = bed.images("w-1", "os:operator").remove(remove.clone()).await.unwrap_err();
        assert_eq!((denied.code(), denied.message()), (Code::PermissionDenied, "not authorized"));
        bed.images("w-1", "os:admin").remove(remove.clone()).await.unwrap();
        let again = bed.images("w-1", "os:admin").remove(remove).await.unwrap_err();
        assert_eq!((again.code(), again.message()), (Code::NotFound, format!("image {name} not found").as_str()));
    }
    assert!(bed.talos.node("w-1").images(Namespace::System).is_empty());
}

#[tokio::test]
async fn a_refused_credential_is_never_answered() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    *bed.registry.password.lock().unwrap() = NEW;
    let started = bed.clock.now();
    pull(&bed, "os:operator", "ghcr.io/lab/app:0", Duration::from_millis(400)).await.unwrap_err();
    assert!(bed.clock.now().since(started) >= Duration::from_millis(390));
    assert!(bed.registry.pulls().len() > 1, "it tries again and again");
    // Through Talos the new credential counts at once, the old CRI process notwithstanding.
    bed.apply("w-1", &config(Role::Worker, "1.13.9", "w-1", NEW), Mode::NoReboot).await.unwrap();
    pull(&bed, "os:operator", "ghcr.io/lab/app:0", LONG).await.unwrap();
    assert_eq!(bed.password("w-1").unwrap(), OLD);
}

#[tokio::test]
async fn other_pulls_fail_as_recorded() {
    let bed = Bed::start(0, 1, "1.13.9").await;
    let missing = pull(&bed, "os:operator", "ghcr.io/lab/nope:1", LONG).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert!(missing.message().ends_with("\"ghcr.io/lab/nope:1\": ghcr.io/lab/nope:1: not found"), "{missing}");
    let bad = pull(&bed, "os:operator", "UPPER//bad", LONG).await.unwrap_err();
    let text = "failed to parse image reference \"UPPER//bad\": invalid reference format";
    assert_eq!((bad.code(), bad.message()), (Code::Unknown, text));
    let denied = pull(&bed, "os:reader", "ghcr.io/lab/app:0", LONG).await.unwrap_err();
    assert_eq!((denied.code(), denied.message()), (Code::PermissionDenied, "not authorized"));
    bed.talos.node("w-1").preload_image(Namespace::System, "ghcr.io/lab/app:0", DIGEST);
    bed.registry.pulls().clear();
    pull(&bed, "os:operator", "ghcr.io/lab/app:0", LONG).await.unwrap();
    assert!(bed.registry.pulls().is_empty());
}
