//! Provides a function that does nothing. By placing a probe on this function, an external tool can learn which launch
//! a thread is making. The library exports the name of this function even if the library is stripped.
//!
//! After a call to [`window::enable_launch_marker`](crate::control::window::enable_launch_marker), every launch calls
//! this function when the launch begins. The function starts with a five-byte NOP, because some kernels can use their
//! cheapest kind of probe on such an instruction.

use gpuflame_cupti::tracer::{Call, CallKind};

/// Does nothing. A probe on this function can read the function's arguments. `correlation` is CUPTI's correlation id
/// for the API call that the thread has begun. `kind` is 0 for a launch, 1 for a graph launch, and 2 for a copy or
/// fill. The arguments have the same meaning in all versions of libgpuflame.so.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn gpuflame_launch_marker(correlation: u32, kind: u32) {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret");
    #[cfg(not(target_arch = "x86_64"))]
    core::arch::naked_asm!("nop", "ret");
}

/// Calls the marker function for an API call.
#[cold]
pub(super) fn emit_marker(call: &Call<'_>) {
    let kind = match call.kind {
        CallKind::Launch | CallKind::LaunchWithAttributes => 0,
        CallKind::GraphLaunch => 1,
        _ => 2,
    };
    gpuflame_launch_marker(call.correlation.0, kind);
}
