//! Measures the cost of capturing a fiber's stack, for several numbers of fibers that take turns, and in a process with
//! many memory mappings. If a stack is not the thread's own, gpuflame lets Linux copy the stack at each capture
//! (`src/unwind/copy.rs`).
//!
//!     cargo bench --bench fibers
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::arch::naked_asm;
use std::hint::black_box;
use std::io::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gpuflame_unwind::{self as unwind, Skip, Unwinder, tls};

const PAGE: usize = 4096;
const STACK: usize = 64 << 10;
const CALLS: u32 = 24;
const FIBERS: [usize; 5] = [1, 128, 200, 1000, 2000];
const TURNS: usize = 40;
const CAPTURES_A_TURN: usize = 2000;
const MAPPINGS: usize = 5000;

/// Switches to the stack whose upper end is `top`, and calls `hook` there.
#[unsafe(naked)]
extern "C-unwind" fn on_stack(hook: extern "C-unwind" fn(), top: usize) {
    naked_asm!("push rbx", "mov rbx, rsp", "mov rsp, rsi", "call rdi", "mov rsp, rbx", "pop rbx", "ret")
}

static CAPTURES: AtomicBool = AtomicBool::new(false);
static FRAMES: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
fn deep(calls: u32) -> u32 {
    let frame = black_box([calls; 16]);
    if calls > 0 {
        return black_box(deep(black_box(calls - 1))) + frame[0];
    }
    if CAPTURES.load(Ordering::Relaxed) {
        // SAFETY: SAFETY: `main` stored its unwinder in this variable, and no other reference to it exists.
        let unwinder = unsafe { &mut *tls::get().cast::<Unwinder>() };
        FRAMES.store(unwinder.capture(Skip::None).frames.len(), Ordering::Relaxed);
    }
    frame[0]
}

extern "C-unwind" fn fiber() {
    black_box(deep(CALLS));
}

/// Maps memory with an unreadable page at each multiple of `apart` bytes. Linux then treats each piece of memory
/// between two such pages as a separate mapping.
fn pieces(count: usize, apart: usize) -> usize {
    // SAFETY: the mapping is fresh, and the loop protects only pages inside it.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let memory = libc::mmap(null_mut(), count * apart + PAGE, protection, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        for piece in 0..=count {
            assert_eq!(libc::mprotect(memory.byte_add(piece * apart), PAGE, libc::PROT_NONE), 0);
        }
        memory as usize
    }
}

/// Returns the CPU time of this thread in nanoseconds.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime may write to `time`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the time in nanoseconds that a call of `run` takes in the third-fastest turn. If other programs use the
/// machine, this hardly affects the third-fastest turn.
fn nanos(mut run: impl FnMut(usize)) -> f64 {
    let mut turns = [0.0; TURNS];
    for turn in &mut turns {
        let began = processor_time();
        (0..CAPTURES_A_TURN).for_each(&mut run);
        *turn = (processor_time() - began) / CAPTURES_A_TURN as f64;
    }
    turns.sort_by(f64::total_cmp);
    turns[TURNS / 10]
}

/// Returns two times: the time by which a capture lengthens a run of a fiber, and the time of a run without a capture.
fn of_fibers(stacks: usize, count: usize) -> (f64, f64) {
    let run = |turn: usize| on_stack(fiber, stacks + (turn % count + 1) * (STACK + PAGE));
    CAPTURES.store(false, Ordering::Relaxed);
    let without = nanos(run);
    CAPTURES.store(true, Ordering::Relaxed);
    (nanos(run) - without, without)
}

fn main() {
    unwind::prepare();
    let mut unwinder = Unwinder::new().expect("memory for an unwinder");
    unwinder.check_every_capture(true);
    tls::set((&raw mut unwinder).cast());
    let mut out = std::io::stdout();
    let mut line = |text: String| drop(writeln!(out, "{text}"));

    CAPTURES.store(true, Ordering::Relaxed);
    unwinder.use_caches(false);
    let own = nanos(|_| fiber());
    let frames = FRAMES.load(Ordering::Relaxed);
    line(format!("the thread's own stack, without memory: {own:.0} ns for {frames} frames"));
    line("| fibers | capture adds, ns | without, ns |\n| ---: | ---: | ---: |".into());
    let stacks = pieces(FIBERS[FIBERS.len() - 1], STACK + PAGE);
    for count in FIBERS {
        let (added, without) = of_fibers(stacks, count);
        line(format!("| {count} | {added:.0} | {without:.0} |"));
    }
    pieces(MAPPINGS / 2, 2 * PAGE);
    let (added, without) = of_fibers(stacks, 2000);
    line(format!("| 2000, {MAPPINGS} mappings more | {added:.0} | {without:.0} |"));
    line(format!("{} frames", FRAMES.load(Ordering::Relaxed)));
}
