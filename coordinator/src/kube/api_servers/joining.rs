//! Which addresses join the set, and what they must prove for it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Uri;
use kube::{Client, Config};
use talos_proto::identity::address_of;

use super::{Address, ApiServers, connection};

/// How long an address has to prove itself.
const PROOF_TIMEOUT: Duration = Duration::from_secs(4);

/// Where a control plane of Talos serves unless its machine config says otherwise (`cluster.controlPlane`,
/// `localAPIServerPort`). The kubeconfig's port may be that of a load balancer or a tunnel.
const OWN_PORT: u16 = 6443;

/// A further API server, `HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeServer {
    /// A name or an address, without brackets.
    pub host: String,
    /// Else that of the kubeconfig's server.
    pub port: Option<u16>,
}

impl FromStr for KubeServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not HOST or HOST:PORT (an IPv6 address with a port in [])");
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((host, rest))) => (host, rest),
            Some(None) => return Err(wrong()),
            // Of several colons none is before a port: an IPv6 address as it is.
            None if text.matches(':').count() > 1 => (text, ""),
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => Some(port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?),
            None if port.is_empty() => None,
            None => return Err(wrong()),
        };
        let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let known = host.parse::<IpAddr>().is_ok() || (!host.is_empty() && host.chars().all(name));
        if known { Ok(Self { host: host.to_owned(), port }) } else { Err(wrong()) }
    }
}

/// An address that did not join the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// `HOST:PORT`.
    pub address: String,
    /// Why not.
    pub reason: String,
}

/// Where one API server may be: the first of these ports that proves itself joins.
struct Candidate {
    host: String,
    /// A control plane's own.
    own: Option<IpAddr>,
    ports: Vec<u16>,
}

impl Candidate {
    fn names(&self) -> impl Iterator<Item = String> {
        self.ports.iter().map(|port| named(&self.host, *port))
    }
}

impl ApiServers {
    /// Adds the control planes' own addresses and `further` ones to the set, each proved first: same CA, a TLS name that
    /// its certificate carries, and `/readyz`. Returns those that were dropped, with the reason.
    pub async fn extend(&self, own: Vec<IpAddr>, further: &[KubeServer]) -> Vec<Dropped> {
        let Some(config) = &self.0.config else { return Vec::new() };
        let own = own.into_iter().filter(|ip| self.at(*ip).is_none()).map(|ip| self.own(ip));
        let further = further.iter().map(|server| Candidate {
            host: server.host.clone(),
            own: None,
            ports: vec![server.port.unwrap_or(self.0.server.1)],
        });
        let known = self.names();
        let fresh: Vec<_> = own.chain(further).filter(|it| !it.names().any(|name| known.contains(&name))).collect();
        let proofs = fresh.iter().map(|candidate| self.prove(config, candidate));
        let mut dropped = Vec::new();
        for (candidate, proof) in fresh.iter().zip(futures::future::join_all(proofs).await) {
            match proof {
                Ok(address) => self.add(address),
                Err(reason) => {
                    let mut out_of_reach = self.0.out_of_reach.write().unwrap_or_else(PoisonError::into_inner);
                    out_of_reach.extend(candidate.own);
                    let address = candidate.names().collect::<Vec<_>>().join(", ");
                    dropped.push(Dropped { address, reason });
                }
            }
        }
        dropped
    }

    /// Whether the API server at that control plane's own address serves: after a reboot it is back some 20 s later
    /// than the machine, and the roll must not go on before. An address that is not in the set, because it did not
    /// serve when the run began, is proved anew and taken in.
    ///
    /// # Errors
    /// What it answered instead of 200 on `/readyz`.
    pub async fn ready_at(&self, ip: IpAddr) -> Result<(), String> {
        if let Some(address) = self.at(ip) {
            let ready = self.readyz(&address.client).await;
            match &ready {
                Ok(()) => self.0.outages.answered(&address.name, self.0.clock.now()),
                Err(why) => self.0.outages.failed(Some(&address.name), self.0.clock.now(), why),
            }
            return ready;
        }
        let Some(config) = &self.0.config else { return Ok(()) };
        self.add(self.prove(config, &self.own(ip)).await?);
        Ok(())
    }

