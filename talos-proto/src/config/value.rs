//! The base64 values of a context: `ca`, `crt` and `key`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The PEM text that a value holds, or what is wrong with the value, without any of it.
pub(super) fn pem(given: &str) -> Result<Zeroizing<Vec<u8>>, &'static str> {
    let given = given.trim();
    if given.starts_with("-----BEGIN") {
        return Err("is PEM itself: write its base64 (`base64 -w0 FILE`)");
    }
    if given.starts_with("ENC[") {
        return Err("is encrypted by SOPS: decrypt the file first (`sops --decrypt`)");
    }
    if ["${", "{{", "<"].iter().any(|begin| given.starts_with(begin)) {
        return Err("is a placeholder that nothing has filled in");
    }
    // Wrapped base64 is common in hand-edited files; Go's decoder reads over line breaks as well.
    let joined: Zeroizing<String> = Zeroizing::new(given.split_ascii_whitespace().collect());
    let decoded = STANDARD.decode(joined.as_bytes()).map(Zeroizing::new);
    match decoded {
        Ok(text) if text.windows(10).any(|window| window == b"-----BEGIN") => Ok(text),
        _ if is_path(given) => Err("is a path, and the content is wanted: base64 of it (`base64 -w0 FILE`)"),
        Ok(text) if text.starts_with(b"LS0tLS1C") => Err("is base64 of base64: decode it once"),
        Ok(_) => Err("is base64, but of no PEM text (it has no -----BEGIN line)"),
        Err(_) => Err("is not base64 (standard alphabet, padded)"),
    }
}

/// Base64 has slashes as well, but no dots, and is longer.
fn is_path(given: &str) -> bool {
    let ends = [".crt", ".key", ".pem", ".cert"].iter().any(|end| given.ends_with(end));
    ends || (given.len() < 200 && ["/", "./", "../", "~/"].iter().any(|begin| given.starts_with(begin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = "-----BEGIN CERTIFICATE-----\nMC4=\n-----END CERTIFICATE-----\n";

    #[test]
    fn w02_base64_is_read_however_it_is_wrapped() {
        let whole = STANDARD.encode(PEM);
        let (first, second) = whole.split_at(33);
        for given in [whole.clone(), format!("{first}\n{second}"), format!(" {first}\r\n\t{second}  \r\n")] {
            assert_eq!(pem(&given).unwrap().as_slice(), PEM.as_bytes(), "{given:?}");
        }
    }

    #[test]
    fn w02_what_is_no_base64_of_pem_is_called_what_it_is() {
        let once = STANDARD.encode(PEM);
        for (given, expected) in [
            (PEM, "is PEM itself"),
            ("ENC[AES256_GCM,data:abc=,type:str]", "is encrypted by SOPS"),
            ("${TALOS_CA}", "is a placeholder"),
            ("{{ .ca }}", "is a placeholder"),
            ("/etc/talos/ca/crt", "is a path"),
            ("./ca.crt", "is a path"),
            ("ca.pem", "is a path"),
            (STANDARD.encode(&once).as_str(), "is base64 of base64"),
            ("Y2E=", "is base64, but of no PEM text"),
            ("%%%", "is not base64"),
            (once.trim_end_matches('='), "is not base64"),
        ] {
            assert!(pem(given).unwrap_err().starts_with(expected), "{given}: {:?}", pem(given));
        }
    }
}
