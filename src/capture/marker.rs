//! Where a probe from outside learns which launch a thread is in: a function that does nothing, under a name that a stripped
//! library still has.
//!
//! It is called on every launch, at its beginning, once [`window::mark`](crate::control::window::mark) was. It begins with five
//! bytes that do nothing, since there a kernel can put the cheapest probe it has.

use crate::tracer::{Call, CallKind};

/// Does nothing. A probe reads its arguments: `correlation` is CUPTI's id of the call that the thread has begun, and `kind` is
/// 0 for a launch, 1 for that of a graph, 2 for a copy or fill. They stay what they are as long as there is a libgpuflame.so.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn gpuflame_launch_marker(correlation: u32, kind: u32) {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret");
    #[cfg(not(target_arch = "x86_64"))]
    core::arch::naked_asm!("nop", "ret");
}

/// Tells of a call.
#[cold]
pub(super) fn mark(call: &Call<'_>) {
    let kind = match call.kind {
        CallKind::Launch => 0,
        CallKind::GraphLaunch => 1,
        _ => 2,
    };
    gpuflame_launch_marker(call.correlation.0, kind);
}
