//! PEM text: which blocks it has, and which were expected.

use rustls_pki_types::pem::{PemObject, SectionKind};
use zeroize::Zeroizing;

/// One block: what it is, and its DER.
pub(super) type Block = (SectionKind, Zeroizing<Vec<u8>>);

/// The blocks whose labels are known, Talos's own among them.
///
/// # Errors
/// What is wrong with the text, without any of it.
pub(super) fn blocks(pem: &[u8]) -> Result<Vec<Block>, &'static str> {
    // No PEM reader takes them, Go's neither.
    if pem.split(|byte| *byte == b'\n').any(|line| line.trim_ascii_start().len() < line.len() && is_begin(line)) {
        return Err("is PEM whose lines are indented: remove the blanks before -----BEGIN and the others");
    }
    <(SectionKind, Vec<u8>)>::pem_slice_iter(&relabelled(pem))
        .map(|block| block.map(|(kind, der)| (kind, Zeroizing::new(der))))
        .collect::<Result<_, _>>()
        .map_err(|_| "is broken PEM (a BEGIN line without its END, or no base64 between them)")
}

fn is_begin(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"-----BEGIN ")
}

/// The labels of all blocks, `CERTIFICATE, EC PRIVATE KEY`, for a message that says what is there instead.
pub(super) fn labels(pem: &[u8]) -> String {
    let text = String::from_utf8_lossy(pem);
    let label = |line: &str| Some(line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----")?.to_owned());
    text.lines().filter_map(label).collect::<Vec<_>>().join(", ")
}

/// Talos labels its client key `ED25519 PRIVATE KEY` (siderolabs/crypto `x509/constants.go`), which no PEM reader of
/// the Rust world knows; the body is plain PKCS#8, so only the label is changed, and only that exact one.
pub(super) fn relabelled(pem: &[u8]) -> Zeroizing<Vec<u8>> {
    const LABEL: &[u8] = b"ED25519 PRIVATE KEY-----";
    let mut out = Zeroizing::new(Vec::with_capacity(pem.len()));
    let mut rest = pem;
    while let Some(at) = rest.windows(LABEL.len()).position(|window| window == LABEL) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(b"PRIVATE KEY-----");
        rest = &rest[at + LABEL.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::PrivateKeyDer;

    use super::*;

    #[test]
    fn w02_the_label_of_a_talos_key_is_understood() {
        let pem = b"-----BEGIN ED25519 PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n-----END ED25519 PRIVATE KEY-----\n";
        assert!(PrivateKeyDer::from_pem_slice(pem).is_err(), "the reader learnt the label: the rewrite can go");
        assert!(matches!(PrivateKeyDer::from_pem_slice(&relabelled(pem)), Ok(PrivateKeyDer::Pkcs8(_))));
    }

    #[test]
    fn other_labels_are_left_alone() {
        let pem = b"-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n";
        assert_eq!(relabelled(pem).as_slice(), pem);
        assert_eq!(labels(pem), "PRIVATE KEY");
        assert_eq!(blocks(pem).unwrap().len(), 1);
        assert!(blocks(&pem[..40]).is_err());
    }
}
