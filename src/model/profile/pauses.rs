//! Stores which functions may have run during a pause between two API calls of a thread. The functions are derived from
//! the stacks of the two calls.

use super::{Profile, SampleSite};
use crate::record::ContextId;

/// Number of displayed frames at the root that the stacks of two API calls of one thread have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedFrames {
    /// Number of these common frames, counted from the root, whose functions a thread enters only once. A function that
    /// is entered only once ran during the whole pause.
    pub once: usize,
    /// Number of frames in the stack before the pause, counted from the root up to the innermost function that may have
    /// run during the whole pause. A function after the first `once` functions may also have returned and have been
    /// called again during the pause.
    pub after: usize,
    /// In the stack after the pause, number of frames up to the same function.
    pub before: usize,
}

impl Profile {
    /// Returns the stack of each sample of every view. A stack that several samples have is returned several times.
    pub fn sites(&self) -> impl Iterator<Item = SampleSite> {
        self.samples.values().flatten().map(|sample| sample.site)
    }

    /// Replaces the shared frames of all pauses. The key consists of the context of the call before the pause and the
    /// context of the call after the pause.
    pub fn set_pauses(&mut self, pauses: std::collections::BTreeMap<(ContextId, ContextId), SharedFrames>) {
        self.pauses = pauses;
    }

    /// Returns the numbers of frames that the stacks of the two calls around a pause have in common. `after` is the
    /// call before the pause (the pause comes after it), and `before` is the call after the pause. Returns `None` if
    /// these numbers were not determined.
    pub fn pause(&self, after: ContextId, before: ContextId) -> Option<SharedFrames> {
        self.pauses.get(&(after, before)).copied()
    }
}
