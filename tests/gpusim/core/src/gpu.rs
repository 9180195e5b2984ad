//! The simulated GPU. The start and the end of a kernel, copy or fill are computed when the program submits it. The
//! kernel, copy or fill is then written to the truth file and passed to libcupti.

use crate::clock;
use crate::error::{CuError, LAUNCH_OUT_OF_RESOURCES};
use crate::graph::What;
use crate::journal;
use crate::kernel::Kernel;
use crate::layout;
use crate::schedule::{self, Found, Placed, Shape};
use crate::settings;
use crate::stream::{Event, Stream};
use crate::table::{SWITCHES, with_hooks};
use crate::thread::{self, Meeting, Thread};
use crate::turn;
use crate::work::{Copy, Fate, Memory, NodeRun, Place, Work, WorkKind};
use std::sync::atomic::Ordering::Relaxed;

/// A kernel, copy or fill that an API function requests.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are those of [`Work`]
pub struct Order {
    pub kind: WorkKind,
    pub copy: Copy,
    pub source: Memory,
    pub target: Memory,
    pub asynchronous: bool,
    pub bytes: u64,
    /// Number of copies that were merged into this copy.
    pub copies: u64,
    pub duration: u64,
    pub kernel: Option<&'static Kernel>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub value: u32,
    pub peers: (Place, Place),
    /// Whether the launch has the attribute "programmatic stream serialization".
    pub programmatic: bool,
    /// CUDA event of the attribute "programmatic event", and whether the event completes when the kernel begins.
    pub event: Option<(&'static Event, bool)>,
}

const NOTHING: Order = Order {
    kind: WorkKind::Kernel,
    copy: Copy::None,
    source: Memory::Device,
    target: Memory::Device,
    asynchronous: true,
    bytes: 0,
    copies: 1,
    duration: 0,
    kernel: None,
    grid: [0; 3],
    block: [0; 3],
    shared_bytes: 0,
    value: 0,
    peers: (Place { device: 0, context: 0 }, Place { device: 0, context: 0 }),
    programmatic: false,
    event: None,
};

impl Order {
    /// Creates the [`Order`] for a kernel.
    pub fn kernel(kernel: &'static Kernel, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Order {
        Order { kernel: Some(kernel), duration: kernel.duration, grid, block, shared_bytes, ..NOTHING }
    }

    /// Creates the order for a copy within a device, to the host or from the host. `host` is the kind of memory on the
    /// host's side.
    pub fn memcpy(copy: Copy, host: Memory, bytes: u64, asynchronous: bool) -> Order {
        let (source, target) = layout::ends(copy, host);
        let duration = clock::memcpy_duration(bytes);
        Order { kind: WorkKind::Memcpy, copy, source, target, asynchronous, bytes, duration, ..NOTHING }
    }

    /// Creates the order for a copy between devices.
    pub fn peer(from: Place, to: Place, bytes: u64, asynchronous: bool) -> Order {
        let copy = Order::memcpy(Copy::PtoP, Memory::Device, bytes, asynchronous);
        Order { kind: WorkKind::MemcpyP2p, peers: (from, to), ..copy }
    }

    /// Creates the order for a memset.
    pub fn memset(bytes: u64, value: u32, target: Memory, asynchronous: bool) -> Order {
        let duration = clock::memset_duration(bytes);
        Order { kind: WorkKind::Memset, target, asynchronous, bytes, duration, value, ..NOTHING }
    }

    /// Returns the durations that the schedule needs to place this work.
    pub fn shape(&self) -> Shape {
        let trigger = self.kernel.map(|kernel| kernel.trigger.unwrap_or(u64::MAX));
        let programmatic = self.preamble().filter(|_| self.programmatic);
        Shape { duration: self.duration, trigger, programmatic }
    }

