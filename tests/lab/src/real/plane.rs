//! etcd and kube-apiservers alone: what the API itself does, without controllers and kubelets that change objects
//! meanwhile, and without a listener of the lab in between.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use talos_proto::clock::Clock;

use super::api::Api;
use super::cluster::{StartError, until_ready};
use super::https;
use super::process::Process;
use super::programs::Programs;
use super::servers::{Flags, REAL_PORT, Servers};
use crate::files;
use crate::net::Network;
use crate::pki::{Ca, TlsError};

/// As many API servers as it can have.
const MOST: usize = 3;

/// Running programs, killed when this is dropped.
pub struct ControlPlane {
    servers: Servers,
    network: Network,
    ca: Ca,
    clock: Clock,
    folder: PathBuf,
    etcd: Process,
    api_servers: Mutex<BTreeMap<usize, Process>>,
}

impl ControlPlane {
    /// Starts etcd and the first API server, which is ready then. What they write goes into `dir`.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(programs: Programs, dir: &Path, flags: Flags) -> Result<Self, StartError> {
        let folder = programs.folder().to_owned();
        let failed = |error| StartError::Program(folder.clone(), error);
        let network = Network::take().map_err(failed)?;
        let (ca, proxy) = (Ca::new("kubernetes", "kubernetes"), Ca::new("lab listeners", "lab"));
        let sans: Vec<String> = (0..MOST).map(|index| network.control_plane(index).to_string()).collect();
        let files = (&ca, &ca.server(&sans), &proxy);
        let servers = Servers::new(programs, dir, network.etcd(), files, flags).map_err(failed)?;
        let etcd = servers.etcd().map_err(failed)?;
        let (clock, api_servers) = (Clock::system(), Mutex::default());
        let plane = Self { servers, network, ca, clock, folder, etcd, api_servers };
        plane.start_api_server(0).await?;
        Ok(plane)
    }

    fn api_servers(&self) -> MutexGuard<'_, BTreeMap<usize, Process>> {
        self.api_servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an API server with this index, a new one or one that was killed, and waits until it is ready.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start_api_server(&self, index: usize) -> Result<(), StartError> {
        let name = index.to_string();
        let program = self.servers.api_server(&name, self.address(index));
        let program = program.map_err(|error| StartError::Program(self.folder.clone(), error))?;
        let log = self.servers.path(&format!("kube-apiserver-{name}.log"));
        until_ready(&self.api(index)?, &[&program], &self.clock, log).await?;
        self.api_servers().insert(index, program);
        Ok(())
    }

    /// SIGKILL: whoever connects to it is refused.
    pub fn kill_api_server(&self, index: usize) {
        if let Some(program) = self.api_servers().remove(&index) {
            program.kill();
        }
    }

    /// Stops etcd in the middle of whatever it does, or lets it go on: every request that needs it hangs meanwhile.
    pub fn freeze_etcd(&self, freeze: bool) {
        if freeze { self.etcd.freeze() } else { self.etcd.thaw() }
    }

    /// Where the API server with this index listens.
    #[must_use]
    pub fn address(&self, index: usize) -> Ipv4Addr {
        self.network.control_plane(index)
    }

    /// The same with scheme and port.
    #[must_use]
    pub fn url(&self, index: usize) -> String {
        format!("https://{}:{REAL_PORT}", self.address(index))
    }

    /// The authority of all certificates.
    #[must_use]
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// The administrator's way to an API server.
    ///
    /// # Errors
    /// When a certificate cannot be used.
    pub fn api(&self, index: usize) -> Result<Api, TlsError> {
        let admin = self.ca.client("admin", &["system:masters"]);
        Ok(Api::new(https::client(self.ca.cert_pem(), Some(&admin))?, self.url(index)))
    }

    /// A kubeconfig of the administrator that names an API server.
    #[must_use]
    pub fn kubeconfig(&self, index: usize) -> String {
        files::kubeconfig(&self.url(index), &self.ca, &self.ca.client("admin", &["system:masters"]))
    }
}
