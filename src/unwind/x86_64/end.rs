//! How a walk comes to its end.

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The unwind information says that this is the outermost frame.
    Bottom,
    /// The return address was 0. It lay right below this address.
    ZeroReturn(u64),
    /// There is no unwind information, and rbp holds no frame pointer: decided without reading memory.
    NoInformation,
    /// An address was out of bounds, or an unwind program failed.
    Lost,
    /// There are more frames than are kept.
    TooDeep,
    /// The walk began on the thread's own stack and a signal frame led it to another.
    Elsewhere,
    /// The walk reached this frame of the stack before, all of whose outer part still stands.
    Joined(usize),
}
