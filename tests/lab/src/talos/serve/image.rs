//! machine.ImageService, of the CRI containerd.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use talos_proto::proto::common::{ContainerDriver, ContainerdInstance};
use talos_proto::proto::machine::image_service_pull_layer_progress::Status as Layer;
use talos_proto::proto::machine::image_service_pull_response::Response as Step;
use talos_proto::proto::machine::image_service_server::ImageService;
use talos_proto::proto::machine::{
    ImageServiceListRequest, ImageServiceListResponse, ImageServicePullLayerProgress, ImageServicePullProgress,
    ImageServicePullRequest, ImageServicePullResponse, ImageServiceRemoveRequest,
};
use tonic::{Request, Response, Status};

use crate::talos::node::Node;
use crate::talos::node::images::{Namespace, Reference};
use crate::talos::outside::PullAnswer;

/// Real nodes try twelve logins in the first second and then for 20 minutes more (talos-captures point 13).
const FIRST_RETRY: Duration = Duration::from_millis(80);
const LAST_RETRY: Duration = Duration::from_secs(5);

pub(super) struct Image(pub Arc<Node>);

fn namespace(containerd: Option<ContainerdInstance>) -> Result<Namespace, Status> {
    let containerd = containerd.unwrap_or_default();
    match (containerd.driver(), Namespace::from_proto(containerd.namespace())) {
        (ContainerDriver::Cri, Some(namespace)) => Ok(namespace),
        _ => Err(Status::invalid_argument("the lab has the containerd of the CRI only")),
    }
}

fn reference(text: &str) -> Result<Reference, Status> {
    Reference::parse(text)
        .ok_or_else(|| Status::unknown(format!("failed to parse image reference {text:?}: invalid reference format")))
}

impl Image {
    /// Asks the registry until it has an answer: a refusal and silence are never told (point 13).
    async fn ask(&self, reference: &Reference) -> Result<String, Status> {
        let mut pause = FIRST_RETRY;
        loop {
            let user = self.0.state().pull_credential(&reference.host);
            let user = user.as_ref().map(|(user, password)| (user.as_str(), password.as_str()));
            match self.0.fleet.registry.pull(&reference.host, &reference.repository, &reference.reference, user) {
                PullAnswer::Ok(digest) => return Ok(digest),
                PullAnswer::NotFound => {
                    return Err(Status::not_found(format!(
                        "error pulling image: 1 error(s) occurred:\n\tfailed to pull image \"{reference}\": failed to \
                         resolve reference \"{reference}\": {reference}: not found"
                    )));
                }
                PullAnswer::Denied | PullAnswer::Unreachable => self.0.sleep(pause).await,
            }
            pause = (pause * 2).min(LAST_RETRY);
        }
    }
}

fn progress(digest: &str, status: Layer) -> Step {
    let layer_id = digest.trim_start_matches("sha256:").chars().take(12).collect();
    let progress = ImageServicePullLayerProgress {
        status: status.into(),
        elapsed: Some(prost_types::Duration::default()),
        ..ImageServicePullLayerProgress::default()
    };
    Step::PullProgress(ImageServicePullProgress { layer_id, progress: Some(progress) })
}

#[tonic::async_trait]
impl ImageService for Image {
    type ListStream = BoxStream<'static, Result<ImageServiceListResponse, Status>>;

    async fn list(&self, request: Request<ImageServiceListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let namespace = namespace(request.into_inner().containerd)?;
        let images = self.0.state().images.list(namespace);
        Ok(Response::new(stream::iter(images.into_iter().map(Ok)).boxed()))
    }

    type PullStream = BoxStream<'static, Result<ImageServicePullResponse, Status>>;

    async fn pull(&self, request: Request<ImageServicePullRequest>) -> Result<Response<Self::PullStream>, Status> {
        let request = request.into_inner();
        let namespace = namespace(request.containerd)?;
        let reference = reference(&request.image_ref)?;
        let present = self.0.state().images.digest(namespace, &reference.to_string()).map(str::to_owned);
        let mut steps = Vec::new();
        let digest = match present {
            // OK without a request to the registry (pull.jsonl).
            Some(digest) => digest,
            None => {
                let digest = self.ask(&reference).await?;
                steps.extend([progress(&digest, Layer::DownloadComplete), progress(&digest, Layer::ExtractComplete)]);
                let mut state = self.0.state();
                let now = self.0.now(&state);
                state.images.add(namespace, &reference, &digest, now);
                digest
            }
        };
        steps.push(Step::Name(reference.pinned(&digest)));
        let replies = steps.into_iter().map(|step| Ok(ImageServicePullResponse { response: Some(step) }));
        Ok(Response::new(stream::iter(replies.collect::<Vec<_>>()).boxed()))
    }

    async fn remove(&self, request: Request<ImageServiceRemoveRequest>) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        let namespace = namespace(request.containerd)?;
        if self.0.state().images.remove(namespace, &request.image_ref) {
            Ok(Response::new(()))
        } else {
            Err(Status::not_found(format!("image {} not found", request.image_ref)))
        }
    }
}
