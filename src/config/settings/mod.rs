//! Defines the settings of the library, in one table of environment variables. This module also defines the words for
//! values that can be given both in an environment variable and in a flag of the command.
//!
//! The defaults, the table in `docs/settings.md` and the output of `gpuflame settings` are generated from [`SETTINGS`].
//! This module only parses the values of the settings. Code that depends on a setting reads the setting's value from
//! [`Settings`].

mod environment;
mod output;
mod parsers;
mod table;
mod user_settings;

pub use environment::{from_environment, nearest, parse};
pub use output::{LEDGER_SUFFIX, Output, SET_SUFFIX, TraceFile};
pub use parsers::InvalidValue;
pub use table::{SETTINGS, Setting, prefix};
pub use user_settings::{Nvtx, Settings};
