//! Determines the ids and names of a profile's process and threads.

use super::clean;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::ThreadId;
use gpuflame_model::sorting;

/// Returns the process id. If the process id is unknown, returns the smallest thread id. The first thread of a process
/// is the main thread, whose id is the process id.
pub fn process_id(profile: &Profile) -> u32 {
    if let Some((process, _)) = profile.process() {
        return process;
    }
    let contexts = profile.contexts();
    let threads = contexts.iter().filter_map(|context| profile.context(*context));
    threads.map(|context| context.thread.0).min().unwrap_or(0)
}

/// Returns the threads that launched work, with their names, sorted by id.
pub fn launching_threads(profile: &Profile) -> Vec<(ThreadId, String)> {
    let contexts = profile.contexts();
    let threads = contexts.iter().filter_map(|context| Some(profile.context(*context)?.thread));
    let name = |thread| (thread, clean::text(profile.thread(thread).unwrap_or("thread")));
    sorting::into_set(threads).into_iter().map(name).collect()
}
