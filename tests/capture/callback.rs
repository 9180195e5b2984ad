//! Tests gpuflame's launch callback without CUPTI: the test calls the callback as the tracer would.
//!
//! The process contains only this test, which counts every allocation on its own thread. (The test harness may allocate
//! on another thread at any time.)

#[path = "../support/api_call.rs"]
mod api_call;
#[cfg(target_arch = "x86_64")]
#[path = "../support/interpreter.rs"]
mod interpreter;
#[cfg(target_arch = "x86_64")]
#[path = "../support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

use api_call::make_call;
use gpuflame_cupti::tracer::{CallKind, Tracer};
use gpuflame_model::record::{ContextId, Frame, Launch, OutsideLaunches, Row};
use gpuflame_recorder::capture::{self, Capture};
use gpuflame_recorder::control::window;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: SAFETY: `System` gets every call unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Simulates an API call: enter callback, optionally a nested call, exit callback. In this test, the description of the
/// call is in the stack frame of the call, as in the tracer.
#[inline(never)]
fn call(kind: CallKind, outer: u32, inner: Option<u32>, result: u32) {
    let slot = Cell::new(0);
    Capture::enter(&make_call(kind, outer, &slot, 0));
    if let Some(inner) = inner {
        deeper(&|| {
            let slot = Cell::new(0);
            Capture::enter(&make_call(kind, inner, &slot, 0));
            Capture::exit(&make_call(kind, inner, &slot, result));
        });
    }
    Capture::exit(&make_call(kind, outer, &slot, result));
}

/// Calls `inside` in a deeper stack frame, because the CUDA driver is called from a deeper frame than the CUDA runtime.
#[inline(never)]
fn deeper(inside: &dyn Fn()) {
    let mut room = [0u8; 256];
    black_box(&mut room);
    inside();
    black_box(&mut room);
}

#[inline(never)]
fn decode(ids: std::ops::Range<u32>) {
    for id in ids {
        call(CallKind::Launch, id, None, 0);
    }
    black_box(());
}

#[inline(never)]
fn prefill(ids: std::ops::Range<u32>) {
    for id in ids {
        call(CallKind::Copy { sync: true }, id, None, 0);
    }
    black_box(());
}

#[derive(Default)]
struct Drained {
    outside: Vec<OutsideLaunches>,
    launches: Vec<Launch>,
    contexts: Vec<(ContextId, Vec<Frame>)>,
}

impl Drained {
    /// Returns the id ranges of launches whose stack was not captured. Each range is the first id, the last id and the
    /// number of launches.
    fn ranges(&self) -> Vec<(u32, u32, u32)> {
        self.outside.iter().map(|range| (range.first.0, range.last.0, range.count)).collect()
    }
}

fn drained() -> Drained {
    let mut all = Drained::default();
    while capture::drain(|row| match row {
        Row::Launch(launch) => all.launches.push(*launch),
        Row::Outside(range) => all.outside.push(*range),
        Row::Context { id, frames, .. } => all.contexts.push((*id, frames.to_vec())),
        _ => {}
    }) {}
    all
}

