//! Signal handlers interrupt gpuflame's launch callback and call gpuflame's API. gpuflame must count every such call
//! under the right kind, and must count every loss. If a thread jumps out of the callback, its launches must still be
//! recorded.
//!
//! The tests control where the callback is interrupted. The word that the enter callback and the exit callback of a
//! call share is in write-protected memory, so the callback faults at the instruction that writes this word.
#![cfg(target_os = "linux")]

#[path = "../support/api_call.rs"]
mod api_call;
#[path = "../unwind/support/build.rs"]
mod build;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use api_call::{launch, make_call};
use build::{Library, compile};
use gpuflame_cupti::tracer::{Call, CallKind, Layer, Tracer as _};
use gpuflame_model::record::Row;
use gpuflame_recorder::capture::{self, Capture, PopResult, RangeDomain, RangeName};
use gpuflame_recorder::control::window;

const USER: RangeDomain = RangeDomain::USER;

/// `PAGE` is a memory page that causes a fault when it is accessed. The variable below contains the function that the
/// fault handler runs.
static PAGE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static THERE: AtomicUsize = AtomicUsize::new(0);

const PAGE_BYTES: usize = 4096;

extern "C" fn stopped(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a description of the fault, which includes its address.
    let at = unsafe { (*info).si_addr() };
    let page = PAGE.load(Ordering::Relaxed);
    if at.addr() & !(PAGE_BYTES - 1) != page.addr() {
        // SAFETY: abort has no precondition. This fault was not caused by this test, so the process must end.
        unsafe { libc::abort() };
    }
    // SAFETY: the page belongs to this test.
    unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE) };
    // SAFETY: only `interrupted` stores a value in this variable, and it stores a `fn()`.
    let there: fn() = unsafe { transmute(THERE.load(Ordering::Relaxed)) };
    there();
}

/// State of the process that a test needs. The lock in this state allows only one test to run at a time.
struct Scene {
    _alone: MutexGuard<'static, ()>,
    lost: BTreeMap<&'static str, u64>,
}

fn counted() -> BTreeMap<&'static str, u64> {
    capture::losses().map(|(loss, count)| (loss.label(), count)).collect()
}

impl Scene {
    fn new(flags: c_int) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        gpuflame_unwind::prepare();
        capture::refill_chunks();
        window::open();
        // SAFETY: the kernel chooses the address of the page, and the handler has the right type.
        unsafe {
            let flags_of_page = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(null_mut(), PAGE_BYTES, libc::PROT_NONE, flags_of_page, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            PAGE.store(page, Ordering::Relaxed);
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = stopped as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | flags;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, null_mut()), 0);
        }
        launches();
        Self { _alone: alone, lost: counted() }
    }

    /// For each kind of loss, returns the number of losses since this value was created.
    fn lost(&self) -> Vec<(&'static str, u64)> {
        let more = counted().into_iter().map(|(label, count)| (label, count - self.lost[label]));
        more.filter(|(_, count)| *count > 0).collect()
    }
}

/// Returns the ids of the launches that were recorded since the last call of this function.
fn launches() -> Vec<u32> {
    let mut ids = Vec::new();
    while capture::drain(|row| {
        if let Row::Launch(launch) = row {
            ids.push(launch.correlation.0);
        }
    }) {}
    ids
}

/// Makes a launch. A signal handler interrupts the enter callback of this launch and runs `there`.
#[inline(never)]
fn interrupted(id: u32, there: fn()) {
    THERE.store(there as *const () as usize, Ordering::Relaxed);
    let page = PAGE.load(Ordering::Relaxed);
    // SAFETY: the page stays mapped until the process ends, and only this thread uses it.
    let slot = unsafe { &*page.cast::<Cell<u64>>() };
    // SAFETY: the page stays mapped until the process ends, and only this thread uses it.
    unsafe { libc::mprotect(page, PAGE_BYTES, libc::PROT_NONE) };
    let call = make_call(CallKind::Launch, id, slot, 0);
    Capture::enter(&call);
    Capture::exit(&call);
}

