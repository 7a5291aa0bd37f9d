//! Calls to one node.
//!
//! `node` metadata always carries one address without a port: with `nodes` a refusal hides inside an OK reply and COSI
//! refuses it altogether (talos-captures, point 8).

use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::channel::{Route, Routing, Talos};
use crate::error::{CallError, Why};
use crate::permit::Permit;
use crate::proto::machine::machine_service_client::MachineServiceClient;
use crate::proto::machine::{self, apply_configuration_request, reboot_request};
use crate::version::TalosVersion;

/// The limit of a call that reads.
pub const READ_TIMEOUT: Duration = Duration::from_secs(8);
/// The limit of an etcd call, which has no answer at all where etcd does not run (talos-captures, point 11).
pub const ETCD_TIMEOUT: Duration = Duration::from_secs(5);
/// apid's own limit for a message (Talos `pkg/machinery/constants`, `GRPCMaxMessageSize`); tonic's default is 4 MiB.
pub const MAX_MESSAGE: usize = 32 << 20;

/// One node, reached through the endpoints or directly.
#[derive(Clone, Debug)]
pub struct Node {
    talos: Talos,
    address: IpAddr,
    direct: bool,
    /// The one way to it, where it is named by that.
    only: Option<Route>,
}

/// The interceptor that names the node and ourselves in each request's metadata.
#[derive(Clone)]
pub(crate) struct Header {
    node: Option<MetadataValue<tonic::metadata::Ascii>>,
}

impl tonic::service::Interceptor for Header {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(node) = &self.node {
            request.metadata_mut().insert("node", node.clone());
        }
        // talosctl sends it with each call (`pkg/machinery/client/grpc_connection_wrapper.go`).
        request.metadata_mut().insert("runtime", MetadataValue::from_static("Talos"));
        Ok(request)
    }
}

pub(crate) type Service = InterceptedService<Channel, Header>;

/// What a call is for messages and how it may be repeated.
#[derive(Clone, Copy)]
pub(crate) struct Kind<'a> {
    pub(crate) name: &'a str,
    pub(crate) timeout: Duration,
    /// A write is sent to another endpoint only when nothing can have been sent to the first.
    pub(crate) write: bool,
    /// The status message may hold a secret.
    pub(crate) secret: bool,
}

impl<'a> Kind<'a> {
    pub(crate) fn read(name: &'a str) -> Self {
        Self { name, timeout: READ_TIMEOUT, write: false, secret: false }
    }
}

impl Node {
    pub(crate) fn new(talos: Talos, address: IpAddr, direct: bool) -> Self {
        Self { talos, address, direct, only: None }
    }

    /// Whichever machine answers on that route. Its address is not known when the endpoint is a name.
    pub(crate) fn only_at(talos: Talos, route: Route) -> Self {
        let address = crate::identity::address_of(&route.endpoint.host).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        Self { talos, address, direct: true, only: Some(route) }
    }

    /// The same node, dialled at its own address: the quickest way to see it come back, for another apid backs off for
    /// up to 15 s from a target that it saw down (talos-captures, point 11). With [`Routing::Proxy`] it is the same
    /// node by the same way.
    #[must_use]
    pub fn directly(&self) -> Node {
        Self { direct: self.talos.routing() != Routing::Proxy, ..self.clone() }
    }

