//! One request to several nodes, by `nodes` metadata. A refusal then hides in an OK reply: this is here so that a
//! product that used it would be caught (talos-captures point 8).

use std::sync::Arc;

use http::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use prost::Message as _;
use talos_proto::proto::common::Metadata;
use tonic::{Code, Status};

use super::access::Method;
use super::{Call, perform as ask, route};
use crate::talos::node::Node;

/// The whole reply is `repeated X messages = 1`, and every X has `common.Metadata metadata = 1`: so that replies can be
/// joined without knowing X.
pub(super) async fn perform(
    node: &Arc<Node>,
    targets: &[String],
    method: &Method,
    call: &Call,
) -> Response<tonic::body::Body> {
    if !method.unary {
        return Status::unimplemented("the lab does not stream from several nodes").into_http();
    }
    let mut joined = Vec::new();
    for target in targets {
        let reply = match route::resolve(node, target) {
            Ok(target) => unary(ask(&target, method, call).await).await,
            Err(status) => Err(status),
        };
        let elements = reply.and_then(|reply| elements(&reply));
        let (error, elements) = match elements {
            Ok(elements) => (String::new(), elements),
            Err(status) => {
                let error = format!("rpc error: code = {:?} desc = {}", status.code(), status.message());
                (error, vec![Vec::new()])
            }
        };
        let metadata = Metadata { hostname: target.clone(), error }.encode_to_vec();
        for element in elements {
            let mut message = field(&metadata);
            message.extend(element);
            joined.extend(field(&message));
        }
    }
    let mut frame = vec![0];
    frame.extend(u32::try_from(joined.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(joined);
    let body = Full::new(Bytes::from(frame)).with_trailers(async {
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        Some(Ok(trailers))
    });
    let mut response = Response::new(tonic::body::Body::new(body));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    response
}

/// Field 1, length-delimited.
fn field(bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![0x0a];
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    field.extend(bytes);
    field
}

fn elements(mut reply: &[u8]) -> Result<Vec<Vec<u8>>, Status> {
    let broken = || Status::internal("the lab made a reply that it cannot read");
    let mut elements = Vec::new();
    while let Some((0x0a, rest)) = reply.split_first() {
        reply = rest;
        let length = prost::encoding::decode_varint(&mut reply).map_err(|_| broken())?;
        let length = usize::try_from(length).map_err(|_| broken())?;
        let (element, rest) = reply.split_at_checked(length).ok_or_else(broken)?;
        elements.push(element.to_vec());
        reply = rest;
    }
    Ok(elements)
}

/// The message of a unary reply, or its status.
async fn unary(response: Response<tonic::body::Body>) -> Result<Bytes, Status> {
    if let Some(status) = Status::from_header_map(response.headers())
        && status.code() != Code::Ok
    {
        return Err(status);
    }
    let body = response.into_body().collect().await?;
    if let Some(status) = body.trailers().and_then(Status::from_header_map)
        && status.code() != Code::Ok
    {
        return Err(status);
    }
    let bytes = body.to_bytes();
    Ok(bytes.slice(bytes.len().min(5)..))
}
