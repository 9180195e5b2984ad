//! The unwinders that are compared, behind one face, and a clock for short times.

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gpuflame::unwind::{Skip, Unwinder};

/// One way to capture a stack.
#[derive(Clone, Copy)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    /// How figures call it.
    pub(crate) short: &'static str,
    /// Captures the caller's stack, and gives the number of frames.
    pub(crate) capture: fn(&mut Tools) -> usize,
    pub(crate) is_here: fn() -> bool,
    /// It sees nothing in code without frame pointers.
    pub(crate) needs_frame_pointers: bool,
}

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "gpuflame",
        short: "gpuflame",
        capture: ours,
        is_here: always,
        needs_frame_pointers: false,
    },
    Method {
        name: "gpuflame, no memo",
        short: "no_memo",
        capture: plain,
        is_here: always,
        needs_frame_pointers: false,
    },
    Method {
        name: "frame pointers",
        short: "fp",
        capture: frame_pointers,
        is_here: always,
        needs_frame_pointers: true,
    },
    Method {
        name: "libunwind",
        short: "libunwind",
        capture: libunwind,
        is_here: has_libunwind,
        needs_frame_pointers: false,
    },
    Method {
        name: "glibc backtrace()",
        short: "glibc",
        capture: glibc,
        is_here: always,
        needs_frame_pointers: false,
    },
    Method {
        name: "backtrace crate",
        short: "backtrace",
        capture: backtrace_crate,
        is_here: always,
        needs_frame_pointers: false,
    },
];

/// What the methods need: one per thread.
pub(crate) struct Tools {
    unwinder: Unwinder,
    plain: Unwinder,
    room: Vec<*mut c_void>,
    /// The top of the thread's stack, for the walk by frame pointers.
    top: usize,
}

impl Tools {
    pub(crate) fn new() -> Self {
        let unwinder = Unwinder::new().expect("memory for an unwinder");
        let mut plain = Unwinder::new().expect("memory for an unwinder");
        plain.remember_stacks(false);
        let local = 0u8;
        Self { unwinder, plain, room: vec![std::ptr::null_mut(); 1024], top: (&raw const local) as usize }
    }
}

fn always() -> bool {
    true
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
    // SAFETY: the array is as long as is said.
    unsafe { backtrace(tools.room.as_mut_ptr(), tools.room.len() as c_int) as usize }
}

#[inline(never)]
fn backtrace_crate(tools: &mut Tools) -> usize {
    let mut count = 0;
    let room = &mut tools.room;
    // SAFETY: the unwinder is used by this thread alone here; only symbol look-up is not thread-safe.
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
    /// The frame pointer of the innermost C function. (The Rust code inside it keeps none.)
    pub(crate) static FRAME: Cell<*const usize> = const { Cell::new(std::ptr::null()) };
}

#[inline(never)]
fn frame_pointers(tools: &mut Tools) -> usize {
    let mut frame = FRAME.get() as usize;
    let mut below = 0;
    let mut count = 0;
    while frame > below && frame < tools.top && frame.is_multiple_of(8) && count < tools.room.len() {
        // SAFETY: the address lies on the thread's stack, between the innermost frame and its top.
        let [saved, pc] = unsafe { (frame as *const [usize; 2]).read() };
        tools.room[count] = pc as *mut c_void;
        (below, frame) = (frame, saved);
        count += 1;
    }
    count
}

type UnwBacktrace = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// libunwind's fast unwinder. Loaded by hand and locally: linked, it would take the place of libgcc's in
/// this whole process.
fn find_libunwind() -> Option<UnwBacktrace> {
    static FOUND: OnceLock<Option<UnwBacktrace>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: the names are C strings; the library's constructors have no requirements.
        unsafe {
            let library = libc::dlopen(c"libunwind.so.8".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            let symbol = (!library.is_null()).then(|| libc::dlsym(library, c"unw_backtrace".as_ptr()))?;
            (!symbol.is_null()).then(|| std::mem::transmute::<*mut c_void, UnwBacktrace>(symbol))
        }
    })
}

fn has_libunwind() -> bool {
    find_libunwind().is_some()
}

#[inline(never)]
fn libunwind(tools: &mut Tools) -> usize {
    let Some(unw_backtrace) = find_libunwind() else { return 0 };
    // SAFETY: the array is as long as is said.
    unsafe { unw_backtrace(tools.room.as_mut_ptr(), tools.room.len() as c_int) as usize }
}

/// The time stamp counter, with its cost taken off.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    ticks_per_nanosecond: f64,
    /// What an empty measurement shows, in ticks.
    overhead: f64,
}

impl Clock {
    pub(crate) fn calibrated() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(|| {
            let (began, first) = (Instant::now(), ticks());
            while began.elapsed() < Duration::from_millis(50) {}
            let elapsed = began.elapsed().as_nanos() as f64;
            let ticks_per_nanosecond = (ticks() - first) as f64 / elapsed;
            let mut empty: Vec<_> = (0..1001).map(|_| span(|| ())).collect();
            empty.sort_unstable();
            Self { ticks_per_nanosecond, overhead: empty[500] as f64 }
        })
    }

    /// Nanoseconds that one of `times` runs of `work` takes.
    #[inline(always)]
    pub(crate) fn time(&self, times: u32, mut work: impl FnMut()) -> f64 {
        let ticks = span(|| (0..times).for_each(|_| work()));
        (ticks as f64 - self.overhead).max(0.0) / self.ticks_per_nanosecond / f64::from(times)
    }
}

#[inline(always)]
fn span(work: impl FnOnce()) -> u64 {
    let before = ticks();
    work();
    ticks() - before
}

/// The counter, once all that stands before is done.
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: every x86-64 machine has both instructions.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}
