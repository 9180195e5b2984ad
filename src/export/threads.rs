//! The process and the threads of a profile.

use super::clean;
use crate::profile::Profile;
use crate::record::ThreadId;

/// Process id, or else the smallest thread id: the main thread has the process's number and was there first.
pub(super) fn process(profile: &Profile) -> u32 {
    if let Some((process, _)) = profile.process() {
        return process;
    }
    let contexts = profile.contexts();
    let threads = contexts.iter().filter_map(|context| profile.context(*context));
    threads.map(|context| context.thread.0).min().unwrap_or(0)
}

/// All threads that launched, sorted, with their names.
pub(super) fn of(profile: &Profile) -> Vec<(ThreadId, String)> {
    let contexts = profile.contexts();
    let mut threads: Vec<_> = contexts
        .iter()
        .filter_map(|context| Some(profile.context(*context)?.thread))
        .map(|thread| (thread, clean::text(profile.thread(thread).unwrap_or("thread"))))
        .collect();
    threads.sort();
    threads.dedup();
    threads
}
