//! What a lab consists of, and the nodes that follow from it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::kube::controllers::Pace;
use crate::net::{MAX_CONTROL_PLANES, MAX_WORKERS, Network};
use crate::real::Programs;
use crate::registry::Backend;
use crate::talos::Role;
use crate::talos::config::Form;
use crate::talos::version::Version;

/// A Talos version and how many nodes have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// For instance `1.13.9`.
    pub version: String,
    /// How many nodes; without it as many as are left.
    pub count: Option<usize>,
}

impl FromStr for Share {
    type Err = String;

    /// `VERSION` or `VERSION=COUNT`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (version, count) = match text.split_once('=') {
            None => (text, None),
            Some((version, count)) => {
                (version, Some(count.parse().map_err(|_| format!("{count:?} is no number of nodes"))?))
            }
        };
        let version = version.trim_start_matches('v').to_owned();
        Ok(Self { version, count })
    }
}

/// Who plays Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kubernetes {
    /// The lab itself.
    Simulated,
    /// etcd, kube-apiserver and kube-controller-manager.
    Real(Programs),
}

/// The variable in which `real` says that tests run with a real Kubernetes.
pub const KUBERNETES_VARIABLE: &str = "TALOS_GHCR_LAB_KUBERNETES";

impl Kubernetes {
    /// What the environment says; without a word the lab plays it.
    ///
    /// # Errors
    /// When it is not known, or the programs are not there.
    pub fn from_env() -> Result<Self, String> {
        std::env::var(KUBERNETES_VARIABLE).map_or(Ok(Self::Simulated), |word| word.parse())
    }
}

impl FromStr for Kubernetes {
    type Err = String;

    /// `simulated`, or `real` with the programs that the environment names.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "simulated" => Ok(Self::Simulated),
            "real" => Programs::find().map(Self::Real).map_err(|missing| missing.to_string()),
            other => Err(format!("{other:?} is neither simulated nor real")),
        }
    }
}

/// What a lab consists of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it writes its files; made if it is not there.
    pub dir: PathBuf,
    /// How many control planes, `cp-1` and on.
    pub control_planes: usize,
    /// How many workers, `worker-1` and on.
    pub workers: usize,
    /// Versions of Talos: control planes take the first, the last fills up.
    pub talos: Vec<Share>,
    /// From a call of Reboot until the new boot id.
    pub reboot_time: Duration,
    /// From the start of a CRI process until it is healthy.
    pub cri_health: Duration,
    /// The control plane (from 0) that the kubeconfig names.
    pub endpoint: usize,
    /// Where the credential stands in the machine configs.
    pub form: Form,
    /// How long things take in Kubernetes.
    pub pace: Pace,
    /// Who plays it.
    pub kubernetes: Kubernetes,
    /// More flags of real kube-apiservers.
    pub api_server_flags: Vec<String>,
    /// What answers as the registry.
    pub registry: Backend,
}

impl Options {
    /// Three control planes and three workers with Talos 1.13.9, the kubeconfig naming `cp-1`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            control_planes: 3,
            workers: 3,
            talos: vec![Share { version: "1.13.9".into(), count: None }],
            reboot_time: Duration::from_secs(2),
            cri_health: Duration::from_millis(300),
            endpoint: 0,
            form: Form::Legacy,
            pace: Pace::default(),
            kubernetes: Kubernetes::Simulated,
            api_server_flags: Vec::new(),
            registry: Backend::default(),
        }
    }
}

/// A node before it is there.
pub(crate) struct Planned {
    pub name: String,
    pub address: Ipv4Addr,
    pub role: Role,
    pub version: Version,
}

/// Names, addresses and versions of the nodes: control planes first.
pub(crate) fn plan(options: &Options, network: &Network) -> Result<Vec<Planned>, String> {
    let Options { control_planes, workers, .. } = *options;
    if control_planes == 0 || control_planes > MAX_CONTROL_PLANES || workers > MAX_WORKERS {
        let why = format!("a lab has 1 to {MAX_CONTROL_PLANES} control planes and at most {MAX_WORKERS} workers");
        return Err(why);
    }
    if options.endpoint >= control_planes {
        return Err("the endpoint is not one of the control planes".into());
    }
    let mut versions = Vec::new();
    for share in &options.talos {
        let version: Version = share.version.parse().map_err(|_| format!("{:?} is no Talos version", share.version))?;
        versions.push((version, share.count));
    }
    let (Some((first, _)), Some((last, _))) = (versions.first(), versions.last()) else {
        return Err("no Talos version".into());
    };
    let spread = versions
        .iter()
        .flat_map(|(version, count)| std::iter::repeat_n(version, count.unwrap_or(control_planes + workers)));
    // The control planes take their part of the first share; what they take beyond it is not in any.
    let mut spread = spread.skip(control_planes.min(versions[0].1.unwrap_or(control_planes)));
    let mut nodes = Vec::new();
    for index in 0..control_planes {
        let (name, address) = (format!("cp-{}", index + 1), network.control_plane(index));
        nodes.push(Planned { name, address, role: Role::ControlPlane, version: first.clone() });
    }
    for index in 0..workers {
        let (name, address) = (format!("worker-{}", index + 1), network.worker(index));
        let version = spread.next().unwrap_or(last).clone();
        nodes.push(Planned { name, address, role: Role::Worker, version });
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(control_planes: usize, workers: usize, shares: &str) -> Vec<String> {
        let mut options = Options::new("");
        options.control_planes = control_planes;
        options.workers = workers;
        options.talos = shares.split(',').map(|share| share.parse().unwrap()).collect();
        let nodes = plan(&options, &Network::take().unwrap()).unwrap();
        nodes.into_iter().map(|node| format!("{} {}", node.name, node.version)).collect()
    }

    #[test]
    fn control_planes_take_the_first_version_and_the_last_fills_up() {
        let all =
            ["cp-1 1.13.9", "cp-2 1.13.9", "cp-3 1.13.9", "worker-1 1.13.9", "worker-2 1.13.9", "worker-3 1.14.0"];
        assert_eq!(versions(3, 3, "1.13.9=5,1.14.0=1"), all);
        assert_eq!(versions(3, 3, "v1.13.9=5,1.14.0"), all);
        assert_eq!(versions(1, 2, "1.13.9"), ["cp-1 1.13.9", "worker-1 1.13.9", "worker-2 1.13.9"]);
        assert_eq!(versions(3, 2, "1.14.0=1,1.13.9=1")[2..], ["cp-3 1.14.0", "worker-1 1.13.9", "worker-2 1.13.9"]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let network = Network::take().unwrap();
        let refused = |change: fn(&mut Options)| {
            let mut options = Options::new("");
            change(&mut options);
            plan(&options, &network).is_err()
        };
        assert!(refused(|options| options.control_planes = 0));
        assert!(refused(|options| options.workers = MAX_WORKERS + 1));
        assert!(refused(|options| options.endpoint = 3));
        assert!(refused(|options| options.talos.clear()));
        assert!(refused(|options| options.talos[0].version = "new".into()));
        assert!("1.13.9=many".parse::<Share>().is_err());
    }
}
