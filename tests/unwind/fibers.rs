//! Tests that the cost of a capture on a fiber's stack does not depend on the number of fibers.
//!
//! The test counts the system calls that captures make. Linux turns each system call into a signal (see
//! `tests/capture/syscalls.rs`), and the signal handler then makes the system call itself. Tests run on several threads
//! at the same time, so the selector and the counters are per thread. If another thread changed this thread's selector
//! while this thread is in its signal handler, the process would end.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "support/build.rs"]
mod build;
#[path = "../support/skip.rs"]
mod skip;
#[path = "support/switch.rs"]
mod switch;

use std::arch::{asm, naked_asm};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use gpuflame_model::record::ContextFlags;
use gpuflame_unwind::{self as unwind, Skip, Unwinder, tls};
use skip::skip;
use switch::{foreign, on_stack};

const FIBERS: usize = 2000;
/// Size of a fiber's stack in bytes.
const STACK: usize = 32 << 10;
const PAGE: usize = 4096;

const PASS: u8 = 0;
const CATCH: u8 = 1;

thread_local! {
    /// Selector that the Linux kernel reads: its value decides whether this thread's system calls are executed or
    /// turned into signals.
    static SELECTOR: AtomicU8 = const { AtomicU8::new(PASS) };
    /// Number of caught system calls of each kind: `process_vm_readv`, `getpid`, and all further kinds.
    static CALLS: [AtomicUsize; 3] = const { [const { AtomicUsize::new(0) }; 3] };
    /// Number of frames of the last capture, and its quality flags.
    static FRAMES: Cell<usize> = const { Cell::new(0) };
    static FLAGS: Cell<u32> = const { Cell::new(0) };
}

/// Makes Linux execute this thread's system calls, or turn them into signals.
fn select(passing: u8) {
    SELECTOR.with(|selector| selector.store(passing, Ordering::SeqCst));
}

/// Code to which the signal handler returns: it makes the system call `rt_sigreturn`. Linux never turns this system
/// call into a signal.
#[unsafe(naked)]
extern "C" fn restore() {
    naked_asm!("mov eax, 15", "syscall", "ud2")
}

/// Signal handler that counts a caught system call, and then makes the call.
extern "C" fn caught(_signal: i32, _info: *mut libc::siginfo_t, context: *mut c_void) {
    select(PASS);
    // SAFETY: the kernel passes the registers of the interrupted code.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let of = |register: i32| registers[register as usize];
    let counter = match of(libc::REG_RAX) {
        libc::SYS_process_vm_readv => 0,
        libc::SYS_getpid => 1,
        _ => 2,
    };
    CALLS.with(|calls| calls[counter].fetch_add(1, Ordering::Relaxed));
    let result: i64;
    // SAFETY: the interrupted code made this system call with the same arguments, and is responsible for them.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") of(libc::REG_RAX) => result,
            in("rdi") of(libc::REG_RDI),
            in("rsi") of(libc::REG_RSI),
            in("rdx") of(libc::REG_RDX),
            in("r10") of(libc::REG_R10),
            in("r8") of(libc::REG_R8),
            in("r9") of(libc::REG_R9),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    registers[libc::REG_RAX as usize] = result;
    select(CATCH);
}

/// The Linux kernel's struct for a signal action, which differs from the C library's struct.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Makes the kernel turn this thread's system calls into signals while the selector is set. Returns false if this Linux
/// kernel does not support this.
fn catch_on_this_thread() -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
    const ON: usize = 1;
    const SA_RESTORER: u64 = 0x0400_0000;
    let action = KernelAction {
        handler: caught as *const () as usize,
        flags: libc::SA_SIGINFO as u64 | SA_RESTORER,
        restorer: restore as *const () as usize,
        mask: 0,
    };
    // SAFETY: the handler only touches atomics and the context that it is given; the selector lives as long as its thread.
    unsafe {
        let signal = libc::SIGSYS as usize;
        let set = libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, 0usize, size_of::<u64>());
        assert_eq!(set, 0);
        let passing = restore as *const () as usize;
        libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, ON, passing, 16usize, SELECTOR.with(AtomicU8::as_ptr)) == 0
    }
}

