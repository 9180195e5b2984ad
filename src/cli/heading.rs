//! The line above the tables on a terminal: the program, and how busy its GPUs were in which time.

use super::input::Source;
use gpuflame_export::run_facts;
use gpuflame_model::profile::Profile;

/// Returns `train.py (process 4711), rank 3: GPU 0 busy 34.5 % of 3.700 s of steps, 2026-11-23T02:45:09Z`. Facts that are
/// unknown are omitted; a trace without a program has the name of its file.
pub(super) fn heading(source: &Source, profile: &Profile) -> String {
    let name = match profile.process().filter(|(_, program)| !program.is_empty()) {
        Some((process, program)) => format!("{program} (process {process})"),
        None => source.to_string(),
    };
    name + &run_facts(profile, ": ", true)
}
