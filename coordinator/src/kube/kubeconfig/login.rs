//! As whom we log in, as far as it can be said without asking anybody: what kind of credential, and when it runs out.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use kube::config::AuthInfo;
use secrecy::ExposeSecret as _;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The credential of a kubeconfig, without any secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// What it is, for instance `client certificate of CN=admin`; `None` when requests are anonymous.
    pub how: Option<String>,
    /// When its time begins, of a certificate.
    pub from: Option<Timestamp>,
    /// When it runs out, where it says so: a certificate does, and a token that is a JWT.
    pub until: Option<Timestamp>,
    /// A credential plugin gave it: it is made anew for each run.
    pub by_plugin: bool,
}

impl Login {
    /// What the credential says of itself.
    #[must_use]
    pub fn of(auth: &AuthInfo) -> Self {
        let plain = |how: &str| Self { how: Some(how.to_owned()), ..Self::default() };
        if let Some(data) = &auth.client_certificate_data {
            return certificate(data).unwrap_or_else(|| plain("client certificate"));
        }
        if let Some(token) = &auth.token {
            return Self { until: end_of_token(token.expose_secret()), ..plain("token") };
        }
        match auth {
            AuthInfo { token_file: Some(_), .. } => plain("token file, which is read again when it is renewed"),
            AuthInfo { username: Some(_), .. } => plain("user name and password"),
            _ => Self::default(),
        }
    }

    /// The same of what a plugin gave; it may know better when that is over.
    #[must_use]
    pub fn by_plugin(self, until: Option<Timestamp>) -> Self {
        Self { until: until.or(self.until), by_plugin: true, ..self }
    }
}

fn certificate(base64_of_pem: &str) -> Option<Login> {
    let pem = STANDARD.decode(base64_of_pem).ok()?;
    let block = Pem::iter_from_buffer(&pem).next()?.ok()?;
    let (_, leaf) = X509Certificate::from_der(&block.contents).ok()?;
    let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    Some(Login {
        how: Some(format!("client certificate of {}", leaf.subject())),
        from: time(leaf.validity().not_before),
        until: time(leaf.validity().not_after),
        by_plugin: false,
    })
}

/// The claim `exp` of a JWT (RFC 7519, 4.1.4). The signature is the server's business.
fn end_of_token(token: &str) -> Option<Timestamp> {
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    let seconds = claims["exp"].as_i64()?;
    Timestamp::from_second(seconds).ok()
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    #[test]
    fn a_certificate_says_of_whom_it_is_and_when_it_ends() {
        let pair = lab::pki::Ca::new("kubernetes", "kubernetes").client("admin", &["system:masters"]);
        let data = STANDARD.encode(&pair.cert_pem);
        let login = Login::of(&AuthInfo { client_certificate_data: Some(data), ..AuthInfo::default() });
        let how = login.how.clone().unwrap_or_default();
        assert!(how.starts_with("client certificate of ") && how.contains("CN=admin"), "{login:?}");
        assert!(login.from < login.until && login.until.is_some(), "{login:?}");
    }

    #[test]
    fn a_token_ends_when_it_is_a_jwt_and_is_never_shown() {
        let claims = URL_SAFE_NO_PAD.encode(br#"{"sub":"system:serviceaccount:a:b","exp":1796040000}"#);
        let of = |token: String| Login::of(&AuthInfo { token: Some(SecretString::from(token)), ..AuthInfo::default() });
        let jwt = of(format!("e30.{claims}.c2ln"));
        assert_eq!((jwt.how.as_deref(), jwt.until), (Some("token"), Timestamp::from_second(1_796_040_000).ok()));
        for other in ["abcdef.0123456789abcdef", "a.b.c", "x", "e30.e30.e30"] {
            assert_eq!(of(other.to_owned()).until, None, "{other}");
        }
        let sooner = Timestamp::from_second(1_796_000_000).ok();
        assert_eq!(jwt.clone().by_plugin(sooner).until, sooner);
        assert_eq!(jwt.clone().by_plugin(None), Login { by_plugin: true, ..jwt });
        assert_eq!(Login::of(&AuthInfo::default()), Login::default());
    }
}
