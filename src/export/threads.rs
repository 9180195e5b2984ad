//! Which process and which threads a profile is of.

use super::clean;
use crate::profile::Profile;
use crate::record::ThreadId;

/// The process, as far as a recording tells: its main thread has its number, and was there first.
pub(super) fn process(profile: &Profile) -> u32 {
    if let Some((process, _)) = profile.process() {
        return process;
    }
    let contexts = profile.contexts();
    let threads = contexts.iter().filter_map(|context| profile.context(*context));
    threads.map(|context| context.thread.0).min().unwrap_or(0)
}

/// All threads that launched, in order, and what they are called.
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
