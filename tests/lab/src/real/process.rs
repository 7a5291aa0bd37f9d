//! A program that runs beside the lab and does not outlive it.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// How many of its last lines are shown when a program has ended.
const LAST_WORDS: usize = 5;

/// A running program; killed when it is dropped.
pub struct Process {
    name: String,
    log: PathBuf,
    child: Mutex<Option<Child>>,
    runtime: Handle,
}

impl Process {
    /// Starts a program with its output in a file. It sees nothing of this process's environment, so that no proxy and no
    /// kubeconfig of the user leads anywhere else.
    ///
    /// # Errors
    /// As execve(2), and when the file cannot be opened.
    pub fn start(program: &Path, args: &[String], log: &Path) -> io::Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = log.to_owned();
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(program);
        command.args(args).env_clear().env("EXIT_WITH_STDIN", "1").env("HOME", "/nonexistent");
        // Its standard input ends with this process, even one that is killed, and it with that.
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let child = Mutex::new(Some(command.spawn()?));
        Ok(Self { name, log: path, child, runtime: Handle::current() })
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SIGKILL. It is reaped in the background.
    pub fn kill(&self) {
        let Some(mut child) = self.child().take() else { return };
        // An error means that it has ended already.
        let _ = child.start_kill();
        self.runtime.spawn(async move { child.wait().await });
    }

    /// SIGSTOP: it neither answers nor closes anything.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child().as_ref().and_then(Child::id).and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        // One that has ended cannot be told anything.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }

    /// Whether it has ended by itself: its name, how, and what it said last.
    pub fn ended(&self) -> Option<String> {
        let status = self.child().as_mut()?.try_wait().ok()??;
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().rev().take(LAST_WORDS).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        Some(format!("{} ended ({status}): {}", self.name, lines.join("\n")))
    }
}
