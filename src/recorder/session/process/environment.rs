//! Reads the environment of the process, unless it cannot be trusted. If the process has more rights than the user who
//! started it (a setuid program), gpuflame ignores the whole environment. The environment provides the settings, the
//! folders to search, and the values that are inserted into file names.

use gpuflame_config::PrefixMacros;
use gpuflame_config::settings::{self, Settings};
use gpuflame_os as host;

/// Whether gpuflame must not start, because the environment disables gpuflame or because the environment cannot be
/// trusted.
pub(crate) fn forbids_recording() -> bool {
    host::is_privileged() || settings().0.disable
}

/// Returns the settings from the environment, and a warning for each setting that cannot be used.
pub(crate) fn settings() -> (Settings, Vec<String>) {
    if host::is_privileged() { Default::default() } else { settings::from_environment() }
}

/// Returns the values that replace the macros in an output path prefix.
pub(crate) fn facts() -> PrefixMacros {
    if host::is_privileged() { PrefixMacros::from_executable() } else { PrefixMacros::from_process() }
}
