//! ApplyConfiguration, in its modes.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tonic::Status;

use super::{Boot, Node, State};
use crate::talos::config::{Effective, diff};
use crate::talos::cosi::{kind, spec};
use talos_proto::proto::machine::ApplyConfiguration;
use talos_proto::proto::machine::apply_configuration_request::Mode;

const IN_PLACE: &str = "Applied configuration without a reboot";
const WITH_REBOOT: &str = "Applied configuration with a reboot";
const STAGED: &str = "Staged configuration to be applied after the next reboot";
/// A TRY without a timeout (talos.md 4.2).
const DEFAULT_TRY: Duration = Duration::from_secs(60);

impl Node {
    /// Applies a machine config; the words of the reply are those of write.jsonl.
    ///
    /// # Errors
    /// As the real ones; the text can hold passwords.
    pub(crate) fn apply(
        self: &Arc<Self>,
        data: &[u8],
        mode: Mode,
        dry_run: bool,
        timeout: Duration,
    ) -> Result<ApplyConfiguration, Status> {
        if mode == Mode::Reboot && self.version.adopts_live() {
            return Err(Status::unimplemented(
                "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead",
            ));
        }
        let effective =
            Effective::parse(data, &self.version).map_err(|refused| Status::invalid_argument(refused.to_string()))?;
        let mut state = self.state();
        let now = self.now(&state);
        // Before the dry run is looked at: a dry run cancels another tool's TRY, whose config then stays active
        // (talos.md 1.4).
        if mode != Mode::Try
            && let Some(trial) = state.boot.trial.take()
        {
            trial.cancel();
        }
        let difference = diff(&String::from_utf8_lossy(&state.boot.active), &String::from_utf8_lossy(data));
        let in_place = self.version.adopts_live() || effective.fixed == state.boot.effective.fixed;
        let (done, text) = match mode {
            Mode::NoReboot | Mode::Try if !in_place => {
                return Err(Status::invalid_argument(format!(
                    "this config change can't be applied in immediate mode\ndiff:\n{difference}"
                )));
            }
            Mode::NoReboot | Mode::Try => (mode, IN_PLACE),
            Mode::Auto if in_place => (Mode::NoReboot, IN_PLACE),
            Mode::Auto | Mode::Reboot => (Mode::Reboot, WITH_REBOOT),
            Mode::Staged => (mode, STAGED),
        };
        let mut details = text.to_owned();
        if dry_run {
            details = format!("Dry run summary:\n{text} (skipped in dry-run).\nConfig diff:\n\n{difference}");
        } else {
            if done == Mode::Try {
                let timeout = if timeout.is_zero() { DEFAULT_TRY } else { timeout };
                self.revert_after(timeout, &mut state);
                details.push_str(&format!(
                    "\nThe config is applied in 'try' mode and will be automatically reverted back in {}",
                    go_duration(timeout)
                ));
            } else {
                state.disk = data.to_vec();
                if self.version.shows_persistent() {
                    state.boot.store.write(now, &kind::MACHINE_CONFIG, "persistent", spec::machine_config(data));
                }
            }
            if matches!(done, Mode::NoReboot | Mode::Try) {
                state.boot.activate(now, data, effective);
            }
        }
        drop(state);
        if done == Mode::Reboot && !dry_run {
            self.ask_for_reboot(true);
        }
        Ok(ApplyConfiguration { mode: done.into(), mode_details: details, ..ApplyConfiguration::default() })
    }

    /// A TRY goes back by itself to what is active now, which moves `v1alpha1` once more (talos-captures point 4).
    fn revert_after(self: &Arc<Self>, timeout: Duration, state: &mut State) {
        let before = state.boot.active.clone();
        let trial = state.boot.life.child_token();
        if let Some(earlier) = state.boot.trial.replace(trial.clone()) {
            earlier.cancel();
        }
        let node = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = trial.cancelled() => return,
                () = node.sleep(timeout) => {}
            }
            let mut state = node.state();
            if trial.is_cancelled() {
                return;
            }
            let now = node.now(&state);
            let effective = Effective::parse(&before, &node.version).unwrap_or_default();
            state.boot.trial = None;
            state.boot.activate(now, &before, effective);
        });
    }
}

impl Boot {
    fn activate(&mut self, now: Timestamp, data: &[u8], effective: Effective) {
        self.store.write(now, &kind::MACHINE_CONFIG, "v1alpha1", spec::machine_config(data));
        self.active = data.to_vec();
        self.effective = effective;
        self.config_changed.notify_one();
        self.annotations_changed.notify_one();
    }
}

/// As Go prints a duration: `3s`, `5m0s`, `1.5s`.
fn go_duration(length: Duration) -> String {
    let seconds = length.as_secs();
    let rest = Duration::from_secs(seconds % 60) + Duration::from_nanos(u64::from(length.subsec_nanos()));
    let rest = format!("{}s", rest.as_secs_f64());
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) if seconds == 0 && length.subsec_nanos() > 0 => format!("{}ms", length.as_secs_f64() * 1000.0),
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        let words = [(3_000, "3s"), (300_000, "5m0s"), (60_000, "1m0s"), (1_500, "1.5s"), (250, "250ms")];
        for (milliseconds, word) in words {
            assert_eq!(go_duration(Duration::from_millis(milliseconds)), word);
        }
    }
}
