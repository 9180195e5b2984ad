//! GPU flame graphs: every nanosecond of GPU time under the CPU stack that launched it.
//!
//! gpuflame lives twice. Inside a CUDA process it *records*; there or anywhere else it *explains*.
//! [`record`] holds the rows that cross from one life to the other. See ARCHITECTURE.md for the map.

#![deny(unsafe_code)]

pub mod aggregate;
#[cfg(feature = "cli")]
pub mod analysis;
#[cfg(feature = "cli")]
pub mod bubbles;
pub mod capture;
#[cfg(feature = "cli")]
pub mod cli;
pub mod control;
#[allow(unsafe_code)]
pub mod cupti;
pub mod error;
#[cfg(feature = "cli")]
pub mod events;
pub mod explain;
pub mod export;
pub mod graphs;
pub mod host;
#[cfg(feature = "cli")]
pub mod import;
pub mod join;
#[cfg(feature = "cli")]
pub mod merge;
pub mod profile;
pub mod record;
pub mod session;
pub mod settings;
pub mod stats;
pub mod symbolize;
pub mod timeline;
#[allow(unsafe_code)]
pub mod tracer;
#[allow(unsafe_code)]
pub mod unwind;

pub use error::{Error, ErrorKind, Result};
