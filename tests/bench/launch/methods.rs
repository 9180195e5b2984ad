//! The unwinders that are compared, behind a common interface, and a clock for short durations.

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpuflame_cupti::tracer::{ApiCallId, Call, CallKind, Layer, Tracer as _};
use gpuflame_model::record::{CorrelationId, Frame};
use gpuflame_recorder::capture::{self, Capture};
use gpuflame_unwind::{Skip, Unwinder};

use crate::framehop_here::Framehop;
use crate::log;

/// A method to capture a stack.
#[derive(Clone, Copy)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    /// Short name of the method, for the lines of figures that the benchmark prints.
    pub(crate) short: &'static str,
    /// Captures the caller's stack, and returns the number of frames.
    pub(crate) capture: fn(&mut Tools) -> usize,
    /// Returns the caller's stack as return addresses, leaf first. If `None`, the benchmark uses the stack that was
    /// captured last.
    pub(crate) stack: Option<fn(&mut Tools) -> Vec<u64>>,
    pub(crate) is_here: fn() -> bool,
    /// Whether the method finds frames only in code with frame pointers.
    pub(crate) needs_frame_pointers: bool,
    /// Whether the method is known to return wrong stacks. The benchmark counts the wrong stacks of such a method. If
    /// any other method returns a wrong stack, this is an error.
    pub(crate) errs: bool,
}

impl Method {
    const fn new(name: &'static str, short: &'static str, capture: fn(&mut Tools) -> usize) -> Self {
        Self { name, short, capture, stack: None, is_here: || true, needs_frame_pointers: false, errs: false }
    }
}

/// Index in [`METHODS`] of gpuflame's plain capture. All other methods are compared with gpuflame's plain capture.
pub(crate) const CAPTURE: usize = 0;
/// Index of the method that does all of gpuflame's work at a launch: it captures the stack, makes the id and writes the
/// launch record.
pub(crate) const FULL: usize = 1;

pub(crate) const METHODS: &[Method] = &[
    Method {
        stack: Some(|tools| addresses(tools.unwinder.capture(Skip::None).frames)),
        ..Method::new("gpuflame, capture alone", "gpuflame", ours)
    },
    Method { stack: Some(recorded), ..Method::new("gpuflame, capture, intern and push", "full", full) },
    Method { stack: Some(recorded), ..Method::new("gpuflame, enter to exit", "callback", callback) },
    Method {
        stack: Some(|tools| addresses(tools.plain.capture(Skip::None).frames)),
        ..Method::new("gpuflame, capture without memory", "no_memo", plain)
    },
    Method { needs_frame_pointers: true, errs: true, ..Method::new("frame pointers", "fp", frame_pointers) },
    Method {
        is_here: || find_libunwind().is_some(),
        ..Method::new("libunwind `unw_backtrace`", "libunwind", libunwind)
    },
    // framehop returns wrong stacks if a frame realigns the stack and has arguments on it (framehop's issue 48).
    Method { errs: true, ..Method::new("framehop", "framehop", framehop) },
    Method::new("glibc `backtrace`", "glibc", glibc),
    Method::new("backtrace crate", "backtrace", backtrace_crate),
];

/// State that a thread needs for all methods. Each thread has its own state.
pub(crate) struct Tools {
    unwinder: Unwinder,
    plain: Unwinder,
    framehop: Framehop,
    pub(crate) room: Vec<*mut c_void>,
    /// Upper end of the thread's stack, for the walk by frame pointers.
    top: usize,
    launches: u32,
}

impl Tools {
    /// Creates the tools for the calling thread. The thread's stack extends at least one page above this frame, because
    /// the thread started in another function.
    pub(crate) fn new() -> Self {
        let local = 0u8;
        Self::with_top((&raw const local) as usize + 4096)
    }

    /// Creates the tools for the calling thread, whose stack ends at `top`.
    pub(crate) fn with_top(top: usize) -> Self {
        let mut unwinder = Unwinder::new().expect("memory for an unwinder");
        // The benchmark uses the same setting for the unwinder as gpuflame's callback.
        unwinder.check_every_capture(true);
        let mut plain = Unwinder::new().expect("memory for an unwinder");
        plain.check_every_capture(true);
        plain.use_caches(false);
        let room = vec![std::ptr::null_mut(); 1024];
        Self { unwinder, plain, framehop: Framehop::new(top as u64), room, top, launches: 0 }
    }
}

fn addresses(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.0 & ((1 << 48) - 1)).collect()
}

/// Returns the stack of the last recorded launch.
fn recorded(_: &mut Tools) -> Vec<u64> {
    log::last_stack().map(|frames| addresses(&frames[1..])).unwrap_or_default()
}

/// Creates the description of an API call in the form in which the tracer passes it to the callback.
fn call<'a>(tools: &mut Tools, slot: &'a Cell<u64>) -> Call<'a> {
    tools.launches = tools.launches.wrapping_add(1);
    Call {
        kind: CallKind::Launch,
        api: ApiCallId(3),
        layer: Layer::Runtime,
        correlation: CorrelationId(tools.launches),
        slot,
        return_value: 0,
        symbol_name: std::ptr::null(),
    }
}

#[inline(never)]
fn full(tools: &mut Tools) -> usize {
    let slot = Cell::new(0);
    capture::record_stack(&call(tools, &slot));
    0
}

