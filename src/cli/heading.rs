//! Creates the line that is shown above the tables on a terminal. The line has the program, the busy share of the
//! program's GPUs, and the time to which this share refers.

use super::input::Source;
use gpuflame_export::run_facts;
use gpuflame_model::profile::Profile;

/// Returns a line such as `train.py (process 4711), rank 3: GPU 0 busy 34.5 % of 3.700 s of steps,
/// 2026-11-23T02:45:09Z`. Facts that are unknown are omitted from the line. If the program is unknown, the line begins
/// with the name of the input file.
pub(super) fn heading(source: &Source, profile: &Profile) -> String {
    let name = match profile.process().filter(|(_, program)| !program.is_empty()) {
        Some((process, program)) => format!("{program} (process {process})"),
        None => source.to_string(),
    };
    name + &run_facts(profile, ": ", true)
}
