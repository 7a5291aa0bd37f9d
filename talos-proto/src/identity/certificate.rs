//! The CA's and the client's certificates, as far as they can be judged before anything is dialled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::CertificateError;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::SectionKind;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{IdentityError, Paths, pem};

/// The certificates of a PEM text, at least one, each of them X.509.
fn certificates(path: &str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let fault = |problem: String| IdentityError::Value { path: path.to_owned(), problem };
    let blocks = pem::blocks(text).map_err(|problem| fault(problem.into()))?;
    let ders = blocks.into_iter().filter(|(kind, _)| *kind == SectionKind::Certificate);
    let ders: Vec<CertificateDer<'static>> = ders.map(|(_, der)| CertificateDer::from(der.to_vec())).collect();
    if ders.is_empty() {
        return Err(fault(format!("holds no certificate, but {}: were two values exchanged?", pem::labels(text))));
    }
    for (index, der) in ders.iter().enumerate() {
        X509Certificate::from_der(der).map_err(|_| fault(format!("certificate {} in it is not X.509", index + 1)))?;
    }
    Ok(ders)
}

/// The CAs that the server's certificate must come from.
pub(super) fn authorities(paths: &Paths, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let path = paths.of("ca");
    let ders = certificates(&path, text)?;
    for der in &ders {
        let (_, ca) = parsed(&path, der)?;
        if ca.basic_constraints().ok().flatten().is_some_and(|constraints| !constraints.value.ca) {
            let problem = "is not a CA's certificate but that of a server or client: take `ca` from the talosconfig \
                           that Talos generated"
                .into();
            return Err(IdentityError::Value { path, problem });
        }
    }
    Ok(ders)
}

/// When the last of these CAs runs out; `None` when one cannot be read so far.
pub(super) fn last_end(authorities: &[CertificateDer<'static>]) -> Option<Timestamp> {
    let end = |der: &CertificateDer<'_>| {
        let (_, ca) = X509Certificate::from_der(der).ok()?;
        Timestamp::from_second(ca.validity().not_after.timestamp()).ok()
    };
    let ends: Option<Vec<Timestamp>> = authorities.iter().map(end).collect();
    ends?.into_iter().max()
}

/// What the client's certificate says.
pub(super) struct Leaf {
    /// With those above it, the client's own first.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) roles: BTreeSet<String>,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

pub(super) fn client(paths: &Paths, text: &[u8], now: Timestamp) -> Result<Leaf, IdentityError> {
    let path = paths.of("crt");
    let chain = certificates(&path, text)?;
    let (_, leaf) = parsed(&path, &chain[0])?;
    let fault = |problem: &str| IdentityError::Value { path: path.clone(), problem: problem.to_owned() };
    if leaf.is_ca() {
        return Err(fault(if chain.len() > 1 {
            "begins with a CA's certificate: the client's own must be the first of the chain"
        } else {
            "is a CA's certificate, not a client's: were `ca` and `crt` exchanged?"
        }));
    }
    let time = |time: x509_parser::time::ASN1Time| {
        Timestamp::from_second(time.timestamp()).map_err(|_| fault("has a validity out of range"))
    };
    let (not_before, not_after) = (time(leaf.validity().not_before)?, time(leaf.validity().not_after)?);
    if now > not_after {
        return Err(IdentityError::Expired { path, at: not_after });
    }
    if now < not_before {
        return Err(IdentityError::NotYetValid { path, at: not_before });
    }
    if let Some(usage) = other_usage(&leaf) {
        return Err(fault(&format!(
            "has the extended key usage {usage}, and Talos >= 1.12 accepts exactly clientAuth (with a bare `bad \
             certificate`): make one with `talosctl config new`"
        )));
    }
    let roles = leaf.subject().iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    Ok(Leaf { roles, not_before, not_after, chain })
}

fn parsed<'a>(path: &str, der: &'a CertificateDer<'_>) -> Result<(&'a [u8], X509Certificate<'a>), IdentityError> {
    X509Certificate::from_der(der)
        .map_err(|_| IdentityError::Value { path: path.to_owned(), problem: "is not an X.509 certificate".into() })
}

/// What the certificate may be used for, unless that is exactly clientAuth: apid asks for no less and no more (Talos
/// `internal/app/apid/service.go`, `verifyExtKeyUsage`; until 1.11 only behind a flag).
fn other_usage(leaf: &X509Certificate<'_>) -> Option<String> {
    let Ok(Some(usage)) = leaf.extended_key_usage() else { return Some("(none)".into()) };
    let usage = usage.value;
    let named = [
        (usage.any, "any"),
        (usage.server_auth, "serverAuth"),
        (usage.client_auth, "clientAuth"),
        (usage.code_signing, "codeSigning"),
        (usage.email_protection, "emailProtection"),
        (usage.time_stamping, "timeStamping"),
        (usage.ocsp_signing, "OCSPSigning"),
        (!usage.other.is_empty(), "others"),
    ];
    let names: Vec<&str> = named.into_iter().filter_map(|(set, name)| set.then_some(name)).collect();
    (names != ["clientAuth"]).then(|| names.join(" and "))
}

/// Whether one of these CAs issued the client's certificate. They may differ while Talos's CA is rotated, so that a no
/// is no error.
pub(super) fn is_issued_by(authorities: &[CertificateDer<'static>], leaf: &Leaf, now: Timestamp) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let Ok(verifier) = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build() else {
        return true;
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0)));
    let verdict = verifier.verify_client_cert(&leaf.chain[0], &leaf.chain[1..], now);
    // Any other objection is not about who issued it.
    !matches!(
        verdict,
        Err(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature))
    )
}
