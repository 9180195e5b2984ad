//! A stack of our own, for what takes more of one than a thread of the application's may have left: a coroutine that makes
//! the first CUDA call may have 64 KiB, of which setting up takes 45.

use std::ptr::null_mut;

/// As much as the main thread has, as a rule; what is not used takes nothing.
const BYTES: usize = 8 << 20;
/// Below it lies what nobody may touch.
const GUARD: usize = 4096;

/// Runs `body` with `given` on a stack of ours, or on the thread's own where none can be had. It may not panic.
pub fn run_on_our_own<G: Copy, T>(given: G, body: fn(G) -> T) -> T {
    let mut job = Job { body, given, result: None };
    let Some(stack) = Mapped::new() else { return body(given) };
    // SAFETY: the top of a stack that nobody uses, a function that does not unwind, and what it takes.
    unsafe { call_on(stack.top(), run::<G, T>, (&raw mut job).cast()) };
    job.result.unwrap_or_else(|| body(given))
}

struct Job<G, T> {
    body: fn(G) -> T,
    given: G,
    result: Option<T>,
}

unsafe extern "C" fn run<G: Copy, T>(job: *mut u8) {
    // SAFETY: `run_on_our_own` lends its own.
    let job = unsafe { &mut *job.cast::<Job<G, T>>() };
    job.result = Some((job.body)(job.given));
}

struct Mapped(*mut u8);

impl Mapped {
    fn new() -> Option<Self> {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let may = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory.
        let block = unsafe { libc::mmap(null_mut(), BYTES, may, how, -1, 0) };
        if !cfg!(target_arch = "x86_64") || block == libc::MAP_FAILED {
            return None;
        }
        let mapped = Self(block.cast());
        // SAFETY: the first page of it.
        (unsafe { libc::mprotect(block, GUARD, libc::PROT_NONE) } == 0).then_some(mapped)
    }

    fn top(&self) -> *mut u8 {
        self.0.wrapping_add(BYTES)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped, and nothing runs on it any more.
        unsafe { libc::munmap(self.0.cast(), BYTES) };
    }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// Calls `function` with `argument` on the stack that ends at `top`, a multiple of 16.
    #[link_name = "gpuflame_call_on_0_1"]
    fn call_on(top: *mut u8, function: unsafe extern "C" fn(*mut u8), argument: *mut u8);
}

// Unwinders go on where it was called: the frame is found by rbp.
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
    // SAFETY: as this function's caller has it.
    unsafe { function(argument) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of something in the frame of this function.
    #[inline(never)]
    fn here() -> usize {
        let place = std::hint::black_box(0_u8);
        (&raw const place).addr()
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn it_is_another_stack_and_a_deep_one_and_results_and_panics_come_back() {
        assert!(run_on_our_own((), |()| here()).abs_diff(here()) > 64 << 10);
        let deep = |count| {
            std::hint::black_box([1_u8; 1 << 20]).iter().map(|byte| u32::from(*byte)).sum::<u32>() + count
        };
        assert_eq!(run_on_our_own(7, deep), (1 << 20) + 7);
        let caught =
            run_on_our_own((), |()| std::panic::catch_unwind(|| -> u32 { panic!("as asked") }).is_err());
        assert!(caught);
    }
}
