//! A small HTTPS client for the lab's own tests.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::pki::{Pair, client_config};

/// One connection, and one request at a time on it.
pub struct Client {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
}

impl Client {
    /// Connects, as `client` or as nobody.
    pub async fn connect(address: (Ipv4Addr, u16), ca_pem: &str, client: Option<&Pair>) -> std::io::Result<Self> {
        let config = client_config(ca_pem, client).unwrap();
        let stream = TcpStream::connect(SocketAddrV4::new(address.0, address.1)).await?;
        let name = ServerName::IpAddress(std::net::IpAddr::V4(address.0).into());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Sends a request and gives the answer with its body still to be read.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }

    /// Sends a request without headers of interest and reads the whole answer.
    pub async fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).header("host", "lab");
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let response = self.send(request).await.unwrap();
        let code = response.status().as_u16();
        (code, text(response).await)
    }
}

/// The whole body of an answer.
pub async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}
