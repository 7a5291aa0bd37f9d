//! What stands before API servers and passes connections on as they are: a load balancer in front of several, a tunnel to
//! one, or a virtual address that moves. It ends no TLS, so that clients see the certificate of the one behind it.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::net;

/// One listener; dropping it closes it and all its connections.
pub struct Front {
    address: SocketAddrV4,
    behind: Arc<Mutex<Behind>>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Behind {
    servers: Vec<SocketAddrV4>,
    /// How many connections were passed on, each to the next server in turn.
    passed: usize,
    /// Cuts the connections to these servers.
    cut: CancellationToken,
}

impl Front {
    pub(crate) fn open(address: Ipv4Addr, port: u16) -> io::Result<Self> {
        let listener = net::bind(address, port)?;
        let front =
            Self { address: SocketAddrV4::new(address, port), behind: Arc::default(), stop: CancellationToken::new() };
        tokio::spawn(front.stop.clone().run_until_cancelled_owned(accept(
            listener,
            address,
            Arc::clone(&front.behind),
        )));
        Ok(front)
    }

    /// For a kubeconfig.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Its address.
    #[must_use]
    pub fn ip(&self) -> Ipv4Addr {
        *self.address.ip()
    }

    pub(crate) fn turn(&self, servers: Vec<SocketAddrV4>) {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        behind.cut.cancel();
        *behind = Behind { servers, ..Behind::default() };
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.cancel();
        self.turn(Vec::new());
    }
}

async fn accept(listener: TcpListener, from: Ipv4Addr, behind: Arc<Mutex<Behind>>) {
    loop {
        // A connection that broke before it was accepted; the listener itself is well.
        let Ok((client, _)) = listener.accept().await else { continue };
        let (servers, cut) = {
            let mut behind = behind.lock().unwrap_or_else(PoisonError::into_inner);
            let mut servers = behind.servers.clone();
            servers.rotate_left(behind.passed % behind.servers.len().max(1));
            behind.passed += 1;
            (servers, behind.cut.clone())
        };
        tokio::spawn(cut.run_until_cancelled_owned(pass(client, servers, from)));
    }
}

/// To the first of these that is there, as a balancer does that looks after its servers; behind nobody the connection is
/// closed at once.
async fn pass(mut client: TcpStream, servers: Vec<SocketAddrV4>, from: Ipv4Addr) {
    let mut found = None;
    for server in servers {
        if let Ok(server) = connect(server, from).await {
            found = Some(server);
            break;
        }
    }
    let Some(mut server) = found else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // How it ended is told to both by its end.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

/// From the front's own address, which a firewall may let in.
async fn connect(server: SocketAddrV4, from: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddrV4::new(from, 0).into())?;
    socket.connect(server.into()).await
}
