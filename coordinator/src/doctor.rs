//! `doctor`: everything that a run depends on, looked at once and said in one list; changes nothing.

use agent::claims::Verdict;
use agent::image::ImageRef;
use schemars::JsonSchema;
use serde::Serialize;
use talos_proto::chain;
use talos_proto::clock::Clock;
use talos_proto::identity::{ADMIN, OPERATOR};

use crate::fleet::Talk;
use crate::inventory::{Context, Known};
use crate::kube::access;
use crate::plan::SCHEMA_VERSION;
use crate::registry::{explain, preflight};
use agent::credential::Desired;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should be.
    Ok,
    /// A run works, but somebody should know.
    Warning,
    /// A run would fail.
    Failure,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub health: Health,
    /// Why, and what to do.
    pub detail: String,
}

/// The document that `doctor` shows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DoctorDocument {
    /// Version of the shape.
    pub schema_version: u32,
    /// `Doctor`.
    pub kind: &'static str,
    /// All checks, in the order in which a run meets them.
    pub checks: Vec<Check>,
}

impl DoctorDocument {
    /// From the checks.
    #[must_use]
    pub fn new(checks: Vec<Check>) -> Self {
        Self { schema_version: SCHEMA_VERSION, kind: "Doctor", checks }
    }

    /// The worst of all.
    #[must_use]
    pub fn health(&self) -> Health {
        self.checks.iter().map(|check| check.health).max().unwrap_or(Health::Ok)
    }
}

fn check(name: &'static str, health: Health, detail: impl Into<String>) -> Check {
    Check { name, health, detail: detail.into() }
}

/// Asks the registry with the credential, as a run does before its first write. Needs no cluster.
pub async fn registry(desired: &Desired, images: &[String], clock: &Clock) -> Vec<Check> {
    let hosts: Vec<_> = desired.hosts().map(ToString::to_string).collect();
    let images: Result<Vec<ImageRef>, _> = images.iter().map(|image| image.parse::<ImageRef>()).collect();
    let images = match images {
        Ok(images) => images,
        Err(error) => return vec![check("registry", Health::Failure, format!("--image: {}", chain(&error)))],
    };
    match preflight(desired, &images, clock).await {
        Ok(passed) => {
            let mut checks =
                vec![check("registry", Health::Ok, format!("{} accepts the credential", hosts.join(", ")))];
            checks.extend(passed.warnings().into_iter().map(|warning| check("registry", Health::Warning, warning)));
            checks
        }
        Err(error) => vec![check("registry", Health::Failure, explain(&error).await)],
    }
}

/// Looks at identity, permissions and every node.
pub async fn cluster(context: &Context) -> Vec<Check> {
    let mut checks = vec![identity(context)];
    checks.extend(context.warnings.iter().map(|warning| check("configuration", Health::Warning, warning.clone())));
    let lease = &context.settings.lease;
    let needed = access::needed(&lease.namespace, &lease.name, false);
    checks.push(match access::missing(&context.servers, needed).await {
        Ok(missing) if missing.is_empty() => check(
            "kubernetes",
            Health::Ok,
            format!("{} allows all that a roll asks for", context.servers.names().join(", ")),
        ),
        Ok(missing) => {
            let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
            let detail = format!("not allowed: {}; deploy/rbac/clusterrole.yaml grants it", list.join(", "));
            check("kubernetes", Health::Failure, detail)
        }
        Err(error) => check("kubernetes", Health::Failure, chain(&error)),
    });
    match context.inventory(&Known::default()).await {
        Ok(inventory) => checks.extend(fleet(context, &inventory)),
        Err(error) => checks.push(check("nodes", Health::Failure, chain(&error))),
    }
    checks
}

fn identity(context: &Context) -> Check {
    let roles: Vec<_> = context.identity.roles.iter().map(String::as_str).collect();
    let until = format!("valid until {}", context.identity.not_after);
    if context.identity.has_role(ADMIN) {
        return check("talos identity", Health::Ok, format!("{}, {until}", roles.join(", ")));
    }
    let may = if context.identity.has_role(OPERATOR) { "may reboot and pull, but" } else { "may only look, and" };
    let roles = if roles.is_empty() { "no role".to_owned() } else { roles.join(", ") };
    let detail = format!(
        "{roles}, {until}: {may} not see whether the credential is configured nor write a machine config; run needs {ADMIN}"
    );
    check("talos identity", Health::Failure, detail)
}

fn fleet(context: &Context, inventory: &crate::inventory::Inventory) -> Vec<Check> {
    let snapshot = &inventory.snapshot;
    let mut checks = Vec::new();
    let mut answered = 0;
    for node in &snapshot.nodes {
        match (&node.talk, node.verdict()) {
            (Talk::NotTalos(why), _) => {
                checks.push(check("nodes", Health::Warning, format!("{} is left alone: {why}", node.name())));
            }
            (Talk::Unreachable(why), _) => {
                checks.push(check("nodes", Health::Failure, format!("{}: {why}", node.name())));
            }
            (Talk::Facts(_), Verdict::Blocked(blocked)) => {
                checks.push(check("nodes", Health::Failure, format!("{}: {blocked}", node.name())));
            }
            (Talk::Facts(_), _) => answered += 1,
        }
    }
    checks.insert(0, check("nodes", Health::Ok, format!("{answered} of {} answer", snapshot.nodes.len())));
    let endpoint = &snapshot.endpoint;
    checks.push(check("endpoint", Health::Ok, format!("{}: {}", endpoint.server, endpoint.rule)));
    let planes = snapshot.nodes.iter().filter(|node| node.kube.control_plane).count();
    if planes < 3 && !context.settings.allow_control_plane_outage {
        let detail = format!(
            "{planes} control plane(s): their reboot takes the API or etcd's quorum away and needs --allow-control-plane-outage"
        );
        checks.push(check("control planes", Health::Warning, detail));
    }
    if let Some(holder) = inventory.lease.as_ref().and_then(|lease| lease.holder.as_ref()) {
        checks.push(check("lease", Health::Warning, format!("{} is held by {holder}", context.settings.lease)));
    }
    let said = &context.warnings;
    let more = snapshot.warnings.iter().filter(|warning| !said.contains(warning));
    checks.extend(more.map(|warning| check("nodes", Health::Warning, warning.clone())));
    checks
}
