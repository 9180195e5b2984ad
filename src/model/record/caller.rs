//! Defines callers, which are packed into four bytes. A caller is the launch context (stack and API call) that launched
//! GPU work or created a graph node, or the reason why this context is unknown.

use super::activity::Created;
use super::ids::ContextId;
use super::missing::Missing;

/// A `Result<ContextId, Missing>` (context of a launch) or a [`Created`] (context that created a graph node), packed
/// into 31 bits. Tables that contain callers may use the highest bit of the word for other purposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller(u32);

impl Caller {
    /// The launch was not recorded, or its stack was not stored.
    pub const NO_STACK: Self = Self(ContextId::NONE.0);
    /// The launch was made while no window was open.
    pub const OUTSIDE: Self = Self(ContextId::OUTSIDE.0);
    /// The launch was made before recording began.
    pub const LAUNCHED_BEFORE: Self = Self(MAX_WORD);
    /// The work belongs to a graph that the GPU itself launched.
    pub const DEVICE_GRAPH: Self = Self(MAX_WORD - 1);
    /// The node was created before recording began, or is a copy of such a node.
    pub const CREATED_BEFORE: Self = Self(MAX_WORD - 2);
    /// The context that created the node is unknown.
    pub const CREATOR_UNKNOWN: Self = Self(MAX_WORD - 3);

    /// Packs the context that created a graph node. `context` is the context that the row of the node contains.
    pub fn creator(context: ContextId) -> Self {
        match context {
            ContextId::NONE => Self::CREATOR_UNKNOWN,
            ContextId::OUTSIDE => Self::CREATED_BEFORE,
            context => context.into(),
        }
    }

    /// Returns the context that launched the work, or the reason why this context is unknown.
    pub fn launched(self) -> Result<ContextId, Missing> {
        match self {
            Self::NO_STACK | Self::CREATED_BEFORE | Self::CREATOR_UNKNOWN => Err(Missing::NoStack),
            Self::OUTSIDE => Err(Missing::Outside),
            Self::LAUNCHED_BEFORE => Err(Missing::LaunchedBefore),
            Self::DEVICE_GRAPH => Err(Missing::DeviceGraph),
            Self(context) => Ok(ContextId(context)),
        }
    }

    /// Returns the context that created the graph node, or the reason why this context is unknown.
    pub fn created(self) -> Created {
        match self {
            Self::CREATED_BEFORE => Created::BeforeRecording,
            _ => self.launched().map_or(Created::Unknown, Created::Context),
        }
    }

    /// Returns the packed word, which is below 2^31.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Unpacks a caller from `bits`. A caller is a context, or the reason why the context is unknown.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & MAX_WORD)
    }
}

/// Highest packed value. Packed context ids count up from 0, and packed reasons count down from this value.
const MAX_WORD: u32 = (1 << 31) - 1;

impl From<ContextId> for Caller {
    /// Packs the context of a launch. The context may be [`ContextId::NONE`] or [`ContextId::OUTSIDE`]. Context ids
    /// never become as high as the packed reasons in a real program, so only a damaged file contains such an id.
    fn from(context: ContextId) -> Self {
        if context.0 < Self::CREATOR_UNKNOWN.0 { Self(context.0) } else { Self::NO_STACK }
    }
}

impl From<Result<ContextId, Missing>> for Caller {
    fn from(launched: Result<ContextId, Missing>) -> Self {
        match launched {
            Ok(context) => context.into(),
            Err(Missing::Outside) => Self::OUTSIDE,
            Err(Missing::LaunchedBefore) => Self::LAUNCHED_BEFORE,
            Err(Missing::DeviceGraph) => Self::DEVICE_GRAPH,
            Err(Missing::NoStack | Missing::Untimed | Missing::Pending) => Self::NO_STACK,
        }
    }
}

impl From<Created> for Caller {
    fn from(created: Created) -> Self {
        match created {
            Created::Context(context) => context.into(),
            Created::BeforeRecording => Self::CREATED_BEFORE,
            Created::Unknown => Self::CREATOR_UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_caller_unpacks_to_the_same_value() {
        let reasons = [Missing::NoStack, Missing::Outside, Missing::LaunchedBefore, Missing::DeviceGraph];
        let launched = reasons.map(Err).into_iter().chain([2, 3, 1 << 30].map(|id| Ok(ContextId(id))));
        for launched in launched {
            let packed = Caller::from(launched);
            assert_eq!(packed.launched(), launched);
            assert_eq!(Caller::from_bits(packed.bits()), packed);
            assert!(packed.bits() < 1 << 31);
        }
        for created in [Created::Context(ContextId(7)), Created::BeforeRecording, Created::Unknown] {
            assert_eq!(Caller::from(created).created(), created);
        }
    }

    #[test]
    fn every_missing_reason_has_distinct_bits() {
        let all = [
            Caller::NO_STACK,
            Caller::OUTSIDE,
            Caller::LAUNCHED_BEFORE,
            Caller::DEVICE_GRAPH,
            Caller::CREATED_BEFORE,
            Caller::CREATOR_UNKNOWN,
        ];
        let words: std::collections::BTreeSet<_> = all.iter().map(|caller| caller.bits()).collect();
        assert_eq!(words.len(), all.len());
    }

    #[test]
    fn an_impossible_context_id_has_no_stack_and_an_unknown_creator() {
        assert_eq!(Caller::from(ContextId(u32::MAX)).launched(), Err(Missing::NoStack));
        assert_eq!(Caller::from(ContextId(Caller::CREATED_BEFORE.bits())).created(), Created::Unknown);
    }
}
