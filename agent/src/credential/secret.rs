//! A Kubernetes Secret manifest that holds a docker config. As the API server does, `stringData` wins over `data`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_yaml::Value;
use zeroize::Zeroizing;

use super::documents::{Document, kind_of};
use super::error::CredentialError;
use super::{Credential, EntryFault, RegistryHost, docker_config};

const TYPE: &str = "kubernetes.io/dockerconfigjson";
const LEGACY_TYPE: &str = "kubernetes.io/dockercfg";
const KEY: &str = ".dockerconfigjson";

/// Whether its type says that it holds a docker config.
pub(super) fn is_docker_config(document: &Document<'_>) -> bool {
    document.get("type").and_then(Value::as_str) == Some(TYPE)
}

/// Why none of these Secrets, which are all of other types, will do; nothing when there are none.
pub(super) fn refusal(secrets: &[Document<'_>]) -> Option<CredentialError> {
    let legacy = |document: &&Document<'_>| document.get("type").and_then(Value::as_str) == Some(LEGACY_TYPE);
    if let Some(document) = secrets.iter().find(legacy) {
        return Some(CredentialError::LegacySecret { secret: document.title() });
    }
    let document = secrets.first()?;
    let found = match document.get("type") {
        None => "Opaque (none is written)".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => kind_of(other).to_owned(),
    };
    Some(CredentialError::SecretType { secret: document.title(), found })
}

/// The credentials of `wanted` out of the docker config in it.
pub(super) fn read(
    document: &Document<'_>,
    wanted: &[RegistryHost],
) -> Result<BTreeMap<RegistryHost, Credential>, CredentialError> {
    let secret = document.title();
    let fault =
        |path: &str, problem: String| CredentialError::Shape { object: secret.clone(), path: path.to_owned(), problem };
    let (path, config) = match (entry(document, "stringData"), entry(document, "data")) {
        (Some(value), _) => {
            let path = format!("stringData[\"{KEY}\"]");
            let text = value.as_str().ok_or_else(|| fault(&path, not_text(value)))?;
            (path, Zeroizing::new(text.as_bytes().to_vec()))
        }
        (None, Some(value)) => {
            let path = format!("data[\"{KEY}\"]");
            let text = value.as_str().ok_or_else(|| fault(&path, not_text(value)))?;
            let compact: Zeroizing<String> =
                Zeroizing::new(text.chars().filter(|it| !it.is_ascii_whitespace()).collect());
            let problem = match text.trim_start() {
                text if text.starts_with("ENC[") => EntryFault::Encrypted.to_string(),
                text if text.starts_with('{') => "plain JSON, not base64; put it under stringData".to_owned(),
                _ => "not base64 (standard alphabet, padded)".to_owned(),
            };
            let bytes = STANDARD.decode(compact.as_bytes()).map_err(|_| fault(&path, problem))?;
            (path, Zeroizing::new(bytes))
        }
        (None, None) => {
            let problem = format!("has neither data[\"{KEY}\"] nor stringData[\"{KEY}\"]");
            return Err(fault("data", problem));
        }
    };
    if config.starts_with(b"ENC[") {
        return Err(fault(&path, EntryFault::Encrypted.to_string()));
    }
    docker_config::read(&config, wanted).map_err(|source| CredentialError::InSecret {
        secret: secret.clone(),
        path,
        source: Box::new(source),
    })
}

fn entry<'a>(document: &'a Document<'_>, section: &str) -> Option<&'a Value> {
    document.get(section)?.get(KEY).filter(|value| !value.is_null())
}

fn not_text(value: &Value) -> String {
    format!("is {}, not text", kind_of(value))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{auth, host, one};
    use super::*;

    fn config() -> String {
        format!(r#"{{"auths":{{"ghcr.io":{{"auth":"{}"}}}}}}"#, auth("puller:s3cret"))
    }

    fn data(name: &str) -> String {
        let data = STANDARD.encode(config());
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: flux-system\n\
             type: kubernetes.io/dockerconfigjson\ndata:\n  .dockerconfigjson: {data}\n"
        )
    }

    fn with(type_and_data: &str) -> String {
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: ghcr}}\n{type_and_data}\n")
    }

    fn says(text: &str) -> String {
        let error = one(text).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("s3cret") && !shown.contains(&auth("puller:s3cret")), "{shown}");
        error.to_string()
    }

    #[test]
    fn k01_a_secret_is_read_as_yaml_and_json_from_data_and_string_data() {
        let data64 = STANDARD.encode(config());
        let (head, tail) = data64.split_at(20);
        let string_data = config().replace('\'', "''");
        for text in [
            data("ghcr"),
            format!("\u{feff}---\n{}---\n", data("ghcr")),
            data("ghcr").replace('\n', "\r\n"),
            with(&format!("type: {TYPE}\ndata:\n  .dockerconfigjson: |\n    {head}\n    {tail}")),
            with(&format!("type: {TYPE}\nstringData:\n  .dockerconfigjson: '{string_data}'")),
            // stringData wins, as in the API server.
            with(&format!(
                "type: {TYPE}\ndata: {{.dockerconfigjson: e30=}}\nstringData:\n  .dockerconfigjson: '{string_data}'"
            )),
            format!(r#"{{apiVersion: v1, kind: Secret, type: {TYPE}, data: {{.dockerconfigjson: {data64}}}}}"#),
            serde_json::json!({"apiVersion": "v1", "kind": "Secret", "type": TYPE, "data": {KEY: data64}}).to_string(),
            serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
                {"apiVersion": "v1", "kind": "ConfigMap"},
                {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"},
                {"apiVersion": "v1", "kind": "Secret", "type": TYPE, "data": {KEY: data64}},
            ]})
            .to_string(),
            format!("apiVersion: v1\nkind: Namespace\n---\n{}", data("ghcr")),
        ] {
            let credential = one(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(credential.same_as(&Credential::basic("puller", "s3cret")), "{text}");
        }
    }

    #[test]
    fn k01_several_secrets_are_refused_by_name() {
        assert_eq!(
            says(&format!("{}---\n{}", data("a"), data("b"))),
            "it holds more than one credential: Secret flux-system/a (document 1), Secret flux-system/b (document 2); \
             give one of them"
        );
        let item = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "type": TYPE});
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [item, item]}).to_string();
        assert!(says(&list).contains("Secret (items[0]), Secret (items[1])"));
        let mixed = format!(
            "{}---\napiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nusername: u\npassword: s3cret\n",
            data("a")
        );
        assert!(says(&mixed).contains("Secret flux-system/a (document 1), RegistryAuthConfig (document 2)"));
    }

    #[test]
    fn k01_a_secret_of_another_type_is_refused_with_what_to_do() {
        assert_eq!(
            says(&with("type: Opaque\ndata: {.dockerconfigjson: e30=}")),
            "Secret ghcr has the type Opaque; a registry credential has the type kubernetes.io/dockerconfigjson"
        );
        assert!(says(&with("data: {}")).contains("the type Opaque (none is written)"));
        assert!(says(&with("type: [1]")).contains("the type a list"));
        let legacy = says(&with("type: kubernetes.io/dockercfg\ndata: {.dockercfg: s3cret}"));
        assert!(
            legacy.contains("legacy type kubernetes.io/dockercfg")
                && legacy.contains("kubectl create secret docker-registry"),
            "{legacy}"
        );
    }

    #[test]
    fn k01_a_fault_in_a_secret_has_its_path_and_no_value() {
        let typed = |rest: &str| says(&with(&format!("type: {TYPE}\n{rest}")));
        let at = "Secret ghcr: data[\".dockerconfigjson\"]: ";
        assert_eq!(
            typed("data: {.dockerconfigjson: 's3cret!'}"),
            format!("{at}not base64 (standard alphabet, padded)")
        );
        assert_eq!(typed("data: {.dockerconfigjson: 12}"), format!("{at}is a number, not text"));
        assert!(typed("data: {.dockerconfigjson: '{\"auths\":{}}'}").contains("put it under stringData"));
        assert!(typed("data: {.dockerconfigjson: 'ENC[AES256_GCM,data:s3cret]'}").contains("sops decrypt"));
        assert!(typed("stringData: {.dockerconfigjson: 'ENC[AES256_GCM,data:s3cret]'}").contains("sops decrypt"));
        assert!(
            typed("stringData: {.dockerconfigjson: [s3cret]}").contains("stringData[\".dockerconfigjson\"]: is a list")
        );
        assert!(typed("data: {config.json: e30=}").contains("has neither data[\".dockerconfigjson\"] nor stringData"));
        assert_eq!(
            typed(&format!("data: {{.dockerconfigjson: {}}}", STANDARD.encode(r#"{"auths":{"quay.io":{}}}"#))),
            format!("{at}the docker config has no entry for ghcr.io; it has quay.io")
        );
        assert!(typed(&format!("data: {{.dockerconfigjson: {}}}", STANDARD.encode("s3cret"))).contains("not JSON"));
        let helper = STANDARD.encode(r#"{"auths":{"ghcr.io":{}},"credsStore":"osxkeychain"}"#);
        let error = typed(&format!("data: {{.dockerconfigjson: {helper}}}"));
        assert!(error.contains("docker-credential-osxkeychain get"), "{error}");
        assert_eq!(host("ghcr.io").as_str(), "ghcr.io");
    }
}
