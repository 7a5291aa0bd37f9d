//! Floor 3: the fleet and its control. Owns the binary `talos-ghcr`.
//!
//! One level-triggered loop: [`inventory`] observes, [`decide`](mod@decide) decides (pure), [`rollout`] performs, and
//! observes again. State lives in the cluster, never in the process.
//!
//! - [`fleet`], [`order`], [`decide`](mod@decide), [`plan`], [`left_out`], [`identity`], [`endpoint`]: pure, but for one name lookup.
//! - [`gates`], [`kube`], [`registry`], [`holder`], [`ci`]: what is asked of etcd, Kubernetes, the registry, this
//!   machine's processes, and GitHub.
//! - [`rollout`]: the effects, one file a kind of step.
//! - [`doctor`]: everything that a run depends on, in one list. [`fences`]: what runs hold or have left behind.
//! - [`commands`]: what only people may decide, as commands to paste.
//! - [`settings`], [`reboot_mode`]: what the flags decide.
//! - [`trace`]: what a run did and when.
//! - [`report`], [`cli`], [`exit`], [`schema`]: what people see and type, and what scripts are told.
#![warn(missing_docs)]

pub mod children;
pub mod ci;
pub mod cli;
pub mod commands;
pub mod decide;
pub mod doctor;
pub mod endpoint;
pub mod exit;
pub mod fences;
pub mod fleet;
pub mod gates;
pub mod holder;
pub mod hooks;
pub mod identity;
pub mod inventory;
pub mod kube;
pub mod left_out;
pub mod members;
pub mod order;
pub mod plan;
pub mod proofs;
pub mod reboot_mode;
pub mod registry;
pub mod report;
pub mod rollout;
pub mod schema;
pub mod settings;
pub mod talos_alone;
pub mod trace;
