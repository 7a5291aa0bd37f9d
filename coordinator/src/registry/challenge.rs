//! What a registry asks for: the `WWW-Authenticate` header (RFC 9110, section 11.6.1) and the token request that
//! follows from it (distribution's token authentication).

use std::fmt::Write as _;

use http::Uri;

/// How a registry wants to be logged in to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Fetch a token there first.
    Bearer {
        /// The token endpoint.
        realm: String,
        /// Which registry the token is for.
        service: Option<String>,
    },
    /// Send user and password.
    Basic,
}

/// The challenge to answer: a `Bearer` one if there is any.
pub(super) fn parse<'h>(headers: impl IntoIterator<Item = &'h str>) -> Option<Challenge> {
    let mut basic = None;
    for header in headers {
        for (scheme, parameters) in schemes(header) {
            let parameter = |name: &str| {
                parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
            };
            if scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = parameter("realm")
            {
                return Some(Challenge::Bearer { realm, service: parameter("service") });
            }
            if scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            }
        }
    }
    basic
}

/// Whether a token was refused for its own sake, as one that has run out is, and not for what it allows (RFC 6750,
/// section 3.1).
pub(super) fn refuses_token<'h>(headers: impl IntoIterator<Item = &'h str>) -> bool {
    headers.into_iter().flat_map(schemes).any(|(scheme, parameters)| {
        let invalid = |(key, value): &(String, String)| key.eq_ignore_ascii_case("error") && value == "invalid_token";
        scheme.eq_ignore_ascii_case("bearer") && parameters.iter().any(invalid)
    })
}

type Scheme = (String, Vec<(String, String)>);

/// `Bearer a="1", b=2, Basic c="3"`: a word without `=` begins a scheme, everything else belongs to the one before.
fn schemes(header: &str) -> Vec<Scheme> {
    let mut schemes: Vec<Scheme> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let word = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        if word == 0 {
            return schemes;
        }
        let (name, behind) = rest.split_at(word);
        match behind.trim_start_matches([' ', '\t']).strip_prefix('=') {
            None => {
                schemes.push((name.to_owned(), Vec::new()));
                rest = behind;
            }
            Some(value) => {
                let (value, behind) = parameter_value(value.trim_start_matches([' ', '\t']));
                if let Some((_, parameters)) = schemes.last_mut() {
                    parameters.push((name.to_owned(), value));
                }
                rest = behind;
            }
        }
    }
}

/// A token or quoted string, and what stands behind it.
fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            c => value.push(c),
        }
    }
    (value, "")
}

/// Why the realm of a challenge is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RealmFault {
    /// Not an absolute URL with a host.
    NotAUrl,
    /// The credential would go over the network in clear.
    NotHttps,
}

/// The realm as a URL that a credential may be sent to.
pub(super) fn safe_realm(realm: &str) -> Result<Uri, RealmFault> {
    let uri: Uri = realm.parse().map_err(|_| RealmFault::NotAUrl)?;
    let authority = uri.authority().ok_or(RealmFault::NotAUrl)?;
    // A user in the URL would be a second credential, of whoever wrote the challenge.
    if authority.as_str().contains('@') {
        return Err(RealmFault::NotAUrl);
    }
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some(_) => Err(RealmFault::NotHttps),
        None => Err(RealmFault::NotAUrl),
    }
}

/// The scope of a pull.
pub(super) fn pull_scope(repository: &str) -> String {
    format!("repository:{repository}:pull")
}

/// `pairs` as a query or form.
pub(super) fn form(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (key, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        out.push_str(key);
        out.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                out.push(char::from(byte));
            } else {
                // Writing to a String cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// `realm` with `query` added to the one that it may have.
pub(super) fn with_query(realm: &Uri, query: &str) -> String {
    let separator = match realm.query() {
        None => "?",
        Some("") => "",
        Some(_) => "&",
    };
    if query.is_empty() { realm.to_string() } else { format!("{realm}{separator}{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
    }

    #[test]
    fn challenges_of_real_registries_are_read() {
        for (headers, challenge) in [
            (
                vec![r#"Bearer realm="https://ghcr.io/token",service="ghcr.io",scope="repository:user/image:pull""#],
                bearer("https://ghcr.io/token", Some("ghcr.io")),
            ),
            (
                vec![r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io""#],
                bearer("https://auth.docker.io/token", Some("registry.docker.io")),
            ),
            (vec![r#"Basic realm="Registry Realm""#], Some(Challenge::Basic)),
            (vec![r#"basic realm=x"#, r#"BEARER Realm = "https://a/t?x=1,2""#], bearer("https://a/t?x=1,2", None)),
            (vec![r#"Basic realm="a, Bearer b", Bearer realm="https://a/\"t""#], bearer("https://a/\"t", None)),
            (vec!["Bearer"], None),
            (vec![r#"Bearer service="x""#], None),
            (vec!["Negotiate", ""], None),
            (vec![r#"Bearer realm="unclosed"#], bearer("unclosed", None)),
            (vec!["=,=\"", "é ü=ö"], None),
        ] {
            assert_eq!(parse(headers.clone()), challenge, "{headers:?}");
        }
    }

    #[test]
    fn k06_a_token_refused_for_its_own_sake_is_told_from_one_of_another_scope() {
        let bearer = r#"Bearer realm="https://ghcr.io/token",service="ghcr.io",scope="repository:a/b:pull""#;
        for (header, refused) in [
            (format!("{bearer},error=\"invalid_token\""), true),
            (format!("Basic realm=r, {bearer}, Error=invalid_token"), true),
            (format!("{bearer},error=\"insufficient_scope\""), false),
            (bearer.to_owned(), false),
            ("Basic error=invalid_token".to_owned(), false),
        ] {
            assert_eq!(refuses_token([header.as_str()]), refused, "{header}");
        }
    }

    #[test]
    fn k10_only_an_https_realm_is_given_the_credential() {
        assert!(safe_realm("https://auth.example.com:8443/token?a=b").is_ok());
        for (realm, fault) in [
            ("http://ghcr.io/token", RealmFault::NotHttps),
            ("ftp://ghcr.io/token", RealmFault::NotHttps),
            ("/token", RealmFault::NotAUrl),
            ("ghcr.io", RealmFault::NotAUrl),
            ("https://ghcr.io@evil.example.com/token", RealmFault::NotAUrl),
            ("", RealmFault::NotAUrl),
        ] {
            assert_eq!(safe_realm(realm).err(), Some(fault), "{realm}");
        }
    }

    #[test]
    fn queries_are_escaped_and_added_to_what_is_there() {
        let query = form(&[("service", "a b&c"), ("scope", &pull_scope("acme/app"))]);
        assert_eq!(query, "service=a%20b%26c&scope=repository%3Aacme%2Fapp%3Apull");
        let with = |realm: &str| with_query(&realm.parse().unwrap(), "a=b");
        assert_eq!(with("https://h/t"), "https://h/t?a=b");
        assert_eq!(with("https://h/t?x=y"), "https://h/t?x=y&a=b");
    }
}
