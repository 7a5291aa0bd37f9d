//! Who we are for Talos, and whether each endpoint answers by itself.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use talos_proto::Talos;
use talos_proto::config::{Context, Endpoint, TalosConfigError};
use talos_proto::identity::{ADMIN, Identity, IdentityError, OPERATOR, address_of};
use talos_proto::resources::NodeAddresses;

use super::validity::{length, validity};
use super::{Check, Health};
use crate::commands::quoted;
use crate::kube::nodes::NodeView;

/// What the certificates of the talosconfig say, and the identity if it can be used.
pub(super) fn identity(config: &Result<Context, TalosConfigError>, now: Timestamp) -> (Option<Identity>, Vec<Check>) {
    const NAME: &str = "talos identity";
    let Ok(context) = config else {
        return (None, vec![Check::not_looked_at(NAME, "there is no talosconfig that can be used")]);
    };
    match Identity::from_context(context, now) {
        Ok(identity) => {
            let mut checks = roles(&identity, context, now);
            checks.push(authority(&identity, now));
            (Some(identity), checks)
        }
        Err(error) => {
            let file = context.file.display();
            let words = match &error {
                IdentityError::Expired { path, at } => {
                    format!(
                        "{file}: {path}: the client certificate expired {} ago ({at})",
                        length(now.duration_since(*at))
                    )
                }
                IdentityError::NotYetValid { path, at } => format!(
                    "{file}: {path}: the client certificate is not valid before {at}, in {}: is this machine's clock right?",
                    length(at.duration_since(now))
                ),
                IdentityError::Value { .. } => format!("{file}: {error}"),
            };
            let check = Check::fault(NAME, words);
            let expired = matches!(error, IdentityError::Expired { .. });
            (None, vec![if expired { check.next(ANEW) } else { check }])
        }
    }
}

/// Talos hands out a certificate only to who has a valid one; the cluster's secrets always do.
const ANEW: &str = "with another os:admin talosconfig: talosctl config new NEW_FILE; with none: talosctl gen config \
                    --with-secrets SECRETS --output-types talosconfig CLUSTER https://ENDPOINT:6443";

fn roles(identity: &Identity, context: &Context, now: Timestamp) -> Vec<Check> {
    const NAME: &str = "talos identity";
    let roles = identity.role_words();
    let (health, until) = validity(Some(identity.not_before), identity.not_after, now);
    let renew = |file: &str| format!("talosctl --talosconfig {file} config new --roles {ADMIN} NEW_FILE");
    if identity.has_role(ADMIN) {
        let check = Check::new(NAME, health, format!("{roles}, {until}"));
        let own = format!("{} --context {}", quoted(&context.file.display().to_string()), quoted(&context.name));
        return vec![if health == Health::Ok { check } else { check.next(renew(&own)) }];
    }
    let may = if identity.has_role(OPERATOR) { "may reboot and pull, but" } else { "may only look, and" };
    let words = format!(
        "{roles}, {until}: {may} not see whether the credential is configured nor write a machine config; run needs {ADMIN}"
    );
    vec![
        Check::fault(NAME, words)
            .next(format!("give a talosconfig of an administrator, who makes one so: {}", renew("OWN_FILE"))),
    ]
}

fn authority(identity: &Identity, now: Timestamp) -> Check {
    const NAME: &str = "talos CA";
    let (health, words) = match identity.ca_not_after {
        Some(until) => validity(None, until, now),
        None => (Health::Ok, "its end cannot be read".to_owned()),
    };
    if identity.issued_by_ca {
        return Check::new(NAME, health, format!("it issued the client certificate; {words}"));
    }
    let odd = "it did not issue the client certificate: unless Talos's CA is being rotated, they are of two clusters";
    Check::new(NAME, health.max(Health::Warning), format!("{odd}; {words}"))
        .next("take ca, crt and key from one talosconfig")
}

/// What one endpoint answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) endpoint: Endpoint,
    pub(super) answer: Result<Answer, String>,
}

/// What the machine behind an endpoint says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) version: String,
    /// Its addresses, a VIP among them while it holds one.
    pub(super) addresses: Vec<IpAddr>,
    /// One question and its answer on an open connection.
    pub(super) took: Duration,
}

