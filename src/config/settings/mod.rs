//! The settings of the library, as one table of environment variables. The module also holds the words that the
//! values of settings share with the command's flags.
//!
//! The defaults, the table of `docs/settings.md` and the output of `gpuflame settings` are generated from
//! [`SETTINGS`]. This module only parses settings; the code that obeys them reads [`Settings`].

mod asked;
mod read;
mod table;
mod values;
mod wanted;

pub use asked::{Nvtx, Settings};
pub use read::{from_environment, nearest, parse};
pub use table::{SETTINGS, Setting, prefix};
pub use values::Refused;
pub use wanted::{ABOUT, LEDGER, Output, TraceFile};
