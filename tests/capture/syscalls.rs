//! Checks that the launch callback makes no system call. The test catches each system call that the launching thread
//! attempts.
//!
//! The test uses *syscall user dispatch* (since Linux 5.11): while a byte in the thread's memory is set, Linux sends
//! the thread a signal instead of executing a system call. The test sets this byte around launches of every kind, whose
//! stacks are already cached. During these launches, the signal handler must catch no system call. Therefore the
//! callback waits for no lock, maps no memory, reads no file, and reads no clock except through the vdso.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../support/api_call.rs"]
mod api_call;
#[path = "../support/interpreter.rs"]
mod interpreter;
#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs;
use std::hint::black_box;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use api_call::make_call;
use gpuflame_cupti::tracer::{CallKind, Tracer as _};
use gpuflame_recorder::capture::{self, Capture};
use gpuflame_recorder::control::window;
use support::skip;

/// Selector byte that Linux reads at each system call. `PASS`: Linux executes the system call. `CATCH`: the thread gets
/// a signal instead.
static SELECTOR: AtomicU8 = AtomicU8::new(PASS);
const PASS: u8 = 0;
const CATCH: u8 = 1;

/// Number by which Linux identifies the system call that was caught, or -1 if none was caught.
static CAUGHT: AtomicI64 = AtomicI64::new(-1);

/// Signal handler that stores the number of the attempted system call. The handler lets Linux execute all further
/// system calls, including the one by which the handler returns.
extern "C" fn caught(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    SELECTOR.store(PASS, Ordering::Relaxed);
    // SAFETY: the kernel passes the interrupted registers.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    CAUGHT.store(registers[libc::REG_RAX as usize], Ordering::Relaxed);
}

/// Makes Linux send a signal instead of executing this thread's system calls while the selector is set. Returns false
/// if Linux does not support syscall user dispatch.
fn catch_on_this_thread() -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
    const ON: usize = 1;
    // SAFETY: the handler only accesses atomics and the context that it gets, and the selector is static.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = caught as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()), 0);
        libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, ON, 0usize, 0usize, SELECTOR.as_ptr()) == 0
    }
}

/// Returns the number by which Linux identifies the first system call that `work` makes.
fn first_syscall_of(work: impl FnOnce()) -> Option<i64> {
    CAUGHT.store(-1, Ordering::Relaxed);
    SELECTOR.store(CATCH, Ordering::SeqCst);
    work();
    SELECTOR.store(PASS, Ordering::SeqCst);
    Some(CAUGHT.load(Ordering::Relaxed)).filter(|number| *number >= 0)
}

/// Makes an API call that contains a nested call with a separate id.
#[inline(never)]
fn launch(kind: CallKind, id: u32, result: u32) {
    let (outer, inner) = (Cell::new(0), Cell::new(0));
    Capture::enter(&make_call(kind, id, &outer, 0));
    inside(&|| {
        Capture::enter(&make_call(kind, id + 1, &inner, 0));
        Capture::exit(&make_call(kind, id + 1, &inner, result));
    });
    Capture::exit(&make_call(kind, id, &outer, result));
}

#[inline(never)]
fn inside(call: &dyn Fn()) {
    black_box(&mut [0u8; 128]);
    call();
    black_box(());
}

#[inline(never)]
fn deep(calls: u32, leaf: &dyn Fn()) -> u32 {
    if calls == 0 {
        leaf();
        return 0;
    }
    black_box(deep(black_box(calls - 1), leaf)) + 1
}

/// Makes launches of every kind. The stacks of these launches have 40 depths in turn, so that each stack differs in
/// part from the previous stack.
fn launches(first: u32) {
    for turn in 0..1000 {
        let id = first + turn * 10;
        deep(turn * 7 % 40, &|| {
            launch(CallKind::Launch, id, 0);
            launch(CallKind::Copy { sync: true }, id + 2, 0);
            launch(CallKind::Set { sync: false }, id + 4, 0);
            launch(CallKind::Launch, id + 6, 700);
        });
    }
}

/// Makes launches below Python functions, at 12 depths in turn, so that each launch has another leaf function than the
/// previous one.
fn launches_of_python(evaluate: interpreter::Evaluate, first: u32) {
    for turn in 0..1000 {
        let mut id = first + turn * 10 + 8;
        evaluate(1 + (turn * 5 % 12) as c_int, launch_in_python, (&raw mut id).cast());
    }
}

extern "C" fn launch_in_python(id: *mut c_void) {
    // SAFETY: the caller passes a pointer to a number that outlives the call.
    launch(CallKind::Launch, unsafe { *id.cast::<u32>() }, 0);
}

/// Does the collector's work: reads all launches that were recorded up to now, prepares empty chunks, and renews the
/// clock calibration.
fn collect() {
    capture::recalibrate_clock();
    while capture::drain(|_| {}) {}
    capture::refill_chunks();
}

/// Returns whether this version of Linux is new enough for syscall user dispatch. If Linux is new enough, it supports
/// syscall user dispatch on every x86-64 machine.
fn kernel_can_send_them_back() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(5), Some(11))
}

/// Returns whether the C library can read the kernel's clock source without a system call.
fn clock_needs_no_syscall() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(source).unwrap_or_default();
    ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"].contains(&source.trim())
}

#[test]
fn no_launch_makes_a_system_call_once_its_stack_is_cached() {
    gpuflame_unwind::prepare();
    gpuflame_unwind::python::set_enabled(true);
    let evaluate = interpreter::evaluate();
    collect();
    if !catch_on_this_thread() {
        return skip(match kernel_can_send_them_back() {
            true => "this kernel could return system calls as signals, and does not",
            false => "this kernel cannot return system calls as signals (Linux 5.11 and later can)",
        });
    }
    // SAFETY: getppid has no precondition and only returns a number.
    let made = first_syscall_of(|| _ = unsafe { libc::syscall(libc::SYS_getppid) });
    assert_eq!(made, Some(libc::SYS_getppid), "what is made is caught");
    if first_syscall_of(|| _ = capture::now()).is_some() {
        return skip(match clock_needs_no_syscall() {
            true => "the clock is read by a system call, although this machine's clock source needs none",
            false => "this machine's clock can only be read by a system call",
        });
    }
    // When the collector has run twice, callbacks compute the time from the calibration of the clock.
    thread::sleep(Duration::from_millis(5));
    collect();
    window::open();
    // The first round fills the stack caches. In the last round, the recording window is closed. All rounds are in one
    // loop, because launches from a second call site would have different stacks. `black_box` hides the number of
    // rounds from the compiler; otherwise the compiler could unroll the loop.
    let mut round = 0;
    while black_box(round) < 10 {
        if round == 9 {
            window::close();
        }
        CAUGHT.store(-1, Ordering::Relaxed);
        SELECTOR.store(if round == 0 { PASS } else { CATCH }, Ordering::SeqCst);
        launches(round * 20_000);
        launches_of_python(evaluate, round * 20_000);
        SELECTOR.store(PASS, Ordering::SeqCst);
        assert_eq!(CAUGHT.load(Ordering::Relaxed), -1, "the number of a system call in round {round}");
        collect();
        round += 1;
    }
    assert_eq!(
        capture::losses().map(|(_, count)| count).sum::<u64>(),
        10_000,
        "those that failed, and no other"
    );
    assert_eq!(gpuflame_unwind::python::off_reason(), None);
}
