//! Tests captures in difficult places: in generated code, in code without unwind information, in signal handlers at any
//! instruction, inside other captures, in constructors, and on very deep stacks.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/deep.rs"]
mod deep;
#[path = "support/oracle.rs"]
#[allow(dead_code)]
mod oracle;

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use build::{Library, compile};
use deep::deep;
use gpuflame_model::record::ContextFlags;
use gpuflame_unwind::{Captured, MAX_FRAMES, Skip, Unwinder, Verifier, VerifyResult};
use oracle::{Addresses, capture_both, unwinder};

type Case = extern "C-unwind" fn(extern "C-unwind" fn());

/// Result of a callback: the flags, the addresses that gpuflame's unwinder found, and the addresses that libgcc found.
type Seen = (u32, Vec<u64>, Vec<u64>);

thread_local! {
    static SEEN: RefCell<Vec<Seen>> = const { RefCell::new(Vec::new()) };
}

extern "C-unwind" fn look() {
    let (mut ours, mut theirs) = (Addresses::new(), Addresses::new());
    for _ in 0..2 {
        let flags = capture_both(&mut ours, &mut theirs);
        SEEN.with_borrow_mut(|seen| {
            seen.push((flags.0, ours.as_slice()[1..].to_vec(), theirs.as_slice()[1..].to_vec()));
        });
    }
}

fn seen() -> Vec<Seen> {
    SEEN.take()
}

fn case(source: &str, name: &str) -> Case {
    let symbol = Library::open(&compile(source, &["-O2"])).symbol(name);
    // SAFETY: every case is a C function of this type.
    unsafe { std::mem::transmute::<*mut c_void, Case>(symbol) }
}

#[test]
fn code_without_unwind_info_or_frame_pointer_ends_the_stack_like_libgcc() {
    case("cases.c", "no_information")(look);
    for (flags, ours, theirs) in seen() {
        assert_eq!((flags, &ours), (ContextFlags::CUT, &theirs));
    }
}

#[test]
fn code_without_unwind_info_is_crossed_by_frame_pointer_and_marked() {
    case("cases.c", "no_information_but_fp")(look);
    for (flags, ours, theirs) in seen() {
        assert_eq!(flags, ContextFlags::GUESSED);
        assert!(ours.starts_with(&theirs) && ours.len() > theirs.len() + 4, "{ours:x?} {theirs:x?}");
    }
}

#[test]
fn code_without_unwind_info_that_returns_after_its_call_is_crossed_and_marked() {
    case("cases.c", "no_information_but_return")(look);
    for (flags, ours, theirs) in seen() {
        assert_eq!(flags, ContextFlags::GUESSED);
        assert!(ours.starts_with(&theirs) && ours.len() > theirs.len() + 4, "{ours:x?} {theirs:x?}");
    }
}

/// mov ebp, 7, so that rbp is not a frame pointer; call rdi; then, with and without another instruction: pop rbp; ret.
const WITHOUT_FRAME_POINTER: &[u8] = &[0x55, 0xbd, 7, 0, 0, 0, 0xff, 0xd7, 0xb9, 1, 0, 0, 0, 0x5d, 0xc3];
const RETURNING: &[u8] = &[0x55, 0xbd, 7, 0, 0, 0, 0xff, 0xd7, 0x5d, 0xc3];
/// mov rbp, rsp; call rdi; mov ecx, 1; pop rbp; ret
const WITH_FRAME_POINTER: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0xb9, 1, 0, 0, 0, 0x5d, 0xc3];

/// Writes the machine code `code` to a new mapping, and returns it as a function that calls its argument.
fn generated(code: &[u8]) -> Case {
    // SAFETY: the mapping is new, and the code is written before it is called.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        page.cast::<u8>().copy_from(code.as_ptr(), code.len());
        std::mem::transmute::<*mut c_void, Case>(page)
    }
}

#[test]
fn generated_code_with_a_frame_pointer_or_a_return_after_its_call_is_crossed() {
    for code in [WITH_FRAME_POINTER, RETURNING] {
        generated(code)(look);
        for (flags, ours, theirs) in seen() {
            assert_eq!(flags, ContextFlags::GUESSED);
            assert!(ours.starts_with(&theirs) && ours.len() > theirs.len() + 4, "{ours:x?} {theirs:x?}");
        }
    }
}

#[test]
fn generated_code_without_a_frame_pointer_cuts_the_stack() {
    generated(WITHOUT_FRAME_POINTER)(look);
    for (flags, ours, theirs) in seen() {
        assert_eq!((flags, &ours), (ContextFlags::CUT, &theirs));
    }
}

#[test]
fn a_constructor_in_dlopen_agrees_with_libgcc() {
    let library = compile("lazy.c", &["-O2"]);
    // SAFETY: no other test in this process reads or writes the environment.
    unsafe { std::env::set_var("GPUFLAME_TEST_HOOK", format!("{:x}", look as *const () as usize)) };
    Library::open(&library);
    let seen = seen();
    assert!(!seen.is_empty(), "the constructor did not run");
    for (flags, ours, theirs) in seen {
        assert_eq!((flags, &ours), (0, &theirs));
    }
}

