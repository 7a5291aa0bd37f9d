//! Who holds a lease, and whether that process still lives.
//!
//! The identity is what stands in `spec.holderIdentity`; people and the older script read it. The [`Evidence`] stands
//! beside it in an annotation, so that another run on the same machine can tell a dead process from a slow one without
//! asking anybody.

use std::fmt;
use std::path::Path;

use jiff::Timestamp;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use talos_proto::clock::Clock;

/// This process as a holder: its identity and the evidence that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// `<rev16>-gh<run>.<attempt>-<uuid>` in GitHub Actions, `<rev16>-local-<uuid>` elsewhere.
    pub identity: String,
    /// What another process can check.
    pub evidence: Evidence,
}

/// What is known of the process that took a lease. Every field may be missing: it is a hint, never a proof by its
/// absence. No field is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Evidence {
    /// `GITHUB_RUN_ID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// `GITHUB_RUN_ATTEMPT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    /// `GITHUB_JOB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// `GITHUB_REPOSITORY`, `owner/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// `GITHUB_SERVER_URL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// `RUNNER_NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// `/proc/sys/kernel/random/boot_id` of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// `/proc/self/ns/pid`: a process number means something only inside its namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// The process number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Clock ticks after boot at which the process started (field 22 of `/proc/PID/stat`), so that a reused number is
    /// told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_start: Option<u64>,
    /// When this identity was made, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// What the evidence says of a holder. The text says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It lives: nobody takes its lease.
    Alive(String),
    /// It is dead: its lease may be taken after one more read.
    Dead(String),
    /// Nobody can tell: its record is watched.
    Unknown(String),
}

impl Life {
    /// Why it is so.
    #[must_use]
    pub fn into_reason(self) -> String {
        match self {
            Self::Alive(why) | Self::Dead(why) | Self::Unknown(why) => why,
        }
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alive(why) => write!(f, "alive: {why}"),
            Self::Dead(why) => write!(f, "dead: {why}"),
            Self::Unknown(why) => write!(f, "not known to be alive or dead: {why}"),
        }
    }
}

impl Holder {
    /// This process. `rev16` is the first half of the revision that it works for.
    #[must_use]
    pub fn this_process(rev16: &str, clock: &Clock) -> Self {
        let evidence = Evidence::of_this_process(clock);
        let unique = uuid::Uuid::new_v4();
        let identity = match (&evidence.run, &evidence.attempt) {
            (Some(run), Some(attempt)) => format!("{rev16}-gh{run}.{attempt}-{unique}"),
            _ => format!("{rev16}-local-{unique}"),
        };
        Self { identity, evidence }
    }

    /// The CI run's page, if this process runs in one.
    #[must_use]
    pub fn run_link(&self) -> Option<String> {
        run_link(&self.identity, Some(&self.evidence))
    }
}

impl Evidence {
    pub(crate) fn of_this_process(clock: &Clock) -> Self {
        let in_actions = std::env::var("GITHUB_ACTIONS").is_ok_and(|value| value == "true");
        let github = |name: &str| if in_actions { plain_variable(name) } else { None };
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self {
            run: github("GITHUB_RUN_ID"),
            attempt: github("GITHUB_RUN_ATTEMPT"),
            job: github("GITHUB_JOB"),
            repository: github("GITHUB_REPOSITORY"),
            server: github("GITHUB_SERVER_URL"),
            runner: github("RUNNER_NAME"),
            boot_id: boot_id(),
            pid_namespace: pid_namespace(),
            pid: Some(pid),
            process_start: process_stat(pid).map(|stat| stat.start),
            since: Some(clock.utc()),
        }
    }
}

fn plain_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty() && value.len() < 256 && !value.contains(char::is_control))
}

fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}

fn pid_namespace() -> Option<String> {
    std::fs::read_link("/proc/self/ns/pid").ok().map(|target| target.to_string_lossy().into_owned())
}

struct Stat {
    zombie: bool,
    start: u64,
}

fn process_stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?)
}

/// The command name (field 2) may hold spaces and parentheses, so fields are counted after its last `)`.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some(Stat { zombie: matches!(state, "Z" | "X"), start })
}

/// Judges a holder by its evidence: only a process of this machine's present boot and of our own process namespace
/// can be judged, everything else is unknown. A stopped process is alive, for it may go on.
#[must_use]
pub fn life_of(evidence: Option<&Evidence>) -> Life {
    life_on(evidence, boot_id().as_deref(), pid_namespace().as_deref(), &process)
}

/// What a machine says of a process number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// It runs; its start in clock ticks after boot.
    Runs {
        /// The start.
        start: u64,
    },
    /// It has ended and was not waited for yet.
    Zombie {
        /// The start.
        start: u64,
    },
    /// There is none.
    Gone,
    /// It may not be looked at.
    Hidden,
}

fn process(pid: Pid) -> Process {
    match (process_stat(pid.as_raw_nonzero().get()), test_kill_process(pid)) {
        (Some(Stat { zombie: true, start }), _) => Process::Zombie { start },
        (Some(Stat { start, .. }), _) => Process::Runs { start },
        // Not in /proc alone is no proof: hidepid hides the processes of other users.
        (None, Err(Errno::SRCH)) => Process::Gone,
        (None, _) => Process::Hidden,
    }
}

