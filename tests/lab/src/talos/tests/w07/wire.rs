//! Any call to any method, as bytes.

use std::time::Duration;

use http::uri::PathAndQuery;
use prost::bytes::{Buf as _, BufMut as _};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// What a node said.
#[derive(Debug)]
pub(super) struct Answer {
    pub replies: Vec<Vec<u8>>,
    pub code: Code,
    pub message: String,
}

/// Asks and reads to the end, or until the deadline, which travels with the request.
pub(super) async fn ask(
    channel: Channel,
    path: &str,
    metadata: &[(&'static str, String)],
    message: Vec<u8>,
    timeout: Duration,
) -> Answer {
    let mut replies = Vec::new();
    let end = read(channel, path, metadata, message, timeout, &mut replies).await;
    let status = end.err().unwrap_or_else(|| Status::ok(""));
    // The client stops at the same moment as the server, and says so in its own way.
    if status.code() == Code::Cancelled && status.message() == "Timeout expired" {
        return Answer { replies, code: Code::DeadlineExceeded, message: String::new() };
    }
    Answer { replies, code: status.code(), message: status.message().to_owned() }
}

async fn read(
    channel: Channel,
    path: &str,
    metadata: &[(&'static str, String)],
    message: Vec<u8>,
    timeout: Duration,
    replies: &mut Vec<Vec<u8>>,
) -> Result<(), Status> {
    let mut request = Request::new(message);
    for (key, value) in metadata {
        request.metadata_mut().append(*key, value.parse().unwrap());
    }
    request.set_timeout(timeout);
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path: PathAndQuery = path.parse().unwrap();
    let mut stream = client.server_streaming(request, path, Bytes).await?.into_inner();
    while let Some(reply) = stream.message().await? {
        replies.push(reply);
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}
