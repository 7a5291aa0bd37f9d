//! Who asks, and what they may do.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A client as its certificate names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The common name; `system:anonymous` without a certificate.
    pub name: String,
    /// The organizations.
    pub groups: Vec<String>,
}

impl User {
    /// From the certificate that the TLS layer has verified.
    #[must_use]
    pub fn from_certificate(certificate: Option<&CertificateDer<'_>>) -> Self {
        let parsed = certificate.and_then(|der| X509Certificate::from_der(der).ok());
        let Some((_, certificate)) = parsed else { return Self { name: "system:anonymous".into(), groups: vec![] } };
        let subject = certificate.subject();
        let name = subject.iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default();
        let groups = subject.iter_organization().filter_map(|name| name.as_str().ok()).map(str::to_owned).collect();
        Self { name: name.to_owned(), groups }
    }

    /// Whether it is nobody.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.name == "system:anonymous"
    }

    fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }
}

/// What a rule of a ClusterRole allows.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The API group; empty for the core group.
    pub group: String,
    /// Plural, with the subresource after a slash.
    pub resource: String,
    /// The verbs.
    pub verbs: Vec<String>,
}

/// The rules of a ClusterRole or Role as it stands in YAML; every combination of a rule's lists is one [`Rule`].
///
/// # Errors
/// When the text is no such document.
pub fn rules_of(yaml: &str) -> Result<Vec<Rule>, serde_yaml::Error> {
    #[derive(serde::Deserialize)]
    struct Role {
        rules: Vec<Listed>,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Listed {
        api_groups: Vec<String>,
        resources: Vec<String>,
        verbs: Vec<String>,
    }
    let role: Role = serde_yaml::from_str(yaml)?;
    let mut rules = Vec::new();
    for listed in role.rules {
        for group in &listed.api_groups {
            for resource in &listed.resources {
                rules.push(Rule { group: group.clone(), resource: resource.clone(), verbs: listed.verbs.clone() });
            }
        }
    }
    Ok(rules)
}

/// RBAC of the lab: masters may all; others what they were granted in the whole cluster.
#[derive(Debug, Default)]
pub struct Rbac {
    grants: RwLock<HashMap<String, Vec<Rule>>>,
}

impl Rbac {
    /// Grants rules to a user, in place of those before.
    pub fn grant(&self, user: &str, rules: Vec<Rule>) {
        self.grants.write().unwrap_or_else(PoisonError::into_inner).insert(user.to_owned(), rules);
    }

    /// Whether the user may do that.
    #[must_use]
    pub fn allows(&self, user: &User, verb: &str, group: &str, resource: &str) -> bool {
        let grants = self.grants.read().unwrap_or_else(PoisonError::into_inner);
        user.is_master()
            || grants.get(&user.name).into_iter().flatten().any(|rule| {
                rule.group == group && rule.resource == resource && rule.verbs.iter().any(|known| known == verb)
            })
    }
}
