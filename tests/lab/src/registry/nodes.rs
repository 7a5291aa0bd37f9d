//! The registry as the nodes of the lab reach it: the simulated one in process, the real one over its front.

use std::time::Duration;

use talos_proto::clock::Clock;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use super::faults::Fault;
use super::pull::Pull;
use super::simulated::Lookup;
use super::{Registry, SERVER};
use crate::talos::outside::{PullAnswer, Registry as Outside};

/// A node of the lab waits no longer for a real registry; its own pull then tries again.
const PULL_LIMIT: Duration = Duration::from_secs(10);

impl Outside for Registry {
    fn pull(&self, host: &str, repository: &str, reference: &str, user: Option<(&str, &str)>) -> PullAnswer {
        if host != self.host() || self.state().unreachable_for_nodes || self.stop.is_cancelled() {
            return PullAnswer::Unreachable;
        }
        self.log.note(SERVER, "PULL manifests", &format!("{repository}:{reference}"), false);
        if self.real.is_some() {
            let pull = Pull::new(&self.client, host, repository, user).run(reference);
            let in_time = async { Clock::system().timeout(PULL_LIMIT, pull).await };
            return block_in_place(|| Handle::current().block_on(in_time)).unwrap_or(PullAnswer::Unreachable);
        }
        let state = self.state();
        match state.faults.everywhere {
            Some(Fault::Answer(401 | 403)) => return PullAnswer::Denied,
            Some(Fault::Answer(404)) => return PullAnswer::NotFound,
            Some(_) => return PullAnswer::Unreachable,
            None => {}
        }
        let user = user.map(|(user, password)| (user.to_owned(), password.to_owned()));
        match state.lookup(user.as_ref(), repository, reference) {
            Lookup::Found(manifest) => PullAnswer::Ok(manifest.digest.clone()),
            Lookup::Unauthorized | Lookup::Denied => PullAnswer::Denied,
            Lookup::Unknown => PullAnswer::NotFound,
        }
    }
}
