//! Signals: the first one stops in order, a repeat of the same one at once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use talos_proto::clock::{Clock, short};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::exit::Exit;
use crate::report;

/// A CI job is cancelled with INT and, 7.5 s later, TERM: within this both are one cancellation.
const ONE_CANCELLATION: Duration = Duration::from_secs(10);

/// What asked the run to stop.
pub(super) struct Stop {
    /// Cancelled at the first signal or at `--timeout`.
    pub(super) token: CancellationToken,
    cause: oneshot::Receiver<Exit>,
    words: Arc<OnceLock<String>>,
}

impl Stop {
    /// Listens from now on; `limit` is `--timeout`, and `at_once` is called before a repeated signal ends the process.
    pub(super) fn listen(
        clock: &Clock,
        limit: Option<Duration>,
        at_once: impl Fn(Exit) + Send + 'static,
    ) -> std::io::Result<Self> {
        let token = CancellationToken::new();
        let (tell, cause) = oneshot::channel();
        let words: Arc<OnceLock<String>> = Arc::default();
        let told = Arc::clone(&words);
        let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (clock, stop) = (clock.clone(), token.clone());
        tokio::spawn(async move {
            let timeout = async {
                match limit {
                    Some(limit) => clock.sleep_until(clock.now() + limit).await,
                    None => std::future::pending().await,
                }
            };
            let first = tokio::select! {
                _ = int.recv() => Exit::Signal(2),
                _ = term.recv() => Exit::Signal(15),
                () = timeout => Exit::Stopped,
            };
            let cause = match (first, limit) {
                (Exit::Stopped, Some(limit)) => format!("--timeout of {} is over", short(limit)),
                (Exit::Signal(2), _) => "SIGINT".to_owned(),
                _ => "SIGTERM".to_owned(),
            };
            report::say(&format!(
                "stopping: no new step is begun, what this run cordoned is given back ({cause}; a repeated signal ends it at once)"
            ));
            let _ = told.set(cause);
            let _ = tell.send(first);
            stop.cancel();
            let since = clock.now();
            let mut heard = vec![first];
            loop {
                let again = tokio::select! {
                    _ = int.recv() => Exit::Signal(2),
                    _ = term.recv() => Exit::Signal(15),
                };
                // A repeat ends at once; TERM soon after INT is the same cancellation; what comes after --timeout is the
                // first of its kind.
                let new = !heard.contains(&again);
                let same_cancellation = heard.contains(&Exit::Signal(2)) && clock.now().since(since) < ONE_CANCELLATION;
                if !(new && (first == Exit::Stopped || same_cancellation)) {
                    at_once(again);
                    std::process::exit(again.code().into());
                }
                heard.push(again);
            }
        });
        Ok(Self { token, cause, words })
    }

    /// What it was, in words.
    pub(super) fn cause(&self) -> Option<&str> {
        self.words.get().map(String::as_str)
    }

    /// How the run ends because of it; `None` when nothing asked it to stop.
    pub(super) fn exit(&mut self) -> Option<Exit> {
        self.cause.try_recv().ok()
    }
}
