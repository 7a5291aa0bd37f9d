//! The files that a lab writes for the product and for people.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::pki::{Ca, Pair};

/// Writes a file that only its owner reads.
///
/// # Errors
/// As open(2) and write(2).
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // An older file keeps its mode when it is opened again.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Writes a file that is there whole or not at all.
///
/// # Errors
/// As open(2), write(2) and rename(2).
pub fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    write_private(&temporary, text)?;
    fs::rename(temporary, path)
}

/// A docker config with one registry.
#[must_use]
pub fn docker_config(host: &str, user: &str, password: &str) -> String {
    let auth = STANDARD.encode(format!("{user}:{password}"));
    format!("{:#}\n", json!({"auths": {host: {"auth": auth}}}))
}

/// A kubeconfig with embedded data that names one server.
#[must_use]
pub fn kubeconfig(server: &str, ca: &Ca, client: &Pair) -> String {
    let [ca, cert, key] =
        [ca.cert_pem(), &client.cert_pem, &client.key_pem].map(|pem| STANDARD.encode(pem.replace('\r', "")));
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: lab\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
         users:\n\
         - name: admin@lab\n  user:\n    client-certificate-data: {cert}\n    client-key-data: {key}\n\
         contexts:\n\
         - name: admin@lab\n  context:\n    cluster: lab\n    user: admin@lab\n    namespace: default\n\
         current-context: admin@lab\n"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_kubeconfig_is_yaml_with_its_server_and_data() {
        let ca = Ca::new("kubernetes", "kubernetes");
        let text = kubeconfig("https://127.1.2.3:6443", &ca, &ca.client("admin", &["system:masters"]));
        let yaml: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
        assert_eq!(yaml["clusters"][0]["cluster"]["server"], "https://127.1.2.3:6443");
        let key = STANDARD.decode(yaml["users"][0]["user"]["client-key-data"].as_str().unwrap()).unwrap();
        assert!(key.starts_with(b"-----BEGIN PRIVATE KEY-----\n"));
    }

    #[test]
    fn a_private_file_is_private_even_where_a_public_one_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "public").unwrap();
        write_private(&path, "secret").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "secret");
    }
}
