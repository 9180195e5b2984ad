//! CUDA streams and CUDA events. The simulated GPU only computes times: a stream stores the time at which its work will
//! be done, and an event stores the time at which it completes.

use crate::capture::Capture;
use crate::clock;
use crate::context::Context;
use crate::deps;
use crate::error::{self, CuError, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY};
use crate::graph_edges::Edge;
use crate::host_fn;
use crate::journal::Target;
use crate::schedule::{self, Line, Mark};
use crate::settings;
use crate::sync::lock;
use crate::thread;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// Object to which a CUstream handle points. Streams are never freed, so that a call with the handle of a destroyed
/// stream fails instead of crashing the process.
#[derive(Debug)]
pub struct Stream {
    magic: u64,
    /// Id of the stream in activity records: 7 for a CUDA context's default stream, and 13 or more for other streams.
    pub id: u32,
    /// CUDA context in which the stream's work runs.
    pub context: &'static Context,
    /// Whether this stream and the legacy default stream wait for each other.
    pub is_blocking: bool,
    /// Priority from [`GREATEST_PRIORITY`] to 0.
    pub priority: i32,
    alive: AtomicBool,
    ready: AtomicU64,
    /// With the stepped clock, the state at the end of the stream's queue.
    line: Mutex<Line>,
    /// Number of host functions on this stream that have not run yet.
    pub host_functions: AtomicU32,
    is_capturing: AtomicBool,
    capture: Mutex<Option<Arc<Capture>>>,
}

const MAGIC: u64 = u64::from_le_bytes(*b"stream\0\x01");
const DEFAULT_ID: u32 = 7;
/// Greatest stream priority of an H100. Smaller numbers are greater priorities.
pub const GREATEST_PRIORITY: i32 = -5;
static NEXT_ID: AtomicU32 = AtomicU32::new(13);

/// Stream that the handle 0 represents: the context's default stream or, in API functions whose names end in `_ptsz` or
/// `_ptds`, the thread's own default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// The context's default stream, whose id is 7.
    Context,
    /// The calling thread's own default stream.
    PerThread,
}

