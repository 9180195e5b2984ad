//! Other tools' traces: read exactly, in any state.
#![cfg(feature = "cli")]

#[path = "../support/mod.rs"]
mod support;

mod damaged;
mod idle;
mod json;
mod odd;
mod others;
mod stacks;
mod traces;
