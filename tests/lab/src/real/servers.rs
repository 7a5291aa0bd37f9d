//! The programs of the control plane and their flags.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use super::files::Files;
use super::forward::{GROUP_HEADER, USER_HEADER};
use super::process::Process;
use super::programs::Programs;
use crate::pki::{Ca, Pair};

/// Where the kube-apiservers listen. The product's address of them is the lab's listener on the usual port.
pub const REAL_PORT: u16 = 7443;
/// The name in the certificate of the listeners.
pub(super) const PROXY: &str = "lab-listener";

/// Flags of a kube-apiserver beyond the usual, for tests that need them.
pub type Flags = Vec<String>;

/// Starts the programs of one cluster.
pub(super) struct Servers {
    programs: Programs,
    files: Files,
    dir: PathBuf,
    etcd: Ipv4Addr,
    more: Flags,
}

impl Servers {
    /// Writes what they need into `dir`.
    pub fn new(
        programs: Programs,
        dir: &Path,
        etcd: Ipv4Addr,
        (ca, server, proxy): (&Ca, &Pair, &Ca),
        more: Flags,
    ) -> io::Result<Self> {
        let files = Files::write(dir, ca, server, proxy)?;
        Ok(Self { programs, files, dir: dir.to_owned(), etcd, more })
    }

    fn start(&self, program: &str, log: &str, args: &[String]) -> io::Result<Process> {
        let process = Process::start(&self.programs.path(program), args, &self.dir.join(format!("{log}.log")));
        process.map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))
    }

    /// etcd, with one member. What it holds need not outlive the lab, so it does not wait for the disk.
    pub fn etcd(&self) -> io::Result<Process> {
        let (client, peer) = (format!("http://{}:2379", self.etcd), format!("http://{}:2380", self.etcd));
        let args = [
            "--name=lab".to_owned(),
            format!("--data-dir={}", self.dir.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=lab={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        self.start("etcd", "etcd", &args)
    }

    /// A kube-apiserver at that address.
    pub fn api_server(&self, name: &str, address: Ipv4Addr) -> io::Result<Process> {
        let files = &self.files;
        let mut args = vec![
            format!("--etcd-servers=http://{}:2379", self.etcd),
            format!("--bind-address={address}"),
            format!("--advertise-address={address}"),
            format!("--secure-port={REAL_PORT}"),
            // The other one refuses loopback addresses.
            "--endpoint-reconciler-type=none".to_owned(),
            files.flag("tls-cert-file", "server.crt"),
            files.flag("tls-private-key-file", "server.key"),
            files.flag("client-ca-file", "ca.crt"),
            files.flag("requestheader-client-ca-file", "proxy-ca.crt"),
            format!("--requestheader-allowed-names={PROXY}"),
            format!("--requestheader-username-headers={USER_HEADER}"),
            format!("--requestheader-group-headers={GROUP_HEADER}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            files.flag("service-account-key-file", "tokens.crt"),
            files.flag("service-account-signing-key-file", "tokens.key"),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
        ];
        args.extend(self.more.iter().cloned());
        self.start("kube-apiserver", &format!("kube-apiserver-{name}"), &args)
    }

    /// kube-controller-manager, through the kubeconfig that is its own: the controllers that a roll has to do with.
    pub fn controllers(&self, kubeconfig: &Path) -> io::Result<Process> {
        let args = [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // With one identity for all of them RBAC refuses each.
            "--use-service-account-credentials=true".to_owned(),
            "--controllers=daemonset-controller,disruption-controller,namespace-controller,node-lifecycle-controller,\
             replicaset-controller,serviceaccount-controller"
                .to_owned(),
            // Scaled like everything in a lab: 5 s and 50 s by default.
            "--node-monitor-period=500ms".to_owned(),
            "--node-monitor-grace-period=6s".to_owned(),
        ];
        self.start("kube-controller-manager", "kube-controller-manager", &args)
    }

    /// The path of a file in the cluster's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.path(name)
    }
}