/// Asks each endpoint by itself.
pub(super) async fn ask(talos: &Talos) -> Vec<Asked> {
    let asked = talos.endpoints().into_iter().map(|endpoint| async move {
        let answer = match talos.at(&endpoint) {
            Some(node) => match node.version().await {
                Ok(version) => {
                    let begun = talos.clock().now();
                    let addresses = node.get::<NodeAddresses>("current").await;
                    let took = talos.clock().now().since(begun);
                    // What is not told counts as no addresses: only the VIP cannot be made out then.
                    let addresses = agent::facts::addresses(addresses).seen().cloned().unwrap_or_default();
                    Ok(Answer { version: version.to_string(), addresses, took })
                }
                Err(error) => Err(error.why.to_string()),
            },
            None => Err("it is no endpoint".to_owned()),
        };
        Asked { endpoint, answer }
    });
    futures::future::join_all(asked).await
}

/// Whether any of them answers.
pub(super) fn answers(asked: &[Asked]) -> bool {
    asked.iter().any(|it| it.answer.is_ok())
}

/// What follows, with what Kubernetes says of whose addresses they are. Pure.
pub(super) fn endpoints(asked: &[Asked], nodes: &[NodeView]) -> Vec<Check> {
    const NAME: &str = "talos endpoint";
    let one_answers = answers(asked);
    let instead = || {
        let own: Vec<_> = nodes.iter().filter(|node| node.control_plane).filter_map(|node| node.internal_ip).collect();
        let own: Vec<_> = own.iter().map(ToString::to_string).collect();
        if own.is_empty() { "CONTROL_PLANE …".to_owned() } else { own.join(" ") }
    };
    let judged = asked.iter().enumerate().map(|(index, Asked { endpoint, answer })| {
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) if one_answers => return Check::warning(NAME, format!("{endpoint} does not answer: {why}")),
            Err(why) => {
                let check = Check::fault(NAME, format!("{endpoint} does not answer, nor does another: {why}"));
                let next = "reach port 50000 of a control plane from this machine, or give other ones: --endpoints HOST,HOST";
                return if index == 0 { check.next(next) } else { check };
            }
        };
        let said = format!("{}, {} ms", answer.version, answer.took.as_millis());
        let Some(address) = address_of(&endpoint.host) else {
            let by = behind(answer, nodes).map_or_else(String::new, |name| format!(", by {name} this time"));
            return Check::ok(NAME, format!("{endpoint} answers{by}: {said}"));
        };
        if let Some(node) = nodes.iter().find(|node| node.addresses.contains(&address)) {
            if node.control_plane {
                return Check::ok(NAME, format!("{endpoint} is {}: {said}", node.name));
            }
            return Check::warning(NAME, format!("{endpoint} is the worker {}, which forwards nothing: {said}", node.name))
                .next(format!("talosctl config endpoint {}", instead()));
        }
        match behind(answer, nodes).filter(|_| answer.addresses.contains(&address)) {
            Some(name) => Check::warning(
                NAME,
                format!("{endpoint} is the VIP, which {name} holds now; it moves away in the very reboot that is tracked through it: {said}"),
            )
            .next(format!("talosctl config endpoint {}", instead())),
            None => Check::ok(NAME, format!("{endpoint} answers: {said}")),
        }
    });
    judged.collect()
}

