//! What the stacks of two calls of one thread prove about the pause between the calls.

use std::collections::BTreeSet;

use super::{Profile, SampleSite};
use crate::record::ContextId;

/// Displayed frames, counted from the root, that the stacks of two calls of one thread share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedFrames {
    /// Frames of functions that are entered once per thread. They ran during the whole pause.
    pub once: usize,
    /// Frames of the call before the pause, up to the innermost function that may have run during the whole pause. They
    /// may have returned during the pause, except the first `once` frames.
    pub after: usize,
    /// The same frames in the stack of the call after the pause.
    pub before: usize,
}

impl Profile {
    /// Returns all sites of samples, each once.
    pub fn sites(&self) -> BTreeSet<SampleSite> {
        self.samples.values().flatten().map(|sample| sample.site).collect()
    }

    /// Replaces what the stacks around pauses share, by the calls before and after the pause.
    pub fn set_pauses(&mut self, pauses: std::collections::BTreeMap<(ContextId, ContextId), SharedFrames>) {
        self.pauses = pauses;
    }

    /// Returns what the stacks of the calls `after` and `before` a pause share; `None` if it was not determined.
    pub fn pause(&self, after: ContextId, before: ContextId) -> Option<SharedFrames> {
        self.pauses.get(&(after, before)).copied()
    }
}
