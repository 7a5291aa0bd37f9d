//! The keys and certificates that the programs read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::write_private;
use crate::pki::{Ca, Pair};

/// The folder with them.
pub(super) struct Files(PathBuf);

impl Files {
    /// Writes them. `server` is the API servers' certificate, `proxy` the authority of the listeners before them.
    pub fn write(dir: &Path, ca: &Ca, server: &Pair, proxy: &Ca) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let tokens = Ca::new("service accounts", "lab").client("service accounts", &[]);
        let files = [
            ("ca.crt", ca.cert_pem()),
            ("proxy-ca.crt", proxy.cert_pem()),
            ("server.crt", &server.cert_pem),
            ("server.key", &server.key_pem),
            // For tokens of service accounts: a key to sign with, and its public half in a form that Kubernetes reads
            // (client-go util/keyutil knows no PKCS#8 there).
            ("tokens.key", &tokens.key_pem),
            ("tokens.crt", &tokens.cert_pem),
        ];
        for (name, text) in files {
            write_private(&dir.join(name), text)?;
        }
        Ok(Self(dir.to_owned()))
    }

    /// The path of one of them.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// `FLAG=PATH`.
    pub fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.path(name).display())
    }
}