#[test]
fn a_stack_deeper_than_max_frames_loses_its_root_and_is_marked_truncated() {
    let mut plain = Unwinder::new().expect("memory for an unwinder");
    plain.use_caches(false);
    for calls in [MAX_FRAMES + 200, MAX_FRAMES - 200, MAX_FRAMES + 200, MAX_FRAMES + 199] {
        deep(calls, &mut || {
            for _ in 0..3 {
                let expected = plain.capture(Skip::Count(1));
                let captured = unwinder().capture(Skip::Count(1));
                assert_eq!(captured.frames, expected.frames);
                assert_eq!(captured.flags, expected.flags);
                assert_eq!(captured.flags.has(ContextFlags::TRUNCATED), calls > MAX_FRAMES);
                assert_eq!(captured.frames.len() == MAX_FRAMES - 1, calls > MAX_FRAMES);
            }
        });
    }
}

#[test]
fn the_verifier_compares_stacks_of_any_depth_up_to_their_truncation() {
    let right = VerifyResult { plain_agrees: true, libgcc_agrees: true };
    let wrong = VerifyResult { plain_agrees: false, libgcc_agrees: false };
    let mut verifier = Verifier::new().expect("memory for a verifier");
    // At a depth near `MAX_FRAMES`, the stack has too many frames, and the capture loses its root frame; the first
    // capture loses it at a smaller depth than the second capture. The test tries all depths near `MAX_FRAMES`, and one
    // much larger depth.
    for calls in (MAX_FRAMES - 60..MAX_FRAMES + 5).chain([MAX_FRAMES + 200]) {
        deep(calls, &mut || {
            let here = 0u8;
            let below = black_box(&raw const here) as u64;
            let captured = unwinder().capture(Skip::UpTo(below));
            assert_eq!(verifier.verify(&captured, below), right, "{calls} calls");
            let mut frames = captured.frames.to_vec();
            frames[MAX_FRAMES / 2].0 ^= 1;
            let changed = Captured { frames: &frames, ..captured };
            assert_eq!(verifier.verify(&changed, below), wrong, "{calls} calls, one frame changed");
        });
    }
}

#[test]
fn frames_may_be_skipped_by_count_code_or_stack_pointer() {
    deep(10, &mut || {
        let all: Vec<_> = unwinder().capture(Skip::None).frames.to_vec();
        let by_count = unwinder().capture(Skip::Count(3));
        assert_eq!(by_count.frames[1..], all[4..]);
        assert_eq!(unwinder().capture(Skip::Count(usize::MAX)).frames.len(), 0);
        let address = all[0].0;
        let inside = unwinder().capture(Skip::Inside(address - 4096..address + 4096));
        assert!(inside.frames.len() < all.len());
        let here = 0u8;
        let below = unwinder().capture(Skip::UpTo(&raw const here as u64));
        assert_eq!(below.frames, &all[1..]);
        assert_eq!(below.unchanged, below.frames.len().min(inside_len(&all, address)));
    });
}

std::arch::global_asm!(
    ".globl passes_its_stack_pointer",
    ".type passes_its_stack_pointer,@function",
    "passes_its_stack_pointer:",
    ".cfi_startproc",
    "sub rsp, 24",
    ".cfi_def_cfa_offset 32",
    "mov rax, rdi",
    "mov rdi, rsp",
    "call rax",
    "add rsp, 24",
    "ret",
    ".cfi_endproc",
    ".size passes_its_stack_pointer, . - passes_its_stack_pointer",
);

unsafe extern "C-unwind" {
    fn passes_its_stack_pointer(callback: extern "C-unwind" fn(u64));
}

/// The address of a variable identifies its frame, but a compiler may put this variable at the very bottom of the
/// frame.
#[test]
fn a_frame_extends_from_its_stack_pointer_to_its_callers() {
    extern "C-unwind" fn look(lowest: u64) {
        const FRAME_BYTES: u64 = 32;
        let all = unwinder().capture(Skip::None).frames.to_vec();
        let start = passes_its_stack_pointer as *const () as u64;
        let at = all.iter().position(|frame| (start..start + 32).contains(&frame.0)).unwrap();
        for (address, left_out) in [
            (lowest - 1, at),
            (lowest, at + 1),
            (lowest + FRAME_BYTES - 1, at + 1),
            (lowest + FRAME_BYTES, at + 2),
        ] {
            assert_eq!(
                unwinder().capture(Skip::UpTo(address)).frames[0],
                all[left_out],
                "{left_out} of {at}"
            );
        }
    }
    // SAFETY: the function calls its argument and follows the calling convention.
    unsafe { passes_its_stack_pointer(look) };
}

fn inside_len(all: &[gpuflame_model::record::Frame], address: u64) -> usize {
    all.iter().skip_while(|frame| (address - 4096..address + 4096).contains(&frame.0)).count()
}

