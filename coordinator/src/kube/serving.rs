//! Who answers at an address: the names in the serving certificate.
//!
//! The certificate comes out of a handshake that trusts what the kubeconfig trusts, and no request is sent. Several
//! connections are open side by side, for a load balancer shows one control plane at a time.

use std::net::IpAddr;
use std::time::Duration;

use http::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use kube::Config;
use talos_proto::clock::Clock;
use tower::ServiceExt as _;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::connection;

/// How long a handshake may take, the connection included.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The names of one serving certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// Its DNS names, in small letters.
    pub names: Vec<String>,
    /// Its IP addresses.
    pub addresses: Vec<IpAddr>,
}

impl Serving {
    /// The names of a certificate (RFC 5280, 4.2.1.6).
    fn of(der: &[u8]) -> Result<Self, String> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let mut serving = Self::default();
        let names = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
        for name in names.iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::DNSName(name) => serving.names.push(name.to_ascii_lowercase()),
                GeneralName::IPAddress(bytes) => serving.addresses.extend(address(bytes)),
                _ => {}
            }
        }
        Ok(serving)
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(four.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|sixteen| IpAddr::from(sixteen).to_canonical())
}

/// What that many connections to the config's address are answered with, each once. One that fails says nothing while
/// another tells: behind a load balancer it may have met a dead control plane.
///
/// # Errors
/// Why none of them tells.
pub async fn look(config: &Config, connections: usize, clock: &Clock) -> Result<Vec<Serving>, String> {
    let one = || async {
        match clock.timeout(HANDSHAKE_TIMEOUT, handshake(config)).await {
            Ok(done) => done,
            Err(late) => Err(late.to_string()),
        }
    };
    // The streams live until the last has told: a balancer that counts connections would give the same node again.
    let all = futures::future::join_all((0..connections.max(1)).map(|_| one())).await;
    told(all.into_iter().map(|one| one.map(|(serving, _open)| serving)).collect())
}

fn told<T>(mut all: Vec<Result<T, String>>) -> Result<Vec<T>, String> {
    if all.iter().any(Result::is_ok) {
        all.retain(Result::is_ok);
    }
    all.into_iter().collect()
}

/// The certificate of one connection, and the connection.
async fn handshake(config: &Config) -> Result<(Serving, impl Sized + use<>), String> {
    let connector = connection::connector(config).map_err(|error| talos_proto::chain(&error))?;
    let server: Uri = config.cluster_url.clone();
    let stream = connector.oneshot(server).await.map_err(|error| talos_proto::chain(&*error))?;
    let MaybeHttpsStream::Https(stream) = stream else { return Err("it is not https".to_owned()) };
    let certificates = TokioIo::inner(&stream).get_ref().1.peer_certificates();
    let leaf = certificates.and_then(<[_]>::first).ok_or("it showed no certificate")?;
    Ok((Serving::of(leaf)?, stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o03_a_connection_that_fails_says_nothing_while_another_tells() {
        let failed = || Err("refused".to_owned());
        assert_eq!(told(vec![failed(), Ok(1), failed(), Ok(2)]), Ok(vec![1, 2]));
        assert_eq!(told::<u8>(vec![failed(), failed()]), Err("refused".to_owned()));
    }

    #[test]
    fn the_names_of_a_certificate() {
        let ca = lab::pki::Ca::new("kubernetes", "kubernetes");
        let names = ["10.0.0.1", "fd00::1", "CP-1", "kubernetes.default.svc"].map(str::to_owned);
        let pem = ca.server(&names).cert_pem;
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let serving = Serving::of(&pem.contents).unwrap();
        assert_eq!(serving.names, ["cp-1", "kubernetes.default.svc"]);
        let addresses: Vec<IpAddr> = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap()).to_vec();
        assert_eq!(serving.addresses, addresses);
        assert!(Serving::of(b"no certificate").is_err());
    }
}
