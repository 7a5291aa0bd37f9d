//! The API server of one control plane: the program, and the lab's listener before it.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use talos_proto::clock::Clock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::api::Api;
use super::cluster::lock;
use super::forward::Forward;
use super::https;
use super::process::Process;
use super::servers::REAL_PORT;
use crate::kube::objects::Machine;
use crate::kube::server::{ApiServer, Behind, Shared};
use crate::pki::{Ca, Pair, TlsError, server_config};

/// Between two looks at something that is about to be.
const LOOK: Duration = Duration::from_millis(40);

/// The API server of a control plane: the listener and the program behind it.
pub(super) struct Member {
    pub address: Ipv4Addr,
    pub listener: Arc<ApiServer>,
    program: Mutex<Option<Process>>,
    /// Ends the wait for it to listen and to be ready.
    starting: Mutex<CancellationToken>,
    /// It said so itself.
    ready: watch::Sender<bool>,
    /// The lab's own way to it.
    pub api: Api,
    clock: Clock,
    runtime: Handle,
}

impl Member {
    pub fn new(
        machine: &Machine,
        address: Ipv4Addr,
        (ca, certificate): (&Ca, &Pair),
        identity: &Pair,
        shared: &Arc<Shared>,
    ) -> Result<Self, TlsError> {
        let tls = server_config(certificate, ca, &[b"http/1.1"], false)?;
        let behind = Behind::Real(Box::new(Forward::new(address, ca.cert_pem(), identity)?));
        let listener = ApiServer::new(&machine.name, address, tls, behind, Arc::clone(shared), Handle::current());
        let client = https::client(ca.cert_pem(), Some(&ca.client("lab", &["system:masters"])))?;
        let api = Api::new(client, format!("https://{address}:{REAL_PORT}"));
        let (program, starting, ready) = (Mutex::default(), Mutex::default(), watch::Sender::new(false));
        let (clock, runtime) = (shared.clock.clone(), Handle::current());
        Ok(Self { address, listener, program, starting, ready, api, clock, runtime })
    }

    /// SIGKILL, and the listener is gone with it.
    pub fn stop(&self) {
        lock(&self.starting).cancel();
        self.ready.send_replace(false);
        self.listener.stop();
        if let Some(program) = lock(&self.program).take() {
            program.kill();
        }
    }

    /// Whether it says that it is ready.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Takes a program that has been started. The listener opens as soon as the real one listens, long before that is
    /// ready: what it answers until then is its own.
    pub fn start(&self, program: Option<Process>) {
        let Some(program) = program else { return };
        *lock(&self.program) = Some(program);
        let cancel = CancellationToken::new();
        *lock(&self.starting) = cancel.clone();
        let (listener, clock) = (Arc::clone(&self.listener), self.clock.clone());
        let (address, api, ready) = ((self.address, REAL_PORT), self.api.clone(), self.ready.clone());
        let work = async move {
            while tokio::net::TcpStream::connect(address).await.is_err() {
                clock.sleep(LOOK).await;
            }
            listener.start();
            while !api.get("/readyz").await.is_ok_and(|reply| reply.is_ok()) {
                clock.sleep(LOOK).await;
            }
            ready.send_replace(true);
        };
        self.runtime.spawn(cancel.run_until_cancelled_owned(work));
    }
}
