//! The client's key: that it loads, and that it belongs to the certificate.

use std::sync::Arc;

use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::SectionKind;
use rustls_pki_types::{CertificateDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

use super::{IdentityError, Paths, pem};

/// Checks the key as TLS will use it and gives its PEM with labels that TLS knows.
pub(super) fn check(
    paths: &Paths,
    text: &[u8],
    chain: &[CertificateDer<'static>],
) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
    let fault = |problem: String| IdentityError::Value { path: paths.of("key"), problem };
    let labels = pem::labels(text);
    // PKCS#8 says so in its label, the older forms in a header line.
    if labels.contains("ENCRYPTED") || text.windows(11).any(|window| window == b"4,ENCRYPTED") {
        let problem = "is encrypted with a passphrase, which nobody could enter: decrypt it (`openssl pkey -in KEY`)";
        return Err(fault(problem.into()));
    }
    let blocks = pem::blocks(text).map_err(|problem| fault(problem.into()))?;
    let key = blocks.iter().find_map(|(kind, der)| private(*kind, der));
    let key = key.ok_or_else(|| {
        let known = "PRIVATE KEY, ED25519 PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY";
        fault(format!("holds no private key ({known}), but {labels}: were two values exchanged?"))
    })?;
    let key = any_supported_type(&key)
        .map_err(|_| fault("is no key that TLS can use: Ed25519, ECDSA P-256 or P-384, RSA from 2048 bits".into()))?;
    match CertifiedKey::new(chain.to_vec(), Arc::clone(&key)).keys_match() {
        Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            // The chain may only be in the wrong order.
            let of =
                |der: &CertificateDer<'static>| CertifiedKey::new(vec![der.clone()], Arc::clone(&key)).keys_match();
            let crt = paths.of("crt");
            Err(fault(if chain.iter().skip(1).any(|der| of(der).is_ok()) {
                format!("belongs to a later certificate of {crt}: the client's own must be the first there")
            } else {
                format!("does not belong to the certificate in {crt}: take both from one file (`talosctl config new`)")
            }))
        }
        _ => Ok(pem::relabelled(text)),
    }
}

fn private(kind: SectionKind, der: &[u8]) -> Option<PrivateKeyDer<'_>> {
    match kind {
        SectionKind::PrivateKey => Some(PrivatePkcs8KeyDer::from(der).into()),
        SectionKind::RsaPrivateKey => Some(PrivatePkcs1KeyDer::from(der).into()),
        SectionKind::EcPrivateKey => Some(PrivateSec1KeyDer::from(der).into()),
        _ => None,
    }
}
