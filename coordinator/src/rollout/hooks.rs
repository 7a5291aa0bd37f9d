//! When a run calls the user's own commands, and what their answers mean.

use std::sync::Arc;
use std::time::Duration;

use talos_proto::chain;

use super::Rollout;
use super::env::Env;
use crate::exit::Exit;
use crate::fleet::FleetNode;
use crate::gates::Closed;
use crate::hooks::{Call, Hook, HookError, MORE, finds_work};
use crate::kube::lease::{HeldLease, LeaseState};
use crate::trace::Phase;

/// A gate that a command keeps closed is asked for again so many times within its budget.
const ASKED_AGAIN: u32 = 60;

impl Env {
    /// Calls a command, if one was given for that point; `None` when none was.
    ///
    /// # Errors
    /// [`HookError`].
    pub async fn call(&self, hook: Hook, told: &[(&'static str, String)]) -> Option<Result<u8, HookError>> {
        let context = &self.context;
        let command = context.settings.hooks.command(hook)?;
        let limit = context.settings.hooks.timeout;
        let about = told.iter().find(|(name, _)| *name == "TALOS_GHCR_NODE").map_or("", |(_, node)| node.as_str());
        let _waiting = self.progress.waiting(about, format!("waiting for {hook}"), Some(self.clock().now() + limit));
        let phase = match hook {
            Hook::Check => Some(Phase::CheckCommand),
            Hook::Before => Some(Phase::BeforeCommand),
            Hook::After => Some(Phase::AfterCommand),
            // It is part of the step that asks it.
            Hook::Gate => None,
        };
        let _phase = phase.map(|phase| self.progress.trace().phase(phase));
        let say = |line: &str| self.progress.event(about, &format!("{hook}: {line}"));
        let call = Call { hook, command, limit, told, secrets: &context.desired };
        Some(call.run(self.clock(), lapsed(self.lease.as_ref()), &say).await)
    }

    /// What `--gate-command` says of a node that is about to be disrupted.
    pub(super) async fn gate_command(&self, node: &FleetNode) -> Result<(), Closed> {
        let told = [("TALOS_GHCR_NODE", node.name().to_owned())];
        match self.call(Hook::Gate, &told).await {
            None | Some(Ok(0)) => Ok(()),
            Some(Ok(code)) => Err(Closed::Command(format!("{} ended with exit code {code}", Hook::Gate))),
            Some(Err(error)) => Err(Closed::Command(chain(&error))),
        }
    }

    /// Between two questions to a gate that a command keeps closed: a command is dearer than a look.
    pub(super) fn command_pause(&self) -> Duration {
        (self.context.settings.budgets.gate / ASKED_AGAIN).clamp(Duration::from_millis(100), Duration::from_secs(10))
    }
}

/// Ends when the lease is not held any more; never while there is none, or when it was gone before.
async fn lapsed(lease: Option<&Arc<HeldLease>>) {
    let Some(lease) = lease else { return std::future::pending().await };
    let mut state = lease.state();
    if *state.borrow_and_update() != LeaseState::Held {
        return std::future::pending().await;
    }
    // The writer outlives the wait: an error cannot come before the release.
    let _ = state.wait_for(|state| *state != LeaseState::Held).await;
}

impl Rollout {
    /// Asks `--check-command`: `Some(true)` when there is something to do, `None` when the run must end.
    pub(super) async fn check_command(&mut self) -> Option<bool> {
        let Some(answer) = self.call_until_stopped(Hook::Check).await else { return Some(false) };
        match answer.and_then(finds_work) {
            Ok(more) => {
                if more {
                    self.env.say_once(&format!("{} finds something to do", Hook::Check));
                }
                Some(more)
            }
            Err(error) => {
                self.command_failed(&error);
                None
            }
        }
    }

    /// Calls `--before-command`; `false` when the run must end.
    pub(super) async fn before_command(&mut self) -> bool {
        self.after_is_due = true;
        match self.call_until_stopped(Hook::Before).await {
            None | Some(Ok(0)) => !self.stopping(),
            Some(Ok(code)) => {
                self.fail(
                    Exit::Failed,
                    "",
                    format!("{} ended with exit code {code}; nothing was changed", Hook::Before),
                );
                false
            }
            Some(Err(error)) => {
                self.command_failed(&error);
                false
            }
        }
    }

    /// Calls `--after-command` where it is due; `true` when one more round is to be made.
    pub(super) async fn after_command(&mut self) -> bool {
        if !self.after_is_due {
            return false;
        }
        if self.lost().is_some() {
            self.exit = self.exit.worse(Exit::ControlLost);
        }
        let result = match self.exit {
            _ if self.stopping() => "stopped",
            Exit::Done => "done",
            Exit::Stopped => "stopped",
            Exit::ControlLost => "control-lost",
            _ => "failed",
        };
        let told = [("TALOS_GHCR_RESULT", result.to_owned()), ("TALOS_GHCR_CHANGED", self.wrote.to_string())];
        match self.env.call(Hook::After, &told).await {
            None | Some(Ok(0)) => {}
            Some(Ok(MORE)) if result == "done" => {
                self.env.progress.event("", &format!("{} asks for one more round", Hook::After));
                return true;
            }
            // Why there is none is the cause that a human reads last, and no fault of the command.
            Some(Ok(MORE)) => {
                self.env.progress.event("", &format!("{} asks for one more round; there is none", Hook::After));
            }
            Some(Ok(code)) => {
                self.fail(Exit::Failed, "", format!("{} ended with exit code {code}", Hook::After));
            }
            Some(Err(error)) => self.command_failed(&error),
        }
        self.after_is_due = false;
        // What it was called for must be there now.
        if result == "done" && self.exit == Exit::Done && self.check_command().await == Some(true) {
            self.fail(Exit::Failed, "", format!("{} still finds something to do after all was done", Hook::Check));
        }
        false
    }

    async fn call_until_stopped(&self, hook: Hook) -> Option<Result<u8, HookError>> {
        // Its process group is killed with the wait for it.
        self.env.unless_stopped(self.env.call(hook, &[])).await.ok().flatten()
    }

    fn command_failed(&mut self, error: &HookError) {
        let exit = if matches!(error, HookError::Lapsed { .. }) { Exit::ControlLost } else { Exit::Failed };
        self.fail(exit, "", chain(error));
    }
}
