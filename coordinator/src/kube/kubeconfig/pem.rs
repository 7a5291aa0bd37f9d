//! Certificates and keys, from base64 in the file or from a file beside it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kube::config::AuthInfo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use secrecy::SecretString;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

use super::KubeconfigError;
use super::fields::At;

/// PEM text, and the key that it stands under.
pub(super) struct Source {
    pub(super) key: String,
    bytes: Zeroizing<Vec<u8>>,
}

/// What stands under `data_key` as base64, else what the file has that `file_key` names.
pub(super) fn source(at: &At<'_>, file_key: &str, data_key: &str) -> Result<Option<Source>, KubeconfigError> {
    if let Some(text) = at.text(data_key)? {
        let compact: Zeroizing<String> = Zeroizing::new(text.chars().filter(|it| !it.is_ascii_whitespace()).collect());
        let bytes = STANDARD.decode(compact.as_bytes()).map_err(|_| {
            let problem = if text.starts_with("-----BEGIN") {
                format!(
                    "not base64, but PEM itself; write its base64, or put it into a file and name that under {file_key}"
                )
            } else {
                "not base64 (standard alphabet, padded)".to_owned()
            };
            at.fault(data_key, problem)
        })?;
        return Ok(Some(Source { key: data_key.to_owned(), bytes: Zeroizing::new(bytes) }));
    }
    let Some(name) = at.text(file_key)? else { return Ok(None) };
    let bytes = Zeroizing::new(at.read_file(file_key, name)?);
    Ok(Some(Source { key: file_key.to_owned(), bytes }))
}

impl Source {
    /// PEM text that somebody else gave under that name.
    pub(super) fn given(key: &str, text: &str) -> Self {
        Self { key: key.to_owned(), bytes: Zeroizing::new(text.as_bytes().to_vec()) }
    }

    pub(super) fn base64(&self) -> String {
        STANDARD.encode(self.bytes.as_slice())
    }

    fn blocks(&self) -> impl Iterator<Item = Result<Pem, x509_parser::error::PEMError>> {
        Pem::iter_from_buffer(&self.bytes)
    }

    /// Each certificate as DER; at least one.
    pub(super) fn certificates(&self, at: &At<'_>) -> Result<Vec<Vec<u8>>, KubeconfigError> {
        let fault = |problem: String| at.fault(&self.key, problem);
        let mut certificates = Vec::new();
        for block in self.blocks() {
            let block = block.map_err(|_| fault("is broken PEM (a BEGIN without END, or no base64 between)".into()))?;
            if block.label == "CERTIFICATE" || block.label == "TRUSTED CERTIFICATE" {
                if X509Certificate::from_der(&block.contents).is_err() {
                    return Err(fault(format!("certificate {} in it is not X.509", certificates.len() + 1)));
                }
                certificates.push(block.contents);
            }
        }
        if certificates.is_empty() {
            return Err(fault("holds no PEM certificate (-----BEGIN CERTIFICATE-----)".into()));
        }
        Ok(certificates)
    }

    /// The private key. Talos labels its own `ED25519 PRIVATE KEY`; they are PKCS#8 all the same.
    fn private_key(&self, at: &At<'_>) -> Result<PrivateKeyDer<'static>, KubeconfigError> {
        let fault = |problem: &str| at.fault(&self.key, problem);
        if self.bytes.windows(9).any(|window| window == b"ENCRYPTED") {
            return Err(fault(
                "is encrypted with a passphrase, which is not supported; openssl pkey -in KEY -out PLAIN",
            ));
        }
        for block in self.blocks() {
            let block = block.map_err(|_| fault("is broken PEM (a BEGIN without END, or no base64 between)"))?;
            match block.label.as_str() {
                "PRIVATE KEY" | "ED25519 PRIVATE KEY" => return Ok(PrivateKeyDer::Pkcs8(block.contents.into())),
                "RSA PRIVATE KEY" => return Ok(PrivateKeyDer::Pkcs1(block.contents.into())),
                "EC PRIVATE KEY" => return Ok(PrivateKeyDer::Sec1(block.contents.into())),
                _ => {}
            }
        }
        Err(fault("holds no PEM private key (-----BEGIN PRIVATE KEY-----, RSA, EC or ED25519)"))
    }
}

/// Checks that certificate and key can be used and belong together, and gives them to kube with the labels that its
/// TLS library knows.
pub(super) fn identity(
    at: &At<'_>,
    certificate: &Source,
    key: &Source,
    now: Timestamp,
    into: &mut AuthInfo,
) -> Result<(), KubeconfigError> {
    let chain = certificate.certificates(at)?;
    check_leaf(at, &certificate.key, &chain[0], now)?;
    let private = key.private_key(at)?;
    let label = match &private {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    let key_pem = encode(label, private.secret_der());
    let provider = rustls::crypto::ring::default_provider();
    let ders = chain.iter().cloned().map(CertificateDer::from).collect();
    CertifiedKey::from_der(ders, private, &provider).map_err(|error| match error {
        TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            at.fault(&key.key, format!("does not belong to the certificate of {}", certificate.key))
        }
        _ => at.fault(&key.key, "is no key that can be used (RSA from 2048 bits, ECDSA P-256 or P-384, Ed25519)"),
    })?;
    let chain: String = chain.iter().map(|der| encode("CERTIFICATE", der).to_string()).collect();
    into.client_certificate_data = Some(STANDARD.encode(chain));
    into.client_key_data = Some(SecretString::from(STANDARD.encode(key_pem.as_bytes())));
    Ok(())
}

fn check_leaf(at: &At<'_>, key: &str, der: &[u8], now: Timestamp) -> Result<(), KubeconfigError> {
    let fault = |problem: String| at.fault(key, problem);
    let (_, leaf) = X509Certificate::from_der(der).map_err(|_| fault("certificate 1 in it is not X.509".into()))?;
    let time = |time: x509_parser::time::ASN1Time| {
        Timestamp::from_second(time.timestamp()).map_err(|_| fault("has a validity out of range".into()))
    };
    let (from, until) = (time(leaf.validity().not_before)?, time(leaf.validity().not_after)?);
    if now > until {
        return Err(fault(format!("the certificate expired at {until}; get a new one (`talosctl kubeconfig`)")));
    }
    if now < from {
        return Err(fault(format!("the certificate is not valid before {from}; is this machine's clock right?")));
    }
    if let Ok(Some(usage)) = leaf.extended_key_usage()
        && !usage.value.client_auth
        && !usage.value.any
    {
        return Err(fault("is not a client certificate (extended key usage lacks clientAuth)".into()));
    }
    Ok(())
}

fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    let text = Zeroizing::new(STANDARD.encode(der));
    let mut pem = Zeroizing::new(format!("-----BEGIN {label}-----\n"));
    for (index, character) in text.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            pem.push('\n');
        }
        pem.push(character);
    }
    pem.push_str(&format!("\n-----END {label}-----\n"));
    pem
}
