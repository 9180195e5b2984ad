//! Tests captures on stacks that are not the thread's own, and captures in functions with wrong unwind information. The
//! unwinder must never read memory that is not mapped.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/switch.rs"]
mod switch;

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

use gpuflame_model::record::{ContextFlags, FrameKind};
use gpuflame_unwind::{self as unwind, Skip, Unwinder};
use switch::{foreign, on_stack};

/// Lock that serializes the tests: a test must not map memory at an address that another test has unmapped and will map
/// again.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Size of a small fiber's stack in bytes.
const STACK: usize = 256 << 10;

thread_local! {
    static UNWINDER: RefCell<Option<Unwinder>> = const { RefCell::new(None) };
    /// Addresses and flags of the stack that the last callback captured.
    static SEEN: RefCell<(Vec<u64>, ContextFlags)> = const { RefCell::new((Vec::new(), ContextFlags(0))) };
}

extern "C-unwind" fn look() {
    let here = 0u64;
    let below = std::hint::black_box(&raw const here) as u64;
    UNWINDER.with_borrow_mut(|unwinder| {
        let unwinder = unwinder.get_or_insert_with(|| {
            unwind::prepare();
            Unwinder::new().expect("memory for an unwinder")
        });
        let captured = unwinder.capture(Skip::UpTo(below));
        let addresses = captured.frames.iter().map(|frame| match frame.kind() {
            FrameKind::Native { address, .. } => address,
            _ => 0,
        });
        SEEN.set((addresses.collect(), captured.flags));
    });
}

/// Whether `address` is less than 100 bytes after `start`; if so, it is in the function at `start`, because all these
/// functions are short.
fn is_in(address: Option<&u64>, start: *mut c_void) -> bool {
    address.is_some_and(|address| address.wrapping_sub(start as u64) < 100)
}

/// A mapped region and its size in bytes.
struct Region(*mut u8, usize);

impl Region {
    fn new(bytes: usize) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the mapping is new, so no other code uses its memory.
        let memory = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        Self(memory.cast(), bytes)
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.0.wrapping_add(offset).cast()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: no code uses the region any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

#[test]
fn a_stack_is_walked_to_its_end_whatever_is_mapped_above_it() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    const STACKS: usize = 32;
    let switched = foreign().symbol("on_stack");
    let region = Region::new((STACKS + 1) * STACK);
    for round in 0..5 {
        for stack in 0..STACKS {
            let top = region.at((stack + 1) * STACK);
            // The stack is captured four times. In turn, the memory above the stack is another stack in the same
            // mapping, unmapped, an unreadable page, and another stack again.
            let look_at = |is_cut: bool| {
                on_stack(look, top);
                SEEN.with_borrow(|(frames, flags)| {
                    assert!(is_in(frames.first(), switched), "{frames:x?}");
                    // If memory is mapped above the stack, this memory contains a return address of 0.
                    assert_eq!(frames.len(), 1, "round {round}, stack {stack}: {frames:x?}");
                    assert_eq!(flags.has(ContextFlags::CUT), is_cut);
                });
            };
            look_at(false);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: the memory above the stack belongs to this test, and no code runs on it.
            unsafe {
                assert_eq!(libc::munmap(top, STACK), 0);
                look_at(true);
                assert_eq!(libc::mmap(top, STACK, libc::PROT_NONE, flags, -1, 0), top);
                look_at(true);
                assert_eq!(libc::mmap(top, STACK, protection, flags, -1, 0), top);
            }
            look_at(false);
        }
    }
}

#[test]
fn walking_with_broken_unwind_information_is_safe() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let library = foreign();
    let region = Region::new(STACK);
    let broken = [
        "sp_low",
        "sp_below",
        "sp_a_little_below",
        "sp_same",
        "sp_high",
        "sp_no_address",
        "sp_end",
        "sp_from_nowhere",
        "sp_for_ever",
        "cfa_low",
        "cfa_below",
        "cfa_same",
        "cfa_high",
        "cfa_end",
        "cfa_from_nowhere",
        "cfa_for_ever",
        "cfa_far",
        "cfa_backwards",
        "return_from_nowhere",
        "return_to_no_address",
        "return_to_nearly_an_address",
    ];
    // During this call, the unwinder reads and caches the unwind rules of all callers.
    call(library.symbol("right"), None);
    call(library.symbol("right"), Some(region.at(STACK)));
    SEEN.with_borrow(|(frames, _)| assert!(frames.len() > 2, "{frames:x?}"));
    for name in broken {
        let function = library.symbol(name);
        for stack in [None, Some(region.at(STACK))] {
            call(function, stack);
            SEEN.with_borrow(|(frames, flags)| {
                assert!(is_in(frames.first(), function), "{name}: {frames:x?}");
                assert_eq!(frames.len(), 1, "{name}, {stack:?}: the walk ends there: {frames:x?}");
                assert_eq!(flags.0, ContextFlags::CUT, "{name}, {stack:?}");
            });
        }
    }
}

