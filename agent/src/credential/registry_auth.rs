//! Talos's own documents of the kind `RegistryAuthConfig`, one for each host.
//!
//! Shape and rules: Talos `pkg/machinery/config/types/cri/registry_auth.go` at v1.12.0: `name` is the host; exactly one
//! of username with password, `auth`, `identityToken`. Documents of other kinds (a whole machine config) are left
//! alone.

use std::collections::BTreeMap;

use serde_yaml::Value;

use super::documents::{Document, kind_of};
use super::error::{CredentialError, Format};
use super::{Credential, EntryFault, RegistryHost, complete};

/// The credentials of `wanted`.
pub(super) fn read(
    documents: &[Document<'_>],
    wanted: &[RegistryHost],
) -> Result<BTreeMap<RegistryHost, Credential>, CredentialError> {
    wanted.iter().map(|host| Ok((host.clone(), of(documents, host)?))).collect()
}

fn of(documents: &[Document<'_>], host: &RegistryHost) -> Result<Credential, CredentialError> {
    let of_host: Vec<_> = documents.iter().filter(|it| host_of(it).as_ref() == Some(host)).collect();
    match of_host.as_slice() {
        [] => {
            let mut present: Vec<_> = documents.iter().map(present).collect();
            present.sort();
            Err(CredentialError::Missing { format: Format::TalosDocuments, host: host.clone(), present })
        }
        [one] => credential(one).map_err(|fault| CredentialError::Entry {
            format: Format::TalosDocuments,
            path: place(one),
            host: host.clone(),
            fault,
        }),
        more => {
            Err(CredentialError::Repeated { host: host.clone(), places: more.iter().map(|it| place(it)).collect() })
        }
    }
}

fn host_of(document: &Document<'_>) -> Option<RegistryHost> {
    document.get("name")?.as_str()?.parse().ok()
}

fn present(document: &Document<'_>) -> String {
    host_of(document).map_or_else(|| format!("a name that is no host ({})", place(document)), |host| host.to_string())
}

fn place(document: &Document<'_>) -> String {
    if document.place.is_empty() { "document 1".to_owned() } else { document.place.clone() }
}

fn credential(document: &Document<'_>) -> Result<Credential, EntryFault> {
    let text = |field: &'static str| match document.get(field) {
        None => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(EntryFault::NotText { field, found: kind_of(other) }),
    };
    let (username, password) = (text("username")?, text("password")?);
    let (auth, identity_token) = (text("auth")?, text("identityToken")?);
    let user = !username.is_empty() || !password.is_empty();
    if [user, !auth.is_empty(), !identity_token.is_empty()].iter().filter(|set| **set).count() > 1 {
        return Err(EntryFault::Exclusive);
    }
    if auth.starts_with("ENC[") {
        return Err(EntryFault::Encrypted);
    }
    match Credential::effective(username, password, auth, identity_token)? {
        Credential::None => Err(EntryFault::EmptyDocument),
        credential => complete(credential),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{auth, host, one};
    use super::super::{Desired, Unusable};
    use super::*;

    fn document(rest: &str) -> String {
        format!("apiVersion: v1alpha1\nkind: RegistryAuthConfig\n{rest}\n")
    }

    fn ghcr(rest: &str) -> String {
        document(&format!("name: ghcr.io\n{rest}"))
    }

    #[test]
    fn k03_talos_documents_are_read_whichever_way_they_log_in() {
        let basic = Credential::basic("puller", "s3cret");
        for (rest, credential) in [
            ("username: puller\npassword: s3cret".to_owned(), &basic),
            (format!("auth: {}", auth("puller:s3cret")), &basic),
            (format!("auth: {}\nusername:\npassword: ''", auth("puller:s3cret")), &basic),
            ("identityToken: s3cret".to_owned(), &Credential::token("s3cret")),
            ("username: puller\npassword: |-\n  s3cret".to_owned(), &basic),
            ("username: puller # a comment\npassword: \"s3cret\"".to_owned(), &basic),
        ] {
            let text = ghcr(&rest);
            for text in [text.replace('\n', "\r\n"), format!("---\n{text}..."), text] {
                assert!(one(&text).unwrap().same_as(credential), "{text}");
            }
        }
        let json = r#"{"apiVersion":"v1alpha1","kind":"RegistryAuthConfig","name":"ghcr.io","identityToken":"s3cret"}"#;
        assert!(one(json).unwrap().same_as(&Credential::token("s3cret")));
        let flow = "{apiVersion: v1alpha1, kind: RegistryAuthConfig, name: ghcr.io, identityToken: s3cret}";
        assert!(one(flow).unwrap().same_as(&Credential::token("s3cret")));
    }

    #[test]
    fn k03_one_document_for_each_host_and_other_kinds_are_left_alone() {
        let text = format!(
            "version: v1alpha1\nmachine:\n  type: worker\n---\n{}---\n{}---\n{}---\napiVersion: v1alpha1\nkind: HostnameConfig\n",
            ghcr("username: g\npassword: '1'"),
            document("name: docker.io\nusername: d\npassword: '2'"),
            document("name: broken.example.com\nusername: [x]"),
        );
        let desired = Desired::read(text.as_bytes(), &[host("ghcr.io"), host("docker.io")]).unwrap();
        assert!(desired.get(&host("ghcr.io")).unwrap().same_as(&Credential::basic("g", "1")));
        assert!(desired.get(&host("registry-1.docker.io")).unwrap().same_as(&Credential::basic("d", "2")));
        assert_eq!(desired.len(), 2);

        let error = Desired::read(text.as_bytes(), &[host("quay.io")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the file of RegistryAuthConfig documents has no entry for quay.io; \
             it has broken.example.com, ghcr.io, registry-1.docker.io"
        );
        let nameless = one(&document("username: u\npassword: s3cret")).unwrap_err().to_string();
        assert!(nameless.ends_with("it has a name that is no host (document 1)"), "{nameless}");
    }

    #[test]
    fn k03_a_host_that_stands_twice_is_refused() {
        let text = format!("{}---\n{}", ghcr("identityToken: s3cret"), ghcr("identityToken: s3cret"));
        assert_eq!(
            one(&text).unwrap_err().to_string(),
            "document 1 and document 2 are RegistryAuthConfig documents for ghcr.io; keep one"
        );
    }

    #[test]
    fn k03_faults_are_named_with_their_document_and_without_a_value() {
        for (rest, fault) in [
            ("username: u", EntryFault::NoPassword),
            ("password: s3cret", EntryFault::Unusable(Unusable::PasswordWithoutUsername)),
            ("username: u\npassword: 123456", EntryFault::NotText { field: "password", found: "a number" }),
            ("username: no-text\npassword: true", EntryFault::NotText { field: "password", found: "a boolean" }),
            ("identityToken: {s3cret: 1}", EntryFault::NotText { field: "identityToken", found: "a mapping" }),
            ("username: u\npassword: s3cret\nidentityToken: s3cret", EntryFault::Exclusive),
            ("username: u\npassword: s3cret\nauth: dTpzM2NyZXQ=", EntryFault::Exclusive),
            ("auth: s3cret!", EntryFault::Unusable(Unusable::AuthNotBase64)),
            ("auth: ENC[AES256_GCM,data:s3cret]", EntryFault::Encrypted),
            ("username: u\npassword: ENC[AES256_GCM,data:s3cret]", EntryFault::Encrypted),
            ("identityToken: ENC[AES256_GCM,data:s3cret]", EntryFault::Encrypted),
            ("user: u\npass: s3cret", EntryFault::EmptyDocument),
        ] {
            let error = one(&format!("kind: Other\n---\n{}", ghcr(rest))).unwrap_err();
            assert!(
                matches!(&error, CredentialError::Entry { fault: found, .. } if *found == fault),
                "{rest}: {error}"
            );
            let shown = error.to_string();
            let start = "the file of RegistryAuthConfig documents: document 2 (for ghcr.io): ";
            assert!(shown.starts_with(start) && !format!("{shown} {error:?}").contains("s3cret"), "{shown}");
        }
    }
}
