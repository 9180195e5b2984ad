//! Of debug builds alone: a library that mixes two launches up, so that tests see that a comparison with what is seen from
//! outside notices it. `GPUFLAME_TEST_MIX_UP=1` asks for it.

use crate::record::{ContextId, Launch, Row};

/// The first launch whose stack is another than that of the one before is given that one's, and the next one with that
/// stack its own.
#[derive(Debug)]
pub(super) enum MixUp {
    No,
    /// Nothing was mixed up so far; the stack of the last launch.
    Wanted(Option<ContextId>),
    /// One launch has the first in the place of the second.
    Half(ContextId, ContextId),
}

impl MixUp {
    pub(super) fn wanted() -> Self {
        match std::env::var_os("GPUFLAME_TEST_MIX_UP").is_some() {
            true => Self::Wanted(None),
            false => Self::No,
        }
    }

    /// A launch in the place of `row`, if this is one of the two.
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