#[test]
fn an_unrecoverable_register_does_not_end_a_walk() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let function = foreign().symbol("rbp_from_nowhere");
    call(function, None);
    SEEN.with_borrow(|(frames, flags)| {
        assert!(is_in(frames.first(), function) && frames.len() > 1, "{frames:x?}");
        assert_eq!(flags.0 & ContextFlags::GUESSED, 0);
    });
}

/// Calls a function in the library, optionally on another stack. The called function calls `look`.
fn call(function: *mut c_void, stack: Option<*mut c_void>) {
    thread_local! {
        static FUNCTION: RefCell<*mut c_void> = const { RefCell::new(null_mut()) };
    }
    extern "C-unwind" fn call_function() {
        let function = FUNCTION.with_borrow(|function| *function);
        // SAFETY: every function of the library that is called this way has this type.
        let function = unsafe {
            std::mem::transmute::<*mut c_void, extern "C-unwind" fn(extern "C-unwind" fn())>(function)
        };
        function(look);
        std::hint::black_box(());
    }
    FUNCTION.set(function);
    match stack {
        None => call_function(),
        Some(top) => on_stack(call_function, top),
    }
}

#[test]
fn a_stack_of_a_megabyte_in_large_frames_is_walked() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    #[inline(never)]
    fn deep(calls: u32) -> u8 {
        let frame = [1u8; 32 << 10];
        let frame = std::hint::black_box(&frame);
        if calls == 0 {
            look();
        } else {
            std::hint::black_box(deep(calls - 1));
        }
        frame[0]
    }
    extern "C-unwind" fn begin() {
        deep(30);
    }
    let region = Region::new(2 << 20);
    let switched = foreign().symbol("on_stack");
    on_stack(begin, region.at((2 << 20) - STACK));
    SEEN.with_borrow(|(frames, flags)| {
        assert!(frames.iter().any(|frame| is_in(Some(frame), switched)), "{} frames", frames.len());
        assert!(frames.len() > 30 && flags.0 == 0, "{flags:?} {frames:x?}");
    });
}

/// The signal handler runs on a signal stack. From the signal stack, the unwinder must continue on the thread's own
/// stack or on a coroutine's stack.
#[test]
fn a_walk_continues_from_a_signal_stack_to_the_interrupted_stack() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    extern "C-unwind" fn handler(_signal: libc::c_int) {
        look();
    }
    #[inline(never)]
    extern "C-unwind" fn interrupt() {
        // SAFETY: the handler below is installed.
        unsafe { libc::raise(libc::SIGUSR1) };
        std::hint::black_box(());
    }
    let signal_stack = Region::new(STACK);
    // SAFETY: the stack stays mapped until it is disabled as a signal stack; the handler only captures.
    unsafe {
        let stack = libc::stack_t { ss_sp: signal_stack.at(0), ss_flags: 0, ss_size: STACK };
        assert_eq!(libc::sigaltstack(&stack, null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, null_mut()), 0);
    }
    interrupt();
    let (own, flags) = SEEN.take();
    assert_eq!(flags.0, 0);
    assert!(
        own.iter().any(|frame| is_in(Some(frame), interrupt as *mut c_void)) && own.len() > 8,
        "{own:x?}"
    );

    let region = Region::new(STACK);
    let switched = foreign().symbol("on_stack");
    on_stack(interrupt, region.at(STACK - 4096));
    let (coroutine, flags) = SEEN.take();
    assert_eq!(flags.0, 0);
    assert!(is_in(coroutine.last(), switched), "{coroutine:x?}");
    let inner = |frames: &[u64]| frames.iter().position(|frame| is_in(Some(frame), interrupt as *mut c_void));
    assert_eq!(inner(&coroutine), inner(&own));
    // SAFETY: no handler runs on the signal stack.
    unsafe {
        let none = libc::stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        assert_eq!(libc::sigaltstack(&none, null_mut()), 0);
    }
}