    /// Whether that control plane's own API server could not be reached from here when the run began: behind a firewall
    /// that only a load balancer passes it will never be.
    #[must_use]
    pub fn is_out_of_reach(&self, ip: IpAddr) -> bool {
        self.0.out_of_reach.read().unwrap_or_else(PoisonError::into_inner).contains(&ip)
    }

    /// The member of the set with that address.
    fn at(&self, ip: IpAddr) -> Option<Address> {
        self.snapshot().into_iter().find(|address| address.ip == Some(ip.to_canonical()))
    }

    /// A control plane's own API server: at the kubeconfig's port, or at Talos's own.
    fn own(&self, ip: IpAddr) -> Candidate {
        let mut ports = vec![self.0.server.1];
        ports.extend((self.0.server.1 != OWN_PORT).then_some(OWN_PORT));
        Candidate { host: ip.to_canonical().to_string(), own: Some(ip), ports }
    }

    async fn readyz(&self, client: &Client) -> Result<(), String> {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let readyz = http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
        match self.0.clock.timeout(PROOF_TIMEOUT, client.request_text(readyz)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) => Err(format!("/readyz answered {}", status.code)),
            Ok(Err(error)) => Err(talos_proto::chain(&error)),
            Err(late) => Err(late.to_string()),
        }
    }

    async fn prove(&self, config: &Config, candidate: &Candidate) -> Result<Address, String> {
        let ip = address_of(&candidate.host);
        let proofs = candidate.names().map(|name| async move { (self.prove_at(config, &name).await, name) });
        let mut failed = Vec::new();
        for (proof, name) in futures::future::join_all(proofs).await {
            match proof {
                Ok(client) => return Ok(Address { name, ip, client }),
                Err(why) => failed.push(why),
            }
        }
        failed.dedup();
        Err(failed.join("; "))
    }

    /// Which name the certificate of a control plane is valid for depends on how the cluster was made: its own
    /// address is the rule, the kubeconfig's host the exception; a name given in the kubeconfig is the only one.
    async fn prove_at(&self, config: &Config, authority: &str) -> Result<Client, String> {
        let names = match &config.tls_server_name {
            Some(name) => vec![Some(name.clone())],
            None => vec![None, Some(self.0.server.0.trim_matches(['[', ']']).to_owned())],
        };
        let mut failed = String::new();
        for name in names {
            let mut own = config.clone();
            own.cluster_url = Uri::builder()
                .scheme(config.cluster_url.scheme_str().unwrap_or("https"))
                .authority(authority)
                .path_and_query("/")
                .build()
                .map_err(|error| error.to_string())?;
            own.tls_server_name = name;
            let client = connection::client(&own).map_err(|error| talos_proto::chain(&error))?;
            match self.readyz(&client).await {
                Ok(()) => return Ok(client),
                Err(why) => failed = why,
            }
            if !failed.contains("certificate") {
                break;
            }
        }
        Err(failed)
    }
}

impl fmt::Display for KubeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => f.write_str(&named(&self.host, port)),
            None => f.write_str(&self.host),
        }
    }
}

fn named(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_servers_are_a_host_and_perhaps_a_port() {
        let read = |text: &str| text.parse::<KubeServer>().map(|server| (server.host, server.port));
        assert_eq!(read("10.0.0.2"), Ok(("10.0.0.2".into(), None)));
        assert_eq!(read("api.example.com:443"), Ok(("api.example.com".into(), Some(443))));
        assert_eq!(read("fd00::2"), Ok(("fd00::2".into(), None)));
        assert_eq!(read("[fd00::2]:7443"), Ok(("fd00::2".into(), Some(7443))));
        for wrong in
            ["", ":6443", "a:", "a:0", "a:port", "https://a:6443", "a/b", "[fd00::2", "[fd00::2]6443", "fd00::x"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for text in ["10.0.0.2", "api:443", "[fd00::2]:7443"] {
            assert_eq!(text.parse::<KubeServer>().unwrap().to_string(), text);
        }
    }
}