    /// The same node by the way that `--route` says: takes [`Node::directly`] back.
    #[must_use]
    pub fn through_endpoints(&self) -> Node {
        self.talos.node(self.address)
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The cluster's Talos API.
    #[must_use]
    pub fn talos(&self) -> &Talos {
        &self.talos
    }

    /// Sends a call, through the next endpoint when the failure is the endpoint's. Boxed, for a dozen of these futures
    /// are joined in one inventory and each is several kilobytes.
    pub(crate) async fn call<T, F>(&self, kind: Kind<'_>, send: impl Fn(Service, Duration) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        Box::pin(self.over_routes(kind, None, send)).await
    }

    /// As [`Node::call`], for a call that changes something: the permit is looked at last, before each attempt.
    pub(crate) async fn change<T, F>(
        &self,
        kind: Kind<'_>,
        permit: Permit,
        send: impl Fn(Service, Duration) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        Box::pin(self.over_routes(kind, Some(permit), send)).await
    }

    async fn over_routes<T, F>(
        &self,
        kind: Kind<'_>,
        permit: Option<Permit>,
        send: impl Fn(Service, Duration) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let error = |endpoint: &dyn std::fmt::Display, why| CallError {
            call: kind.name.to_owned(),
            node: self.address,
            endpoint: endpoint.to_string(),
            why,
        };
        let routes = if let Some(only) = &self.only {
            vec![only.clone()]
        } else if self.direct {
            vec![
                self.talos
                    .direct(self.address)
                    .map_err(|wrong| error(&self.address, Why::Reply { problem: crate::error::chain(&wrong) }))?,
            ]
        } else {
            self.talos.routes(self.address)
        };
        let _slot = self.talos.in_flight().acquire().await;
        let mut last = None;
        let (mut unreachable, mut tried_itself) = (0, false);
        let begun = self.talos.clock().now();
        let mut routes = VecDeque::from(routes);
        while let Some(route) = routes.pop_front() {
            // A permit covers one timeout: the attempts of a write share it, so that the last cannot land after it.
            let spent = if kind.write { self.talos.clock().now().since(begun) } else { Duration::ZERO };
            let attempt = Kind { timeout: kind.timeout.saturating_sub(spent), ..kind };
            if let Some(Err(no)) = permit.as_ref().map(|permit| permit.covers(attempt.timeout)) {
                return Err(error(&route.endpoint, no.into()));
            }
            let answer = self.send(&route, attempt, &send).await;
            let why = match answer {
                Ok(reply) => return Ok(reply),
                Err(why) => why,
            };
            // Both "endpoint cannot reach the node" and "the connection broke" are worth one other endpoint when the
            // call only reads; then the node counts as down.
            let mut retry = if why.is_endpoint() {
                self.talos.bench(&route.endpoint);
                true
            } else if !kind.write && worth_another(&why, kind.timeout) {
                unreachable += 1;
                unreachable < 2
            } else {
                false
            };
            let broke = matches!(why, Why::Broken { .. });
            let hidden = matches!(why, Why::TargetUnreachable { .. }) && !kind.write;
            if hidden && (!retry || routes.is_empty()) && !std::mem::replace(&mut tried_itself, true) {
                routes = self.itself(routes).into_iter().collect();
                retry = !routes.is_empty();
            }
            // What the proxies said of the node tells more than that it cannot be dialled either.
            if last.is_none() || !(tried_itself && why.is_endpoint()) {
                last = Some(error(&route.endpoint, why));
            }
            // Another call's end may have closed the connection under this one: the only way is worth a new one.
            if broke && retry && routes.is_empty() {
                routes.push_back(route);
            }
            if !retry || (kind.write && self.talos.clock().now().since(begun) >= kind.timeout) {
                break;
            }
        }
        Err(last.unwrap_or_else(|| error(&"no endpoint", Why::Reply { problem: "there is no endpoint".into() })))
    }

    /// The way to the node that no other apid stands in: one that saw it down refuses to look for it again for up to 15 s,
    /// although it is back (talos-captures, point 11). Its own address where that may be dialled, else its own endpoint
    /// among those that are left.
    fn itself(&self, left: VecDeque<Route>) -> Option<Route> {
        if self.only.is_some() {
            return None;
        }
        if self.talos.routing() == Routing::Auto {
            return self.talos.direct(self.address).ok();
        }
        left.into_iter().find(|route| crate::identity::address_of(&route.endpoint.host) == Some(self.address))
    }

    async fn send<T, F>(&self, route: &Route, kind: Kind<'_>, send: impl Fn(Service, Duration) -> F) -> Result<T, Why>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.talos.count();
        let node = (!route.direct).then(|| MetadataValue::try_from(self.address.to_string()));
        let node = node.transpose().map_err(|_| Why::Reply { problem: "the address is no metadata".into() })?;
        let service = InterceptedService::new(route.channel.clone(), Header { node });
        match self.talos.clock().timeout(kind.timeout, send(service, kind.timeout)).await {
            Ok(answer) => answer.map_err(|status| Why::of(&status, kind.timeout, kind.secret)),
            Err(_) => Err(Why::Deadline { after: kind.timeout }),
        }
    }

    /// The Talos version that the node runs.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn version(&self) -> Result<TalosVersion, CallError> {
        let kind = Kind::read("Version");
        let reply =
            self.call(kind, |service, limit| async move { client(service).version(timed((), limit)).await }).await?;
        let tag = reply.into_inner().messages.into_iter().next().and_then(|message| message.version);
        let tag = tag.map(|version| version.tag).unwrap_or_default();
        tag.parse().map_err(|wrong: crate::version::NotAVersion| self.nonsense(kind.name, wrong.to_string()))
    }

