//! The selected user: how we prove who we are.

use std::collections::HashMap;

use http::HeaderValue;
use kube::config::AuthInfo;
use secrecy::SecretString;
use talos_proto::clock::Clock;
use zeroize::Zeroizing;

use super::cluster::Cluster;
use super::fields::At;
use super::{KubeconfigError, Login, Sources, exec, pem};

/// Who we are, and how that came about.
pub(super) async fn read(
    at: &At<'_>,
    cluster: &Cluster,
    sources: &Sources,
    clock: &Clock,
    warnings: &mut Vec<String>,
) -> Result<(AuthInfo, Login), KubeconfigError> {
    let mut user = AuthInfo::default();
    let certificate = pem::source(at, "client-certificate", "client-certificate-data")?;
    let key = pem::source(at, "client-key", "client-key-data")?;
    let mut known = certificate.is_some();
    match (certificate, key) {
        (None, None) => {}
        (Some(certificate), Some(key)) => pem::identity(at, &certificate, &key, clock.utc(), &mut user)?,
        (Some(_), None) => {
            return Err(
                at.fault("client-key-data", "is not set, but there is a client certificate (nor is client-key)")
            );
        }
        (None, Some(key)) => {
            return Err(at.fault(&key.key, "is a key without a certificate; give client-certificate-data"));
        }
    }
    known |= bearer(at, &mut user, warnings)?;
    if let Some(username) = at.text("username")? {
        if user.token.is_some() || user.token_file.is_some() {
            return Err(at.fault("username", "there is a token as well; keep one of them"));
        }
        user.username = Some(username.to_owned());
        user.password = Some(SecretString::from(at.exact("password")?));
        known = true;
    }
    if let Some(provider) = at.mapping("auth-provider")? {
        user.token = Some(from_provider(at, &provider, warnings)?);
        known = true;
    }
    let plugin = exec::Plugin::read(at, cluster)?;
    let mut by_plugin = None;
    if let Some(plugin) = plugin.filter(|_| user.token.is_none() && user.token_file.is_none()) {
        by_plugin = Some(plugin.log_in(sources, clock, &mut user, warnings).await?);
        known = true;
    }
    impersonation(at, &mut user)?;
    if !known {
        let file = at.file.display();
        warnings.push(format!("kubeconfig {file}: {}: has no credential: requests are anonymous", at.path));
    }
    let login = match by_plugin {
        Some(until) => Login::of(&user).by_plugin(until),
        None => Login::of(&user),
    };
    Ok((user, login))
}

/// A token or a file with one. Of both the file is what client-go uses, since it is read again. It is read here as
/// well: kube does not cut off the line break that an editor leaves at its end, and no header can carry that.
fn bearer(at: &At<'_>, user: &mut AuthInfo, warnings: &mut Vec<String>) -> Result<bool, KubeconfigError> {
    if let Some(name) = at.text("tokenFile")? {
        let bytes = Zeroizing::new(at.read_file("tokenFile", name)?);
        let text = std::str::from_utf8(&bytes).map_err(|_| at.fault("tokenFile", "the file holds no text"))?;
        let token = checked(at, "tokenFile", text.trim())?;
        if text.trim() == text {
            user.token_file = at.resolve(name).to_str().map(str::to_owned);
        }
        if user.token_file.is_none() {
            user.token = Some(token);
            warnings.push(at.note(
                "tokenFile",
                "the file has white space around the token, so it is read only once: \
                 write it without a line break if it is renewed",
            ));
        }
        return Ok(true);
    }
    if let Some(token) = at.text("token")? {
        user.token = Some(checked(at, "token", token)?);
        return Ok(true);
    }
    Ok(false)
}

/// A token that a header can carry.
pub(super) fn checked(at: &At<'_>, key: &str, token: &str) -> Result<SecretString, KubeconfigError> {
    if token.is_empty() {
        return Err(at.fault(key, "the token is empty"));
    }
    if !token.is_ascii() || HeaderValue::from_str(token).is_err() || token.contains(char::is_whitespace) {
        return Err(at.fault(key, "the token has white space or characters in it that no token has"));
    }
    Ok(SecretString::from(token))
}

/// The plugins that client-go once had built in. All but `oidc` were removed (gcp and azure in 1.26).
fn from_provider(at: &At<'_>, provider: &At<'_>, warnings: &mut Vec<String>) -> Result<SecretString, KubeconfigError> {
    let name = provider.text("name")?.ok_or_else(|| provider.fault("name", "is not set"))?;
    if name != "oidc" {
        let problem =
            format!("{name} is not supported, nor by kubectl from 1.26 on; use its exec plugin (users[].user.exec)");
        return Err(provider.fault("name", problem));
    }
    let config = provider.mapping("config")?;
    let token = config.as_ref().map(|config| config.text("id-token")).transpose()?.flatten();
    let token = token.ok_or_else(|| {
        provider.fault(
            "config.id-token",
            "is not set; log in with kubectl first, or use the exec plugin `kubectl oidc-login`",
        )
    })?;
    warnings.push(at.note("auth-provider", "the id-token is used as it is and not renewed"));
    checked(provider, "config.id-token", token)
}

fn impersonation(at: &At<'_>, user: &mut AuthInfo) -> Result<(), KubeconfigError> {
    user.impersonate = at.text("as")?.map(str::to_owned);
    user.impersonate_uid = at.text("as-uid")?.map(str::to_owned);
    user.impersonate_groups = Some(at.texts("as-groups")?).filter(|groups| !groups.is_empty());
    if let Some(extra) = at.mapping("as-user-extra")? {
        let keys = extra.mapping.iter().flat_map(|mapping| mapping.keys()).filter_map(serde_yaml::Value::as_str);
        let entries: Result<HashMap<_, _>, _> = keys.map(|key| Ok((key.to_owned(), extra.texts(key)?))).collect();
        user.impersonate_user_extra = Some(entries?);
    }
    let partly =
        user.impersonate_uid.is_some() || user.impersonate_groups.is_some() || user.impersonate_user_extra.is_some();
    if user.impersonate.is_none() && partly {
        return Err(at.fault("as", "is not set, but as-uid, as-groups or as-user-extra is"));
    }
    Ok(())
}
