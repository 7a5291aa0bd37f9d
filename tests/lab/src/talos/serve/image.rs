//! machine.ImageService, of the CRI containerd.

use std::sync::Arc;

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

use super::pull::{self, Pulled};

use crate::talos::node::Node;
use crate::talos::node::images::Namespace;

pub(super) struct Image(pub Arc<Node>);

fn namespace(containerd: Option<ContainerdInstance>) -> Result<Namespace, Status> {
    let containerd = containerd.unwrap_or_default();
    match containerd.driver() {
        ContainerDriver::Cri => pull::namespace(containerd.namespace()),
        ContainerDriver::Containerd => Err(Status::invalid_argument("the lab has the containerd of the CRI only")),
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
        let reference = pull::reference(&request.image_ref)?;
        let Pulled { digest, was_present } = pull::pull(&self.0, namespace, &reference).await?;
        let mut steps = Vec::new();
        if !was_present {
            steps.extend([progress(&digest, Layer::DownloadComplete), progress(&digest, Layer::ExtractComplete)]);
        }
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
