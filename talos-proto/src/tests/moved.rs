//! What moved between versions of Talos, with bytes put together by the numbers of each version's own table.

use super::field_tables::{VERSIONS, table};
use super::recordings::calls;
use crate::proto::cosi::resource::{Metadata, Resource as Raw, Spec};
use crate::resources::{RegistryConfigs, Resource as _};
use crate::version::TalosVersion;

const CRI: &str = "talos.resource.definitions.cri";

/// Field numbers of one version's `cri` messages.
struct Table(Vec<Vec<String>>);

impl Table {
    fn of(version: &str) -> Self {
        Self(table(&format!("{version}.tsv")))
    }

    fn row(&self, message: &str, field: &str) -> Option<&Vec<String>> {
        self.0.iter().find(|row| row[1] == format!("{CRI}.{message}") && row[2] == field)
    }

    /// A length-delimited field as it is on the wire.
    fn field(&self, message: &str, field: &str, content: &[u8]) -> Vec<u8> {
        let row = self.row(message, field).unwrap_or_else(|| panic!("no {message}.{field}"));
        bytes(row[3].parse().unwrap(), content)
    }

    /// A flag that is set.
    fn yes(&self, message: &str, field: &str) -> Vec<u8> {
        vec![u8::try_from(self.row(message, field).unwrap()[3].parse::<u32>().unwrap() << 3).unwrap(), 1]
    }
}

fn bytes(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = vec![u8::try_from(number << 3 | 2).unwrap()];
    let mut length = content.len();
    while length > 127 {
        out.push(u8::try_from(length & 127).unwrap() | 128);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend_from_slice(content);
    out
}

/// An entry of a map, by the numbers that protobuf itself gives to all maps.
fn entry(host: &str, value: &[u8]) -> Vec<u8> {
    [bytes(1, host.as_bytes()), bytes(2, value)].concat()
}

/// Two credentials, one of them with each of its four parts, a host with a mirror, and one that has TLS alone.
fn registries(version: &str) -> Vec<u8> {
    let table = Table::of(version);
    let auth = |field: &str, value: &str| table.field("RegistryAuthConfig", field, value.as_bytes());
    let all = [
        auth("registry_username", "user"),
        auth("registry_password", &"p".repeat(200)),
        auth("registry_auth", "YTpi"),
        auth("registry_identity_token", "token"),
    ]
    .concat();
    let token = auth("registry_identity_token", "only");
    let spec = |field: &str, host: &str, value: &[u8]| table.field("RegistriesConfigSpec", field, &entry(host, value));
    let url = "http://127.0.0.1:3172";
    let endpoint = match table.row("RegistryMirrorConfig", "mirror_endpoints").unwrap()[4].as_str() {
        // 1.9 has texts, and one flag for all of them.
        "string" => url.as_bytes().to_vec(),
        _ => [
            table.field("RegistryEndpointConfig", "endpoint_endpoint", url.as_bytes()),
            table.yes("RegistryEndpointConfig", "endpoint_override_path"),
        ]
        .concat(),
    };
    let mirror = [
        table.field("RegistryMirrorConfig", "mirror_endpoints", &endpoint),
        table.field("RegistryMirrorConfig", "mirror_endpoints", &endpoint),
        table.yes("RegistryMirrorConfig", "mirror_skip_fallback"),
    ]
    .concat();
    let mut out = [spec("registry_mirrors", "ghcr.io", &mirror), spec("registry_mirrors", "*", &mirror)].concat();
    if table.row("RegistriesConfigSpec", "registry_config").is_some() {
        let inside = |auth: &[u8]| table.field("RegistryConfig", "registry_auth", auth);
        out.extend(spec("registry_config", "ghcr.io", &inside(&all)));
        out.extend(spec("registry_config", "registry.example.com:5000", &inside(&token)));
        let tls = table.field("RegistryConfig", "registry_tls", &[]);
        out.extend(spec("registry_config", "tls.example.com", &tls));
    } else {
        out.extend(spec("registry_auths", "ghcr.io", &all));
        out.extend(spec("registry_auths", "registry.example.com:5000", &token));
        out.extend(spec("registry_tl_ss", "tls.example.com", &[]));
    }
    out
}

#[test]
fn w01_the_registries_of_each_version_are_read_with_its_own_layout() {
    for version in VERSIONS {
        let raw = Raw {
            metadata: Some(Metadata { id: "registries".into(), ..Metadata::default() }),
            spec: Some(Spec { proto_spec: registries(version), yaml_spec: String::new() }),
        };
        let read = RegistryConfigs::decode(raw).unwrap().spec.decode(&version.parse().unwrap()).unwrap();
        let auths: Vec<_> = read
            .auths
            .iter()
            .map(|(host, auth)| {
                let parts = [&auth.registry_username, &auth.registry_password, &auth.registry_auth];
                (host.as_str(), parts.map(String::as_str), auth.registry_identity_token.as_str())
            })
            .collect();
        let long = "p".repeat(200);
        let expected =
            [("ghcr.io", ["user", &long, "YTpi"], "token"), ("registry.example.com:5000", ["", "", ""], "only")];
        assert_eq!(auths, expected, "{version}");
        let mut mirrored = read.mirrored;
        mirrored.sort();
        assert_eq!(mirrored, ["*", "ghcr.io"], "{version}");
    }
}

/// Else the test above would try one layout seven times.
#[test]
fn w01_the_tables_hold_three_layouts_of_registries() {
    let of = |version: &str| {
        let table = Table::of(version);
        let mirrors = table.row("RegistryMirrorConfig", "mirror_endpoints").unwrap()[4].clone();
        (table.row("RegistriesConfigSpec", "registry_config").is_some(), mirrors)
    };
    let endpoints = || "RegistryEndpointConfig".to_owned();
    let expected = [(true, "string".to_owned()), (true, endpoints()), (true, endpoints())];
    let expected = expected.into_iter().chain((0..4).map(|_| (false, endpoints())));
    assert_eq!(VERSIONS.map(of).to_vec(), expected.collect::<Vec<_>>());
}

/// Talos commits 4c288caf2, b8dfda7ee and 166854959.
#[test]
fn n09_a_reader_sees_credentials_until_1_12_9_and_1_13_4() {
    for (tag, seen) in [
        ("v1.9.6", true),
        ("v1.10.9", true),
        ("v1.11.6", true),
        ("v1.12.0", true),
        ("v1.12.8", true),
        ("v1.12.9", false),
        ("v1.12.11", false),
        ("v1.13.0", true),
        ("v1.13.3", true),
        ("v1.13.4", false),
        ("v1.13.9", false),
        ("v1.14.0-rc.1", false),
        ("v1.15.0", false),
    ] {
        assert_eq!(tag.parse::<TalosVersion>().unwrap().readers_see_credentials(), seen, "{tag}");
    }
    // What was recorded agrees: both versions give it to admins only.
    let asked = calls().iter().filter(|call| call.resource_type() == RegistryConfigs::TYPE && call.role == "reader");
    for version in ["v1.13.9", "v1.14.0-rc.1"] {
        let asked: Vec<_> = asked.clone().filter(|call| call.at.starts_with(version)).collect();
        assert!(asked.iter().all(|call| call.code_number != 0), "{version}");
        assert!(asked.iter().any(|call| call.message == "not authorized"), "{version}");
    }
}