impl Stream {
    fn new(context: &'static Context, id: u32, priority: i32, is_blocking: bool) -> &'static Stream {
        let stream: &'static Stream = Box::leak(Box::new(Stream {
            magic: MAGIC,
            id,
            context,
            is_blocking,
            priority: priority.clamp(GREATEST_PRIORITY, 0),
            alive: AtomicBool::new(true),
            ready: AtomicU64::new(0),
            line: Mutex::default(),
            host_functions: AtomicU32::new(0),
            is_capturing: AtomicBool::new(false),
            capture: Mutex::new(None),
        }));
        context.add_stream(stream);
        stream
    }

    /// Creates a stream of this context.
    pub fn create(context: &'static Context, priority: i32, is_blocking: bool) -> &'static Stream {
        Stream::new(context, NEXT_ID.fetch_add(1, Relaxed), priority, is_blocking)
    }

    /// Returns the state at the end of the stream's queue, for the schedule.
    pub fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    /// Creates the default stream of a new context.
    pub fn default_of(context: &'static Context) -> &'static Stream {
        Stream::new(context, DEFAULT_ID, 0, true)
    }

    /// Returns the stream to which a program's handle refers, in the calling thread's current context.
    pub fn resolve(handle: *mut c_void, default: Default) -> Result<&'static Stream, CuError> {
        let context = thread::current().context().ok_or(INVALID_CONTEXT)?;
        Stream::resolve_in(context, handle, default)
    }

    /// Returns the stream to which a handle refers, in a given context.
    pub fn resolve_in(
        context: &'static Context,
        handle: *mut c_void,
        default: Default,
    ) -> Result<&'static Stream, CuError> {
        match (handle as usize, default) {
            (0, Default::Context) | (1, _) => Ok(context.default_stream()),
            (0, Default::PerThread) | (2, _) => Ok(Stream::own(context)),
            _ => Stream::of_handle(handle).ok_or(INVALID_HANDLE),
        }
    }

    /// Returns the calling thread's own default stream in this context.
    fn own(context: &'static Context) -> &'static Stream {
        let mut own = thread::current().own_streams.borrow_mut();
        if let Some((_, stream)) = own.iter().find(|(c, _)| std::ptr::eq(*c, context)) {
            return stream;
        }
        let stream = Stream::create(context, 0, true);
        own.push((context, stream));
        stream
    }

    fn of_handle(handle: *mut c_void) -> Option<&'static Stream> {
        let stream = handle.cast::<Stream>();
        if !stream.is_aligned() {
            return None;
        }
        // SAFETY: programs pass the result of cuStreamCreate, and streams are never freed.
        let stream = unsafe { &*stream };
        (stream.magic == MAGIC && stream.alive.load(Relaxed)).then_some(stream)
    }

    /// Returns the handle by which a program refers to this stream.
    pub fn handle(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Marks the stream as destroyed, so that its handle is invalid. GPU work that is still running continues.
    pub fn retire(&self) {
        self.alive.store(false, Relaxed);
    }

    /// Whether this is a context's legacy default stream (id 7), which cannot be captured.
    pub fn is_legacy_default(&self) -> bool {
        self.id == DEFAULT_ID
    }

    /// Returns the capture in which the stream takes part, if any.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        if !self.is_capturing.load(Relaxed) {
            return None;
        }
        lock(&self.capture).clone()
    }

    /// Makes the stream join a capture or, with `None`, leave its capture.
    pub fn set_capture(&self, capture: Option<Arc<Capture>>) {
        self.is_capturing.store(capture.is_some(), Relaxed);
        *lock(&self.capture) = capture;
    }

    /// Reserves `duration` ns on the stream, starting at `earliest` or later. Returns the start and end of the reserved
    /// time.
    pub fn book(&self, earliest: u64, duration: u64) -> (u64, u64) {
        self.book_by(earliest, |start| start + duration)
    }

    /// Reserves time for work whose end is computed from its start.
    pub fn book_by(&self, earliest: u64, end: impl Fn(u64) -> u64) -> (u64, u64) {
        let mut ready = self.ready.load(Relaxed);
        loop {
            let start = ready.max(earliest);
            let end = end(start).max(start);
            match self.ready.compare_exchange_weak(ready, end, Relaxed, Relaxed) {
                Ok(_) => {
                    self.context.note_busy(end);
                    return (start, end);
                }
                Err(now) => ready = now,
            }
        }
    }

    /// Returns the time at which all submitted work will be done.
    pub fn ready_at(&self) -> u64 {
        self.ready.load(Relaxed)
    }

    /// Prevents work that is submitted later from starting before `time`.
    pub fn hold_until(&self, time: u64) {
        self.ready.fetch_max(time, Relaxed);
    }

    /// Returns the time at which all submitted work is done, including the stepped clock's implicit waits.
    fn done_at(&'static self) -> u64 {
        if settings::get().stepped { schedule::head(self).time } else { self.ready_at() }
    }

    /// With the real or the stepped clock, waits for all submitted work and for all host functions.
    pub fn synchronize(&'static self) {
        clock::wait_until(self.done_at());
        host_fn::wait(|| self.host_functions.load(Relaxed) == 0);
    }

    /// Returns [`NOT_READY`] if the stream still has unfinished work.
    pub fn query(&'static self) -> Result<(), CuError> {
        if clock::is_ahead(self.done_at()) || self.host_functions.load(Relaxed) > 0 {
            Err(NOT_READY)
        } else {
            Ok(())
        }
    }
}

/// Object to which a CUevent handle points. The memory of destroyed CUDA events is reused for new events and never
/// freed.
#[derive(Debug)]
pub struct Event {
    magic: AtomicU64,
    /// Id of the event in activity records. The id is unique, even if a destroyed event had the same handle.
    id: AtomicU32,
    /// Id of the context in which the event was created.
    context: AtomicU32,
    /// Sequence number of the event's last record.
    sync_id: AtomicU64,
    /// Time at which the event completes, or 0 if it has not been recorded yet.
    time: AtomicU64,
    /// With the stepped clock: the GPU work after which the event completes, and the call that recorded the event.
    target: Mutex<Target>,
    /// Capture in which the event was last recorded, and the nodes that the event represents.
    capture: Mutex<Option<(Arc<Capture>, Vec<Edge>)>>,
}

const EVENT_MAGIC: u64 = u64::from_le_bytes(*b"event\0\0\x01");
static NEXT_EVENT_ID: AtomicU32 = AtomicU32::new(1);
static SPARE_EVENTS: Mutex<Vec<&'static Event>> = Mutex::new(Vec::new());

