//! A program that runs beside the lab and does not outlive it.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;

/// How many of its last lines are shown when a program has ended.
const LAST_WORDS: usize = 5;

/// Starts a program, says its number, and kills it when standard input ends: with this process, even one that was
/// killed, and even a program that is stopped. Ends as the program does. The first argument is the log.
const GUARD: &str = r#"
exec 3<&0
log=$1; shift
"$@" </dev/null >>"$log" 2>&1 3<&- &
child=$!
echo "$child"
exec >&-
(cat <&3 >/dev/null; kill -9 "$child") &
watch=$!
exec 3<&-
wait "$child"
status=$?
kill "$watch"
exit "$status"
"#;

/// A running program; killed when it is dropped.
pub struct Process {
    name: String,
    log: PathBuf,
    pid: Pid,
    guard: Mutex<Option<Child>>,
    runtime: Handle,
}

impl Process {
    /// Starts a program with its output in a file. It sees nothing of this process's environment, so that no proxy and no
    /// kubeconfig of the user leads anywhere else.
    ///
    /// # Errors
    /// As execve(2), and when the program cannot be started at all.
    pub fn start(program: &Path, args: &[String], log: &Path) -> io::Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        OpenOptions::new().create(true).append(true).open(log)?;
        if !program.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut guard = Command::new("/bin/sh");
        guard.args(["-c", GUARD, "guard"]).arg(log).arg(program).args(args);
        guard.env_clear().env("HOME", "/nonexistent").env("PATH", "/usr/bin:/bin");
        let mut guard = guard.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = guard.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("its guard does not say its number"))?;
        Ok(Self { name, log: log.to_owned(), pid, guard: Mutex::new(Some(guard)), runtime: Handle::current() })
    }

    fn guard(&self) -> MutexGuard<'_, Option<Child>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SIGKILL. It is reaped in the background.
    pub fn kill(&self) {
        let Some(mut guard) = self.guard().take() else { return };
        // Its number is its own as long as the guard has not waited for it; an error means that it has ended already.
        if matches!(guard.try_wait(), Ok(None)) {
            let _ = kill_process(self.pid, Signal::KILL);
        }
        drop(guard.stdin.take());
        self.runtime.spawn_blocking(move || guard.wait());
    }

    /// SIGSTOP: it neither answers nor closes anything.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM: what it does then is its own.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        if self.guard().as_mut().is_some_and(|guard| matches!(guard.try_wait(), Ok(None))) {
            // One that has ended just now cannot be told anything.
            let _ = kill_process(self.pid, signal);
        }
    }

    /// What it has said so far.
    #[must_use]
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it has ended by itself: its name, how, and what it said last.
    pub fn ended(&self) -> Option<String> {
        let status = self.guard().as_mut()?.try_wait().ok()??;
        let said = self.said();
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n");
        Some(format!("{} ended ({status}): {last}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use talos_proto::clock::Clock;

    use super::*;

    #[tokio::test]
    async fn even_one_that_is_stopped_ends_with_its_guard_and_one_that_fails_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let sleeper = Process::start(Path::new("/bin/sleep"), &["600".into()], &log).unwrap();
        sleeper.freeze();
        let pid = sleeper.pid;
        assert_eq!(sleeper.ended(), None);
        // As when this process is killed: only the pipe closes.
        drop(sleeper.guard().as_mut().unwrap().stdin.take());
        let clock = Clock::system();
        while sleeper.ended().is_none() {
            clock.sleep(std::time::Duration::from_millis(5)).await;
        }
        assert!(rustix::process::test_kill_process(pid).is_err(), "it is gone");

        let args = ["-c".to_owned(), "echo no such flag >&2; exit 3".to_owned()];
        let failing = Process::start(Path::new("/bin/sh"), &args, &log).unwrap();
        let why = loop {
            match failing.ended() {
                Some(why) => break why,
                None => clock.sleep(std::time::Duration::from_millis(5)).await,
            }
        };
        assert_eq!(why, "sh ended (exit status: 3): no such flag");
    }
}
