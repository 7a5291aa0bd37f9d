//! Tokens that the real registry takes: JSON Web Tokens as distribution's token authentication has them, signed with a
//! key that it is given in a JWKS file.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use serde_json::{Value, json};
use talos_proto::clock::Clock;
use uuid::Uuid;

/// What a token allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub repository: String,
    pub actions: &'static [&'static str],
}

/// Signs tokens for one registry.
pub(super) struct Signer {
    key: KeyPair,
    audience: String,
    clock: Clock,
}

/// As in `pki`: a key of this kind is made and signs without anything that could fail but the machine's randomness.
const SIGNS: &str = "ring signs with a key that it has just made";
const KEY_ID: &str = "lab";
/// Seconds; GHCR's live for minutes as well.
const LIFE: i64 = 300;
/// Seconds that an expired token is past its end: more than the minute that the registry grants.
const PAST: i64 = 600;

impl Signer {
    /// Who issues the tokens.
    pub(super) const ISSUER: &'static str = "lab";

    pub(super) fn new(audience: &str) -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).expect(SIGNS);
        Self { key, audience: audience.to_owned(), clock: Clock::system() }
    }

    /// The public key as RFC 8037 writes it.
    pub(super) fn jwks(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.key.public_key_raw());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": KEY_ID, "x": x}]}).to_string()
    }

    pub(super) fn token(&self, user: &str, access: &[Access], expired: bool) -> String {
        let now = self.clock.utc().as_second();
        let end = if expired { now - PAST } else { now + LIFE };
        let access: Vec<Value> = access
            .iter()
            .map(|access| json!({"type": "repository", "name": access.repository, "actions": access.actions}))
            .collect();
        let claims = json!({
            "iss": Self::ISSUER, "sub": user, "aud": self.audience, "jti": Uuid::new_v4().to_string(),
            "iat": end - LIFE, "nbf": end - LIFE, "exp": end, "access": access,
        });
        let header = json!({"alg": "EdDSA", "typ": "JWT", "kid": KEY_ID});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = self.key.sign(signed.as_bytes()).expect(SIGNS);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}
