//! A deliberate fault for tests, which exists in debug builds only: it swaps the stacks of two launches. A test
//! compares gpuflame's stacks with the stacks that an external observer has captured. The test checks that the
//! comparison detects the swapped stacks. The environment variable `GPUFLAME_TEST_MIX_UP=1` enables the fault.

use gpuflame_model::record::{ContextId, Launch, Row};

/// State of the deliberate swap of two stacks. If the stack (B) of a launch differs from the stack (A) of the previous
/// launch, the fault records the launch with stack A instead of B. The next launch that has stack A is then recorded
/// with stack B.
#[derive(Debug)]
pub(super) enum SwapFault {
    Off,
    /// No stacks are swapped yet. The value is the stack of the latest launch, or `None` before the first launch.
    Armed(Option<ContextId>),
    /// Half of the swap is done: a launch with the second stack (B) was recorded with the first stack (A).
    HalfDone(ContextId, ContextId),
}

impl SwapFault {
    pub(super) fn from_environment() -> Self {
        match std::env::var_os("GPUFLAME_TEST_MIX_UP").is_some() {
            true => Self::Armed(None),
            false => Self::Off,
        }
    }

    /// If `row` is one of the two launches to swap, returns a copy of the row with the stack of the other launch.
    pub(super) fn replace_row(&mut self, row: &Row<'_>) -> Option<Row<'static>> {
        let Row::Launch(launch) = row else { return None };
        let with_stack = |context| Some(Row::Launch(Launch { context, ..*launch }));
        match *self {
            Self::Armed(Some(before)) if before != launch.context => {
                *self = Self::HalfDone(before, launch.context);
                with_stack(before)
            }
            Self::Armed(_) => {
                *self = Self::Armed(Some(launch.context));
                None
            }
            Self::HalfDone(first, second) if launch.context == first => {
                *self = Self::Off;
                with_stack(second)
            }
            Self::Off | Self::HalfDone(..) => None,
        }
    }
}