/// Makes a launch that passes through both the runtime API and the driver API.
#[inline(never)]
fn nested_launch(outer: u32, inner: u32) {
    let (slot, slot_within) = (Cell::new(0), Cell::new(0));
    let call = make_call(CallKind::Launch, outer, &slot, 0);
    Capture::enter(&call);
    let of_driver = |call| Call { layer: Layer::Driver, ..call };
    deeper(&|| {
        let within = of_driver(make_call(CallKind::Launch, inner, &slot_within, 0));
        Capture::enter(&within);
        Capture::exit(&within);
    });
    Capture::exit(&call);
}

#[inline(never)]
fn deeper(inside: &dyn Fn()) {
    std::hint::black_box(&mut [0u8; 256]);
    inside();
    std::hint::black_box(());
}

fn push(name: &[u8]) -> Option<usize> {
    capture::push_range(USER, RangeName::Text(name))
}

#[test]
fn ranges_that_a_handler_opens_inside_the_callback_count_as_dropped_ranges() {
    let scene = Scene::new(0);
    assert_eq!(push(b"around"), Some(0));
    interrupted(1, || {
        assert_eq!(push(b"in the handler"), None);
        assert_eq!(capture::pop_range(USER), PopResult::InHandler);
        // The handler opens these NVTX ranges; they are closed only after the handler has returned.
        assert_eq!(push(b"left open"), None);
        assert_eq!(capture::start_range(USER, RangeName::Text(b"started")), 0);
    });
    assert_eq!(launches(), [1]);
    assert_eq!(scene.lost(), [("ranges_dropped", 3)]);
    assert_eq!(capture::pop_range(USER), PopResult::Closed(1), "the one that was refused");
    assert_eq!(capture::pop_range(USER), PopResult::Closed(0));
    assert_eq!(capture::pop_range(USER), PopResult::NoneOpen);
    assert_eq!(scene.lost(), [("ranges_dropped", 3)]);
}

#[test]
fn a_range_that_a_handler_closes_inside_the_callback_stays_open_and_is_counted() {
    let scene = Scene::new(0);
    assert_eq!(push(b"around"), Some(0));
    interrupted(1, || assert_eq!(capture::pop_range(USER), PopResult::InHandler));
    assert_eq!(scene.lost(), [("ranges_dropped", 1)]);
    assert_eq!(capture::pop_range(USER), PopResult::Closed(0));
}

#[test]
fn a_range_ended_by_its_id_inside_the_callback_ends_after_the_callback() {
    static RANGE: AtomicUsize = AtomicUsize::new(0);
    let scene = Scene::new(0);
    RANGE.store(capture::start_range(USER, RangeName::Text(b"request")) as usize, Ordering::Relaxed);
    interrupted(1, || capture::end_range(RANGE.load(Ordering::Relaxed) as u64));
    assert_eq!(push(b"next"), Some(0));
    assert_eq!(capture::pop_range(USER), PopResult::Closed(0));
    assert_eq!((launches(), scene.lost()), (vec![1], vec![]));
}

#[test]
fn a_handlers_launch_inside_the_callback_counts_once_with_its_nested_call() {
    for flags in [0, libc::SA_ONSTACK] {
        let scene = Scene::new(flags);
        interrupted(1, || nested_launch(2, 3));
        nested_launch(4, 5);
        assert_eq!(launches(), [1, 4, 5]);
        assert_eq!(scene.lost(), [("stacks_nested", 1)]);
    }
}

type ComeBack = extern "C-unwind" fn(extern "C-unwind" fn()) -> c_int;

fn jumps() -> (ComeBack, fn()) {
    static JUMP: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let library = Library::open(&compile("jump.c", &["-O2"]));
    JUMP.store(library.symbol("jump"), Ordering::Relaxed);
    let jump = || {
        // SAFETY: the address is that of a C function of this type.
        let jump: extern "C-unwind" fn() = unsafe { transmute(JUMP.load(Ordering::Relaxed)) };
        jump();
    };
    // SAFETY: the symbol is a C function with this type.
    (unsafe { transmute::<*mut c_void, ComeBack>(library.symbol("come_back")) }, jump)
}

static JUMP: Mutex<Option<fn()>> = Mutex::new(None);

extern "C-unwind" fn interrupted_by_a_jump() {
    let jump = *JUMP.lock().unwrap();
    interrupted(1, jump.unwrap());
}