    /// The content of a file; needs os:admin.
    ///
    /// # Errors
    /// Any [`CallError`]; [`Why::NotFound`] when there is no such file.
    pub async fn read_file(&self, path: &str) -> Result<Vec<u8>, CallError> {
        let name = format!("Read {path}");
        self.call(Kind::read(&name), |service, limit| async move {
            let request = timed(machine::ReadRequest { path: path.to_owned() }, limit);
            let mut stream = client(service).read(request).await?.into_inner();
            let mut bytes = Vec::new();
            while let Some(data) = stream.message().await? {
                bytes.extend_from_slice(&data.bytes);
            }
            Ok(bytes)
        })
        .await
    }

    /// Replaces the machine config. The reply is judged here and then dropped, and so are the words of a refusal:
    /// both can hold the password in clear (talos-captures, point 7).
    ///
    /// # Errors
    /// [`Why::NoPermit`] when the permit runs out too soon; [`Why::Broken`] or [`Why::Deadline`] when it may have been
    /// applied; [`Why::Refused`] without words when the node refused; [`Why::Reply`] when an OK reply does not say
    /// that the mode that was asked for was used.
    pub async fn apply_configuration(
        &self,
        permit: Permit,
        data: &[u8],
        mode: Apply,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let kind = Kind { name: "ApplyConfiguration", timeout, write: true, secret: true };
        let wanted = mode.wire();
        let reply = self
            .change(kind, permit, |service, limit| {
                let request = machine::ApplyConfigurationRequest {
                    data: data.to_vec(),
                    mode: wanted.into(),
                    dry_run: false,
                    try_mode_timeout: mode.rollback().map(|after| prost_types::Duration {
                        seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                        nanos: i32::try_from(after.subsec_nanos()).unwrap_or(0),
                    }),
                };
                async move { client(service).apply_configuration(timed(request, limit)).await }
            })
            .await?;
        let messages = reply.into_inner().messages;
        let [message] = messages.as_slice() else {
            return Err(self.nonsense(kind.name, "the reply does not hold exactly one answer".into()));
        };
        if message.metadata.as_ref().is_some_and(|metadata| !metadata.error.is_empty()) {
            let refused = Why::Refused { code: tonic::Code::Unknown, message: None };
            return Err(self.error(kind.name, refused));
        }
        if message.mode() != wanted {
            return Err(self.nonsense(kind.name, format!("the node says mode {:?}", message.mode())));
        }
        Ok(())
    }

    /// Asks for a reboot of that mode. OK proves nothing: it is answered before anything happens, also when it is asked
    /// twice, and it may then not happen (talos-captures, point 12). Only another boot id does.
    ///
    /// # Errors
    /// Any [`CallError`]; after [`Why::Broken`] or [`Why::Deadline`] it may have been accepted.
    pub async fn reboot(&self, permit: Permit, mode: RebootMode, timeout: Duration) -> Result<(), CallError> {
        let kind = Kind { name: "Reboot", timeout, write: true, secret: false };
        let request = machine::RebootRequest { mode: mode.wire().into() };
        let reply = self
            .change(kind, permit, |service, limit| async move { client(service).reboot(timed(request, limit)).await })
            .await?;
        let refused = reply.into_inner().messages.into_iter().find_map(|message| message.metadata);
        match refused.map(|metadata| metadata.error).filter(|error| !error.is_empty()) {
            Some(message) => {
                Err(self.error(kind.name, Why::Refused { code: tonic::Code::Unknown, message: Some(message) }))
            }
            None => Ok(()),
        }
    }

