//! Writing the machine config of a node without losing anybody's change.
//!
//! Talos has no compare-and-swap for it: an apply replaces the whole config, and a NO_REBOOT over somebody's staged one
//! drops it silently (talos-captures, point 4). What it has are two counters that move by one with each apply, so a
//! watch on both is open across it all: a foreign version in between is seen, and our edit is made again on its bytes.

use std::time::Duration;

use talos_proto::clock::Moment;
use talos_proto::cosi::{Change as Seen, Watch};
use talos_proto::error::{CallError, Why};
use talos_proto::node::{Apply, Node};
use talos_proto::permit::{NoPermit, Permits};
use talos_proto::proto::resource::config::MachineConfigSpec;
use talos_proto::resources::{ACTIVE, MachineConfigs, PERSISTENT, RegistryConfigs, Typed};
use talos_proto::version::TalosVersion;
use zeroize::Zeroizing;

use crate::credential::Desired;
use crate::facts::{self, Configs};
use crate::machine_config::{Change, ConfigError, MachineConfig};

/// How long the two counters may take to show an apply; a real Talos needs about 10 ms (talos-captures, point 3).
const SETTLE: Duration = Duration::from_secs(10);
/// How long the effective resource may take to follow; Talos 1.12.0 and 1.12.1 never do (a controller loops).
const EFFECTIVE: Duration = Duration::from_secs(10);
/// An apply of a large config on a busy control plane takes seconds, not minutes.
const CALL: Duration = Duration::from_secs(20);
/// Between two looks at the file on disk.
const DISK_PAUSE: Duration = Duration::from_millis(200);
/// Other writers are raced that often before it is given up.
const ATTEMPTS: u32 = 5;