impl Event {
    /// Creates an event.
    pub fn create() -> &'static Event {
        let spare = lock(&SPARE_EVENTS).pop();
        let event = spare.unwrap_or_else(|| {
            let capture = Mutex::new(None);
            let long = || AtomicU64::new(0);
            let (id, context) = (AtomicU32::new(0), AtomicU32::new(0));
            let (sync_id, time, target) = (long(), long(), Mutex::default());
            Box::leak(Box::new(Event { magic: long(), id, context, sync_id, time, target, capture }))
        });
        event.id.store(NEXT_EVENT_ID.fetch_add(1, Relaxed), Relaxed);
        event.context.store(thread::current().context().map_or(0, |context| context.uid), Relaxed);
        event.sync_id.store(deps::NONE.into(), Relaxed);
        event.time.store(0, Relaxed);
        *lock(&event.target) = Target::default();
        event.magic.store(EVENT_MAGIC, Relaxed);
        event
    }

    /// Returns the event to which a handle points.
    pub fn of_handle(handle: *mut c_void) -> Result<&'static Event, CuError> {
        let event = handle.cast::<Event>();
        if event.is_null() || !event.is_aligned() {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: programs pass the result of cuEventCreate, and events are never freed.
        let event = unsafe { &*event };
        if event.magic.load(Relaxed) == EVENT_MAGIC { Ok(event) } else { Err(INVALID_HANDLE) }
    }

    /// Returns the handle by which a program refers to this event.
    pub fn handle(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Destroys the event, which makes its handle invalid.
    pub fn destroy(&'static self) {
        self.magic.store(0, Relaxed);
        lock(&SPARE_EVENTS).push(self);
    }

    /// Returns the id of the event in activity records.
    pub fn id(&self) -> u32 {
        self.id.load(Relaxed)
    }

    /// Returns the id of the CUDA context in which the event was created.
    pub fn context(&self) -> u32 {
        self.context.load(Relaxed)
    }

    /// Returns the sequence number of the event's last record; [`deps::NONE`] if the event was never recorded.
    pub fn sync_id(&self) -> u64 {
        self.sync_id.load(Relaxed)
    }

    /// Records the event on a stream. The event completes when the work that was submitted to the stream before it is
    /// done.
    pub fn record(&'static self, stream: &'static Stream) {
        let capture = stream.capture();
        if capture.is_none() {
            let head = if settings::get().stepped { schedule::head(stream) } else { Mark::default() };
            self.happen(
                stream,
                Mark { time: stream.ready_at().max(head.time).max(clock::now()), op: head.op },
            );
            self.sync_id.store(deps::recorded(self, stream), Relaxed);
        }
        let capture = capture.map(|capture| {
            let edges = capture.frontier(stream);
            (capture, edges)
        });
        *lock(&self.capture) = capture;
    }

    /// Makes the event complete at the time of `mark`, and stores the calling thread's API call as the call that
    /// recorded the event.
    pub fn happen(&self, stream: &'static Stream, mark: Mark) {
        self.time.store(mark.time, Relaxed);
        let record = Some((thread::current().correlation.get(), stream.id));
        *lock(&self.target) = Target { mark, record };
    }

    /// With the stepped clock, returns the work after which the event completes.
    pub fn target(&self) -> Target {
        *lock(&self.target)
    }

    /// Capture in which the event was last recorded, and the nodes that the event represents.
    pub fn capture(&self) -> Option<(Arc<Capture>, Vec<Edge>)> {
        lock(&self.capture).clone()
    }

    /// Returns the time at which the event completes; 0 if it was never recorded.
    pub fn time(&self) -> u64 {
        self.time.load(Relaxed)
    }

    /// With the real or the stepped clock, waits until the event has completed.
    pub fn synchronize(&self) {
        clock::wait_until(self.time());
    }

    /// Returns [`NOT_READY`] if the event has not completed yet.
    pub fn query(&self) -> Result<(), CuError> {
        if clock::is_ahead(self.time()) { Err(NOT_READY) } else { Ok(()) }
    }

    /// Returns the time in ms from this event to the event `later`.
    pub fn elapsed(&self, later: &Event) -> Result<f32, CuError> {
        if self.time() == 0 || later.time() == 0 {
            return Err(error::INVALID_HANDLE);
        }
        self.query().and(later.query())?;
        Ok((later.time() as i64 - self.time() as i64) as f32 / 1e6)
    }
}
