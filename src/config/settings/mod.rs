//! The settings of the library, as one table of environment variables. The module also holds the words that the
//! values of settings share with the command's flags.
//!
//! The defaults, the table of `docs/settings.md` and the output of `gpuflame settings` are generated from
//! [`SETTINGS`]. This module only parses settings; the code that obeys them reads [`Settings`].

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
