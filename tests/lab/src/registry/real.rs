//! The real registry as a process of its own: distribution, as `tests/conformance/registry` builds it, on plain HTTP
//! behind the lab's front. Its images are in memory and its files in the lab's directory.

mod push;

use std::fs;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use http::Request;
use http::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING};
use http_body_util::BodyExt as _;
use serde_json::json;
use talos_proto::clock::Clock;
use tokio::net::TcpStream;
use uuid::Uuid;

use super::client::Client;
use super::tokens::{Access, Signer};
use crate::files;
use crate::net::{Body, REGISTRY_PORT};
use crate::real::process::Process;

/// The port of the process on the registry's address.
pub const INNER_PORT: u16 = 5001;
/// Who pushes the lab's images.
const OWNER: &str = "owner";
/// How long it may take to listen.
const START: Duration = Duration::from_secs(20);

/// How the real registry has its clients log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// With tokens of the lab's token endpoint, as at GHCR.
    Token,
    /// With user and password at each request. Its htpasswd file has one password for a user: that which the lab
    /// accepted last.
    Basic,
}

/// Why the real registry is of no use.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// Its configuration.
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// The binary.
    #[error("cannot run {}", .0.display())]
    Run(PathBuf, #[source] io::Error),
    /// It ended, or does not listen.
    #[error("the registry does not listen on {0}: {1}")]
    Silent(String, String),
    /// No password could be hashed.
    #[error("{} hashes no password: {said}", binary.display())]
    Hash {
        /// The binary.
        binary: PathBuf,
        /// What it said.
        said: String,
    },
    /// A request of its owner was not answered.
    #[error("the registry does not answer to {0}")]
    Ask(String, #[source] io::Error),
    /// Something that its owner pushed was refused.
    #[error("the registry answered {what} with {status}: {body}")]
    Refused {
        /// The request.
        what: String,
        /// The HTTP status.
        status: u16,
        /// What else it said.
        body: String,
    },
}

/// The running process; dropping it ends it.
pub(super) struct Real {
    pub auth: Auth,
    binary: PathBuf,
    folder: PathBuf,
    inner: String,
    client: Client,
    signer: Signer,
    owner_password: String,
    process: OnceLock<Process>,
}

impl Real {
    /// Starts it, without any user or image.
    pub(super) async fn start(
        binary: &Path,
        auth: Auth,
        address: Ipv4Addr,
        client: Client,
        folder: &Path,
    ) -> Result<Self, RealError> {
        let host = format!("{address}:{REGISTRY_PORT}");
        let inner = format!("{address}:{INNER_PORT}");
        let real = Self {
            auth,
            binary: binary.to_path_buf(),
            folder: folder.to_path_buf(),
            inner,
            client,
            signer: Signer::new(&host),
            owner_password: Uuid::new_v4().simple().to_string(),
            process: OnceLock::new(),
        };
        fs::create_dir_all(folder).map_err(|error| RealError::Write(folder.to_path_buf(), error))?;
        let login = match auth {
            Auth::Token => {
                let jwks = real.write("jwks.json", &real.signer.jwks())?;
                let realm = format!("https://{host}/token");
                json!({"token": {"realm": realm, "service": host, "issuer": Signer::ISSUER, "jwks": jwks}})
            }
            Auth::Basic => {
                real.set_passwords(&[])?;
                json!({"htpasswd": {"realm": "lab", "path": real.folder.join("htpasswd")}})
            }
        };
        let config = json!({
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": true}},
            "storage": {"inmemory": {}},
            "auth": login,
            "http": {"addr": real.inner, "secret": real.owner_password, "relativeurls": true},
        });
        // JSON is YAML, which it reads.
        let config = real.write("config.yaml", &format!("{config:#}"))?;
        let args = ["serve".to_owned(), config.display().to_string()];
        let process = Process::start(binary, &args, &folder.join("log"));
        let process = process.map_err(|error| RealError::Run(binary.to_path_buf(), error))?;
        let _ = real.process.set(process);
        real.listening().await?;
        Ok(real)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, RealError> {
        let path = self.folder.join(name);
        files::write_private(&path, text).map_err(|error| RealError::Write(path.clone(), error))?;
        Ok(path)
    }

    async fn listening(&self) -> Result<(), RealError> {
        let clock = Clock::system();
        let start = clock.now();
        while TcpStream::connect(&self.inner).await.is_err() {
            if let Some(said) = self.process.get().and_then(Process::ended) {
                return Err(RealError::Silent(self.inner.clone(), said));
            }
            if clock.now().since(start) > START {
                return Err(RealError::Silent(self.inner.clone(), format!("nothing in {START:?}")));
            }
            clock.sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Ends the process.
    pub(super) fn stop(&self) {
        let _ = self.process.get().map(Process::kill);
    }

    /// A token for these repositories.
    pub(super) fn token(&self, user: &str, access: &[Access], expired: bool) -> String {
        self.signer.token(user, access, expired)
    }

    /// Writes the htpasswd file, which the registry reads again when it has changed.
    pub(super) fn set_passwords(&self, users: &[(String, String)]) -> Result<(), RealError> {
        let mut lines = format!("{OWNER}:{}\n", self.hash(&self.owner_password)?);
        for (user, password) in users {
            lines.push_str(&format!("{user}:{}\n", self.hash(password)?));
        }
        let path = self.folder.join("htpasswd");
        files::write_atomically(&path, &lines).map_err(|error| RealError::Write(path, error))
    }

    fn hash(&self, password: &str) -> Result<String, RealError> {
        let run = || {
            let mut command = Command::new(&self.binary);
            command.arg("hash").env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            // Dropped at once: it reads to the end.
            child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(password.as_bytes()))?;
            child.wait_with_output()
        };
        let output = run().map_err(|error| RealError::Run(self.binary.clone(), error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(RealError::Hash { binary: self.binary.clone(), said });
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Hands a request on as it is, and gives the answer as it comes.
    pub(super) async fn forward(&self, request: Request<Body>) -> io::Result<http::Response<Body>> {
        let (mut head, body) = request.into_parts();
        let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        // HTTP/2 has the host in the URI.
        if let Some(host) = head.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
            head.headers.entry(HOST).or_insert(host);
        }
        head.version = http::Version::HTTP_11;
        head.uri = format!("http://{}{target}", self.inner).parse().map_err(io::Error::other)?;
        head.headers.remove(CONNECTION);
        let (mut head, body) = self.client.send(Request::from_parts(head, body)).await?.into_parts();
        head.headers.remove(CONNECTION);
        head.headers.remove(TRANSFER_ENCODING);
        Ok(http::Response::from_parts(head, body.map_err(io::Error::other).boxed_unsync()))
    }
}
