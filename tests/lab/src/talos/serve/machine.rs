//! machine.MachineService.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use talos_proto::proto::common::Data;
use talos_proto::proto::machine::machine_service_server::MachineService;
use talos_proto::proto::machine::{
    ApplyConfigurationRequest, ApplyConfigurationResponse, EtcdAlarm, EtcdAlarmListResponse, EtcdMemberListRequest,
    EtcdMemberListResponse, EtcdMembers, EtcdStatus, EtcdStatusResponse, FeaturesInfo, ImageListRequest,
    ImageListResponse, ImagePull, ImagePullRequest, ImagePullResponse, PlatformInfo, ReadRequest, Reboot,
    RebootRequest, RebootResponse, ServiceList, ServiceListResponse, Version, VersionInfo, VersionResponse,
    apply_configuration_request,
};
use tonic::{Request, Response, Status};

use super::pull;

use crate::talos::Role;
use crate::talos::etcd::Etcd;
use crate::talos::node::Node;

/// Bytes of a file that come in one message.
const CHUNK: usize = 1024;

pub(super) struct Machine(pub Arc<Node>);

impl Machine {
    /// An answer of etcd. It answers only where it runs: elsewhere until the caller's deadline nothing, and on a
    /// worker it is Unimplemented (talos-captures point 17).
    async fn etcd<R>(
        &self,
        what: &str,
        answer: impl FnOnce(&mut Etcd) -> Option<Result<R, Status>>,
    ) -> Result<Response<R>, Status> {
        if self.0.role() == Role::Worker {
            return Err(Status::unimplemented(format!("{what} is only available on control plane nodes")));
        }
        let answer = {
            let mut etcd = self.0.fleet.etcd();
            if etcd.runs(self.0.name()) { answer(&mut etcd) } else { None }
        };
        match answer {
            Some(answer) => answer.map(Response::new),
            None => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl MachineService for Machine {
    async fn version(&self, _: Request<()>) -> Result<Response<VersionResponse>, Status> {
        let version = VersionInfo {
            tag: format!("v{}", self.0.version()),
            sha: "undefined".to_owned(),
            go_version: "go1.26.8".to_owned(),
            os: "linux".to_owned(),
            arch: "amd64".to_owned(),
            ..VersionInfo::default()
        };
        let message = Version {
            version: Some(version),
            platform: Some(PlatformInfo { name: "metal".to_owned(), mode: "metal".to_owned() }),
            features: Some(FeaturesInfo { rbac: true }),
            ..Version::default()
        };
        Ok(Response::new(VersionResponse { messages: vec![message] }))
    }

    type ReadStream = BoxStream<'static, Result<Data, Status>>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let path = request.into_inner().path;
        let bytes = match path.as_str() {
            "/proc/sys/kernel/random/boot_id" => format!("{}\n", self.0.boot_id()).into_bytes(),
            "/proc/stat" => self.0.proc_stat().into_bytes(),
            "/proc/uptime" => self.0.proc_uptime().into_bytes(),
            "/system/state/config.yaml" => self.0.persisted_config(),
            _ => return Err(Status::not_found(format!("stat {path}: no such file or directory"))),
        };
        let chunks: Vec<_> =
            bytes.chunks(CHUNK).map(|chunk| Ok(Data { bytes: chunk.to_vec(), ..Data::default() })).collect();
        Ok(Response::new(stream::iter(chunks).boxed()))
    }

    async fn apply_configuration(
        &self,
        request: Request<ApplyConfigurationRequest>,
    ) -> Result<Response<ApplyConfigurationResponse>, Status> {
        let request = request.into_inner();
        let mode = apply_configuration_request::Mode::try_from(request.mode)
            .map_err(|_| Status::invalid_argument("unknown apply mode"))?;
        let timeout = request.try_mode_timeout.and_then(|timeout| Duration::try_from(timeout).ok()).unwrap_or_default();
        let message = self.0.apply(&request.data, mode, request.dry_run, timeout)?;
        Ok(Response::new(ApplyConfigurationResponse { messages: vec![message] }))
    }

    async fn reboot(&self, request: Request<RebootRequest>) -> Result<Response<RebootResponse>, Status> {
        self.0.reboot_called(request.into_inner().mode());
        let message = Reboot { actor_id: uuid::Uuid::new_v4().to_string(), ..Reboot::default() };
        Ok(Response::new(RebootResponse { messages: vec![message] }))
    }

    async fn service_list(&self, _: Request<()>) -> Result<Response<ServiceListResponse>, Status> {
        let services = self.0.state().boot.services.list();
        let message = ServiceList { services, ..ServiceList::default() };
        Ok(Response::new(ServiceListResponse { messages: vec![message] }))
    }

    type ImageListStream = BoxStream<'static, Result<ImageListResponse, Status>>;

    /// Deprecated since 1.13 and answered there too (pull-system.jsonl), always of the CRI containerd (talos.md 3.7).
    async fn image_list(&self, request: Request<ImageListRequest>) -> Result<Response<Self::ImageListStream>, Status> {
        let namespace = pull::namespace(request.into_inner().namespace())?;
        let images = self.0.state().images.list(namespace).into_iter().map(|image| ImageListResponse {
            metadata: None,
            name: image.name,
            digest: image.digest,
            size: image.size,
            created_at: image.created_at,
        });
        Ok(Response::new(stream::iter(images.map(Ok).collect::<Vec<_>>()).boxed()))
    }

    /// The answer names nothing (pull.jsonl).
    async fn image_pull(&self, request: Request<ImagePullRequest>) -> Result<Response<ImagePullResponse>, Status> {
        let request = request.into_inner();
        let namespace = pull::namespace(request.namespace())?;
        pull::pull(&self.0, namespace, &pull::reference(&request.reference)?).await?;
        Ok(Response::new(ImagePullResponse { messages: vec![ImagePull::default()] }))
    }

    async fn etcd_member_list(
        &self,
        _: Request<EtcdMemberListRequest>,
    ) -> Result<Response<EtcdMemberListResponse>, Status> {
        self.etcd("member list", |etcd| {
            if !etcd.has_quorum() {
                return Some(Err(Status::unknown("etcdserver: no leader")));
            }
            let members = etcd.list();
            let legacy_members = members.iter().map(|member| member.hostname.clone()).collect();
            let message = EtcdMembers { legacy_members, members, ..EtcdMembers::default() };
            Some(Ok(EtcdMemberListResponse { messages: vec![message] }))
        })
        .await
    }

    async fn etcd_status(&self, _: Request<()>) -> Result<Response<EtcdStatusResponse>, Status> {
        self.etcd("etcd status", |etcd| {
            let message = EtcdStatus { member_status: Some(etcd.status(self.0.name())), ..EtcdStatus::default() };
            Some(Ok(EtcdStatusResponse { messages: vec![message] }))
        })
        .await
    }

    /// Without alarms there is one element with none (point 18); without a quorum no answer (point 17).
    async fn etcd_alarm_list(&self, _: Request<()>) -> Result<Response<EtcdAlarmListResponse>, Status> {
        self.etcd("etcd alarm list", |etcd| {
            let message = EtcdAlarm { member_alarms: etcd.alarms(), ..EtcdAlarm::default() };
            etcd.has_quorum().then(|| Ok(EtcdAlarmListResponse { messages: vec![message] }))
        })
        .await
    }
}