/// Which Node the machine is that answered.
fn behind<'a>(answer: &Answer, nodes: &'a [NodeView]) -> Option<&'a str> {
    let own = |node: &&NodeView| node.internal_ip.is_some_and(|ip| answer.addresses.contains(&ip));
    nodes.iter().find(own).map(|node| node.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, address: &str) -> NodeView {
        let address: IpAddr = address.parse().unwrap();
        NodeView {
            name: name.into(),
            control_plane: name.starts_with("cp"),
            internal_ip: Some(address),
            addresses: vec![address],
            ..NodeView::default()
        }
    }

    fn asked(endpoint: &str, answer: Result<&[&str], &str>) -> Asked {
        let answer = answer.map_err(str::to_owned).map(|addresses| Answer {
            version: "v1.13.9".into(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            took: Duration::from_millis(3),
        });
        Asked { endpoint: endpoint.parse().unwrap(), answer }
    }

    /// What is said of a certificate of a year with these roles at a time so many days from now.
    fn said(roles: &[&str], days: i64, foreign: bool) -> Vec<(Health, String)> {
        let ca = lab::pki::Ca::talos();
        let stranger = lab::pki::Ca::talos();
        let client = if foreign { &stranger } else { &ca }.client("", roles);
        let text = lab::pki::talosconfig("lab", &["10.0.0.1".to_owned()], &ca, &client);
        let config = Context::parse(text.as_bytes(), std::path::Path::new("/t"), None, &[]);
        let now = talos_proto::clock::Clock::system().utc() + jiff::SignedDuration::from_hours(24 * days);
        let (identity, checks) = identity(&config, now);
        let usable = checks.iter().all(|check| check.name != "talos identity" || check.health != Health::Fault);
        assert_eq!(identity.is_some(), usable || roles != ["os:admin"], "{checks:?}");
        checks.into_iter().map(|check| (check.health, check.detail)).collect()
    }

    #[test]
    fn the_identity_is_judged_by_its_roles_its_times_and_its_issuer() {
        let cases = [
            (&["os:admin"][..], 0, Health::Ok, "os:admin, valid for 36"),
            (&["os:admin"], 340, Health::Warning, "os:admin, expires in 2"),
            (&["os:admin"], 400, Health::Fault, "/t: contexts.lab.crt: the client certificate expired 3"),
            (&["os:admin"], -400, Health::Fault, "/t: contexts.lab.crt: the client certificate is not valid before "),
            (&["os:reader"], 0, Health::Fault, "os:reader, valid for 36"),
            (&[], 0, Health::Fault, "no role, valid for 36"),
        ];
        for (roles, days, health, words) in cases {
            let said = said(roles, days, false);
            assert!(said[0].0 == health && said[0].1.starts_with(words), "{roles:?} in {days} days: {said:?}");
        }
        let whose = |foreign| said(&["os:admin"], 0, foreign).remove(1);
        assert!(whose(false).0 == Health::Ok && whose(false).1.starts_with("it issued the client certificate; valid"));
        assert!(whose(true).0 == Health::Warning && whose(true).1.starts_with("it did not issue"));
    }

    #[test]
    fn each_endpoint_is_said_to_be_what_it_is() {
        let nodes = [node("cp-1", "10.0.0.1"), node("cp-2", "10.0.0.2"), node("worker-1", "10.0.1.1")];
        let checks = endpoints(
            &[
                asked("10.0.0.1", Ok(&["10.0.0.1"])),
                asked("10.0.0.50", Ok(&["10.0.0.2", "10.0.0.50"])),
                asked("10.0.1.1", Ok(&["10.0.1.1"])),
                asked("talos.example.com", Ok(&["10.0.0.2"])),
                asked("192.0.2.7", Ok(&["10.0.0.2"])),
                asked("10.0.0.9", Err("cannot connect: refused")),
            ],
            &nodes,
        );
        let said: Vec<_> = checks.iter().map(|check| (check.health, check.detail.as_str())).collect();
        let vip = "10.0.0.50:50000 is the VIP, which cp-2 holds now; it moves away in the very reboot that is tracked through it: v1.13.9, 3 ms";
        let expected = [
            (Health::Ok, "10.0.0.1:50000 is cp-1: v1.13.9, 3 ms"),
            (Health::Warning, vip),
            (Health::Warning, "10.0.1.1:50000 is the worker worker-1, which forwards nothing: v1.13.9, 3 ms"),
            (Health::Ok, "talos.example.com:50000 answers, by cp-2 this time: v1.13.9, 3 ms"),
            (Health::Ok, "192.0.2.7:50000 answers: v1.13.9, 3 ms"),
            (Health::Warning, "10.0.0.9:50000 does not answer: cannot connect: refused"),
        ];
        assert_eq!(said, expected);
        assert_eq!(checks[1].next.as_deref(), Some("talosctl config endpoint 10.0.0.1 10.0.0.2"));
        // The last of them is a fault.
        assert_eq!(endpoints(&[asked("10.0.0.9", Err("refused"))], &nodes)[0].health, Health::Fault);
        // Without Kubernetes nobody knows whose an address is.
        assert_eq!(endpoints(&[asked("10.0.0.50", Ok(&["10.0.0.50"]))], &[])[0].health, Health::Ok);
    }
}