    /// The services with the last 64 events of each.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn services(&self) -> Result<Vec<machine::ServiceInfo>, CallError> {
        let kind = Kind::read("ServiceList");
        let reply = self
            .call(kind, |service, limit| async move { client(service).service_list(timed((), limit)).await })
            .await?;
        Ok(reply.into_inner().messages.into_iter().flat_map(|message| message.services).collect())
    }

    /// The etcd members as the cluster knows them; needs a leader.
    ///
    /// # Errors
    /// Any [`CallError`]; [`Why::Deadline`] where etcd does not run.
    pub async fn etcd_members(&self) -> Result<Vec<machine::EtcdMember>, CallError> {
        let request = machine::EtcdMemberListRequest { query_local: false };
        let reply = self
            .call(Kind { timeout: ETCD_TIMEOUT, ..Kind::read("EtcdMemberList") }, |service, limit| async move {
                client(service).etcd_member_list(timed(request, limit)).await
            })
            .await?;
        Ok(reply.into_inner().messages.into_iter().flat_map(|message| message.members).collect())
    }

    /// The etcd member of this node as it sees itself and its leader.
    ///
    /// # Errors
    /// Any [`CallError`]; [`Why::Deadline`] where etcd does not run, [`Why::NotSupported`] on a worker.
    pub async fn etcd_status(&self) -> Result<machine::EtcdMemberStatus, CallError> {
        let kind = Kind { timeout: ETCD_TIMEOUT, ..Kind::read("EtcdStatus") };
        let reply = self
            .call(kind, |service, limit| async move { client(service).etcd_status(timed((), limit)).await })
            .await?;
        let status = reply.into_inner().messages.into_iter().find_map(|message| message.member_status);
        status.ok_or_else(|| self.nonsense(kind.name, "no member status".into()))
    }

    /// The alarms of all etcd members; one empty element stands for none (talos-captures, point 18).
    ///
    /// # Errors
    /// Any [`CallError`]; [`Why::Deadline`] where etcd does not run.
    pub async fn etcd_alarms(&self) -> Result<Vec<machine::EtcdMemberAlarm>, CallError> {
        let kind = Kind { timeout: ETCD_TIMEOUT, ..Kind::read("EtcdAlarmList") };
        let reply = self
            .call(kind, |service, limit| async move { client(service).etcd_alarm_list(timed((), limit)).await })
            .await?;
        Ok(reply.into_inner().messages.into_iter().flat_map(|message| message.member_alarms).collect())
    }

    pub(crate) fn nonsense(&self, call: &str, problem: String) -> CallError {
        self.error(call, Why::Reply { problem })
    }

    pub(crate) fn error(&self, call: &str, why: Why) -> CallError {
        CallError { call: call.to_owned(), node: self.address, endpoint: "the endpoint".into(), why }
    }
}

/// Whether a read that failed so may well be answered through another endpoint. An etcd call has no answer at all where
/// etcd does not run, and asking twice would only take twice as long.
fn worth_another(why: &Why, timeout: Duration) -> bool {
    match why {
        Why::TargetUnreachable { .. } | Why::Broken { .. } => true,
        Why::Deadline { .. } => timeout == READ_TIMEOUT,
        _ => false,
    }
}

/// How a node is rebooted (talos.md 1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebootMode {
    /// An orderly stop, then kexec where that is possible.
    #[default]
    Default,
    /// An orderly stop, then a reboot of the firmware: for machines that do not survive kexec.
    Powercycle,
    /// No stop at all. Talos older than 1.12 takes it for the default.
    Force,
}

impl RebootMode {
    fn wire(self) -> reboot_request::Mode {
        match self {
            RebootMode::Default => reboot_request::Mode::Default,
            RebootMode::Powercycle => reboot_request::Mode::Powercycle,
            RebootMode::Force => reboot_request::Mode::Force,
        }
    }

    /// Whether a node of that version knows it.
    #[must_use]
    pub fn is_known_to(self, version: &TalosVersion) -> bool {
        self != RebootMode::Force || version.at_least(1, 12)
    }
}

impl std::fmt::Display for RebootMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RebootMode::Default => "default",
            RebootMode::Powercycle => "powercycle",
            RebootMode::Force => "force",
        })
    }
}

impl std::str::FromStr for RebootMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [RebootMode::Default, RebootMode::Powercycle, RebootMode::Force]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| format!("{text:?} is no reboot mode; there are default, powercycle and force"))
    }
}

/// How a machine config is applied. AUTO may reboot, REBOOT does, STAGED waits for a boot: the product uses none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// Persisted and active at once.
    NoReboot,
    /// Active at once and rolled back by Talos itself after that time unless it is made permanent.
    Try(Duration),
}

impl Apply {
    fn wire(self) -> apply_configuration_request::Mode {
        match self {
            Apply::NoReboot => apply_configuration_request::Mode::NoReboot,
            Apply::Try(_) => apply_configuration_request::Mode::Try,
        }
    }

    fn rollback(self) -> Option<Duration> {
        match self {
            Apply::NoReboot => None,
            Apply::Try(after) => Some(after),
        }
    }
}

pub(crate) fn client(service: Service) -> MachineServiceClient<Service> {
    MachineServiceClient::new(service).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE)
}

/// A request whose limit travels as grpc-timeout, so that a proxy stops as well.
pub(crate) fn timed<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}
