//! Swaps the stacks of two launches, in debug builds only, so that tests can check whether a comparison with an
//! external observer detects the swap. Enabled by `GPUFLAME_TEST_MIX_UP=1`.

use gpuflame_model::record::{ContextId, Launch, Row};

/// State of the swap: the first launch whose stack differs from the previous launch's stack gets the previous stack,
/// and the next launch with the previous stack gets the different stack.
#[derive(Debug)]
pub(super) enum SwapFault {
    Off,
    /// Before the swap. Contains the stack of the previous launch.
    Armed(Option<ContextId>),
    /// Half of the swap: a launch was given the first stack instead of the second stack.
    HalfDone(ContextId, ContextId),
}

impl SwapFault {
    pub(super) fn from_environment() -> Self {
        match std::env::var_os("GPUFLAME_TEST_MIX_UP").is_some() {
            true => Self::Armed(None),
            false => Self::Off,
        }
    }

    /// Returns a launch that replaces `row`, if `row` is one of the two launches.
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
