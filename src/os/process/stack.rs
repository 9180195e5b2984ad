//! Runs code on a separate stack, because the code may need more space than is left on the stack of an application's
//! thread. For example, gpuflame's set-up takes 45 KiB, and a coroutine that makes the first CUDA call may have a stack
//! of only 64 KiB.

use std::ptr::null_mut;

/// Size of the separate stack in bytes, which is the usual size of a main thread's stack. Unused pages take no memory.
const STACK_BYTES: usize = 8 << 20;
/// Size in bytes of the inaccessible guard area at the lower end of the stack.
const GUARD_BYTES: usize = 4096;

/// Runs `body` with `argument` on a newly mapped stack. If no stack can be mapped, uses the thread's own stack. `body`
/// must not panic.
pub fn run_on_own_stack<G: Copy, T>(argument: G, body: fn(G) -> T) -> T {
    let mut job = StackJob { body, argument, result: None };
    let Some(stack) = MappedStack::new() else { return body(argument) };
    // SAFETY: the arguments are the top of a stack that is not in use, a function that does not unwind, and the
    // function's argument.
    unsafe { call_on(stack.top(), run::<G, T>, (&raw mut job).cast()) };
    job.result.unwrap_or_else(|| body(argument))
}

struct StackJob<G, T> {
    body: fn(G) -> T,
    argument: G,
    result: Option<T>,
}

unsafe extern "C" fn run<G: Copy, T>(job: *mut u8) {
    // SAFETY: `run_on_own_stack` passes its own job.
    let job = unsafe { &mut *job.cast::<StackJob<G, T>>() };
    job.result = Some((job.body)(job.argument));
}

struct MappedStack(*mut u8);

impl MappedStack {
    fn new() -> Option<Self> {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let may = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the call creates a new mapping, at an address that the kernel chooses.
        let block = unsafe { libc::mmap(null_mut(), STACK_BYTES, may, how, -1, 0) };
        if !cfg!(target_arch = "x86_64") || block == libc::MAP_FAILED {
            return None;
        }
        let mapped = Self(block.cast());
        // SAFETY: the page is the first page of the new mapping.
        (unsafe { libc::mprotect(block, GUARD_BYTES, libc::PROT_NONE) } == 0).then_some(mapped)
    }

    fn top(&self) -> *mut u8 {
        self.0.wrapping_add(STACK_BYTES)
    }
}

impl Drop for MappedStack {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range, and no code runs on this stack any more.
        unsafe { libc::munmap(self.0.cast(), STACK_BYTES) };
    }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// Calls `function` with `argument` on the stack that ends at `top`, a multiple of 16.
    #[link_name = "gpuflame_call_on_0_1"]
    fn call_on(top: *mut u8, function: unsafe extern "C" fn(*mut u8), argument: *mut u8);
}

// The unwind information (CFI) describes this frame relative to rbp. Therefore unwinders continue at the caller, which
// is on the old stack.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.gpuflame_call_on_0_1,\"ax\",@progbits",
    ".globl gpuflame_call_on_0_1",
    ".hidden gpuflame_call_on_0_1",
    ".type gpuflame_call_on_0_1,@function",
    "gpuflame_call_on_0_1:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size gpuflame_call_on_0_1, . - gpuflame_call_on_0_1",
    ".popsection",
);

#[cfg(not(target_arch = "x86_64"))]
unsafe fn call_on(_: *mut u8, function: unsafe extern "C" fn(*mut u8), argument: *mut u8) {
    // SAFETY: the caller guarantees that `function` may be called with `argument`.
    unsafe { function(argument) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an address in the stack frame of this function.
    #[inline(never)]
    fn here() -> usize {
        let place = std::hint::black_box(0_u8);
        (&raw const place).addr()
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn our_own_stack_is_separate_and_deep_and_returns_results_and_panics() {
        assert!(run_on_own_stack((), |()| here()).abs_diff(here()) > 64 << 10);
        let deep = |count| {
            std::hint::black_box([1_u8; 1 << 20]).iter().map(|byte| u32::from(*byte)).sum::<u32>() + count
        };
        assert_eq!(run_on_own_stack(7, deep), (1 << 20) + 7);
        let caught =
            run_on_own_stack((), |()| std::panic::catch_unwind(|| -> u32 { panic!("as asked") }).is_err());
        assert!(caught);
    }
}