    /// Returns the duration for which a programmatically launched kernel runs before it waits for the previous kernel.
    pub fn preamble(&self) -> Option<u64> {
        self.kernel.map(|kernel| kernel.preamble.unwrap_or(self.duration))
    }
}

/// Submits GPU work to a stream. If the work is synchronous, waits until it has ended.
pub fn submit(stream: &'static Stream, order: Order) -> Result<(), CuError> {
    let thread = thread::current();
    thread.is_programmatic.set(order.programmatic || order.event.is_some());
    if let Some(capture) = stream.capture() {
        return capture.add(stream, What::Work(order));
    }
    if settings::get().stepped && order.kernel.is_some_and(|kernel| kernel.is_left_out) {
        thread.is_left_out.set(true);
        return Ok(());
    }
    if order.kind == WorkKind::Kernel {
        let fails = settings::get().faults.launch_fails();
        thread.tally.count_launch(fails);
        if fails {
            return Err(LAUNCH_OUT_OF_RESOURCES);
        }
    }
    if settings::get().stepped {
        submit_stepped(thread, stream, order);
    } else {
        let span = book(thread, stream, &order);
        run(stream, order, span, NodeRun::default(), true);
    }
    let least = settings::get().launch_ns;
    if least > 0 {
        clock::spin_until(thread.enter.get() + least);
    }
    if !order.asynchronous {
        stream.synchronize();
    }
    Ok(())
}

fn book(thread: &Thread, stream: &'static Stream, order: &Order) -> (u64, u64) {
    match thread.meeting.take() {
        None => stream.book(earliest(), order.duration),
        Some(Meeting { end, argument }) => {
            // Other threads may submit GPU work to the stream while `end` waits. In that case, the work that is
            // submitted here may start later than `start`.
            let start = stream.ready_at().max(earliest());
            let end = end(argument, start);
            stream.book_by(start, |start| end.max(start))
        }
    }
}

/// Places GPU work on the schedule of the stepped clock.
fn submit_stepped(thread: &Thread, stream: &'static Stream, order: Order) {
    let found = schedule::find(stream, order.programmatic);
    let mut placed = schedule::place(thread.enter.get(), earliest(), found, order.shape());
    if let Some(Meeting { end, argument }) = thread.meeting.take() {
        placed.end = turn::apart(|| end(argument, placed.begin)).max(placed.begin);
    }
    schedule::settle(stream, placed.done(), placed.trigger);
    if let Some((event, at_begin)) = order.event {
        let happens = if at_begin { placed.begin } else { placed.trigger.unwrap_or(placed.end) };
        event.happen(stream, schedule::Mark { time: happens, op: placed.op });
    }
    run_placed(stream, order, placed, NodeRun::default(), true);
}

/// Records GPU work that has been placed on the schedule, in the same way as other work, and logs its place in the
/// schedule.
pub fn run_placed(stream: &'static Stream, order: Order, placed: Placed, node: NodeRun, recorded: bool) {
    let mut work = run(stream, order, (placed.begin, placed.end), node, recorded);
    // The journal contains the schedule's times, not the shifted times of the activity records.
    let shift = work.enter - thread::current().enter.get();
    work.start -= shift;
    work.end -= shift;
    let place = (work.place.device, work.place.context, work.stream);
    journal::op(thread::current(), placed, place, work.kind.name(), node, Some(work));
}

/// Places a host function with this duration on the schedule of the stepped clock.
pub fn submit_host(stream: &'static Stream, duration: u64) {
    let placed = place_plain(stream, duration);
    schedule::settle(stream, placed.done(), None);
    note_plain(stream, placed, "host", NodeRun::default());
}

/// Logs placed work of a kind that has no activity records.
pub fn note_plain(stream: &'static Stream, placed: Placed, kind: &'static str, node: NodeRun) {
    let place = (stream.context.device, stream.context.uid, stream.id);
    journal::op(thread::current(), placed, place, kind, node, None);
}

fn place_plain(stream: &'static Stream, duration: u64) -> Placed {
    let found: Found = schedule::find(stream, false);
    let shape = Shape { duration, ..Shape::default() };
    schedule::place(thread::current().enter.get(), earliest(), found, shape)
}

/// Migrates pages of unified memory. Returns the times at which the migration begins and ends.
pub fn move_pages(stream: &'static Stream, duration: u64) -> (u64, u64) {
    if settings::get().stepped {
        let placed = place_plain(stream, duration);
        let span = (placed.begin, placed.end);
        schedule::settle(stream, placed.done(), None);
        note_plain(stream, placed, "pages", NodeRun::default());
        return span;
    }
    stream.book(clock::now() + clock::LAUNCH_LATENCY, duration)
}

/// Returns the earliest start of GPU work that is submitted now. The start is never in the past, because callbacks may
/// already have taken longer than the launch latency.
pub fn earliest() -> u64 {
    clock::now().max(thread::current().enter.get() + clock::LAUNCH_LATENCY)
}

/// Runs one node of a graph that was submitted as a whole; the node starts at `earliest` or later. Returns the node's
/// start and end. With `unrecorded`, no activity record is written for the node, because one record covers the whole
/// graph.
pub fn run_node(
    stream: &'static Stream,
    earliest: u64,
    order: Order,
    node: NodeRun,
    unrecorded: bool,
) -> (u64, u64) {
    let span = stream.book(earliest, order.duration);
    run(stream, order, span, node, !unrecorded);
    span
}

/// Records the run of a whole graph whose nodes have no activity records of their own.
pub fn note_graph(stream: &'static Stream, graph: u32, span: (u64, u64)) {
    let order = Order { kind: WorkKind::Graph, ..NOTHING };
    run(stream, order, span, NodeRun { graph, ..NodeRun::default() }, true);
}

/// Writes GPU work with known times to the truth file and, if a client enabled the work's activity kind, to an activity
/// record.
fn run(
    stream: &'static Stream,
    order: Order,
    (start, end): (u64, u64),
    node: NodeRun,
    recorded: bool,
) -> Work {
    let thread = thread::current();
    let settings = settings::get();
    let is_kernel = order.kind == WorkKind::Kernel;
    let device = stream.context.device;
    let shift = turn::shift();
    let skewed = |time: u64| (time + shift).wrapping_add_signed(settings.skew_ns * i64::from(device));
    let mut work = Work {
        kind: order.kind,
        copy: order.copy,
        source: order.source,
        target: order.target,
        asynchronous: order.asynchronous,
        fault: settings.faults.of_record(is_kernel),
        correlation: thread.correlation.get(),
        nested_correlation: thread.nested_correlation.get(),
        tid: thread.tid,
        place: Place { device, context: stream.context.uid },
        stream: stream.id,
        bytes: order.bytes,
        copies: order.copies,
        start: skewed(start),
        end: skewed(end),
        enter: thread.enter.get() + shift,
        site: thread.site.get(),
        api: thread.api.get(),
        kernel: order.kernel,
        grid: order.grid,
        block: order.block,
        shared_bytes: order.shared_bytes,
        value: order.value,
        peer_source: order.peers.0,
        peer_target: order.peers.1,
        graph: node,
        tally: 0,
    };
    let traced = recorded && layout::record_kind(order.kind, SWITCHES.kinds.load(Relaxed)).is_some();
    thread.tally.count_work(&mut work, traced);
    // The fate of an activity record is known here only if the record was dropped or never made. For a record that is
    // still in a buffer, libcupti reports the outcome later.
    if traced && let Some(fate @ (Fate::Dropped | Fate::Untraced)) = with_hooks(|h| (h.record)(&work)) {
        thread.tally.count_lost(&work, fate);
    }
    work
}