fn unwinder() -> &'static mut Unwinder {
    // SAFETY: the test stored its unwinder under this key, and no other reference to it exists.
    unsafe { &mut *tls::get().cast::<Unwinder>() }
}

extern "C-unwind" fn capture() {
    let unwinder = unwinder();
    select(CATCH);
    let captured = unwinder.capture(Skip::None);
    select(PASS);
    FRAMES.set(captured.frames.len());
    FLAGS.set(captured.flags.0);
}

/// Uses more than a page of stack, and captures in the deepest frame.
extern "C-unwind" fn dive() {
    #[inline(never)]
    fn deep(calls: u32) -> u8 {
        let frame = std::hint::black_box([1u8; 400]);
        if calls == 0 {
            capture();
        } else {
            std::hint::black_box(deep(std::hint::black_box(calls - 1)));
        }
        frame[0]
    }
    std::hint::black_box(deep(12));
}

/// Maps `FIBERS` stacks with an unreadable page between neighbours, and creates an unwinder for this thread. Returns
/// `None` if this kernel cannot turn system calls into signals.
fn fibers() -> Option<*mut c_void> {
    unwind::prepare();
    foreign();
    let bytes = FIBERS * (STACK + PAGE) + PAGE;
    // SAFETY: the mapping is new, and only pages in this mapping are protected.
    let stacks = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let stacks = libc::mmap(null_mut(), bytes, protection, flags, -1, 0);
        assert_ne!(stacks, libc::MAP_FAILED);
        for fiber in 0..=FIBERS {
            let guard = stacks.byte_add(fiber * (STACK + PAGE));
            assert_eq!(libc::mprotect(guard, PAGE, libc::PROT_NONE), 0);
        }
        stacks
    };
    tls::set(Box::into_raw(Box::new(Unwinder::new().expect("memory for an unwinder"))).cast());
    if !catch_on_this_thread() {
        skip("system calls on fibers cannot be counted: the kernel does not return them as signals");
        return None;
    }
    Some(stacks)
}

/// Runs `hook` on each fiber, `below` bytes below the end of the fiber's stack. Returns the number of system calls that
/// the captures made.
fn calls_of(stacks: *mut c_void, hook: extern "C-unwind" fn(), below: usize, flags: u32) -> [usize; 3] {
    CALLS.with(|calls| calls.iter().for_each(|count| count.store(0, Ordering::Relaxed)));
    for fiber in 0..FIBERS {
        on_stack(hook, stacks.wrapping_byte_add((fiber + 1) * (STACK + PAGE) - below));
        assert!(FRAMES.get() >= 2, "this function's caller on the fiber");
        assert_eq!(FLAGS.get(), flags);
    }
    CALLS.with(|calls| calls.each_ref().map(|count| count.load(Ordering::Relaxed)))
}

#[test]
fn a_capture_on_any_of_2000_fibers_takes_one_system_call() {
    let Some(stacks) = fibers() else { return };
    for round in 0..4 {
        // The outermost frames on this stack have no return address above them, so captures do not reach a root frame.
        let calls = calls_of(stacks, capture, 0, ContextFlags::CUT);
        eprintln!("round {round}: {calls:?}");
        // The first round makes more system calls than later rounds, because its first capture reads unwind rules and
        // maps the copy's buffer.
        if round > 0 {
            assert_eq!(calls, [FIBERS, 0, 0]);
        }
    }
}

#[test]
fn fibers_with_equal_stacks_are_copied_only_if_their_frames_exceed_a_page() {
    let Some(stacks) = fibers() else { return };
    for round in 0..4 {
        let near = calls_of(stacks, capture, 64, 0);
        let far = calls_of(stacks, dive, 64, 0);
        eprintln!("round {round}: {near:?} {far:?}");
        if round > 0 {
            assert_eq!(near, [0; 3], "all frames are on one page");
            assert_eq!(far, [FIBERS, 0, 0]);
        }
    }
}
