//! Types for the code (the *culprit*) and the cause to which idle time is charged.

use gpuflame_model::profile::{Cause, SampleSite};
use gpuflame_model::record::{Caller, ContextId, ThreadId};

/// Code to which a part of the idle time is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum IdleCulprit {
    /// A single launch context. The culprit is usually the launch that ended the gap, or a state of the launching
    /// thread during the gap.
    Caller(Caller),
    /// The code that the launching thread ran between two API calls.
    Pause {
        after: ContextId,
        /// Thread that made the call `after`. The field is `None` if the launching thread itself made this call.
        thread: Option<ThreadId>,
        before: ContextId,
    },
}

/// Culprit and cause to which a part of the idle time is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum IdleCause {
    /// Part of a gap between two kernels, copies or fills.
    Between(IdleCulprit, Cause),
    /// Part of the time from the opening of a window to the first work in the window.
    Opening(IdleCulprit, Cause),
    /// Time from the last work in a window to the closing of the window. The time from the last work in a window to the
    /// closing of the window is charged to no code.
    Closing,
}

impl IdleCulprit {
    /// Returns the stack of the culprit, as the site of a sample. For a pause, returns the stacks of the two calls
    /// around the pause.
    pub(super) fn site(self) -> SampleSite {
        match self {
            Self::Caller(caller) => caller.launched().map_or_else(SampleSite::Missing, SampleSite::Context),
            Self::Pause { after, thread, before } => SampleSite::Between { after, thread, before },
        }
    }

    /// If the culprit is a pause between two calls, replaces it by the second call.
    pub(super) fn without_pause(self) -> Self {
        match self {
            Self::Pause { before, .. } => Self::Caller(before.into()),
            other => other,
        }
    }
}

impl IdleCause {
    /// Returns the same charge, but without the property that the idle time was at the opening of a window.
    pub(super) fn without_edge(self) -> Self {
        match self {
            Self::Opening(culprit, cause) => Self::Between(culprit, cause),
            other => other,
        }
    }

    /// Replaces the culprit by the culprit that the function `culprit` returns for it.
    pub(super) fn map_culprit(self, culprit: impl Fn(IdleCulprit) -> IdleCulprit) -> Self {
        match self {
            Self::Between(blamed, cause) => Self::Between(culprit(blamed), cause),
            Self::Opening(blamed, cause) => Self::Opening(culprit(blamed), cause),
            Self::Closing => Self::Closing,
        }
    }
}

/// Idle time of one charge, with the number of gaps in which this time occurred.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleAmount {
    pub(super) nanos: u64,
    /// Number of gaps that are counted in this amount, usually 1. If a gap is divided into pieces, the longest piece
    /// has the value 1 and all other pieces have 0. So the sum over all amounts is the total number of gaps.
    pub(super) gaps: u64,
    /// Stack of a CPU sample, or of an off-CPU wait, during the idle time. If `context` is set, `nanos` is the time
    /// that the sample or wait represents. The time of a sample or wait is not added to the idle time.
    pub(super) context: Option<ContextId>,
}

impl IdleAmount {
    pub(super) fn gap(nanos: u64) -> Self {
        Self { nanos, gaps: 1, context: None }
    }

    /// Creates the amount for the stack of a CPU sample or an off-CPU wait. The idle time during which the sample or
    /// wait occurred is charged separately.
    pub(super) fn attributed((context, nanos): (ContextId, u64)) -> Self {
        Self { nanos, gaps: 0, context: Some(context) }
    }
}
