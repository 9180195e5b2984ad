//! The stub: the entry point of a capture. The stub saves the caller's registers before compiled code changes their
//! values.
//!
//! The walk starts at the stub's return address, so the first frame is looked up by a return address like all other
//! frames. The stub stores the callee-saved registers in memory, because the unwind programs of a few frames need more
//! than rsp and rbp.

use super::Engine;

/// The callee-saved registers, as the stub pushes them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct StubRegisters {
    pub(super) r15: u64,
    pub(super) r14: u64,
    pub(super) r13: u64,
    pub(super) r12: u64,
    pub(super) rbx: u64,
    pub(super) rbp: u64,
    /// Return address of the stub. This address is the code address of the first frame.
    pub(super) pc: u64,
}

impl StubRegisters {
    /// The caller's stack pointer after the stub has returned.
    pub(super) fn sp(&self) -> u64 {
        std::ptr::from_ref(self) as u64 + size_of::<Self>() as u64
    }
}

/// Captures the stack whose first frame is the caller of this function. Returns `false` if a capture is already
/// running.
///
/// # Safety
/// `engine` must be valid, and belong to the calling thread.
#[unsafe(naked)]
pub(super) unsafe extern "C-unwind" fn capture(engine: *mut Engine) -> bool {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r12, 0",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r13, 0",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r14, 0",
        "push r15",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r15, 0",
        "mov rsi, rsp",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {enter}",
        // The called function has preserved the registers that the stub pushed, so only the stack pointer must be
        // restored.
        "add rsp, 56",
        ".cfi_adjust_cfa_offset -56",
        "ret",
        ".cfi_endproc",
        enter = sym enter,
    )
}

/// # Safety
/// The conditions of [`capture`] apply, and `entry` must be the registers that the stub pushed.
unsafe extern "C-unwind" fn enter(engine: *mut Engine, entry: *const StubRegisters) -> bool {
    // SAFETY: `entry` is in the stub's frame, which outlives this call.
    let entry = unsafe { &*entry };
    // SAFETY: `engine` is valid by contract, and no other thread uses it.
    unsafe { Engine::capture(engine, entry) }
}
