//! A deliberate error for tests, in debug builds only: swaps the stacks of two launches. A test compares gpuflame's
//! stacks with the stacks that an external observer saw, and checks that the comparison detects the swap. Enabled by
//! `GPUFLAME_TEST_MIX_UP=1`.

use gpuflame_model::record::{ContextId, Launch, Row};

/// State of the swap. The first launch whose stack (B) differs from the stack of the previous launch (A) gets stack A
/// instead. The next launch with stack A then gets stack B.
#[derive(Debug)]
pub(super) enum SwapFault {
    Off,
    /// Nothing is swapped yet. The value is the stack of the last launch; `None` before the first launch.
    Armed(Option<ContextId>),
    /// Half of the swap is done: a launch got the first stack instead of the second stack.
    HalfDone(ContextId, ContextId),
}

impl SwapFault {
    pub(super) fn from_environment() -> Self {
        match std::env::var_os("GPUFLAME_TEST_MIX_UP").is_some() {
            true => Self::Armed(None),
            false => Self::Off,
        }
    }

    /// If `row` is one of the two launches to swap, returns a copy of the row with the other launch's stack.
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
