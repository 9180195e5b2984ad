//! Swaps the stacks of two launches, in debug builds only, so that tests can check whether a comparison with an
//! external observer detects the swap. Enabled by `GPUFLAME_TEST_MIX_UP=1`.

use gpuflame_model::record::{ContextId, Launch, Row};

/// State of the swap: the first launch whose stack differs from the previous launch's stack gets the previous stack,
/// and the next launch with the previous stack gets the different stack.
#[derive(Debug)]
pub(super) enum MixUp {
    No,
    /// Before the swap. Contains the stack of the previous launch.
    Wanted(Option<ContextId>),
    /// Half of the swap: a launch was given the first stack instead of the second stack.
    Half(ContextId, ContextId),
}

impl MixUp {
    pub(super) fn wanted() -> Self {
        match std::env::var_os("GPUFLAME_TEST_MIX_UP").is_some() {
            true => Self::Wanted(None),
            false => Self::No,
        }
    }

    /// Returns a launch that replaces `row`, if `row` is one of the two launches.
    pub(super) fn instead(&mut self, row: &Row<'_>) -> Option<Row<'static>> {
        let Row::Launch(launch) = row else { return None };
        let of = |context| Some(Row::Launch(Launch { context, ..*launch }));
        match *self {
            Self::Wanted(Some(before)) if before != launch.context => {
                *self = Self::Half(before, launch.context);
                of(before)
            }
            Self::Wanted(_) => {
                *self = Self::Wanted(Some(launch.context));
                None
            }
            Self::Half(first, second) if launch.context == first => {
                *self = Self::No;
                of(second)
            }
            Self::No | Self::Half(..) => None,
        }
    }
}