/// All cases are in a single test, because the number of thread states that may be abandoned is limited per process.
#[test]
fn launches_after_jumps_out_of_the_callback_are_recorded_up_to_a_limit() {
    for flags in [0, libc::SA_ONSTACK] {
        let scene = Scene::new(flags);
        let (come_back, jump) = jumps();
        *JUMP.lock().unwrap() = Some(jump);
        thread::spawn(move || {
            for round in 0..5 {
                assert_eq!(come_back(interrupted_by_a_jump), 1);
                if round % 2 == 0 {
                    launch(10 + round);
                } else {
                    // This launch is made in a deeper stack frame than that of the callback that the jump left.
                    far_deeper(&|| launch(10 + round));
                }
                nested_launch(20 + round, 30 + round);
            }
        })
        .join()
        .unwrap();
        let mut ids = launches();
        ids.sort();
        let expected: Vec<_> = (10..15).chain(20..25).chain(30..35).collect();
        assert_eq!((ids, scene.lost()), (expected, vec![]));
    }

    let scene = Scene::new(0);
    const ROUNDS: u32 = 100;
    let (come_back, jump) = jumps();
    *JUMP.lock().unwrap() = Some(jump);
    thread::spawn(move || {
        for round in 0..ROUNDS {
            assert_eq!(come_back(interrupted_by_a_jump), 1);
            launch(1000 + round);
        }
    })
    .join()
    .unwrap();
    let kept = launches().len() as u64;
    let [("stacks_nested", nested)] = scene.lost()[..] else { panic!("{:?}", scene.lost()) };
    // At most 64 thread states may be abandoned, and the launches above have used ten of them.
    assert_eq!((kept, nested), (54, u64::from(ROUNDS) - 54));
    // A new thread must not count as a thread that is inside the callback.
    thread::spawn(|| launch(7)).join().unwrap();
    assert_eq!(launches(), [7]);
}

#[inline(never)]
fn far_deeper(inside: &dyn Fn()) {
    std::hint::black_box(&mut [1_u8; 20_000]);
    inside();
    std::hint::black_box(());
}

#[test]
fn a_thread_that_inherits_the_state_of_one_ended_mid_callback_can_launch() {
    let scene = Scene::new(0);
    let (come_back, jump) = jumps();
    *JUMP.lock().unwrap() = Some(jump);
    for round in 0..20 {
        thread::spawn(move || assert_eq!(come_back(interrupted_by_a_jump), 1)).join().unwrap();
        launches();
        thread::spawn(move || launch(10 + round)).join().unwrap();
        assert_eq!(launches(), [10 + round]);
    }
    assert_eq!(scene.lost(), []);
}

/// Runs `body` in a signal handler, on a signal stack at a higher address than the thread's own stack.
fn on_a_higher_stack(stack: usize, bytes: usize, body: fn()) {
    static BODY: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handler(_signal: c_int) {
        // SAFETY: only the code below stores a value in this variable, and the value is a `fn()`.
        let body: fn() = unsafe { transmute(BODY.load(Ordering::Relaxed)) };
        body();
    }
    BODY.store(body as *const () as usize, Ordering::Relaxed);
    // SAFETY: the stack is memory of the caller, and the handler has the right type.
    unsafe {
        let stack = libc::stack_t { ss_sp: stack as *mut c_void, ss_flags: 0, ss_size: bytes };
        assert_eq!(libc::sigaltstack(&stack, null_mut()), 0);
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, null_mut()), 0);
        assert_eq!(libc::raise(libc::SIGUSR1), 0);
    }
}

/// Calls `below` with an array in this stack frame that serves as a signal stack. The array is at a higher address than
/// the frames of all functions that `below` calls.
#[inline(never)]
fn with_a_stack_above(below: fn(usize, usize)) {
    let mut stack = vec_on_the_stack();
    below(stack.as_mut_ptr().addr(), stack.len());
    std::hint::black_box(&mut stack);
}

fn vec_on_the_stack() -> [u8; 256 << 10] {
    [0; 256 << 10]
}

