//! Filters the environment. A process with more rights than the user who started it ignores the whole environment: the
//! settings, the folders to search, and the values for names of files.

use gpuflame_config::PrefixMacros;
use gpuflame_config::settings::{self, Settings};
use gpuflame_os as host;

/// Whether gpuflame must not start, because the environment disables it or cannot be trusted.
pub(crate) fn forbids_recording() -> bool {
    host::is_privileged() || settings().0.disable
}

/// Settings from the environment, and one warning for each setting that cannot be used.
pub(crate) fn settings() -> (Settings, Vec<String>) {
    if host::is_privileged() { Default::default() } else { settings::from_environment() }
}

/// Values for the macros of a path prefix.
pub(crate) fn facts() -> PrefixMacros {
    let mut facts = PrefixMacros::from_process();
    if host::is_privileged() {
        facts.environment.clear();
    }
    facts
}
