//! The wire against what real Talos servers answered (`fixtures/talos-captures`) and against the API's own definitions
//! (`fixtures/talos-api`), and the files that people bring (`fixtures/talosconfigs`).

mod apply;
mod descriptors;
mod field_tables;
mod golden;
mod left_out;
mod memory;
mod moved;
mod recordings;
mod replies;
mod specs;
mod statuses;
mod talosconfigs;
mod transport;
