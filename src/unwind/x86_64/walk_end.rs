//! Lists the ways in which a walk ends.

/// The reason why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkEnd {
    /// The walk reached the outermost frame, according to the unwind information.
    Bottom,
    /// A return address was 0. The variant contains the address directly above the word that contains this return
    /// address.
    ZeroReturn(u64),
    /// The last frame has no unwind information, and the value of rbp cannot be a frame pointer.
    NoInformation,
    /// The walk needed a word outside the stack's bounds, or an unwind program failed.
    Lost,
    /// The stack has more than `MAX_FRAMES` frames.
    TooDeep,
    /// The walk began on the thread's own stack and reached a signal frame, but the interrupted code is on another
    /// stack.
    Elsewhere,
    /// The walk reached the frame with this index of the last stack, and the last stack is unchanged from this frame to
    /// the root.
    Joined(usize),
}
