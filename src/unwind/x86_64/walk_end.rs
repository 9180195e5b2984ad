//! The ways in which a walk ends.

/// The reason why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkEnd {
    /// The walk reached the outermost frame, according to the unwind information.
    Bottom,
    /// The return address was 0. This return address is stored directly below the given address.
    ZeroReturn(u64),
    /// The frame has no unwind information, and rbp is not a frame pointer. This was decided without reading memory.
    NoInformation,
    /// An address was out of bounds, or an unwind program failed.
    Lost,
    /// The stack has more than `MAX_FRAMES` frames.
    TooDeep,
    /// The walk began on the thread's own stack, and a signal frame led it to another stack.
    Elsewhere,
    /// The walk reached this frame of the last stack, whose part from this frame outwards is unchanged.
    Joined(usize),
}