/// As [`life_of`], on a machine with that boot id and process namespace, whose processes `process` looks at. Pure but for
/// that look.
#[must_use]
pub fn life_on(
    evidence: Option<&Evidence>,
    here: Option<&str>,
    here_namespace: Option<&str>,
    process: &dyn Fn(Pid) -> Process,
) -> Life {
    let Some(evidence) = evidence else {
        return Life::Unknown("the lease carries no evidence of its holder".to_owned());
    };
    let (Some(boot), Some(namespace), Some(pid), Some(start)) =
        (&evidence.boot_id, &evidence.pid_namespace, evidence.pid, evidence.process_start)
    else {
        return Life::Unknown("the evidence names no process".to_owned());
    };
    if here != Some(boot) {
        return Life::Unknown("it ran on another machine, or before this one was booted".to_owned());
    }
    if here_namespace != Some(namespace) {
        return Life::Unknown("it runs in another process namespace of this machine".to_owned());
    }
    let Some(number) = Pid::from_raw(pid).filter(|_| pid > 0) else {
        return Life::Unknown(format!("{pid} is no process number"));
    };
    match process(number) {
        Process::Runs { start: other } | Process::Zombie { start: other } if other != start => {
            Life::Dead(format!("process {pid} is another one by now"))
        }
        Process::Zombie { .. } => Life::Dead(format!("process {pid} has ended")),
        Process::Runs { .. } => Life::Alive(format!("its process {pid} runs on this machine")),
        Process::Gone => Life::Dead(format!("its process {pid} is gone from this machine")),
        Process::Hidden => Life::Unknown(format!("process {pid} exists but may not be looked at")),
    }
}

/// The page of the CI run that a holder names, from its evidence or, for a holder without evidence in the identity's
/// form, from the repository that we run in ourselves.
#[must_use]
pub fn run_link(identity: &str, evidence: Option<&Evidence>) -> Option<String> {
    if let Some(Evidence { run: Some(run), attempt, repository: Some(repository), server, .. }) = evidence {
        let server = server.as_deref().unwrap_or("https://github.com");
        let attempt = attempt.as_ref().map(|attempt| format!("/attempts/{attempt}")).unwrap_or_default();
        return Some(format!("{server}/{repository}/actions/runs/{run}{attempt}"));
    }
    let (run, attempt) = run_of(identity)?;
    let repository = plain_variable("GITHUB_REPOSITORY")?;
    let server = plain_variable("GITHUB_SERVER_URL")?;
    Some(format!("{server}/{repository}/actions/runs/{run}/attempts/{attempt}"))
}

/// Run and attempt of an identity of the form `…-gh<run>.<attempt>-…`.
#[must_use]
pub fn run_of(identity: &str) -> Option<(u64, u32)> {
    let (run, rest) = identity.split_once("-gh")?.1.split_once('.')?;
    Some((run.parse().ok()?, rest.split_once('-')?.0.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> Evidence {
        Evidence::of_this_process(&Clock::system())
    }

    #[test]
    fn this_process_is_alive() {
        assert!(matches!(life_of(Some(&me())), Life::Alive(_)));
    }

    #[test]
    fn a_reused_process_number_is_dead() {
        let reused = Evidence { process_start: Some(1), ..me() };
        assert!(matches!(life_of(Some(&reused)), Life::Dead(_)));
    }

    #[test]
    fn l29_a_process_that_was_killed_is_dead() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let evidence = Evidence { pid: Some(pid), process_start: Some(process_stat(pid).unwrap().start), ..me() };
        assert!(matches!(life_of(Some(&evidence)), Life::Alive(_)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(life_of(Some(&evidence)), Life::Dead(_)));
    }

    #[test]
    fn another_machine_or_namespace_is_unknown() {
        let elsewhere = Evidence { boot_id: Some("0".to_owned()), ..me() };
        assert!(matches!(life_of(Some(&elsewhere)), Life::Unknown(_)));
        let container = Evidence { pid_namespace: Some("pid:[1]".to_owned()), ..me() };
        assert!(matches!(life_of(Some(&container)), Life::Unknown(_)));
        assert!(matches!(life_of(None), Life::Unknown(_)));
        assert!(matches!(life_of(Some(&Evidence::default())), Life::Unknown(_)));
    }

    #[test]
    fn the_stat_of_a_command_with_a_parenthesis_is_read() {
        let stat = parse_stat("7 (a) b)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 19").unwrap();
        assert_eq!((stat.zombie, stat.start), (false, 4711));
    }

    #[test]
    fn identities_are_read_back() {
        assert_eq!(run_of("0123456789abcdef-gh17123.2-7f"), Some((17123, 2)));
        assert_eq!(run_of("0123456789abcdef-local-7f"), None);
        let evidence = Evidence {
            run: Some("17123".to_owned()),
            attempt: Some("2".to_owned()),
            repository: Some("o/r".to_owned()),
            server: Some("https://github.example".to_owned()),
            ..Evidence::default()
        };
        let link = run_link("x", Some(&evidence)).unwrap();
        assert_eq!(link, "https://github.example/o/r/actions/runs/17123/attempts/2");
    }
}
