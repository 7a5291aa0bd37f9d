//! Commands of the user's own that a run calls at four points. What this tool leaves out on purpose (pausing Flux,
//! re-proving a seed) keeps its guarantees through them.
//!
//! Each is run by `sh -c` in a process group of its own, without stdin. The group is killed when the command takes too
//! long, when the lease lapses, and when this process dies in whatever way: it holds one end of a pipe that a guard in the
//! group listens to. What a command prints goes to our stderr. Its environment lacks every secret that we were given.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use talos_proto::clock::short;

use agent::credential::Desired;
use rustix::process::{Pid, Signal, kill_process_group};
use talos_proto::clock::Clock;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::children::is_kept_from;

/// Runs `$1` and leaves a guard in its process group that kills the group when stdin ends: we are gone, or done with it.
const GUARDED: &str = r#"exec 3<&0 </dev/null
{ cat <&3; kill -KILL 0; } >/dev/null 2>&1 &
exec 3<&-
exec sh -c "$1""#;
/// The answer of a command that finds or leaves something to do.
pub const MORE: u8 = 10;
/// A command that prints without end of line is shown in pieces of that many bytes.
const LONGEST_LINE: u64 = 4_096;

/// When a command is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In every inventory: 0 nothing to do, 10 something to do.
    Check,
    /// Once, before the first write.
    Before,
    /// Before each disruption: 0 go on.
    Gate,
    /// After convergence, and on every exit once [`Hook::Before`] was started: 10 one more round.
    After,
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hook::Check => "--check-command",
            Hook::Before => "--before-command",
            Hook::Gate => "--gate-command",
            Hook::After => "--after-command",
        })
    }
}

/// The commands that were given.
#[derive(Clone, Debug)]
pub struct Hooks {
    /// [`Hook::Check`].
    pub check: Option<String>,
    /// [`Hook::Before`].
    pub before: Option<String>,
    /// [`Hook::Gate`].
    pub gate: Option<String>,
    /// [`Hook::After`].
    pub after: Option<String>,
    /// Each of them may take that long.
    pub timeout: Duration,
}

impl Hooks {
    /// The command for that point.
    #[must_use]
    pub fn command(&self, hook: Hook) -> Option<&str> {
        let command = match hook {
            Hook::Check => &self.check,
            Hook::Before => &self.before,
            Hook::Gate => &self.gate,
            Hook::After => &self.after,
        };
        command.as_deref().filter(|command| !command.trim().is_empty())
    }
}

/// How a command ended when it did not end by itself.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// It could not be started.
    #[error("{hook} cannot be started")]
    Start {
        /// Which.
        hook: Hook,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("{hook} was killed after {} (--hook-timeout)", short(*limit))]
    TimedOut {
        /// Which.
        hook: Hook,
        /// The limit.
        limit: Duration,
    },
    /// The lease lapsed or was lost while it ran.
    #[error("{hook} was killed: the lease had lapsed")]
    Lapsed {
        /// Which.
        hook: Hook,
    },
    /// `--check-command` answered with what it cannot mean.
    #[error("{hook} ended with exit code {code}; 0 is nothing to do, {MORE} something")]
    Answer {
        /// Which.
        hook: Hook,
        /// Its exit code.
        code: u8,
    },
    /// Something else ended it.
    #[error("{hook} ended by {status}")]
    Ended {
        /// Which.
        hook: Hook,
        /// How.
        status: ExitStatus,
    },
}

/// Asks `--check-command` outside of a run; `None` when there is none. What it prints goes to stderr.
pub async fn check(hooks: &Hooks, secrets: &Desired, clock: &Clock) -> Option<Result<bool, HookError>> {
    let command = hooks.command(Hook::Check)?;
    let call = Call { hook: Hook::Check, command, limit: hooks.timeout, told: &[], secrets };
    let say = |line: &str| crate::report::say(&format!("{}: {line}", Hook::Check));
    Some(call.run(clock, std::future::pending(), &say).await.and_then(finds_work))
}

/// What an exit code of `--check-command` says.
///
/// # Errors
/// [`HookError::Answer`].
pub fn finds_work(code: u8) -> Result<bool, HookError> {
    match code {
        0 => Ok(false),
        MORE => Ok(true),
        code => Err(HookError::Answer { hook: Hook::Check, code }),
    }
}

/// A command that is to be run.
pub struct Call<'a> {
    /// When.
    pub hook: Hook,
    /// What.
    pub command: &'a str,
    /// How long it may take.
    pub limit: Duration,
    /// What it is told, besides the name of its point: `TALOS_GHCR_…`.
    pub told: &'a [(&'static str, String)],
    /// Its environment must not hold any of it.
    pub secrets: &'a Desired,
}

impl Call<'_> {
    /// Runs it to its end, or until `lapsed` ends. Each line that it prints is given to `say`.
    ///
    /// # Errors
    /// [`HookError`]; the whole process group has been killed by then.
    pub async fn run(
        self,
        clock: &Clock,
        lapsed: impl Future<Output = ()>,
        say: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<u8, HookError> {
        let Self { hook, limit, .. } = self;
        let start = |source| HookError::Start { hook, source };
        let mut child = self.spawn().map_err(start)?;
        let group = Group { pid: child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) };
        let (out, err) = (child.stdout.take(), child.stderr.take());
        // Who holds the other end until the command has ended; what is left of the group ends with it.
        let guard = child.stdin.take();
        let waited = async {
            let status = child.wait().await;
            drop(guard);
            status
        };
        let ended = async { futures::join!(waited, show(out, say), show(err, say)).0 };
        let status = tokio::select! {
            biased;
            status = ended => status.map_err(start)?,
            () = lapsed => return Err(HookError::Lapsed { hook }),
            () = clock.sleep_until(clock.now() + limit) => return Err(HookError::TimedOut { hook, limit }),
        };
        group.has_ended();
        status.code().and_then(|code| u8::try_from(code).ok()).ok_or(HookError::Ended { hook, status })
    }

    fn spawn(&self) -> io::Result<Child> {
        let told =
            |(name, value): &(OsString, OsString)| !is_kept_from(name) && !self.secrets.is_in(value.as_encoded_bytes());
        let kept = std::env::vars_os().filter(told);
        Command::new("sh")
            .args(["-c", GUARDED, "talos-ghcr", self.command])
            .env_clear()
            .envs(kept)
            .env("TALOS_GHCR_HOOK", self.hook.to_string().trim_start_matches("--").trim_end_matches("-command"))
            .envs(self.told.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    }
}

/// Kills the process group unless it has ended: when the wait for it is given up for whatever reason.
struct Group {
    pid: Option<Pid>,
}

impl Group {
    fn has_ended(mut self) {
        self.pid = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Shows each line without its control characters, until the stream ends.
async fn show(stream: Option<impl AsyncRead + Unpin>, say: &(dyn Fn(&str) + Send + Sync)) {
    use tokio::io::AsyncReadExt as _;
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let text: String = text.trim_end().chars().filter(|it| *it == '\t' || !it.is_control()).collect();
                if !text.is_empty() {
                    say(&text);
                }
            }
        }
    }
}
