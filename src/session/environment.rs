//! What of the environment counts. Of a process with rights that whoever started it has not, nothing: not the settings, not the
//! folders that a search would look in, not what the names of files are made of.

use crate::control::Facts;
use crate::host;
use crate::settings::{self, Settings};

/// Whether the environment is not to bring us in: it says so, or does not count.
pub(super) fn keeps_us_out() -> bool {
    host::is_privileged() || settings().0.disable
}

/// What it asks for, and one warning for each setting that cannot be used.
pub(super) fn settings() -> (Settings, Vec<String>) {
    if host::is_privileged() { Default::default() } else { settings::from_environment() }
}

/// What the macros of a path prefix stand for.
pub(super) fn facts() -> Facts {
    let mut facts = Facts::of_this_process();
    if host::is_privileged() {
        facts.environment.clear();
    }
    facts
}
