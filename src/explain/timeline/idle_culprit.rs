//! Code and causes to which idle time is charged.

use gpuflame_model::profile::{Cause, SampleSite};
use gpuflame_model::record::{Caller, ContextId, ThreadId};

/// Code to which a part of the idle time is attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum IdleCulprit {
    /// A call: usually the launch that ended the gap, or the state of the launching thread during the gap.
    Caller(Caller),
    /// Activity of the launching thread between two calls.
    Pause {
        after: ContextId,
        /// Thread that made the first call, if another thread made it.
        thread: Option<ThreadId>,
        before: ContextId,
    },
}

/// Target that a part of the idle time is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum IdleCause {
    /// Part of a gap between two pieces of work.
    Between(IdleCulprit, Cause),
    /// Part of the time until the first work in a window.
    Opening(IdleCulprit, Cause),
    /// Time from the last work in a window until the window closed. This time is charged to no code.
    Closing,
}

impl IdleCulprit {
    /// Returns the stack, or the two stacks, of the blamed code.
    pub(super) fn site(self) -> SampleSite {
        match self {
            Self::Caller(caller) => caller.launched().map_or_else(SampleSite::Missing, SampleSite::Context),
            Self::Pause { after, thread, before } => SampleSite::Between { after, thread, before },
        }
    }

    /// Replaces the time between two calls by the second of these calls.
    pub(super) fn without_pause(self) -> Self {
        match self {
            Self::Pause { before, .. } => Self::Caller(before.into()),
            other => other,
        }
    }
}

impl IdleCause {
    /// Returns the cause without the edge of a window at which it occurred.
    pub(super) fn without_edge(self) -> Self {
        match self {
            Self::Opening(culprit, cause) => Self::Between(culprit, cause),
            other => other,
        }
    }

    /// Replaces the culprit by the result of `culprit` for it.
    pub(super) fn map_culprit(self, culprit: impl Fn(IdleCulprit) -> IdleCulprit) -> Self {
        match self {
            Self::Between(blamed, cause) => Self::Between(culprit(blamed), cause),
            Self::Opening(blamed, cause) => Self::Opening(culprit(blamed), cause),
            Self::Closing => Self::Closing,
        }
    }
}

/// Idle time of a single charge.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleAmount {
    pub(super) nanos: u64,
    /// Number of gaps, which is usually 1. If a gap is divided, the number is 1 for its longest piece and 0 for all
    /// other pieces. So the sum is the number of gaps.
    pub(super) gaps: u64,
    /// Stack of a sample or a wait inside the idle time. If it is set, `nanos` is the time that the sample or wait
    /// represents, and is not added to the idle time.
    pub(super) context: Option<ContextId>,
}

impl IdleAmount {
    pub(super) fn gap(nanos: u64) -> Self {
        Self { nanos, gaps: 1, context: None }
    }

    /// Creates the value for a sample or a wait inside time that is charged separately.
    pub(super) fn attributed((context, nanos): (ContextId, u64)) -> Self {
        Self { nanos, gaps: 0, context: Some(context) }
    }
}
