//! The ways in which a walk ends.

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// According to the unwind information, this is the outermost frame.
    Bottom,
    /// The return address was 0. It is stored directly below this address.
    ZeroReturn(u64),
    /// There is no unwind information, and rbp is not a frame pointer: decided without reading memory.
    NoInformation,
    /// An address was out of bounds, or an unwind program failed.
    Lost,
    /// The stack has more than `MAX_FRAMES` frames.
    TooDeep,
    /// The walk began on the thread's own stack and a signal frame led it to another.
    Elsewhere,
    /// The walk reached this frame of the last stack, whose outer part is unchanged.
    Joined(usize),
}
