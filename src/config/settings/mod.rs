//! The settings of the library, as one table of environment variables. The module also contains the words for values
//! that environment variables share with flags of the command.
//!
//! The defaults, the table in `docs/settings.md` and the output of `gpuflame settings` are generated from [`SETTINGS`].
//! This module only parses the values. The code that obeys the settings reads them from [`Settings`].

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
