//! Which node a request is for (talos.md 2.3; texts from read.jsonl).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tonic::Status;

use super::Call;
use crate::net::APID_PORT;
use crate::talos::Role;
use crate::talos::node::Node;

/// The node or the nodes that a request is for.
pub(super) enum Target {
    One(Arc<Node>),
    /// By name or address, as the caller wrote them.
    Many(Vec<String>),
}

pub(super) fn route(node: &Arc<Node>, call: &Call) -> Result<Target, Status> {
    let values = |name: &str| -> Vec<String> {
        let values = call.headers.get_all(name).into_iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    if call.headers.contains_key("proxyfrom") {
        return Ok(Target::One(Arc::clone(node)));
    }
    let nodes = values("nodes");
    if !nodes.is_empty() {
        // COSI and the image service refuse it even for one node (point 8).
        if !call.path.starts_with("/machine.MachineService/") {
            return Err(Status::invalid_argument(format!(
                "one-2-many proxying is not supported for method {}",
                call.path
            )));
        }
        return Ok(Target::Many(nodes));
    }
    match values("node").as_slice() {
        [] => Ok(Target::One(Arc::clone(node))),
        [name] => resolve(node, name).map(Target::One),
        _ => Err(Status::invalid_argument("node metadata must be single-valued")),
    }
}

/// Finds the node that `name` means at the endpoint `node`.
pub(super) fn resolve(node: &Arc<Node>, name: &str) -> Result<Arc<Node>, Status> {
    if node.role() == Role::Worker {
        // A worker's apid has no client certificate: it knows itself, by address or name, and forwards nowhere.
        let own = name == node.name() || name == node.address().to_string();
        return if own { Ok(Arc::clone(node)) } else { Err(Status::permission_denied("no request forwarding")) };
    }
    let address = name.parse::<IpAddr>();
    if name.is_empty() || (name.contains(':') && address.is_err()) {
        return Err(Status::internal(format!("invalid target {name:?}")));
    }
    match address {
        Ok(IpAddr::V4(address)) => {
            node.fleet.at(address).ok_or_else(|| unreachable(address, "connect: no route to host"))
        }
        Ok(IpAddr::V6(address)) => Err(Status::unavailable(format!(
            "connection error: desc = \"transport: Error while dialing: dial tcp [{address}]:{APID_PORT}: connect: \
             network is unreachable\""
        ))),
        Err(_) => Err(Status::unavailable(format!(
            "dns: A record lookup error: lookup {name} on 127.0.0.53:53: no such host"
        ))),
    }
}

/// The proxy's word for a target that it cannot dial.
pub(super) fn unreachable(address: Ipv4Addr, why: &str) -> Status {
    Status::unavailable(format!(
        "connection error: desc = \"transport: Error while dialing: dial tcp {address}:{APID_PORT}: {why}\""
    ))
}
