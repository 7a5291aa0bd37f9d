//! The image service of Talos >= 1.13, as the pull proof uses it: the namespace `system` of the CRI containerd, where
//! no application's image is (talos-captures, point 16).

use std::time::Duration;

use crate::error::CallError;
use crate::node::{Kind, MAX_MESSAGE, Node, Service, timed};
use crate::permit::Permit;
use crate::proto::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace};
use crate::proto::machine::image_service_client::ImageServiceClient;
use crate::proto::machine::{
    ImageListRequest, ImagePullRequest, ImageServiceListRequest, ImageServicePullRequest, ImageServiceRemoveRequest,
    image_service_pull_response,
};

fn system() -> Option<ContainerdInstance> {
    Some(ContainerdInstance { driver: ContainerDriver::Cri.into(), namespace: ContainerdNamespace::NsSystem.into() })
}

impl Node {
    /// The names of the images in `system`; a tagged image has three: tag, `repo@digest` and the bare digest.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn system_images(&self) -> Result<Vec<String>, CallError> {
        self.call(Kind::read("ImageService.List"), |service, limit| async move {
            let request = timed(ImageServiceListRequest { containerd: system() }, limit);
            let mut stream = client(service).list(request).await?.into_inner();
            let mut names = Vec::new();
            while let Some(image) = stream.message().await? {
                names.push(image.name);
            }
            Ok(names)
        })
        .await
    }

    /// Pulls an image into `system` with the configured credential and answers its digest-pinned name. A present image
    /// is answered without asking the registry; a refused credential is never answered, for Talos goes on trying
    /// (talos-captures, point 13): `limit` is the only end.
    ///
    /// # Errors
    /// Any [`CallError`]; [`crate::error::Why::Deadline`] for a refused credential and an unreachable registry alike.
    pub async fn pull_system_image(&self, permit: Permit, image: &str, limit: Duration) -> Result<String, CallError> {
        let kind = Kind { name: "ImageService.Pull", timeout: limit, write: true, secret: true };
        let pulled = self
            .change(kind, permit, |service, limit| async move {
                let request = ImageServicePullRequest { containerd: system(), image_ref: image.to_owned() };
                let mut stream = client(service).pull(timed(request, limit)).await?.into_inner();
                let mut pulled = None;
                while let Some(reply) = stream.message().await? {
                    if let Some(image_service_pull_response::Response::Name(name)) = reply.response {
                        pulled = Some(name);
                    }
                }
                Ok(pulled)
            })
            .await?;
        pulled.ok_or_else(|| self.nonsense(kind.name, "the pull ended without a name".into()))
    }

    /// Removes one name from `system`; gone already is as good.
    ///
    /// # Errors
    /// Any [`CallError`]; needs os:admin.
    pub async fn remove_system_image(&self, permit: Permit, name: &str, limit: Duration) -> Result<(), CallError> {
        let kind = Kind { write: true, timeout: limit, ..Kind::read("ImageService.Remove") };
        let answer = self
            .change(kind, permit, |service, limit| async move {
                let request = ImageServiceRemoveRequest { containerd: system(), image_ref: name.to_owned() };
                client(service).remove(timed(request, limit)).await
            })
            .await;
        match answer {
            Err(error) if matches!(error.why, crate::error::Why::NotFound) => Ok(()),
            answer => answer.map(|_| ()),
        }
    }
}

/// The calls of Talos <= 1.12, deprecated since: no removal, and no name in the answer.
impl Node {
    /// As [`Node::system_images`].
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn system_images_before_1_13(&self) -> Result<Vec<String>, CallError> {
        self.call(Kind::read("ImageList"), |service, limit| async move {
            let request = timed(ImageListRequest { namespace: ContainerdNamespace::NsSystem.into() }, limit);
            let mut stream = crate::node::client(service).image_list(request).await?.into_inner();
            let mut names = Vec::new();
            while let Some(image) = stream.message().await? {
                names.push(image.name);
            }
            Ok(names)
        })
        .await
    }

    /// As [`Node::pull_system_image`], but the answer names nothing.
    ///
    /// # Errors
    /// As [`Node::pull_system_image`].
    pub async fn pull_system_image_before_1_13(
        &self,
        permit: Permit,
        image: &str,
        limit: Duration,
    ) -> Result<(), CallError> {
        let kind = Kind { name: "ImagePull", timeout: limit, write: true, secret: true };
        self.change(kind, permit, |service, limit| async move {
            let request =
                ImagePullRequest { namespace: ContainerdNamespace::NsSystem.into(), reference: image.to_owned() };
            crate::node::client(service).image_pull(timed(request, limit)).await
        })
        .await
        .map(drop)
    }
}

fn client(service: Service) -> ImageServiceClient<Service> {
    ImageServiceClient::new(service).max_decoding_message_size(MAX_MESSAGE)
}
