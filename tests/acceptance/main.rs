//! The behaviours of tests/BEHAVIOURS.md, proved with the real binary against the lab: real processes, real sockets,
//! all times scaled. A test that proves L07 is called `l07_…`.
#![allow(clippy::disallowed_methods, reason = "tests of real processes wait in real time")]

mod action;
mod actions;
mod canary;
mod churn;
mod ci;
mod clients;
mod crash;
mod deaths;
mod dist;
mod docs;
mod doctor;
mod drain;
mod endpoint;
mod fence;
mod fences;
mod figures;
mod fleet;
mod gates;
mod generate;
mod harness;
mod hooks;
mod lease;
mod live;
mod look;
mod managers;
mod people;
mod pulls;
mod rbac;
mod reach;
mod reboot;
mod registry;
mod report;
mod residue;
mod roll;
mod scene;
mod script;
mod smoke;
mod terminal;
mod together;
mod usage;
mod verify;
mod versions;
mod workflows;
mod write;