/// Why a config was not written, or not seen to be.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It could not be read or watched.
    #[error("the machine config could not be read")]
    Read(#[source] CallError),
    /// There is no active config.
    #[error("the node has no active machine config")]
    NoConfig,
    /// Somebody else's TRY or STAGED config is in flight.
    #[error("a TRY or a STAGED config of somebody else is in flight")]
    ForeignConfig,
    /// It cannot be edited safely.
    #[error("the machine config cannot be edited")]
    Edit(#[source] ConfigError),
    /// The lease does not allow a write now.
    #[error("not written")]
    NoPermit(#[source] NoPermit),
    /// Talos refused it. Its words are not shown: they hold a diff of the config with its passwords.
    #[error("the node refused the machine config; its words are withheld, for they hold a diff with secrets")]
    Refused(#[source] CallError),
    /// Other writers were faster each time.
    #[error("other writers changed the machine config {ATTEMPTS} times in a row; is another tool at work?")]
    Contended,
    /// It was sent, and what is there does not say that it was applied.
    #[error("the apply was sent but is not seen on the node")]
    NotSeen(#[source] Option<CallError>),
    /// It was applied, but the effective registry configuration does not follow.
    #[error(
        "the apply was accepted but the effective registry configuration does not follow (a known fault of Talos 1.12.0 and 1.12.1)"
    )]
    NotEffective,
}

/// Both configs and the watch that keeps them true.
pub struct Session<'a> {
    node: &'a Node,
    /// Talos >= 1.10 shows what is on disk as a resource.
    shows_persistent: bool,
    watch: Watch<MachineConfigs>,
    configs: Configs,
}

impl<'a> Session<'a> {
    /// Opens the watch and reads both configs from it.
    ///
    /// # Errors
    /// [`WriteError::Read`] or [`WriteError::NoConfig`].
    pub async fn open(node: &'a Node, version: &TalosVersion) -> Result<Self, WriteError> {
        let mut watch = node.watch::<MachineConfigs>(None).await.map_err(WriteError::Read)?;
        let mut list = Vec::new();
        loop {
            match watch.next(SETTLE).await.map_err(WriteError::Read)? {
                Some(Seen::Present(config)) => list.push(config),
                Some(Seen::Absent { .. }) => {}
                Some(Seen::Bootstrapped) => break,
                None => return Err(WriteError::NotSeen(None)),
            }
        }
        let mut configs = facts::pair(list).ok_or(WriteError::NoConfig)?;
        let shows_persistent = version.at_least(1, 10);
        if shows_persistent {
            configs.complete(node).await;
        } else {
            configs.read_disk(node).await;
        }
        Ok(Self { node, shows_persistent, watch, configs })
    }

    /// The configs as the watch saw them last.
    #[must_use]
    pub fn configs(&self) -> &Configs {
        &self.configs
    }

    /// Edits the active config and applies it; what was applied is returned. With [`Apply::Try`] only the active
    /// config changes and Talos rolls it back by itself.
    ///
    /// # Errors
    /// Any [`WriteError`]. After [`WriteError::NotSeen`] it may or may not be there; a fresh look tells.
    pub async fn edit(
        &mut self,
        permits: &dyn Permits,
        change: &Change<'_>,
        mode: Apply,
    ) -> Result<Zeroizing<Vec<u8>>, WriteError> {
        if !self.configs.settled() {
            return Err(WriteError::ForeignConfig);
        }
        let mut base = self.configs.active.clone();
        for _ in 0..ATTEMPTS {
            let config = MachineConfig::parse(&base).map_err(WriteError::Edit)?;
            let edited = config.edit(change).map_err(WriteError::Edit)?.bytes;
            // Read again in the last moment: a foreign version seen now costs nothing, one seen later costs an apply.
            if !self.unchanged().await? {
                if !self.configs.settled() {
                    return Err(WriteError::ForeignConfig);
                }
                base = self.configs.active.clone();
                continue;
            }
            match self.apply(permits, &edited, mode).await? {
                None => return Ok(edited),
                Some(foreign) => base = foreign,
            }
        }
        Err(WriteError::Contended)
    }

    /// Makes a config that is being tried permanent, by a NO_REBOOT of the same bytes.
    ///
    /// # Errors
    /// Any [`WriteError`]; [`WriteError::ForeignConfig`] when the active config is not the tried one any more.
    pub async fn make_permanent(&mut self, permits: &dyn Permits, tried: &[u8]) -> Result<(), WriteError> {
        if !self.unchanged().await? || self.configs.active.as_slice() != tried {
            return Err(WriteError::ForeignConfig);
        }
        match self.apply(permits, tried, Apply::NoReboot).await? {
            None => Ok(()),
            Some(_) => Err(WriteError::ForeignConfig),
        }
    }

    /// Whether nothing moved since the last look, by a fresh List; the configs are the fresh ones afterwards.
    async fn unchanged(&mut self) -> Result<bool, WriteError> {
        let mut fresh = facts::read_configs(self.node).await.map_err(WriteError::Read)?.ok_or(WriteError::NoConfig)?;
        if !self.shows_persistent {
            fresh.read_disk(self.node).await;
        }
        let same = fresh.active_version == self.configs.active_version
            && fresh.persistent_version == self.configs.persistent_version
            && fresh.active == self.configs.active
            && fresh.persistent == self.configs.persistent
            && (self.shows_persistent || fresh.on_disk == self.configs.on_disk);
        self.configs = fresh;
        Ok(same)
    }

    /// Sends the bytes and follows both counters until they show them. Returns the bytes of a foreign version that came
    /// in between, so that nothing of theirs is lost.
    async fn apply(
        &mut self,
        permits: &dyn Permits,
        bytes: &[u8],
        mode: Apply,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, WriteError> {
        let limit = permits.limit(CALL);
        let permit = permits.permit(limit).map_err(WriteError::NoPermit)?;
        let before = (self.configs.active_version, self.configs.persistent_version);
        let reply = match self.node.apply_configuration(permit, bytes, mode, limit).await {
            Ok(()) => None,
            Err(error) => match error.why {
                Why::NoPermit(no) => return Err(WriteError::NoPermit(no)),
                // The reply is lost or makes no sense: the truth is on the node.
                Why::Broken { .. } | Why::Deadline { .. } | Why::TargetUnreachable { .. } | Why::Reply { .. } => {
                    Some(error)
                }
                _ => return Err(WriteError::Refused(error)),
            },
        };
        let persists = mode == Apply::NoReboot && self.shows_persistent;
        let mut foreign = None;
        let mut watched_anew = false;
        let clock = self.node.talos().clock().clone();
        let deadline = clock.now() + SETTLE;
        loop {
            let moved =
                self.configs.active_version > before.0 && (!persists || self.configs.persistent_version > before.1);
            let there = self.configs.active.as_slice() == bytes
                && (!persists || self.configs.persistent.as_ref().is_some_and(|it| it.as_slice() == bytes));
            if moved && there {
                // Read back: somebody may have applied on top of ours already, which a watch shows only later. More than
                // one step of a counter means that somebody applied before us, and the watch has shown their bytes.
                if !self.unchanged().await? && self.configs.active.as_slice() != bytes {
                    return Ok(Some(self.configs.active.clone()));
                }
                if mode == Apply::NoReboot && !self.shows_persistent {
                    self.await_disk(bytes, deadline).await?;
                }
                // While nothing was watched somebody may have applied before us, unseen.
                if watched_anew && foreign.is_none() && self.configs.active_version > before.0 + 1 {
                    return Err(WriteError::NotSeen(reply));
                }
                return Ok(foreign);
            }
            let left = deadline.since(clock.now());
            let seen = self.watch.next(left).await;
            match seen {
                Ok(Some(Seen::Present(config))) => {
                    let was_ours = config.spec.yaml_marshalled == bytes;
                    if config.id == ACTIVE && config.version > before.0 && !was_ours {
                        foreign = Some(Zeroizing::new(config.spec.yaml_marshalled.clone()));
                    }
                    let overwritten = moved && there;
                    self.take(config);
                    if foreign.is_some() && overwritten {
                        return Ok(foreign);
                    }
                }
                Ok(Some(Seen::Absent { id })) if id == PERSISTENT => {
                    self.configs.persistent = None;
                    self.configs.persistent_version = 0;
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    // Not seen in time. A foreign version that replaced ours at once is a reason to try again.
                    return foreign.map_or_else(|| Err(WriteError::NotSeen(reply)), |bytes| Ok(Some(bytes)));
                }
                // The connection that lost the reply carried the watch as well: a new one says what is there by now.
                Err(error) => match self.node.watch::<MachineConfigs>(None).await {
                    Ok(watch) if !watched_anew => (self.watch, watched_anew) = (watch, true),
                    _ => return Err(WriteError::NotSeen(Some(reply.unwrap_or(error)))),
                },
            }
        }
    }

    /// Talos 1.9: the file is written asynchronously, and reading it is the only way to see it.
    async fn await_disk(&mut self, bytes: &[u8], deadline: Moment) -> Result<(), WriteError> {
        let clock = self.node.talos().clock().clone();
        loop {
            self.configs.read_disk(self.node).await;
            if self.configs.on_disk.as_ref().is_some_and(|disk| disk.as_slice() == bytes) {
                return Ok(());
            }
            if clock.now() >= deadline {
                return Err(WriteError::NotSeen(None));
            }
            clock.sleep(DISK_PAUSE).await;
        }
    }

    fn take(&mut self, config: Typed<MachineConfigSpec>) {
        let bytes = Zeroizing::new(config.spec.yaml_marshalled);
        match config.id.as_str() {
            // The bootstrap and a List may come in either order: an older version is no news.
            ACTIVE if config.version > self.configs.active_version => {
                self.configs.active = bytes;
                self.configs.active_version = config.version;
            }
            PERSISTENT if config.version > self.configs.persistent_version => {
                self.configs.persistent = Some(bytes);
                self.configs.persistent_version = config.version;
            }
            _ => {}
        }
    }
}

/// Waits until the effective registry configuration shows the desired credentials: an accepted apply is not a rendered
/// one.
///
/// # Errors
/// [`WriteError::NotEffective`] when it does not in time, [`WriteError::Read`] when it cannot be watched.
pub async fn await_effective(
    node: &Node,
    version: &TalosVersion,
    desired: &Desired,
    limit: Duration,
) -> Result<(), WriteError> {
    let mut watch = node.watch::<RegistryConfigs>(Some("registries")).await.map_err(WriteError::Read)?;
    let clock = node.talos().clock().clone();
    let deadline = clock.now() + limit.min(EFFECTIVE);
    loop {
        match watch.next(deadline.since(clock.now())).await.map_err(WriteError::Read)? {
            Some(Seen::Present(registries)) => {
                let auths = facts::decode(&registries.spec, version).unwrap_or_default().auths;
                let same = desired
                    .iter()
                    .all(|(host, wanted)| matches!(auths.get(host.as_str()), Some(Ok(has)) if has.same_as(wanted)));
                if same {
                    return Ok(());
                }
            }
            Some(_) => {}
            None => return Err(WriteError::NotEffective),
        }
    }
}
