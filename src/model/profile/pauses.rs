//! Stores which functions ran during a pause between two calls of a thread, as derived from the stacks of the two
//! calls.

use super::{Profile, SampleSite};
use crate::record::ContextId;

/// Number of displayed frames, counted from the root, that the stacks of two calls of one thread share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedFrames {
    /// Number of frames of functions that a thread enters only once. These functions ran during the whole pause.
    pub once: usize,
    /// Number of frames, in the stack of the call before the pause, up to the innermost function that may have run
    /// during the whole pause. Except for the first `once` frames, these functions may instead have returned and been
    /// called again during the pause.
    pub after: usize,
    /// Number of frames up to the same function as in `after`, in the stack of the call after the pause.
    pub before: usize,
}

impl Profile {
    /// Returns the site of every sample in every view, with duplicates.
    pub fn sites(&self) -> impl Iterator<Item = SampleSite> {
        self.samples.values().flatten().map(|sample| sample.site)
    }

    /// Replaces the shared frames, which are keyed by the calls before and after each pause.
    pub fn set_pauses(&mut self, pauses: std::collections::BTreeMap<(ContextId, ContextId), SharedFrames>) {
        self.pauses = pauses;
    }

    /// Returns the frames that the stacks of the two calls around a pause share. `after` is the call before the pause,
    /// and `before` is the call after the pause. Returns `None` if the shared frames were not determined.
    pub fn pause(&self, after: ContextId, before: ContextId) -> Option<SharedFrames> {
        self.pauses.get(&(after, before)).copied()
    }
}