#[test]
fn a_handlers_launch_on_a_higher_stack_preserves_the_interrupted_launch() {
    let scene = Scene::new(0);
    let thread = thread::Builder::new().stack_size(4 << 20).spawn(|| {
        with_a_stack_above(|stack, bytes| {
            let slot = Cell::new(0);
            let call = make_call(CallKind::Launch, 1, &slot, 0);
            Capture::enter(&call);
            on_a_higher_stack(stack, bytes, || nested_launch(2, 3));
            // The nested driver call of the first launch begins only after the handler's launch.
            deeper(&|| {
                let slot = Cell::new(0);
                let within = Call { layer: Layer::Driver, ..make_call(CallKind::Launch, 4, &slot, 0) };
                Capture::enter(&within);
                Capture::exit(&within);
            });
            Capture::exit(&call);
        });
    });
    thread.unwrap().join().unwrap();
    let mut found = Vec::new();
    while capture::drain(|row| {
        if let Row::Launch(launch) = row {
            found.push((launch.correlation.0, launch.within.0));
        }
    }) {}
    assert_eq!((found, scene.lost()), (vec![(2, 2), (3, 2), (1, 1), (4, 1)], vec![]));
}

/// Number of launches that the handler below made. The ids of these launches start at `OF_HANDLER`.
static IN_HANDLER: AtomicUsize = AtomicUsize::new(0);
const OF_HANDLER: u32 = 1 << 30;

extern "C" fn launches_and_names(_signal: c_int) {
    push(b"in the handler");
    launch(OF_HANDLER + IN_HANDLER.fetch_add(1, Ordering::Relaxed) as u32);
    capture::pop_range(USER);
}

/// The interrupted launch is recorded, wherever the handler interrupts it. The handler's own launch is only counted if
/// the handler interrupts gpuflame's code; otherwise it is recorded.
#[test]
fn a_handler_that_launches_at_any_callback_instruction_loses_no_interrupted_launch() {
    const REFUSED: u64 = 2000;
    let scene = Scene::new(0);
    IN_HANDLER.store(0, Ordering::Relaxed);
    // SAFETY: the handler has the right type.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = launches_and_names as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, null_mut()), 0);
    }
    let (is_done, launching) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (launched, recorded) = thread::scope(|scope| {
        let launcher = scope.spawn(|| {
            // SAFETY: pthread_self has no precondition.
            launching.store(unsafe { libc::pthread_self() } as usize, Ordering::Release);
            let ids = (1..OF_HANDLER).take_while(|_| !is_done.load(Ordering::Relaxed));
            ids.inspect(|id| {
                assert_eq!(push(b"around"), Some(0), "no range of a handler stays open");
                launch(*id);
                assert_eq!(capture::pop_range(USER), PopResult::Closed(0));
            })
            .last()
        });
        let mut recorded = Vec::new();
        while !launcher.is_finished() {
            let (thread, came) = (launching.load(Ordering::Acquire), IN_HANDLER.load(Ordering::Relaxed));
            if thread == 0 {
                continue;
            }
            // SAFETY: the thread exists until it is joined.
            unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR2) };
            while IN_HANDLER.load(Ordering::Relaxed) == came && !launcher.is_finished() {
                thread::yield_now();
            }
            capture::refill_chunks();
            recorded.extend(launches());
            let refused = scene.lost().iter().find(|(loss, _)| *loss == "stacks_nested").map(|(_, n)| *n);
            is_done.store(refused.is_some_and(|refused| refused >= REFUSED), Ordering::Relaxed);
        }
        (launcher.join().unwrap(), recorded)
    });
    let mut recorded = [recorded, launches()].concat();
    recorded.sort_unstable();
    let of_handler = recorded.split_off(recorded.partition_point(|id| *id < OF_HANDLER));
    assert!(recorded.into_iter().eq(1..=launched.unwrap()), "each once");
    let refused = IN_HANDLER.load(Ordering::Relaxed) - of_handler.len();
    assert!(of_handler.windows(2).all(|two| two[0] < two[1]), "each once");
    let lost = scene.lost();
    let [("ranges_dropped", ranges), ("stacks_nested", nested)] = lost[..] else { panic!("{lost:?}") };
    assert_eq!(nested, refused as u64);
    assert!(nested >= REFUSED && ranges >= REFUSED, "{lost:?}");
}