/// State that a signal handler shares with its test. The state has a fixed size, because a signal handler must not
/// allocate.
struct Handled {
    same: AtomicUsize,
    different: AtomicUsize,
    marked: AtomicUsize,
    nested: AtomicUsize,
}

static HANDLED: Handled = Handled {
    same: AtomicUsize::new(0),
    different: AtomicUsize::new(0),
    marked: AtomicUsize::new(0),
    nested: AtomicUsize::new(0),
};

extern "C-unwind" fn compare_in_handler(_signal: c_int) {
    let (mut ours, mut theirs) = (Addresses::new(), Addresses::new());
    let flags = capture_both(&mut ours, &mut theirs);
    let counter = if ours.count == 0 {
        &HANDLED.nested
    } else if flags.0 != 0 {
        &HANDLED.marked
    } else if ours.as_slice()[1..] == theirs.as_slice()[1..] {
        &HANDLED.same
    } else {
        &HANDLED.different
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

fn handle(signal: c_int, handler: extern "C-unwind" fn(c_int)) {
    // SAFETY: the signal handler only captures the stack and counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Runs `work` repeatedly on a thread, and sends `signal` to this thread until it has handled `handled` signals.
fn interrupt(signal: c_int, handled: usize, work: impl Fn() + Send + 'static) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let worker = thread::spawn(move || {
        unwinder();
        // SAFETY: pthread_self has no precondition.
        ready.send(unsafe { libc::pthread_self() }).expect("the test waits");
        while !stopped.load(Ordering::Relaxed) {
            work();
        }
    });
    let thread = is_ready.recv().expect("the worker starts");
    let total = || {
        [&HANDLED.same, &HANDLED.different, &HANDLED.marked, &HANDLED.nested]
            .map(|counter| counter.load(Ordering::Relaxed))
            .iter()
            .sum::<usize>()
    };
    let (first, mut pause) = (total(), 1);
    while total() < first + handled && !worker.is_finished() {
        // SAFETY: the worker thread has not been joined, so its id is valid.
        unsafe { libc::pthread_kill(thread, signal) };
        pause = pause * 7 % 97;
        thread::sleep(Duration::from_micros(pause));
    }
    stop.store(true, Ordering::Relaxed);
    worker.join().expect("the worker only works");
}

static ONE_HANDLER: Mutex<()> = Mutex::new(());

#[test]
fn a_signal_at_any_instruction_agrees_with_libgcc() {
    let _alone = ONE_HANDLER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    handle(libc::SIGURG, compare_in_handler);
    let before = HANDLED.different.load(Ordering::Relaxed);
    interrupt(libc::SIGURG, 600, || {
        let mut clock = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut text = [0u8; 64];
        for size in [16, 700, 40_000] {
            // SAFETY: these are plain libc calls on the test's own memory; the clock is read in the vdso.
            unsafe {
                let memory = libc::malloc(size);
                libc::memset(memory, 1, size);
                for _ in 0..50 {
                    libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut clock);
                }
                libc::snprintf(
                    text.as_mut_ptr().cast(),
                    64,
                    c"%d %f %s".as_ptr(),
                    7,
                    1.5f64,
                    c"text".as_ptr(),
                );
                libc::free(memory);
            }
        }
        let mut numbers: Vec<_> = (0..200).rev().collect();
        numbers.sort_by_key(|number| number % 17);
        black_box(numbers);
    });
    assert_eq!(
        HANDLED.different.load(Ordering::Relaxed),
        before,
        "of {}",
        HANDLED.same.load(Ordering::Relaxed)
    );
    assert!(HANDLED.same.load(Ordering::Relaxed) > 500, "{}", HANDLED.marked.load(Ordering::Relaxed));
}

#[test]
fn a_nested_capture_does_not_change_the_outer_one() {
    let _alone = ONE_HANDLER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    handle(libc::SIGUSR2, compare_in_handler);
    interrupt(libc::SIGUSR2, 2000, || {
        let mut first: [Vec<u64>; 2] = Default::default();
        for round in 0..40 {
            let frames = capture_undisturbed([200, 120][round % 2]);
            let expected = &mut first[round % 2];
            if expected.is_empty() {
                *expected = frames;
            } else {
                assert!(*expected == frames, "a nested capture changed the outer one");
            }
        }
    });
    assert!(HANDLED.nested.load(Ordering::Relaxed) > 0, "no signal arrived inside a capture");
}

/// Captures the stack inside `calls` nested calls. A signal handler may also capture in this thread before this
/// function has copied the frames of its own capture. The handler's capture reuses the same memory, which is allowed,
/// so this function then captures once more.
fn capture_undisturbed(calls: usize) -> Vec<u64> {
    let mut frames = Addresses::new();
    let full =
        || [&HANDLED.same, &HANDLED.different, &HANDLED.marked].map(|count| count.load(Ordering::Relaxed));
    deep(calls, &mut || {
        loop {
            let before = full();
            frames.take(unwinder().capture(Skip::Count(2)).frames);
            if before == full() {
                break;
            }
        }
    });
    frames.as_slice().to_vec()
}
