//! A server in memory that answers with given bytes, so that what the client does on the wire can be looked at.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tonic::Code;
use tonic::transport::Endpoint as Target;

use crate::clock::Clock;
use crate::{Node, Talos};

/// What the server says to one call: messages, then a status.
pub(super) struct Answer {
    messages: BoxStream<'static, Vec<u8>>,
    code: Code,
    words: String,
}

impl Answer {
    pub(super) fn one(message: Vec<u8>) -> Self {
        Self::stream(stream::iter([message]))
    }

    pub(super) fn stream(messages: impl futures::Stream<Item = Vec<u8>> + Send + 'static) -> Self {
        Self { messages: messages.boxed(), code: Code::Ok, words: String::new() }
    }

    pub(super) fn refusal(code: Code) -> Self {
        Self::refusal_saying(code, "")
    }

    pub(super) fn refusal_saying(code: Code, words: &str) -> Self {
        Self { messages: stream::empty().boxed(), code, words: words.to_owned() }
    }
}

/// A call that the server got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) path: String,
    /// `node` of the metadata.
    pub(super) node: String,
    pub(super) message: Vec<u8>,
}

type Answers = dyn Fn(&Asked) -> Answer + Send + Sync;

/// What went through.
#[derive(Clone, Default)]
pub(super) struct Wire {
    asked: Arc<Mutex<Vec<Asked>>>,
    /// All that the client wrote on its connections, one after the other.
    written: Arc<Mutex<Vec<u8>>>,
}

impl Wire {
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The types of the HTTP/2 frames of the client's only connection, and whether their first flag is set.
    pub(super) fn frames(&self) -> Vec<(u8, bool)> {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let written = self.written.lock().unwrap();
        let mut rest = written.strip_prefix(PREFACE).expect("HTTP/2 begins with a preface");
        let mut frames = Vec::new();
        while let [a, b, c, kind, flags, tail @ ..] = rest {
            let length = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap();
            frames.push((*kind, flags & 1 == 1));
            rest = &tail[4 + length..];
        }
        assert!(rest.is_empty());
        frames
    }

    /// PING frames that are no answer to one.
    pub(super) fn pings(&self) -> usize {
        self.frames().into_iter().filter(|frame| *frame == (6, false)).count()
    }
}

/// A node behind an endpoint that answers so; on tokio's clock.
pub(super) fn node(
    answers: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    adjust: impl FnOnce(Target) -> Target,
) -> (Node, Wire) {
    let wire = Wire::default();
    let answers: Arc<Answers> = Arc::new(answers);
    let connector = tower::service_fn({
        let wire = wire.clone();
        move |_: http::Uri| {
            let (client, server) = tokio::io::duplex(1 << 20);
            tokio::spawn(serve(server, wire.clone(), Arc::clone(&answers)));
            async { Ok::<_, Infallible>(TokioIo::new(client)) }
        }
    });
    let talos = Talos::over(connector, Clock::paused(Timestamp::UNIX_EPOCH), adjust);
    (talos.node("10.0.0.5".parse().unwrap()), wire)
}

async fn serve(io: DuplexStream, wire: Wire, answers: Arc<Answers>) {
    let tap = Tap { io, written: Arc::clone(&wire.written) };
    let service = tower::service_fn(move |request| answer(request, wire.clone(), Arc::clone(&answers)));
    let server = auto::Builder::new(TokioExecutor::new()).http2_only();
    // A connection that the client closes is the end of the test, not a failure.
    let _ = server.serve_connection(TokioIo::new(tap), TowerToHyperService::new(service)).await;
}

type Reply = http::Response<StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>>;

async fn answer(
    request: http::Request<Incoming>,
    wire: Wire,
    answers: Arc<Answers>,
) -> Result<Reply, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let node = head.headers.get("node").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    // One message after its flag and length.
    let asked = Asked { path: head.uri.path().to_owned(), node, message: body[5..].to_vec() };
    let Answer { messages, code, words } = answers(&asked);
    wire.asked.lock().unwrap().push(asked);
    let data = messages.map(|message| {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        Ok(Frame::data([&[0], length.as_slice(), &message].concat().into()))
    });
    // As gRPC has it, what is no visible ASCII is percent-encoded.
    let words = words.replace('%', "%25").replace('\n', "%0A");
    let status = http::HeaderMap::from_iter([
        (http::HeaderName::from_static("grpc-status"), http::HeaderValue::from(i32::from(code))),
        (http::HeaderName::from_static("grpc-message"), http::HeaderValue::from_str(&words)?),
    ]);
    let frames = data.chain(stream::iter([Ok(Frame::trailers(status))])).boxed();
    Ok(http::Response::builder().header("content-type", "application/grpc").body(StreamBody::new(frames))?)
}

/// The server's end of a transport; keeps what the client wrote.
struct Tap {
    io: DuplexStream,
    written: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Tap {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        self.written.lock().unwrap().extend_from_slice(&buf.filled()[before..]);
        polled
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
