//! A pull through Talos, the same behind the old calls and the new ones.

use std::sync::Arc;
use std::time::Duration;

use talos_proto::proto::common::ContainerdNamespace;
use tonic::Status;

use crate::talos::node::Node;
use crate::talos::node::images::{Namespace, Reference};
use crate::talos::outside::PullAnswer;

/// Real nodes try twelve logins in the first second and then for 20 minutes more (talos-captures point 13).
const FIRST_RETRY: Duration = Duration::from_millis(80);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// An image that is there now.
pub(super) struct Pulled {
    pub digest: String,
    /// The registry was not asked.
    pub was_present: bool,
}

pub(super) fn namespace(namespace: ContainerdNamespace) -> Result<Namespace, Status> {
    Namespace::from_proto(namespace).ok_or_else(|| Status::invalid_argument("unsupported namespace"))
}

pub(super) fn reference(text: &str) -> Result<Reference, Status> {
    Reference::parse(text)
        .ok_or_else(|| Status::unknown(format!("failed to parse image reference {text:?}: invalid reference format")))
}

/// OK without a request to the registry when the name is there (pull.jsonl).
pub(super) async fn pull(node: &Arc<Node>, namespace: Namespace, reference: &Reference) -> Result<Pulled, Status> {
    let present = node.state().images.digest(namespace, &reference.to_string()).map(str::to_owned);
    if let Some(digest) = present {
        return Ok(Pulled { digest, was_present: true });
    }
    let digest = ask(node, reference).await?;
    let mut state = node.state();
    let now = node.now(&state);
    state.images.add(namespace, reference, &digest, now);
    Ok(Pulled { digest, was_present: false })
}

/// Asks the registry until it has an answer: a refusal and silence are never told (point 13).
async fn ask(node: &Node, reference: &Reference) -> Result<String, Status> {
    let mut pause = FIRST_RETRY;
    loop {
        match once(node, reference) {
            PullAnswer::Ok(digest) => return Ok(digest),
            PullAnswer::NotFound => {
                return Err(Status::not_found(format!(
                    "error pulling image: 1 error(s) occurred:\n\tfailed to pull image \"{reference}\": failed to \
                     resolve reference \"{reference}\": {reference}: not found"
                )));
            }
            PullAnswer::Denied | PullAnswer::Unreachable => node.sleep(pause).await,
        }
        pause = (pause * 2).min(LAST_RETRY);
    }
}

/// The mirrors of the host in their order, then the host itself; the credential is that of the endpoint's own host
/// (talos.md 3.7). What the first of them said counts when none has the image (pull.jsonl).
fn once(node: &Node, reference: &Reference) -> PullAnswer {
    let endpoints = node.state().pull_endpoints(&reference.host);
    let mut first = None;
    for (endpoint, user) in endpoints {
        let user = user.as_ref().map(|(user, password)| (user.as_str(), password.as_str()));
        let answer = node.fleet.registry.pull(&endpoint, &reference.repository, &reference.reference, user);
        if matches!(answer, PullAnswer::Ok(_)) {
            return answer;
        }
        first.get_or_insert(answer);
    }
    first.unwrap_or(PullAnswer::Unreachable)
}
