//! Whether the registry takes the credential, asked as a run does before its first write; and how long such a token lasts.

use agent::credential::{Credential, Desired, RegistryHost};
use agent::image::ImageRef;
use secrecy::ExposeSecret as _;
use talos_proto::chain;
use talos_proto::clock::Clock;

use super::Check;
use crate::registry::{Checked, Login, explain, preflight};

const NAME: &str = "registry";

/// Asks each registry by itself, so that one that refuses hides no other. Needs no cluster.
pub async fn look(desired: &Desired, images: &[String], clock: &Clock) -> Vec<Check> {
    if desired.is_empty() {
        return vec![Check::not_looked_at(NAME, "there is no credential to try")];
    }
    let mut checks = Vec::new();
    let mut references = Vec::new();
    for image in images {
        match image.parse::<ImageRef>() {
            Ok(image) => references.push(image),
            Err(error) => checks.push(Check::fault(NAME, format!("--image: {}", chain(&error)))),
        }
    }
    for image in references.iter().filter(|image| desired.get(image.host()).is_none()) {
        let words = format!("--image {image}: the credential has nothing for {}", image.host());
        checks.push(Check::fault(NAME, words));
    }
    let references = &references;
    let asked = desired.iter().map(|(host, credential)| async move {
        let images: Vec<_> = references.iter().filter(|image| image.host() == host).cloned().collect();
        match preflight(&desired.only(host), &images, clock).await {
            Ok(passed) => {
                let mut checks: Vec<_> = passed.registries.iter().map(accepted).collect();
                checks.extend(passed.warnings().into_iter().map(|warning| Check::warning(NAME, warning)));
                checks.extend(lasting(host, credential));
                checks
            }
            Err(error) => {
                let next = format!(
                    "a token of that user that has not expired and may read the image (GHCR: read:packages); to try one alone: talos-ghcr doctor --registry-only --registry {host}{}",
                    images.first().map(|image| format!(" --image {image}")).unwrap_or_default()
                );
                let mut checks = vec![Check::fault(NAME, explain(&error).await).next(next)];
                checks.extend(lasting(host, credential));
                checks
            }
        }
    });
    checks.extend(futures::future::join_all(asked).await.into_iter().flatten());
    checks
}

fn accepted(checked: &Checked) -> Check {
    let host = &checked.host;
    let words = match checked.login {
        Login::Token => format!("{host} accepts the credential (it gave a token for it)"),
        Login::Basic => format!("{host} accepts the credential (user and password)"),
        Login::NotAsked => format!("{host} answers"),
    };
    let images: Vec<_> = checked.images.iter().map(ToString::to_string).collect();
    let reads = if images.is_empty() { String::new() } else { format!("; it may read {}", images.join(", ")) };
    Check::ok(NAME, words + &reads)
}

/// What a token's prefix or its user says of how long it lasts. No part of it is shown.
fn lasting(host: &RegistryHost, credential: &Credential) -> Option<Check> {
    let (username, secret) = match credential {
        Credential::Basic { username, password } => (username.as_str(), password),
        Credential::Token(token) => ("", token),
        Credential::None => return None,
    };
    let (kind, problem) = kind(host.as_str(), username, secret.expose_secret())?;
    Some(match problem {
        None => Check::ok("token", format!("of {host}: {kind}")),
        Some(problem) => Check::warning("token", format!("of {host}: {kind}: {problem}"))
            .next("give the nodes one that lasts; for short-lived ones use a kubelet credential provider"),
    })
}

/// The kind of a token where it can be known, and what is wrong with such a one on nodes.
fn kind(host: &str, username: &str, secret: &str) -> Option<(&'static str, Option<&'static str>)> {
    const HOURS: Option<&str> = Some("it is over within hours, and the nodes cannot pull any more then");
    let of_user = [
        ("AWS", "a password of Amazon ECR", HOURS),
        ("oauth2accesstoken", "an access token of Google", HOURS),
        ("00000000-0000-0000-0000-000000000000", "a token of Azure", HOURS),
        ("_json_key", "a key of a Google service account", None),
        ("_json_key_base64", "a key of a Google service account", None),
    ];
    if let Some((_, kind, problem)) = of_user.into_iter().find(|(user, ..)| *user == username) {
        return Some((kind, problem));
    }
    // GitHub Packages takes classic tokens only (docs.github.com, "Working with the Container registry").
    let fine_grained = (host == "ghcr.io").then_some("GitHub's registry takes classic ones only");
    let by_prefix = [
        ("ghp_", "a personal access token (classic) of GitHub", None),
        ("github_pat_", "a fine-grained personal access token of GitHub", fine_grained),
        ("ghs_", "a token of a GitHub App or of an Actions job (GITHUB_TOKEN)", HOURS),
        ("ghu_", "a token of a GitHub App for a user", HOURS),
        ("gho_", "an OAuth token of GitHub", None),
        ("glpat-", "a personal, project or group access token of GitLab", None),
        ("gldt-", "a deploy token of GitLab", None),
        ("dckr_pat_", "an access token of Docker Hub", None),
        ("dckr_oat_", "an organization's access token of Docker Hub", None),
    ];
    by_prefix.into_iter().find(|(prefix, ..)| secret.starts_with(prefix)).map(|(_, kind, problem)| (kind, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Health;

    #[test]
    fn the_kind_of_a_token_is_known_and_no_part_of_it_shown() {
        let cases = [
            ("puller", "ghp_Abc0123456789", Some(Health::Ok), "classic"),
            ("puller", "github_pat_Abc0123456789", Some(Health::Warning), "classic ones only"),
            ("x-access-token", "ghs_Abc0123456789", Some(Health::Warning), "over within hours"),
            ("AWS", "eyJAbc0123456789", Some(Health::Warning), "Amazon ECR"),
            ("puller", "Abc0123456789", None, ""),
        ];
        let host: RegistryHost = "ghcr.io".parse().unwrap();
        for (user, secret, health, words) in cases {
            let check = lasting(&host, &Credential::basic(user, secret));
            assert_eq!(check.as_ref().map(|check| check.health), health, "{user} {words}");
            let detail = check.map(|check| check.detail).unwrap_or_default();
            assert!(detail.contains(words) && !detail.contains("Abc0"), "{detail}");
        }
    }
}