#[inline(never)]
fn callback(tools: &mut Tools) -> usize {
    let slot = Cell::new(0);
    let call = call(tools, &slot);
    Capture::enter(&call);
    Capture::exit(&call);
    0
}

#[inline(never)]
fn framehop(tools: &mut Tools) -> usize {
    tools.framehop.capture(&mut tools.room)
}

#[inline(never)]
fn ours(tools: &mut Tools) -> usize {
    tools.unwinder.capture(Skip::None).frames.len()
}

#[inline(never)]
fn plain(tools: &mut Tools) -> usize {
    tools.plain.capture(Skip::None).frames.len()
}

#[inline(never)]
fn glibc(tools: &mut Tools) -> usize {
    unsafe extern "C" {
        fn backtrace(array: *mut *mut c_void, size: c_int) -> c_int;
    }
    // SAFETY: the array has the length that backtrace gets.
    unsafe { backtrace(tools.room.as_mut_ptr(), tools.room.len() as c_int) as usize }
}

#[inline(never)]
fn backtrace_crate(tools: &mut Tools) -> usize {
    let mut count = 0;
    let room = &mut tools.room;
    // SAFETY: only this thread uses the crate's unwinder in this program, and only the crate's symbol look-up is not
    // thread-safe.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            room[count] = frame.ip();
            count += 1;
            count < room.len()
        });
    }
    count
}

thread_local! {
    /// Frame pointer of the innermost C function; this function calls Rust code that keeps no frame pointer.
    pub(crate) static FRAME: Cell<*const usize> = const { Cell::new(std::ptr::null()) };
}

#[inline(never)]
fn frame_pointers(tools: &mut Tools) -> usize {
    let mut frame = FRAME.get() as usize;
    let mut below = 0;
    let mut count = 0;
    while frame > below && frame < tools.top && frame.is_multiple_of(8) && count < tools.room.len() {
        // SAFETY: the address is on the thread's stack, between the innermost frame and the upper end of the stack.
        let [saved, pc] = unsafe { (frame as *const [usize; 2]).read() };
        tools.room[count] = pc as *mut c_void;
        (below, frame) = (frame, saved);
        count += 1;
    }
    count
}

type UnwBacktrace = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// Loads libunwind's fast unwinder. libunwind is loaded at run time and with local symbols, because a libunwind that
/// the program was linked with would replace libgcc's unwinder in the whole process.
fn find_libunwind() -> Option<UnwBacktrace> {
    static FOUND: OnceLock<Option<UnwBacktrace>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: the names are C strings, and the library's constructors have no requirements.
        unsafe {
            let library = libc::dlopen(c"libunwind.so.8".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            let symbol = (!library.is_null()).then(|| libc::dlsym(library, c"unw_backtrace".as_ptr()))?;
            (!symbol.is_null()).then(|| std::mem::transmute::<*mut c_void, UnwBacktrace>(symbol))
        }
    })
}

#[inline(never)]
fn libunwind(tools: &mut Tools) -> usize {
    let Some(unw_backtrace) = find_libunwind() else { return 0 };
    // SAFETY: the array has the length that the function gets.
    unsafe { unw_backtrace(tools.room.as_mut_ptr(), tools.room.len() as c_int) as usize }
}

/// The time stamp counter. The cost of reading the counter is subtracted from measured durations.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    ticks_per_nanosecond: f64,
}

/// Duration of an empty measurement, in ticks: the smallest median so far. A median is larger if another guest of the
/// physical machine uses the core at that time.
static OVERHEAD: AtomicU64 = AtomicU64::new(u64::MAX);

impl Clock {
    pub(crate) fn calibrated() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(|| {
            let (began, first) = (Instant::now(), ticks());
            while began.elapsed() < Duration::from_millis(50) {
                Self::calibrate_again();
            }
            let elapsed = began.elapsed().as_nanos() as f64;
            Self { ticks_per_nanosecond: (ticks() - first) as f64 / elapsed }
        })
    }

    /// Measures the duration of an empty measurement again, and keeps the smaller of the two durations.
    pub(crate) fn calibrate_again() {
        let mut empty: [u64; 101] = std::array::from_fn(|_| span(|| ()));
        empty.sort_unstable();
        OVERHEAD.fetch_min(empty[50], Ordering::Relaxed);
    }

    /// Converts `ticks` to nanoseconds. The ticks were measured in `spans` separate measurements.
    pub(crate) fn nanoseconds(&self, ticks: u64, spans: u32) -> f64 {
        let overhead = OVERHEAD.load(Ordering::Relaxed) * u64::from(spans);
        ticks.saturating_sub(overhead) as f64 / self.ticks_per_nanosecond
    }

    /// Returns the average duration of `work` in ns, over `times` runs.
    #[inline(always)]
    pub(crate) fn time(&self, times: u32, mut work: impl FnMut()) -> f64 {
        let ticks = span(|| (0..times).for_each(|_| work()));
        self.nanoseconds(ticks, 1) / f64::from(times)
    }
}

#[inline(always)]
fn span(work: impl FnOnce()) -> u64 {
    let before = ticks();
    work();
    ticks() - before
}

/// Returns the time stamp counter; it is read after all earlier instructions have completed.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has both of these instructions.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}
