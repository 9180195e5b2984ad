//! To what idle time is charged.

use crate::profile::Cause;
use crate::record::{Caller, ContextId, ThreadId};

/// Who is to blame for a part of the idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Blamed {
    /// A call, the launch that ended the gap as a rule, or what the launching thread was in.
    Caller(Caller),
    /// What the launching thread was at between two calls.
    Pause {
        after: ContextId,
        /// That made the first of them, where it was another one.
        thread: Option<ThreadId>,
        before: ContextId,
    },
}

/// To what a part of the idle time is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Charge {
    /// As a part of a gap between two pieces of work.
    Between(Blamed, Cause),
    /// As a part of the time until the first work in a window.
    Opening(Blamed, Cause),
    /// To nobody: no more work came until the window closed.
    Closing,
}

impl Blamed {
    /// The second of two calls, for what lay between them.
    pub(super) fn without_pause(self) -> Self {
        match self {
            Self::Pause { before, .. } => Self::Caller(before.into()),
            other => other,
        }
    }
}

impl Charge {
    /// The same to whom `who` gives for who is to blame.
    pub(super) fn by(self, who: impl Fn(Blamed) -> Blamed) -> Self {
        match self {
            Self::Between(blamed, cause) => Self::Between(who(blamed), cause),
            Self::Opening(blamed, cause) => Self::Opening(who(blamed), cause),
            Self::Closing => Self::Closing,
        }
    }
}

/// Idle time that is charged at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Idle {
    pub(super) nanos: u64,
    /// One; of a gap that is cut, for its longest piece only: so they add up to how many gaps there were.
    pub(super) gaps: u64,
    /// This is no more of it, but the processor time that a sample in it stands for, or a wait in it, with where the thread was.
    pub(super) found: Option<ContextId>,
}

impl Idle {
    pub(super) fn gap(nanos: u64) -> Self {
        Self { nanos, gaps: 1, found: None }
    }

    /// A sample or a wait in time that is charged by itself.
    pub(super) fn found((context, nanos): (ContextId, u64)) -> Self {
        Self { nanos, gaps: 0, found: Some(context) }
    }
}
