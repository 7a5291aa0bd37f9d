//! The pull proof: does the configured credential fetch a private image from this node?
//!
//! It proves the credential, not containerd: Talos's puller takes the credential from the machine config. The image
//! goes into the namespace `system` of the CRI containerd, where applications' images are not, so that the layers that
//! the node has are shared and a pull costs two HEAD requests (talos-captures, point 16); every name that the pull
//! added is removed again.

use std::time::Duration;

use talos_proto::chain;
use talos_proto::error::{CallError, Why};
use talos_proto::node::Node;
use talos_proto::permit::{NoPermit, Permits};

use crate::claims::Pull;
use crate::credential::RegistryHost;
use crate::facts::Facts;

/// A refused credential is never answered, Talos goes on trying for 20 minutes: this is the only end.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Removing a name may take that long.
const REMOVE: Duration = Duration::from_secs(8);

/// Why a pull has no result.
#[derive(Debug)]
pub enum NoResult {
    /// The lease does not allow it now.
    NoPermit(NoPermit),
    /// The node was not reached, or the connection broke and nothing was pulled: it says nothing of the credential, and
    /// asking again may help.
    Unreached(String),
}

impl From<NoPermit> for NoResult {
    fn from(no: NoPermit) -> Self {
        Self::NoPermit(no)
    }
}

/// Pulls the first of `images` whose registry is among the desired hosts.
///
/// # Errors
/// [`NoResult`]; everything that the node or the registry says is a [`Pull`].
pub async fn check(
    node: &Node,
    permits: &dyn Permits,
    facts: &Facts,
    image: Option<(&RegistryHost, &str)>,
) -> Result<Pull, NoResult> {
    let Some((host, image)) = image else {
        return Ok(Pull::Unprovable("no --image was given".into()));
    };
    if facts.mirrored(host) {
        return Ok(Pull::Unprovable(format!("a mirror may answer in the place of {host}")));
    }
    let modern = facts.version.at_least(1, 13);
    let before = match images(node, modern).await {
        Ok(names) => names,
        Err(error) if is_unreached(&error.why) => return Err(NoResult::Unreached(chain(&error))),
        Err(error) => return Ok(Pull::Failed(chain(&error))),
    };
    if before.iter().any(|name| name == image) {
        return Ok(Pull::Unprovable(format!("{image} is on the node already, so that no registry is asked")));
    }
    let limit = permits.limit(DEADLINE);
    let permit = permits.permit(limit)?;
    let answer = if modern {
        node.pull_system_image(permit, image, limit).await
    } else {
        // Nothing removes an image below 1.13: the name stays, and the next proof finds the image there.
        node.pull_system_image_before_1_13(permit, image, limit).await.map(|()| image.to_owned())
    };
    let pull = match answer {
        Ok(name) => Pull::Proved(name),
        Err(error) => match error.why {
            Why::NoPermit(no) => return Err(no.into()),
            why => match landed(node, modern, &before, image, &why).await {
                Some(name) => Pull::Proved(name),
                None if is_unreached(&why) => return Err(NoResult::Unreached(say(host, image, why))),
                None => Pull::Failed(say(host, image, why)),
            },
        },
    };
    if modern {
        tidy(node, permits, &before, image, &pull).await?;
    }
    Ok(pull)
}

/// The names in the namespace of Talos's own images.
async fn images(node: &Node, modern: bool) -> Result<Vec<String>, CallError> {
    if modern { node.system_images().await } else { node.system_images_before_1_13().await }
}

/// The name that a pull added whose reply is lost. It was not there before and only a pull with the configured credential
/// puts it there: what can be seen on the node is as good as the reply.
async fn landed(node: &Node, modern: bool, before: &[String], image: &str, why: &Why) -> Option<String> {
    if !matches!(why, Why::Broken { .. } | Why::Deadline { .. } | Why::TargetUnreachable { .. } | Why::Reply { .. }) {
        return None;
    }
    let now = images(node, modern).await.ok()?;
    let mut added: Vec<String> = now.into_iter().filter(|name| !before.contains(name)).collect();
    let place = added.iter().position(|name| name == image)?;
    let pinned = added.iter().position(|name| {
        name.split_once('@').is_some_and(|(repository, _)| image.strip_prefix(repository).is_some_and(is_reference))
    });
    Some(added.swap_remove(pinned.unwrap_or(place)))
}

/// The way to the node is at fault, and may be another in a moment.
fn is_unreached(why: &Why) -> bool {
    matches!(why, Why::Connect { .. } | Why::Broken { .. } | Why::TargetUnreachable { .. })
}

/// What follows the repository in an image's name.
fn is_reference(rest: &str) -> bool {
    rest.is_empty() || ((rest.starts_with(':') || rest.starts_with('@')) && !rest.contains('/'))
}

fn say(host: &RegistryHost, image: &str, why: Why) -> String {
    match why {
        Why::Deadline { after } => format!(
            "no answer to a pull of {image} within {after:.0?}: the credential is refused, or {host} cannot be reached from the node"
        ),
        Why::NotFound => format!("{host} says that {image} does not exist"),
        // Its words can hold the credential (Talos PrepareAuth puts it into its error text).
        why => format!("the pull of {image} failed: {why}"),
    }
}

/// Removes what a pull added. A name that stays is not worth a failure: it costs the node nothing but the name.
async fn tidy(node: &Node, permits: &dyn Permits, before: &[String], image: &str, pull: &Pull) -> Result<(), NoPermit> {
    let pinned = if let Pull::Proved(name) = pull { name.as_str() } else { "" };
    let digest = pinned.split_once('@').map_or("", |(_, digest)| digest);
    // Talos itself keeps images in this namespace: only what this pull can have added is removed.
    let ours = |name: &str| name == image || (!pinned.is_empty() && (name == pinned || name == digest));
    let Ok(after) = node.system_images().await else { return Ok(()) };
    for name in after.iter().filter(|name| !before.contains(name) && ours(name.as_str())) {
        let limit = permits.limit(REMOVE);
        let permit = permits.permit(limit)?;
        if let Err(error) = node.remove_system_image(permit, name, limit).await {
            tracing::debug!(%name, error = %chain(&error), "the pulled name stays in the system namespace");
        }
    }
    Ok(())
}