#[test]
fn the_callback_records_each_launch_once_and_allocates_nothing() {
    gpuflame_unwind::prepare();
    capture::refill_chunks();

    // While the window is closed, launches are counted but not recorded. The ids of these launches, and the ids of the
    // calls nested in them, are stored.
    call(CallKind::Launch, 1, None, 0);
    let outside = drained();
    assert_eq!((outside.contexts.len(), outside.launches.len()), (0, 0));
    assert_eq!(outside.ranges(), [(1, 1, 1)]);
    call(CallKind::Launch, 2, Some(3), 0);
    call(CallKind::Copy { sync: true }, 6, Some(7), 0);
    assert_eq!(drained().ranges(), [(1, 7, 2)], "what the collector has not heard of, in a range that grows");
    assert_eq!(drained().ranges(), []);

    assert!(window::open());
    decode(10..20);
    prefill(20..30);
    let first = drained();
    assert_eq!(first.launches.len(), 20);
    assert_eq!(first.contexts.len(), 2, "two call sites, two contexts");
    let contexts: Vec<_> = first.launches.iter().map(|launch| launch.context).collect();
    assert!(contexts[..10].iter().all(|id| *id == first.contexts[0].0));
    assert!(contexts[10..].iter().all(|id| *id == first.contexts[1].0));
    assert!(first.launches[..10].iter().all(|launch| launch.duration > 0), "recorded when it returned");
    assert!(first.launches[10..].iter().all(|launch| launch.duration == 0), "recorded when it began");

    // A launch with a nested call counts as one launch, whether the nested call has its own id or the outer call's id.
    call(CallKind::Launch, 30, Some(30), 0);
    call(CallKind::Launch, 31, Some(32), 0);
    call(CallKind::Set { sync: true }, 33, Some(34), 0);
    let nested = drained().launches;
    let ids: Vec<_> = nested.iter().map(|launch| (launch.correlation.0, launch.within.0)).collect();
    assert_eq!(ids, [(30, 30), (31, 31), (32, 31), (33, 33), (34, 33)]);
    assert_eq!(nested[1].context, nested[2].context);

    // A launch that fails is counted, but not recorded.
    call(CallKind::Launch, 40, Some(41), 700);
    assert_eq!(drained().launches, []);
    let failed = capture::losses().find(|(loss, _)| *loss == gpuflame_model::record::Loss::LaunchesFailed);
    assert_eq!(failed.map(|(_, count)| count), Some(1));

    // If a call was entered but never returned, it does not hide the calls that follow.
    abandon(50);
    decode(51..53);
    let after: Vec<_> = drained().launches.iter().map(|launch| launch.correlation.0).collect();
    assert_eq!(after, [51, 52]);

    // Launches before a window form one range of ids, and launches after it form another range. The ids between the two
    // ranges belong to neither range.
    assert!(window::close());
    call(CallKind::Launch, 60, None, 0);
    assert!(window::open());
    decode(61..63);
    assert!(window::close());
    call(CallKind::Launch, 63, None, 0);
    assert!(window::open());
    let mut around = drained().ranges();
    around.sort_unstable();
    assert_eq!(around, [(60, 60, 1), (63, 63, 1)]);

    // In the steady state, launches allocate no memory, and no launch is lost. The times of launches are computed from
    // the calibration of the clock, which is available after the collector has run twice.
    capture::recalibrate_clock();
    thread::sleep(Duration::from_millis(5));
    let mut seen = 0;
    for round in 0..50u32 {
        capture::recalibrate_clock();
        let before = ALLOCATIONS.get();
        decode(1000 + round * 1000..2000 + round * 1000);
        prefill(100_000 + round * 1000..101_000 + round * 1000);
        let allocated = ALLOCATIONS.get() - before;
        assert_eq!(allocated, 0, "round {round}");
        let drained = drained();
        let new = if round == 0 { 2 } else { 0 };
        assert_eq!(drained.contexts.len(), new, "known stacks stay known");
        seen += drained.launches.len();
        capture::refill_chunks();
    }
    assert_eq!(seen, 50 * 2000);
    #[cfg(target_arch = "x86_64")]
    launches_of_python_allocate_nothing();
}

/// Launches below Python functions. Each launch has a leaf function that differs from that of the previous launch.
#[cfg(target_arch = "x86_64")]
fn launches_of_python_allocate_nothing() {
    use gpuflame_model::record::FrameKind;

    const DEPTHS: [i32; 4] = [7, 8, 7, 30];
    gpuflame_unwind::python::set_enabled(true);
    let evaluate = interpreter::evaluate();
    let mut ids = 200_000..200_100;
    for round in 0..20 {
        capture::recalibrate_clock();
        let before = ALLOCATIONS.get();
        for frames in DEPTHS {
            evaluate(frames, decode_these, (&raw mut ids).cast());
            ids = ids.end..ids.end + 100;
        }
        let allocated = ALLOCATIONS.get() - before;
        assert_eq!(allocated, 0, "round {round}");
        let drained = drained();
        assert_eq!(drained.launches.len(), 400);
        let new = if round == 0 { vec![7, 8, 30] } else { Vec::new() };
        let is_python = |frame: &&Frame| matches!(frame.kind(), FrameKind::Python { .. });
        let in_python = |(_, frames): &(ContextId, Vec<Frame>)| frames.iter().filter(is_python).count();
        assert_eq!(drained.contexts.iter().map(in_python).collect::<Vec<_>>(), new, "round {round}");
        capture::refill_chunks();
    }
    assert_eq!(gpuflame_unwind::python::off_reason(), None);
}

#[cfg(target_arch = "x86_64")]
extern "C" fn decode_these(ids: *mut std::ffi::c_void) {
    // SAFETY: the caller passes a pointer to a range of ids that outlives the call.
    decode(unsafe { (*ids.cast::<std::ops::Range<u32>>()).clone() });
}

/// Simulates an API call that is entered and never exits.
#[inline(never)]
fn abandon(id: u32) {
    deeper(&|| {
        let slot = Cell::new(0);
        Capture::enter(&make_call(CallKind::Launch, id, &slot, 0));
    });
}
